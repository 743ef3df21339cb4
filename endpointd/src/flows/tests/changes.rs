//! Sessions, topologies and policies that change under running flows.

use super::*;

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
