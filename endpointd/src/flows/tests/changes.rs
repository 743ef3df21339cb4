//! Sessions, topologies and policies that change under running flows.

use super::*;
use crate::policy::cgroup::CgroupTree;

#[test]
fn flows_wait_for_the_first_session_and_follow_the_topology() {
    let mut table = FlowTable::new(8, GAP_NS, Policy::default());
    event(
        &mut table,
        conn(0, 0),
        0,
        FlowEventKind::Start(facts("10.0.2.1", 80)),
    );
    event(
        &mut table,
        conn(1, 0),
        0,
        FlowEventKind::Start(facts("10.0.4.1", 80)),
    );
    assert_eq!(actions(&mut table), []);
    table.on_established(usual(), PacingState::Pace);
    let [FlowAction::ClearAll, FlowAction::Start(known)] = actions(&mut table)[..] else {
        panic!()
    };
    table.on_rate(1, known.flow(), 1_000_000, LEASE_NS);
    actions(&mut table);

    // Host 2 gets another number, 10.0.4.1 becomes a host.
    table.set_network(network(&[
        (1, "10.0.1.1/32"),
        (9, "10.0.2.1/32"),
        (4, "10.0.4.1/32"),
    ]));
    let [FlowAction::Start(moved), FlowAction::Start(new)] = actions(&mut table)[..] else {
        panic!()
    };
    assert_eq!(
        (moved.flow(), moved.dst_host(), new.dst_host()),
        (known.flow(), 9, 4)
    );

    // It disappears from the topology: ended for the allocator, plain TCP in the kernel.
    table.set_network(network(&[(1, "10.0.1.1/32"), (4, "10.0.4.1/32")]));
    assert_eq!(
        actions(&mut table),
        [FlowAction::End(known.flow()), FlowAction::Clear(conn(0, 0))]
    );
    // And comes back, as another flowlet.
    table.set_network(usual());
    let actions = actions(&mut table);
    assert!(actions.contains(&FlowAction::Start(StartRecord::new(
        known.flow().next_generation(),
        2,
        known.path()
    ))));
}

#[test]
fn a_full_session_leaves_the_flow_alone_until_something_changes() {
    let mut table = established("");
    let report = start(&mut table, conn(0, 0), "10.0.2.1");
    table.start_refused(report.flow());
    assert_eq!((table.reported_count(), table.counters().refused), (0, 1));
    event(&mut table, conn(0, 0), 1, FlowEventKind::Close);
    assert_eq!(actions(&mut table), []);
}

#[test]
fn a_new_policy_applies_to_running_flows() {
    let mut table = established("");
    let report = start(&mut table, conn(0, 0), "10.0.2.1");
    let rule: RuleConfig = toml::from_str("weight = 4.0").unwrap();
    table.set_policy(Policy::new(&[rule]));
    let [FlowAction::Start(changed)] = actions(&mut table)[..] else {
        panic!()
    };
    assert_eq!(
        (changed.flow(), changed.weight()),
        (report.flow(), WeightCode::encode(4.0))
    );
}

#[test]
fn the_end_of_the_daemon_ends_every_flowlet() {
    let mut table = established("");
    let first = start(&mut table, conn(0, 0), "10.0.2.1");
    let second = start(&mut table, conn(5, 0), "10.0.2.1");
    table.end_all();
    table.end_all();
    assert_eq!(
        actions(&mut table),
        [
            FlowAction::End(first.flow()),
            FlowAction::End(second.flow())
        ]
    );
}

#[test]
fn a_rule_counts_each_flowlet_once() {
    let mut table = established("[[policy]]\ndst_port = 5201\nweight = 2.0\n");
    start(&mut table, conn(0, 0), "10.0.2.1");
    start(&mut table, conn(1, 0), "10.0.2.1");
    let other = FlowEventKind::Start(facts("10.0.2.1", 80));
    event(&mut table, conn(2, 0), 0, other);
    // Working them out again counts none of them twice.
    table.set_network(usual());
    assert_eq!(table.policy().matches(), [2]);
}

#[test]
fn the_reported_flows_are_listed_with_their_destinations_and_demands() {
    let mut table = established("[[policy]]\ndst_port = 5201\nmax_rate_mbps = 100.0\n");
    let limited = start(&mut table, conn(1, 0), "10.0.2.1").flow();
    let mapped = FlowEventKind::Start(facts("::ffff:10.0.3.9", 80));
    event(&mut table, conn(2, 0), 0, mapped);
    let [FlowAction::Start(free)] = actions(&mut table)[..] else {
        panic!("one start")
    };
    // Not for the allocator, and not open.
    let foreign = FlowEventKind::Start(facts("192.0.2.1", 80));
    event(&mut table, conn(3, 0), 0, foreign);
    let demand_bps = RateCode::encode(100_000_000).decode();
    let to = |address: &str| address.parse::<IpAddr>().unwrap();
    assert!(table.reported_flows().eq([
        (limited, 2, to("10.0.2.1"), Some(demand_bps)),
        (free.flow(), 3, to("10.0.3.9"), None),
    ]));
    assert_eq!(table.destination(limited), Some(to("10.0.2.1")));
    assert_eq!(table.destination(free.flow()), Some(to("10.0.3.9")));
    assert_eq!(table.destination(FlowId::new(4, 1)), None);
}

#[test]
fn a_new_gap_holds_for_pauses_from_then_on() {
    let mut table = established("");
    let flow = start(&mut table, conn(0, 0), "10.0.2.1").flow();
    table.set_idle_gap_ns(3 * GAP_NS);
    event(&mut table, conn(0, 0), 5, FlowEventKind::Idle);
    table.on_timeout(4 + 3 * GAP_NS);
    assert_eq!(actions(&mut table), []);
    table.on_timeout(5 + 3 * GAP_NS);
    assert_eq!(actions(&mut table)[0], FlowAction::End(flow));
}

/// A rule for a cgroup matches nothing until the cgroup is there.
#[test]
fn a_cgroup_that_appears_applies_to_running_flows() {
    use std::os::unix::fs::MetadataExt;
    let mount = tempfile::tempdir().unwrap();
    let tree = CgroupTree::at(mount.path());
    let mut table = established("[[policy]]\ncgroup = \"/batch\"\nweight = 4.0\n");
    assert_eq!(
        table.refresh_cgroups(&tree),
        [std::path::PathBuf::from("/batch")]
    );
    std::fs::create_dir(mount.path().join("batch")).unwrap();
    let mut inside = facts("10.0.2.1", 80);
    inside.cgroup_id = std::fs::metadata(mount.path().join("batch")).unwrap().ino();
    event(&mut table, conn(0, 0), 0, FlowEventKind::Start(inside));
    let [FlowAction::Start(before)] = actions(&mut table)[..] else {
        panic!("one start")
    };
    assert_eq!(before.weight(), WeightCode::CLASS_DEFAULT);
    assert_eq!(
        table.refresh_cgroups(&tree),
        Vec::<std::path::PathBuf>::new()
    );
    let [FlowAction::Start(after)] = actions(&mut table)[..] else {
        panic!("the change")
    };
    assert_eq!(after.weight(), WeightCode::encode(4.0));
}
