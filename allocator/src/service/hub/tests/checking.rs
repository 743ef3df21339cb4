//! Links that are not as they were told, from hosts' words to rates and reports.
//!
//! Hosts have 10 Gbit/s, of which rates fill 99 %.

use ratewright_proto::telemetry::{AccessUse, HostFaults, LinkUse};
use ratewright_topology::LinkId;

use super::HubWorld;
use super::shared::as_by_default;
use crate::engine::RateEngine as _;
use crate::link_check::{HostFault, LinkState};
use crate::service::hub::HubSettings;

const GBIT: u64 = 1_000_000_000;
const SENDERS: [&str; 3] = ["h1", "h2", "h5"];

impl HubWorld {
    /// Lets `tenths` of a second pass, with a report of the engine's loads in each.
    fn pass_tenths(&mut self, tenths: u32) {
        for _ in 0..tenths {
            self.now_ns += 98_000_000;
            if self.hub.wants_link_loads(self.now_ns) {
                let mut loads_bps = Vec::new();
                self.engine.link_loads(&mut loads_bps);
                self.hub.observe_link_loads(self.now_ns, &mut loads_bps);
            }
            self.pass(2_000_000);
        }
    }

    /// Three senders to h16, whose link carries this much; they tell of congestion if `congested`.
    fn tell_of_incast(&mut self, carried_bps: u64, congested: bool) {
        let carries = |carried_bps: u64| LinkUse {
            carried_bps: Some(carried_bps),
            ..LinkUse::default()
        };
        self.tell_use("h16", LinkUse::default(), carries(carried_bps));
        let receiver = self.host_number("h16");
        for sender in SENDERS {
            let uplink = LinkUse {
                congested: if congested {
                    vec![receiver]
                } else {
                    Vec::new()
                },
                ..carries(carried_bps / 3)
            };
            self.tell_use(sender, uplink, LinkUse::default());
        }
    }

    fn named(&self) -> Vec<(String, LinkState)> {
        let links = self.hub.checked_links(64);
        (links.into_iter())
            .map(|link| (link.name, link.evidence.state))
            .collect()
    }
}

fn incast(settings: HubSettings) -> HubWorld {
    let mut world = HubWorld::with_hosts(settings, &["h1", "h2", "h5", "h16"]);
    for sender in SENDERS {
        world.start(sender, 0, "h16");
    }
    world.tell_of_incast(9_900_000_000, false);
    world.pass_tenths(20);
    assert_eq!(world.named(), []);
    assert_eq!(
        world.hub.next_link_loads_ns(),
        None,
        "nothing is in question"
    );
    world
}

#[test]
fn a_link_that_carries_less_is_named_and_its_flows_get_what_it_carries() {
    let mut world = incast(as_by_default());
    world.tell_of_incast(8 * GBIT, true);
    world.pass_tenths(35);
    let named = [("leaf4->h16".to_owned(), LinkState::CarriesLess)];
    assert_eq!(world.named(), named);
    let sum_bps: u64 = (SENDERS.iter())
        .map(|sender| {
            world
                .rate(sender, ratewright_proto::FlowId::new(0, 1))
                .unwrap_or(0)
        })
        .sum();
    assert!((7 * GBIT..8 * GBIT).contains(&sum_bps), "{sum_bps}");
    let link = world.hub.link_named("leaf4", "h16").expect("a link");
    let evidence = world.hub.link_evidence(link);
    assert_eq!(evidence.carried_bps, Some(8e9));
    assert_eq!(evidence.told_bps, 1e10);
    assert!(evidence.lowered_bps.is_some_and(|bps| bps < 8e9));
    assert_eq!(world.hub.counts().links_named.get("carries_less"), 1);
    let counts = world.hub.totals().links_named;
    assert_eq!(counts[0], (LinkState::CarriesLess, 1));

    // It is repaired: probes meet no congestion any more.
    world.tell_of_incast(7_600_000_000, false);
    world.pass_tenths(100);
    assert_eq!(world.named(), []);
    assert_eq!(world.hub.capacity_of(link), 1e10);
    world.assert_no_link_overfull();
}

/// Between two hosts alone, both links are equally full.
#[test]
fn a_link_that_an_allowance_holds_up_is_named_and_not_the_one_at_the_other_end() {
    let mut world = HubWorld::with_hosts(as_by_default(), &["h1", "h16"]);
    world.start("h1", 0, "h16");
    world.pass_tenths(20);
    let carries = LinkUse {
        carried_bps: Some(6 * GBIT),
        ..LinkUse::default()
    };
    world.tell_use("h16", LinkUse::default(), carries.clone());
    let uplink = LinkUse {
        congested: vec![world.host_number("h16")],
        held_up: true,
        ..carries
    };
    world.tell_use("h1", uplink, LinkUse::default());
    world.pass_tenths(35);
    assert_eq!(
        world.named(),
        [("h1->leaf1".to_owned(), LinkState::CarriesLess)]
    );
    let link = world.hub.link_named("h1", "leaf1").expect("a link");
    let evidence = world.hub.link_evidence(link);
    assert!(evidence.by_allowance);
    assert!(evidence.lowered_bps.is_some_and(|bps| bps < 6e9));
}

#[test]
fn without_lowering_a_link_that_carries_less_is_named_alone() {
    let mut settings = as_by_default();
    settings.feeds.max_lowering = 0.0;
    let mut world = incast(settings);
    world.tell_of_incast(8 * GBIT, true);
    world.pass_tenths(35);
    assert_eq!(world.named().len(), 1);
    let link = world.hub.link_named("leaf4", "h16").expect("a link");
    assert_eq!(world.hub.capacity_of(link), 1e10);
}

#[test]
fn a_shared_link_is_named_with_its_cause_and_taken_back() {
    let mut world = incast(as_by_default());
    let others = LinkUse {
        carried_bps: Some(9_900_000_000),
        strangers: 1,
        stranger: "10.0.0.7".parse().ok(),
        ..LinkUse::default()
    };
    world.tell_use("h16", LinkUse::default(), others);
    world.pass_tenths(30);
    let named = world.hub.checked_links(64);
    assert_eq!(named.len(), 1);
    assert_eq!(named[0].evidence.state, LinkState::HasOthersTraffic);
    assert_eq!(named[0].cause.as_deref(), Some("unknown address 10.0.0.7"));
    world.tell_of_incast(9_900_000_000, false);
    world.pass_tenths(90);
    assert_eq!(world.named(), []);
}

/// TCP by itself fills a queue before it yields: that says nothing of capacities.
#[test]
fn the_congestion_of_an_observing_host_names_nothing() {
    let mut world = incast(as_by_default());
    let receiver = world.host_number("h16");
    let carries_less = LinkUse {
        carried_bps: Some(5 * GBIT),
        ..LinkUse::default()
    };
    world.tell_use("h16", LinkUse::default(), carries_less);
    for sender in SENDERS {
        world.tell_access_use(
            sender,
            AccessUse {
                observes: true,
                uplink: LinkUse {
                    congested: vec![receiver],
                    ..LinkUse::default()
                },
                ..AccessUse::default()
            },
        );
    }
    world.pass_tenths(50);
    assert_eq!(world.named(), []);
}

#[test]
fn another_topology_and_the_end_of_a_session_begin_anew() {
    for replaces in [false, true] {
        let mut world = incast(as_by_default());
        world.tell_of_incast(8 * GBIT, true);
        world.pass_tenths(35);
        assert_eq!(world.named().len(), 1);
        if replaces {
            world.replace_topology(super::clos());
        } else {
            let id = world.hub.session_of("h16").expect("a session");
            world.hub.drop_session(world.now_ns, id, "test");
        }
        world.pass_tenths(10);
        assert_eq!(world.named(), []);
        let link = world.hub.link_named("leaf4", "h16").expect("a link");
        assert_eq!(world.hub.capacity_of(link), 1e10);
        assert_eq!(world.hub.totals().links_lowered, 0);
        assert_eq!(world.hub.link_evidence(LinkId(u32::MAX)).told_bps, 0.0);
    }
}

#[test]
fn a_hosts_faults_are_listed_until_it_takes_them_back() {
    let mut world = HubWorld::with_hosts(as_by_default(), &["h1", "h2"]);
    let fault = |no_address| AccessUse {
        faults: HostFaults {
            no_address,
            other_congestion_control: false,
        },
        ..AccessUse::default()
    };
    world.tell_access_use("h2", fault(true));
    world.pass_tenths(10);
    let faults = world.hub.host_faults(64);
    assert_eq!(faults.len(), 1);
    assert_eq!(
        (&*faults[0].host, faults[0].fault.label()),
        ("h2", "address_not_in_prefix")
    );
    assert_eq!(world.hub.totals().hosts_named, [1, 0]);
    let view = world.hub.host_view(world.now_ns, "h2").expect("a host");
    assert_eq!(view.faults, [HostFault::AddressNotInPrefix]);
    world.tell_access_use("h2", fault(false));
    world.pass_tenths(10);
    assert_eq!(world.hub.host_faults(64), []);
}
