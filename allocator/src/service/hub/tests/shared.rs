//! Shared links: maxima beside traffic that nobody paces, with the engine's answers.
//!
//! Hosts have 10 Gbit/s, of which rates fill 99 %. The share of one of two flows is 4.95 Gbit/s,
//! and a maximum of twice the share is 9.9 Gbit/s. Codes of rates round by half a percent at most.

use ratewright_proto::codes::RateCode;
use ratewright_proto::telemetry::{AccessUse, LinkUse, Telemetry};
use ratewright_proto::{FlowId, FlowPath, StartRecord};
use ratewright_topology::LinkId;

use super::{HubWorld, settings};
use crate::feeds::FeedsConfig;
use crate::service::admin_request::ExternalLoad;
use crate::service::config::{HostPattern, PacingOrder, Rollout};
use crate::service::hub::HubSettings;
use crate::shared_links::{HEADROOM, HOLD_NS};

/// The daemons' readings are off, as they are by default in the service.
pub(super) fn as_by_default() -> HubSettings {
    HubSettings {
        feeds: FeedsConfig {
            receivers: false,
            credit: false,
            int: false,
            ..FeedsConfig::default()
        },
        ..settings()
    }
}

/// These hosts pace, and all others do what `others` says.
fn canary(hosts: &[&str], others: PacingOrder) -> HubSettings {
    let hosts = hosts.iter();
    HubSettings {
        rollout: Rollout {
            percent: 0.0,
            hosts: hosts
                .map(|host| HostPattern::parse(host).expect("a pattern"))
                .collect(),
            others,
            ..Rollout::default()
        },
        ..as_by_default()
    }
}

impl HubWorld {
    fn told_gbps(&self, host: &str, flow: FlowId) -> f64 {
        self.rate(host, flow).expect("rated") as f64 / 1e9
    }

    fn assert_told(&self, host: &str, flow: FlowId, gbps: f64) {
        let told = self.told_gbps(host, flow);
        assert!(
            (0.98 * gbps..=1.005 * gbps).contains(&told),
            "{host} is told {told} Gbit/s, and not {gbps}"
        );
    }

    pub(super) fn link(&self, from: &str, to: &str) -> LinkId {
        self.hub.network.link_named(from, to).expect("a link")
    }

    fn cause(&self, from: &str, to: &str) -> Option<String> {
        let shared = self.hub.report().shared_status(self.link(from, to));
        shared.map(|shared| shared.cause)
    }

    pub(super) fn host_number(&self, name: &str) -> u32 {
        self.hub.topology().host_by_name(name).expect("known").0
    }

    /// `host` tells who uses its own links.
    pub(super) fn tell_use(&mut self, host: &str, uplink: LinkUse, downlink: LinkUse) {
        self.tell_access_use(
            host,
            AccessUse {
                uplink,
                downlink,
                ..AccessUse::default()
            },
        );
    }

    pub(super) fn tell_access_use(&mut self, host: &str, access_use: AccessUse) {
        let telemetry = Telemetry {
            access_use: Some(Box::new(access_use)),
            ..Telemetry::default()
        };
        let session = &mut self.host(host).session;
        session.send_telemetry(telemetry).expect("a session");
        self.settle();
    }

    /// `host` tells of these hosts as senders.
    fn tell_senders_by_name(&mut self, host: &str, senders: &[&str]) {
        let hosts = senders.iter().map(|name| self.host_number(name)).collect();
        let downlink = LinkUse {
            hosts,
            ..LinkUse::default()
        };
        self.tell_use(host, LinkUse::default(), downlink);
    }

    /// Asserts that rates fill at most the capacity of a link that is not shared, and twice that of
    /// one that is.
    fn assert_within_headroom(&self) {
        let topology = self.hub.topology();
        let mut loads = vec![0.0; topology.links().len()];
        for (name, host) in &self.hosts {
            let source = topology.host_by_name(name).expect("a host");
            for state in host.session.flows() {
                let links =
                    super::super::flows::links(topology, source, &state.record).expect("a path");
                for link in links {
                    loads[link as usize] += state.rate_bps.unwrap_or(0) as f64;
                }
            }
        }
        for (link, load_bps) in topology.links().iter().zip(loads) {
            let headroom = if self.hub.report().shared_status(link.id).is_some() {
                HEADROOM
            } else {
                1.0
            };
            let most_bps = headroom * topology.effective_capacity_bps(link.id) as f64;
            assert!(load_bps <= most_bps, "{link:?} carries {load_bps}");
        }
    }
}

fn stranger() -> LinkUse {
    LinkUse {
        strangers: 1,
        stranger: "10.0.0.7".parse().ok(),
        ..LinkUse::default()
    }
}

#[test]
fn a_pacing_host_beside_an_observing_one_is_told_twice_its_share_until_the_other_ends() {
    let hosts = ["h1", "h2", "h16"];
    let mut world = HubWorld::with_hosts(canary(&["h1"], PacingOrder::Observe), &hosts);
    let paced = world.start("h1", 0, "h16");
    world.settle();
    world.assert_told("h1", paced, 9.9);
    assert_eq!(world.hub.network.shared.count(), 0, "nobody else is there");

    let observed = world.start("h2", 0, "h16");
    let third = world.start("h1", 1, "h16");
    world.settle();
    // A third of the link is 3.3.
    for (host, flow) in [("h1", paced), ("h1", third), ("h2", observed)] {
        let twice = if host == "h1" { 4.95 } else { 9.9 };
        // The two of h1 meet at h1's own uplink, too, which is not shared.
        world.assert_told(host, flow, twice);
    }
    world.end("h1", third);
    world.settle();
    world.assert_told("h1", paced, 9.9);
    assert_eq!(
        world.cause("leaf4", "h16").as_deref(),
        Some("observing host h2")
    );
    assert_eq!(world.cause("h1", "leaf1"), None);
    world.assert_within_headroom();

    let two = world.start("h1", 2, "h15");
    world.settle();
    // On h1's own uplink the two share 9.9 exactly.
    world.assert_told("h1", paced, 4.95);
    world.assert_told("h1", two, 4.95);
    world.end("h1", two);
    world.end("h2", observed);
    world.pass(HOLD_NS / 2);
    assert_eq!(
        world.cause("leaf4", "h16").as_deref(),
        Some("observing host h2"),
        "for a second more"
    );
    world.pass(HOLD_NS);
    assert_eq!(world.cause("leaf4", "h16"), None);
    assert_eq!(world.hub.network.shared.count(), 0);
    let more = world.start("h1", 3, "h16");
    world.settle();
    world.assert_told("h1", paced, 4.95);
    world.assert_told("h1", more, 4.95);
    world.assert_no_link_overfull();
}

#[test]
fn four_of_an_observing_host_leave_a_pacing_one_twice_a_fifth() {
    for others in [PacingOrder::Observe, PacingOrder::Release] {
        let hosts = ["h1", "h5", "h6", "h16"];
        let mut world = HubWorld::with_hosts(canary(&["h1"], others), &hosts);
        let paced = world.start("h1", 0, "h16");
        for slot in 0..2 {
            world.start("h5", slot, "h16");
            world.start("h6", slot, "h16");
        }
        world.settle();
        world.assert_told("h1", paced, 2.0 * 9.9 / 5.0);
        world.assert_within_headroom();
    }
}

#[test]
fn where_nobody_paces_the_rates_shown_are_those_of_a_network_that_all_pace() {
    let hosts = ["h1", "h2", "h16"];
    let mut world = HubWorld::with_hosts(canary(&[], PacingOrder::Observe), &hosts);
    let one = world.start("h1", 0, "h16");
    let two = world.start("h2", 0, "h16");
    world.settle();
    world.tell_senders_by_name("h16", &["h1", "h2", "h9"]);
    world.assert_told("h1", one, 4.95);
    world.assert_told("h2", two, 4.95);
    assert_eq!(world.hub.network.shared.count(), 0);
    world.assert_no_link_overfull();
}

#[test]
fn a_sender_that_no_session_proves_makes_its_receivers_link_shared_while_it_sends() {
    let mut world = HubWorld::with_hosts(as_by_default(), &["h1", "h2", "h16"]);
    let one = world.start("h1", 0, "h16");
    let two = world.start("h2", 0, "h16");
    world.settle();
    world.assert_told("h1", one, 4.95);
    world.tell_senders_by_name("h16", &["h1", "h2"]);
    assert_eq!(world.cause("leaf4", "h16"), None, "both pace");

    let causes = [
        (
            LinkUse {
                hosts: vec![world.host_number("h3")],
                ..LinkUse::default()
            },
            "host h3 without a session",
        ),
        (stranger(), "unknown address 10.0.0.7"),
        (
            LinkUse {
                udp: true,
                ..LinkUse::default()
            },
            "UDP",
        ),
    ];
    for (downlink, cause) in causes {
        world.tell_use("h16", LinkUse::default(), downlink);
        assert_eq!(world.cause("leaf4", "h16").as_deref(), Some(cause));
        // Of three flows each may have two thirds of half of the link, and more.
        world.assert_told("h1", one, 9.9);
        world.assert_told("h2", two, 9.9);
        world.assert_within_headroom();
        world.tell_use("h16", LinkUse::default(), LinkUse::default());
        world.pass(HOLD_NS);
        assert_eq!(world.cause("leaf4", "h16"), None);
        world.assert_told("h1", one, 4.95);
        world.assert_no_link_overfull();
    }
}

#[test]
fn a_sender_that_gets_a_session_is_managed_from_then_on() {
    let mut world = HubWorld::with_hosts(as_by_default(), &["h1", "h16"]);
    world.start("h1", 0, "h16");
    world.settle();
    world.tell_senders_by_name("h16", &["h1", "h2"]);
    assert_eq!(
        world.cause("leaf4", "h16").as_deref(),
        Some("host h2 without a session")
    );
    world.connect_all(&["h2"]);
    world.pass(HOLD_NS);
    assert_eq!(world.cause("leaf4", "h16"), None);
    let id = world.hosts["h2"].id.expect("a session");
    world.hub.remove_session(world.now_ns, id, "test");
    assert!(world.cause("leaf4", "h16").is_some());
    // What the receiver told ends with its session.
    let id = world.hosts["h16"].id.expect("a session");
    world.hub.remove_session(world.now_ns, id, "test");
    world.pass(HOLD_NS);
    assert_eq!(world.hub.network.shared.count(), 0);
}

#[test]
fn a_host_cannot_make_other_hosts_links_shared() {
    let mut world = HubWorld::with_hosts(as_by_default(), &["h1", "h2", "h5", "h6"]);
    let flows = [
        ("h1", world.start("h1", 0, "h6")),
        ("h5", world.start("h5", 0, "h6")),
    ];
    // The liar's own links carry a paced flow, too.
    world.start("h2", 0, "h5");
    world.settle();
    let everything = LinkUse {
        hosts: (0..16).collect(),
        strangers: u32::MAX,
        stranger: "10.0.0.7".parse().ok(),
        udp: true,
        ..LinkUse::default()
    };
    world.tell_use("h2", everything.clone(), everything);
    for link in world.hub.topology().links() {
        let is_own = link.id == world.link("h2", "leaf1") || link.id == world.link("leaf1", "h2");
        if !is_own {
            assert_eq!(world.hub.report().shared_status(link.id), None, "{link:?}");
        }
    }
    assert_eq!(world.hub.network.shared.count(), 1, "its uplink");
    for (host, flow) in flows {
        world.assert_told(host, flow, 4.95);
    }
    world.assert_within_headroom();
}

#[test]
fn a_daemon_that_is_configured_to_observe_counts_as_observing() {
    let mut world = HubWorld::with_hosts(as_by_default(), &["h1", "h2", "h16"]);
    let one = world.start("h1", 0, "h16");
    let two = world.start("h2", 0, "h16");
    world.settle();
    world.assert_told("h1", one, 4.95);
    let observes = |observes| AccessUse {
        observes,
        ..AccessUse::default()
    };
    world.tell_access_use("h2", observes(true));
    world.assert_told("h1", one, 9.9);
    assert_eq!(
        world.cause("leaf4", "h16").as_deref(),
        Some("observing host h2")
    );
    let view = world
        .hub
        .report()
        .host_view(world.now_ns, "h2")
        .expect("a host");
    assert_eq!(view.pacing, PacingOrder::Observe);
    assert_eq!(view.why, "its daemon is configured to observe");
    world.tell_access_use("h2", observes(false));
    world.pass(HOLD_NS);
    world.assert_told("h1", one, 4.95);
    world.assert_told("h2", two, 4.95);
    assert_eq!(world.hub.network.shared.count(), 0);
}

#[test]
fn a_release_of_one_host_relaxes_the_links_of_its_flows_and_its_return_tightens_them() {
    let mut world = HubWorld::with_hosts(as_by_default(), &["h1", "h2", "h16"]);
    let one = world.start("h1", 0, "h16");
    world.start("h2", 0, "h16");
    world.settle();
    let now_ns = world.now_ns;
    let released = world.hub.set_host_released(now_ns, "h2", true);
    assert!(released.is_ok());
    world.settle();
    world.assert_told("h1", one, 9.9);
    assert_eq!(
        world.cause("leaf4", "h16").as_deref(),
        Some("released host h2")
    );
    let now_ns = world.now_ns;
    assert!(world.hub.set_host_released(now_ns, "h2", false).is_ok());
    world.pass(HOLD_NS + 20_000_000);
    world.assert_told("h1", one, 4.95);
    // The kill switch leaves nothing to relax.
    let now_ns = world.now_ns;
    world.hub.set_released(now_ns, true);
    world.pass(HOLD_NS + 20_000_000);
    assert_eq!(world.hub.network.shared.count(), 0);
}

#[test]
fn a_flow_of_an_observing_host_that_hardly_sends_leaves_links_as_they_are() {
    let hosts = ["h1", "h2", "h16"];
    let mut world = HubWorld::with_hosts(canary(&["h1"], PacingOrder::Observe), &hosts);
    let paced = world.start("h1", 0, "h16");
    let to = world.host_number("h16");
    let record = StartRecord::new(FlowId::new(0, 1), to, FlowPath::Hash(0));
    let demanding = |bps| record.with_demand(RateCode::encode(bps));
    world.start_record("h2", demanding(50_000_000));
    world.settle();
    assert_eq!(world.cause("leaf4", "h16"), None);
    world.assert_told("h1", paced, 9.85);
    world.start_record("h2", demanding(3_000_000_000));
    world.settle();
    assert!(world.cause("leaf4", "h16").is_some());
    world.start_record("h2", demanding(60_000_000));
    world.pass(HOLD_NS + 20_000_000);
    assert_eq!(world.cause("leaf4", "h16"), None);
    world.assert_no_link_overfull();
}

#[test]
fn what_an_operator_tells_of_a_link_wins_over_headroom() {
    let mut world = HubWorld::with_hosts(as_by_default(), &["h1", "h2", "h16"]);
    let one = world.start("h1", 0, "h16");
    world.start("h2", 0, "h16");
    world.tell_use("h16", LinkUse::default(), stranger());
    world.assert_told("h1", one, 9.9);
    let tell = |world: &mut HubWorld, load_bps, flows, for_ms| {
        let load = ExternalLoad {
            from: "leaf4".to_owned(),
            to: "h16".to_owned(),
            load_bps,
            flows,
            for_ms,
        };
        let now_ns = world.now_ns;
        assert!(
            world
                .hub
                .network_mut()
                .set_external_load(now_ns, &load)
                .is_ok()
        );
        world.settle();
    };
    tell(&mut world, 2_000_000_000, 0.0, None);
    world.assert_told("h1", one, 0.99 * 8.0 / 2.0);
    let shared = world.hub.report().shared_status(world.link("leaf4", "h16"));
    assert_eq!(shared.expect("still shared").headroom, 1.0);
    tell(&mut world, 0, 1.0, None);
    world.assert_told("h1", one, 3.3);
    tell(&mut world, 0, 0.0, None);
    world.assert_told("h1", one, 9.9);
    // One that expires by itself gives the headroom back, too.
    tell(&mut world, 2_000_000_000, 0.0, Some(100));
    world.assert_told("h1", one, 0.99 * 8.0 / 2.0);
    world.pass(100_000_000);
    world.assert_told("h1", one, 9.9);
    world.assert_within_headroom();
}

/// Of feeds' settings a shared link keeps its exact capacity, unless flows that do not pace are
/// known one by one.
#[test]
fn without_headroom_for_what_hosts_tell_the_link_is_shared_and_its_rates_are_exact() {
    let mut settings = as_by_default();
    let mut world = HubWorld::with_hosts(settings.clone(), &["h1", "h2", "h16"]);
    let one = world.start("h1", 0, "h16");
    world.start("h2", 0, "h16");
    world.tell_use("h16", LinkUse::default(), stranger());
    world.assert_told("h1", one, 9.9);
    settings.feeds.shared = false;
    let now_ns = world.now_ns;
    world.hub.reconfigure(now_ns, settings.clone());
    world.settle();
    let shared = |world: &HubWorld| world.hub.report().shared_status(world.link("leaf4", "h16"));
    world.assert_told("h1", one, 4.95);
    let status = shared(&world).expect("it is shared all the same");
    assert_eq!(
        (&*status.cause, status.headroom),
        ("unknown address 10.0.0.7", 1.0)
    );
    let observes = |observes| AccessUse {
        observes,
        ..AccessUse::default()
    };
    world.tell_access_use("h2", observes(true));
    world.assert_told("h1", one, 9.9);
    world.tell_access_use("h2", observes(false));
    world.pass(HOLD_NS + 20_000_000);
    world.assert_told("h1", one, 4.95);
    assert_eq!(shared(&world).map(|status| status.headroom), Some(1.0));
    settings.feeds.shared = true;
    let now_ns = world.now_ns;
    world.hub.reconfigure(now_ns, settings);
    world.settle();
    world.assert_told("h1", one, 9.9);
}

#[test]
fn a_new_engine_and_a_new_topology_know_the_shared_links_of_before() {
    let hosts = ["h1", "h2", "h16"];
    let mut world = HubWorld::with_hosts(canary(&["h1"], PacingOrder::Observe), &hosts);
    let paced = world.start("h1", 0, "h16");
    let observed = world.start("h2", 0, "h15");
    world.tell_use("h16", LinkUse::default(), stranger());
    let second = world.start("h2", 1, "h16");
    world.settle();
    world.assert_told("h1", paced, 9.9);
    world.replace_topology(super::clos());
    world.settle();
    world.assert_told("h1", paced, 9.9);
    world.end("h2", observed);
    world.end("h2", second);
    world.pass(HOLD_NS + 20_000_000);
    assert_eq!(
        world.cause("leaf4", "h16").as_deref(),
        Some("unknown address 10.0.0.7")
    );
    world.end("h1", paced);
    world.pass(HOLD_NS + 20_000_000);
    assert_eq!(world.hub.network.shared.count(), 0);
}
