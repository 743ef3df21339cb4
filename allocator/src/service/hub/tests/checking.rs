//! Links that are not as they were told, from hosts' words to rates and reports.
//!
//! Hosts have 10 Gbit/s, of which rates fill 99 %.

use ratewright_proto::telemetry::{AccessUse, HostFaults, LinkUse};
use ratewright_proto::{FlowId, FlowPath, StartRecord};
use ratewright_topology::{Frames, LinkId};

use super::HubWorld;
use super::shared::as_by_default;
use crate::engine::{EngineStats, RateEngine as _};
use crate::link_check::{HostFault, LinkState};
use crate::service::hub::HubSettings;

const GBIT: u64 = 1_000_000_000;
const SENDERS: [&str; 3] = ["h1", "h2", "h5"];

impl HubWorld {
    /// Lets `tenths` of a second pass, with a report of the engine's loads in each.
    fn pass_tenths(&mut self, tenths: u32) {
        for _ in 0..tenths {
            self.now_ns += 98_000_000;
            if self.hub.network().wants_link_loads(self.now_ns) {
                let mut loads_bps = Vec::new();
                self.engine.link_loads(&mut loads_bps);
                self.hub
                    .network_mut()
                    .observe_link_loads(self.now_ns, &mut loads_bps);
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
        let links = self.hub.report().checked_links(64);
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
        world.hub.network().next_link_loads_ns(),
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
        .map(|sender| world.rate(sender, FlowId::new(0, 1)).unwrap_or(0))
        .sum();
    assert!((7 * GBIT..8 * GBIT).contains(&sum_bps), "{sum_bps}");
    let link = world.link("leaf4", "h16");
    let evidence = world.hub.report().link_evidence(link);
    assert_eq!(evidence.carried_bps, Some(8e9));
    assert_eq!(evidence.told_bps, 1e10);
    assert!(evidence.lowered_bps.is_some_and(|bps| bps < 8e9));
    assert_eq!(world.hub.counts().links_named.get("carries_less"), 1);
    let counts = world.hub.report().totals().links_named;
    assert_eq!(counts[0], (LinkState::CarriesLess, 1));

    // It is repaired: probes meet no congestion any more.
    world.tell_of_incast(7_600_000_000, false);
    world.pass_tenths(100);
    assert_eq!(world.named(), []);
    assert_eq!(world.hub.network.capacity_of(link), 1e10);
    world.assert_no_link_overfull();
}

/// A flow of 0.1 Gbit/s behind a queue of its host claims half of the link by turns, and leaves it.
/// A bulk flow carries all that it is handed out; in all, less is carried than was handed out.
#[test]
fn claims_that_come_and_go_name_no_link_of_a_receiver_that_serves_the_others() {
    for phase in 0..5 {
        let mut world = HubWorld::with_hosts(as_by_default(), &["h1", "h2", "h16"]);
        let receiver = world.host_number("h16");
        world.start("h2", 0, "h16");
        let carries = |carried_bps: u64| LinkUse {
            carried_bps: Some(carried_bps),
            ..LinkUse::default()
        };
        for tenth in 0..80 {
            let claims = (tenth + phase) % 5 < 2;
            let demand_bps = (!claims).then_some(GBIT / 10);
            world.demand("h1", FlowId::new(0, 1), "h16", demand_bps);
            if tenth % 5 == 0 {
                world.tell_use("h16", LinkUse::default(), carries(8 * GBIT));
                let uplink = LinkUse {
                    congested: vec![receiver],
                    ..carries(GBIT / 10)
                };
                world.tell_use("h1", uplink, LinkUse::default());
                world.tell_use("h2", carries(7_900_000_000), LinkUse::default());
            }
            world.pass_tenths(1);
            assert_eq!(world.named(), [], "after {tenth} tenths, phase {phase}");
        }
    }
}

/// Two pairs of hosts of two racks are told to cross these spines, and share one.
#[test]
fn flows_that_share_a_link_which_they_are_not_told_to_share_have_a_wrong_path() {
    for (spines, state) in [
        ([0, 1], LinkState::WrongPath),
        ([1, 1], LinkState::CarriesLess),
    ] {
        let pairs = [("h1", "h5"), ("h2", "h6")];
        let mut world = HubWorld::with_hosts(as_by_default(), &["h1", "h2", "h5", "h6"]);
        for ((from, to), spine) in pairs.into_iter().zip(spines) {
            let to = world.host_number(to);
            let path = FlowPath::Explicit(spine);
            world.start_record(from, StartRecord::new(FlowId::new(0, 1), to, path));
        }
        let tell = |world: &mut HubWorld, carried_bps: u64, is_congested: bool| {
            let carries = LinkUse {
                carried_bps: Some(carried_bps),
                ..LinkUse::default()
            };
            for (from, to) in pairs {
                world.tell_use(to, LinkUse::default(), carries.clone());
                let congested = is_congested.then(|| world.host_number(to));
                let uplink = LinkUse {
                    congested: congested.into_iter().collect(),
                    ..carries.clone()
                };
                world.tell_use(from, uplink, LinkUse::default());
            }
        };
        tell(&mut world, 9_900_000_000, false);
        world.pass_tenths(20);
        assert_eq!(world.named(), []);
        tell(&mut world, 5 * GBIT, true);
        world.pass_tenths(35);
        let mut expected: Vec<(String, LinkState)> = (spines.into_iter())
            .flat_map(|spine| {
                let spine = spine + 1;
                [
                    format!("leaf1->spine{spine}"),
                    format!("spine{spine}->leaf2"),
                ]
            })
            .map(|link| (link, state))
            .collect();
        expected.sort();
        expected.dedup();
        let mut named = world.named();
        named.sort();
        assert_eq!(named, expected);
        tell(&mut world, 9_900_000_000, false);
        world.pass_tenths(70);
        assert_eq!(world.named(), []);
        assert_eq!(world.hub.report().totals().links_lowered, 0);
    }
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
    let link = world.link("h1", "leaf1");
    let evidence = world.hub.report().link_evidence(link);
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
    let link = world.link("leaf4", "h16");
    assert_eq!(world.hub.network.capacity_of(link), 1e10);
}

#[test]
fn a_shared_link_is_named_with_its_cause_and_taken_back() {
    // Headroom is off where feeds are on, and the name is none of its business.
    for has_headroom in [true, false] {
        let mut settings = as_by_default();
        settings.feeds.shared = has_headroom;
        let mut world = incast(settings);
        let others = LinkUse {
            carried_bps: Some(9_900_000_000),
            strangers: 1,
            stranger: "10.0.0.7".parse().ok(),
            ..LinkUse::default()
        };
        world.tell_use("h16", LinkUse::default(), others);
        world.pass_tenths(30);
        let named = world.hub.report().checked_links(64);
        assert_eq!(named.len(), 1);
        assert_eq!(named[0].evidence.state, LinkState::HasOthersTraffic);
        assert_eq!(named[0].cause.as_deref(), Some("unknown address 10.0.0.7"));
        world.tell_of_incast(9_900_000_000, false);
        world.pass_tenths(90);
        assert_eq!(world.named(), []);
    }
}

/// Returns all that is logged while `act` runs.
fn logged(act: impl FnOnce()) -> String {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let log = file.reopen().expect("the same file");
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(log)
        .finish();
    tracing::subscriber::with_default(subscriber, act);
    std::fs::read_to_string(file.path()).expect("text")
}

#[test]
fn the_log_has_a_line_for_each_name_and_one_for_its_end() {
    let log = logged(|| {
        let mut world = incast(as_by_default());
        let others = LinkUse {
            carried_bps: Some(9_900_000_000),
            udp: true,
            ..LinkUse::default()
        };
        world.tell_use("h16", LinkUse::default(), others);
        world.pass_tenths(30);
        world.tell_of_incast(9_900_000_000, false);
        world.pass_tenths(90);
    });
    let lines = |log: &str, part: &str| log.lines().filter(|line| line.contains(part)).count();
    let (named, ended) = (
        "a link is not as the allocator was told",
        "a link is named no more",
    );
    assert_eq!(lines(&log, "leaf4->h16"), 2, "{log}");
    assert_eq!((lines(&log, named), lines(&log, ended)), (1, 1), "{log}");

    // Another topology ends names, too.
    let log = logged(|| {
        let mut world = incast(as_by_default());
        world.tell_of_incast(8 * GBIT, true);
        world.pass_tenths(35);
        let faults = HostFaults {
            no_address: true,
            ..HostFaults::default()
        };
        world.tell_access_use(
            "h16",
            AccessUse {
                faults,
                downlink: LinkUse {
                    carried_bps: Some(8 * GBIT),
                    ..LinkUse::default()
                },
                ..AccessUse::default()
            },
        );
        world.pass_tenths(10);
        world.replace_topology(super::clos());
    });
    assert_eq!(lines(&log, "leaf4->h16"), 2, "{log}");
    assert_eq!((lines(&log, named), lines(&log, ended)), (1, 1), "{log}");
    assert_eq!(lines(&log, "a host has a fault"), 2, "{log}");
    assert_eq!(lines(&log, "a host has a fault no more"), 1, "{log}");
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
        let link = world.link("leaf4", "h16");
        assert_eq!(world.hub.network.capacity_of(link), 1e10);
        assert_eq!(world.hub.report().totals().links_lowered, 0);
        assert_eq!(
            world.hub.report().link_evidence(LinkId(u32::MAX)).told_bps,
            0.0
        );
    }
}

/// Of small frames in tunnels, the line carries an eighth more than what rates count.
#[test]
fn a_device_of_the_line_rate_that_was_told_is_right_whatever_its_frames_carry_beside() {
    let topology = super::clos().with_frames(Frames::of(576, 88));
    let mut world = HubWorld::of(as_by_default(), topology);
    world.connect_all(&["h1"]);
    let tell = |world: &mut HubWorld, speed_bps| {
        let link = LinkUse {
            speed_bps,
            ..LinkUse::default()
        };
        world.tell_use("h1", link.clone(), link);
        world.pass_tenths(80);
    };
    tell(&mut world, 10 * GBIT);
    assert_eq!(world.named(), []);
    for (speed_bps, state) in [
        (9 * GBIT, LinkState::CarriesLess),
        (12 * GBIT, LinkState::CarriesMore),
    ] {
        tell(&mut world, speed_bps);
        let links = ["h1->leaf1", "leaf1->h1"];
        assert_eq!(world.named(), links.map(|link| (link.to_owned(), state)));
    }
}

/// A change that reaches a whole fleet fills the lists.
#[test]
fn status_counts_the_faults_and_links_that_its_lists_have_no_room_for() {
    let hosts = ["h1", "h2", "h3"];
    let mut world = HubWorld::with_hosts(as_by_default(), &hosts);
    for host in hosts {
        let slow = LinkUse {
            speed_bps: GBIT,
            ..LinkUse::default()
        };
        world.tell_access_use(
            host,
            AccessUse {
                uplink: slow.clone(),
                downlink: slow,
                faults: HostFaults {
                    no_address: true,
                    other_congestion_control: true,
                    ..HostFaults::default()
                },
                ..AccessUse::default()
            },
        );
    }
    world.pass_tenths(30);
    assert_eq!(world.hub.report().host_faults(2).len(), 2);
    assert_eq!(world.hub.report().checked_links(2).len(), 2);
    let status = world.hub.report().status(&EngineStats::default());
    assert_eq!(status.hosts_not_as_told_total, 6);
    assert_eq!(status.links_not_as_told_total, 6);
}

/// No flow leads an operator to a link at rest.
#[test]
fn a_view_of_a_host_has_the_evidence_of_its_own_links_though_it_has_no_flow() {
    let mut world = HubWorld::with_hosts(as_by_default(), &["h1", "h2"]);
    let slow = LinkUse {
        carried_bps: Some(0),
        speed_bps: GBIT,
        ..LinkUse::default()
    };
    world.tell_use("h2", slow.clone(), slow);
    world.pass_tenths(30);
    let links_of = |world: &HubWorld, host: &str| -> Vec<(String, LinkState, Option<f64>)> {
        let view = world
            .hub
            .report()
            .host_view(world.now_ns, host)
            .expect("a host");
        (view.links.into_iter())
            .map(|link| (link.name, link.evidence.state, link.evidence.speed_bps))
            .collect()
    };
    let less = LinkState::CarriesLess;
    assert_eq!(
        links_of(&world, "h2"),
        [
            ("h2->leaf1".to_owned(), less, Some(1e9)),
            ("leaf1->h2".to_owned(), less, Some(1e9)),
        ]
    );
    let unknown = LinkState::Unknown;
    assert_eq!(
        links_of(&world, "h1"),
        [
            ("h1->leaf1".to_owned(), unknown, None),
            ("leaf1->h1".to_owned(), unknown, None),
        ]
    );
}

#[test]
fn a_hosts_faults_are_listed_until_it_takes_them_back() {
    let mut world = HubWorld::with_hosts(as_by_default(), &["h1", "h2"]);
    let fault = |no_address| AccessUse {
        faults: HostFaults {
            no_address,
            ..HostFaults::default()
        },
        ..AccessUse::default()
    };
    world.tell_access_use("h2", fault(true));
    world.pass_tenths(10);
    let faults = world.hub.report().host_faults(64);
    assert_eq!(faults.len(), 1);
    assert_eq!(
        (&*faults[0].host, faults[0].fault.label()),
        ("h2", "address_not_in_prefix")
    );
    assert_eq!(world.hub.report().totals().hosts_named, [1, 0, 0, 0]);
    let view = world
        .hub
        .report()
        .host_view(world.now_ns, "h2")
        .expect("a host");
    assert_eq!(view.faults, faults);
    world.tell_access_use("h2", fault(false));
    world.pass_tenths(10);
    assert_eq!(world.hub.report().host_faults(64), []);
    let count = |world: &HubWorld| world.hub.counts().hosts_named.get("address_not_in_prefix");
    assert_eq!(count(&world), 1);
    world.tell_access_use("h2", fault(true));
    world.pass_tenths(10);
    assert_eq!(count(&world), 2);
}

#[test]
fn a_prefix_of_several_hosts_is_listed_with_the_host_that_has_an_address_in_it() {
    let mut world = HubWorld::with_hosts(as_by_default(), &["h1", "h2"]);
    let other = world.host_number("h1");
    let told = |in_prefixes_of| AccessUse {
        faults: HostFaults {
            in_prefixes_of,
            ..HostFaults::default()
        },
        ..AccessUse::default()
    };
    world.tell_access_use("h2", told(vec![other]));
    world.pass_tenths(10);
    let faults = world.hub.report().host_faults(64);
    assert_eq!(faults.len(), 1);
    assert_eq!(
        (&*faults[0].host, &faults[0].seen_at),
        ("h1", &Some("h2".to_owned()))
    );
    assert_eq!(faults[0].fault, HostFault::PrefixOfSeveralHosts);
    let view = world
        .hub
        .report()
        .host_view(world.now_ns, "h1")
        .expect("a host");
    assert_eq!(view.faults, faults, "with the host that sees it");
    // It ends with the word, and with the session of the host that told it.
    world.tell_access_use("h2", told(Vec::new()));
    world.pass_tenths(10);
    assert_eq!(world.hub.report().host_faults(64), []);
    world.tell_access_use("h2", told(vec![other]));
    world.pass_tenths(10);
    assert_eq!(world.hub.report().host_faults(64).len(), 1);
    let id = world.hub.session_of("h2").expect("a session");
    world.hub.drop_session(world.now_ns, id, "test");
    world.pass_tenths(10);
    assert_eq!(world.hub.report().host_faults(64), []);
}

#[test]
fn hosts_whose_flows_the_allocator_has_no_room_for_are_named_until_it_has() {
    let mut settings = as_by_default();
    settings.limits.max_flows = 2;
    let mut world = HubWorld::with_hosts(settings, &["h1", "h2"]);
    let first = world.start("h1", 0, "h16");
    world.pass_tenths(1);
    world.start("h1", 1, "h15");
    world.pass_tenths(1);
    let beyond = world.start("h2", 0, "h16");
    world.pass_tenths(10);
    assert_eq!(world.hub.report().host_faults(64), [], "it may be a burst");
    world.pass_tenths(20);
    let named = |world: &HubWorld| -> Vec<(String, HostFault)> {
        let faults = world.hub.report().host_faults(64);
        faults.into_iter().map(|at| (at.host, at.fault)).collect()
    };
    let fault = HostFault::FlowsBeyondBound;
    assert_eq!(named(&world), [("h2".to_owned(), fault)]);
    // Another topology forgets it, and finds it anew: its flows are placed again.
    world.replace_topology(super::clos());
    world.pass_tenths(30);
    assert_eq!(named(&world), [("h2".to_owned(), fault)]);
    assert_eq!(world.hub.report().totals().hosts_named, [0, 0, 0, 1]);
    assert_eq!(world.rate("h2", beyond), None);
    world.end("h1", first);
    world.pass_tenths(2);
    world.sweep();
    world.pass_tenths(70);
    assert_eq!(named(&world), []);
    assert!(world.rate("h2", beyond).is_some());
}
