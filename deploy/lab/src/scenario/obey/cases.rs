//! The table of cases: networks that are not as the topology file says, hosts that nobody manages,
//! and flows that cannot use what they are given.

use std::time::Duration;

use ratewright_cli::clock::{NS_PER_MS, NS_PER_S};

use crate::options::Backend;
use crate::traffic::protocol::{Behaviour, LaterMaximum, Writing};

/// Hosts of every network: two that are managed, two neighbours, and a receiver.
pub(super) const HOSTS: usize = 5;
/// Two hosts with a daemon.
pub(super) const MANAGED: [usize; 2] = [0, 1];
/// Two hosts that have one in a canary's network only.
pub(super) const NEIGHBOURS: [usize; 2] = [2, 3];
/// Receives all flows but those to a slow link.
pub(super) const RECEIVER: usize = 4;
/// The second neighbour's link carries little towards it.
pub(super) const SLOW_RECEIVER: usize = NEIGHBOURS[1];
/// Capacity of that link.
pub(super) const SLOW_LINK_MBPS: u64 = 10;
/// Capacity of a way that is narrower than the model says, and its buffer.
pub(super) const NARROW_MBPS: u64 = 50;
pub(super) const NARROW_BUFFER_KIB: u64 = 128;
/// Hosts whose flows take it.
pub(super) const NARROW_SOURCES: [usize; 2] = [MANAGED[0], NEIGHBOURS[0]];
/// A host's own queue: what `tc` makes of it.
pub(super) const OWN_QUEUE: &str = "tbf rate 10mbit burst 16k limit 256k";
/// Host that has it.
pub(super) const QUEUED: usize = MANAGED[0];

/// Share of the lesser of its fair share and what it has without us that every flow has.
const SHARE: f64 = 0.8;
/// That of bulk flows beside others that use little.
const BULK_SHARE: f64 = 0.9;
const LENGTH_S: f64 = 5.0;
/// Length of traffics that run with every topology file.
const BASIC_S: f64 = 4.0;
/// First second of every flow, which is not measured.
const FIRST_S: f64 = 1.0;

/// A network, its control plane, and everything that runs in it.
#[derive(Debug, Clone)]
pub(super) struct Group {
    /// Name in messages and, with a traffic's name, in results.
    pub(super) name: String,
    /// Drop-tail buffer of a switch port.
    pub(super) buffer_kib: u64,
    /// Conditions that the topology file does not tell.
    pub(super) road: Road,
    /// Capacities in the topology file over the real ones.
    pub(super) told: Vec<f64>,
    /// Hosts that pace.
    pub(super) deployment: Deployment,
    /// True if receivers' and switches' measurements bound what the allocator hands out.
    pub(super) feeds: bool,
    /// Back ends that can be had there.
    pub(super) backends: Vec<Backend>,
    /// True if the group runs with BBR underneath, too.
    pub(super) bbr: bool,
    /// True if no other group may run beside it.
    pub(super) exclusive: bool,
    /// True if chance decides for as long as a run which flow has more, or stands still for half a
    /// second. Of plain TCP, all runs of as many flows are then looked at.
    pub(super) chance: bool,
    /// Traffics that run one after another.
    pub(super) traffics: Vec<Traffic>,
}

/// Conditions between the hosts that the topology file does not tell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Road {
    /// None.
    Plain,
    /// Two hosts' flows pass a narrower link.
    Narrow,
    /// Frames towards the receiver are lost by chance: this share of them.
    Lossy(f64),
    /// A long cable to the receiver: round-trip time.
    Long(Duration),
    /// One host has a queue of its own.
    OwnQueue,
}

/// Hosts that pace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deployment {
    /// All but the neighbours, which have no daemon.
    WithoutNeighbours,
    /// One host paces, all others observe.
    Canary,
}

/// Flows that run at the same time.
#[derive(Debug, Clone)]
pub(super) struct Traffic {
    /// Name in results.
    pub(super) name: String,
    /// Length.
    pub(super) length_s: f64,
    /// Its flows.
    pub(super) flows: Vec<Flow>,
    /// Parts that are measured and judged.
    pub(super) spans: Vec<Span>,
    /// Times at which the receiver's link has another capacity: (s, share of the real one).
    pub(super) capacities: Vec<(f64, f64)>,
    /// True if it runs whatever the topology file says; else only where it is right.
    pub(super) any_told: bool,
}

impl Traffic {
    /// Returns true if all flows are of the kind [`ANY`].
    fn is_exchangeable(&self) -> bool {
        self.flows.iter().all(|flow| flow.kind == ANY)
    }
}

/// One flow, or a number of equal ones that are taken together.
#[derive(Debug, Clone)]
pub(super) struct Flow {
    /// Sending host.
    pub(super) from: usize,
    /// Receiving host.
    pub(super) to: usize,
    /// Number of connections.
    pub(super) count: usize,
    /// Fair share of the links' capacity, of all connections.
    pub(super) share_mbps: f64,
    /// Share of what is due to it that it must have.
    pub(super) bound: f64,
    /// Flows of one kind are alike: they are compared in the order of their rates.
    pub(super) kind: &'static str,
    /// Conduct of its ends.
    pub(super) behaviour: Behaviour,
}

/// A part of a traffic that is measured.
#[derive(Debug, Clone)]
pub(super) struct Span {
    /// Name behind the traffic's; empty if there is one only.
    pub(super) name: &'static str,
    pub(super) from_s: f64,
    pub(super) to_s: f64,
    /// Fair shares over those of the whole capacity.
    pub(super) scale: f64,
}

const LINK: f64 = 200.0;

fn flow(from: usize, kind: &'static str, share_mbps: f64) -> Flow {
    Flow {
        from,
        to: RECEIVER,
        count: 1,
        share_mbps,
        bound: SHARE,
        kind,
        behaviour: Behaviour::default(),
    }
}

fn managed(index: usize, share_mbps: f64) -> Flow {
    flow(MANAGED[index], "managed", share_mbps)
}

fn plain(index: usize, share_mbps: f64) -> Flow {
    flow(NEIGHBOURS[index], "plain", share_mbps)
}

fn traffic(name: &str, length_s: f64, flows: Vec<Flow>) -> Traffic {
    Traffic {
        name: name.to_owned(),
        length_s,
        flows,
        spans: vec![Span {
            name: "",
            from_s: FIRST_S,
            to_s: length_s,
            scale: 1.0,
        }],
        capacities: Vec::new(),
        any_told: false,
    }
}

/// Traffics that run with every topology file. Without us all flows of one traffic are alike.
fn basic(length_s: f64) -> Vec<Traffic> {
    let half = LINK / 2.0;
    let mut all = vec![
        traffic("alone", length_s, vec![managed(0, LINK)]),
        traffic(
            "two flows",
            length_s,
            vec![managed(0, half), managed(1, half)],
        ),
        traffic(
            "beside an unmanaged host",
            length_s,
            vec![managed(0, half), plain(0, half)],
        ),
    ];
    for traffic in &mut all {
        traffic.any_told = true;
    }
    all
}

/// Kind of flows of which it is chance which has more.
pub(super) const ANY: &str = "any";

/// Takes all flows for one kind: over long ways, and in a queue of 20 ms, it is chance for tens of
/// seconds which CUBIC flow has more. After its first loss a flow takes `K` to find its window
/// again, the cube root of 0.75 windows in seconds (RFC 9438, section 4.2): 6 s in such a queue.
fn exchangeable(mut traffics: Vec<Traffic>) -> Vec<Traffic> {
    for flow in traffics.iter_mut().flat_map(|traffic| &mut traffic.flows) {
        flow.kind = ANY;
    }
    traffics
}

/// Traffics in a network that is as the topology file says.
fn further() -> Vec<Traffic> {
    let quarter = LINK / 4.0;
    let half_managed = traffic(
        "half of the hosts managed",
        LENGTH_S,
        vec![
            managed(0, quarter),
            managed(1, quarter),
            plain(0, quarter),
            plain(1, quarter),
        ],
    );

    const DATAGRAM_BYTES: u32 = 1_400;
    const DATAGRAMS_BPS: u64 = 60_000_000;
    let third = LINK / 3.0;
    let udp = Flow {
        kind: "UDP",
        behaviour: Behaviour {
            writing: Writing::Datagrams {
                bytes: DATAGRAM_BYTES,
                every_ns: u64::from(DATAGRAM_BYTES) * 8 * NS_PER_S / DATAGRAMS_BPS,
            },
            ..Behaviour::default()
        },
        ..plain(0, DATAGRAMS_BPS as f64 / 1e6)
    };
    let beside_udp = traffic(
        "beside UDP",
        LENGTH_S,
        vec![managed(0, third), managed(1, third), udp],
    );

    let lower = LaterMaximum {
        after_ns: 700 * NS_PER_MS,
        max_rate_bps: Some(100_000),
    };
    let mut holders = traffic(
        "maxima of their own",
        LENGTH_S,
        vec![
            Flow {
                count: 20,
                kind: "lowered",
                behaviour: Behaviour {
                    later: Some(lower),
                    ..Behaviour::default()
                },
                ..managed(0, 2.0)
            },
            bulk(1, LINK - 2.0),
        ],
    );
    holders.spans[0].from_s = 0.7 + FIRST_S;

    let slow = SLOW_LINK_MBPS as f64;
    let slow_link = traffic(
        "slow link",
        LENGTH_S,
        vec![
            Flow {
                to: SLOW_RECEIVER,
                count: 5,
                kind: "slow",
                ..managed(0, slow)
            },
            bulk(0, LINK - slow),
        ],
    );

    let removed_s = 1.5;
    let removed = Behaviour {
        max_rate_bps: Some(10_000_000),
        later: Some(LaterMaximum {
            after_ns: (removed_s * NS_PER_S as f64) as u64,
            max_rate_bps: None,
        }),
        ..Behaviour::default()
    };
    let mut own_maximum = traffic(
        "own maximum removed",
        LENGTH_S,
        vec![Flow {
            bound: BULK_SHARE,
            behaviour: removed,
            ..managed(0, LINK)
        }],
    );
    own_maximum.spans[0].from_s = removed_s + FIRST_S;

    let (falls_s, returns_s, length_s) = (2.0, 6.0, 9.0);
    let fallen = 0.1;
    let mut capacity = traffic(
        "capacity",
        length_s,
        vec![managed(0, LINK / 2.0), managed(1, LINK / 2.0)],
    );
    capacity.capacities = vec![(falls_s, fallen), (returns_s, 1.0)];
    capacity.spans = vec![
        Span {
            name: "falls to a tenth",
            from_s: falls_s + FIRST_S,
            to_s: returns_s,
            scale: fallen,
        },
        Span {
            name: "comes back",
            from_s: returns_s + FIRST_S,
            to_s: length_s,
            scale: 1.0,
        },
    ];
    vec![
        half_managed,
        beside_udp,
        holders,
        slow_link,
        own_maximum,
        capacity,
    ]
}

/// A managed host's flow that has what the others of a case leave it.
fn bulk(index: usize, share_mbps: f64) -> Flow {
    Flow {
        bound: BULK_SHARE,
        kind: "bulk",
        ..managed(index, share_mbps)
    }
}

fn group(name: &str, buffer_kib: u64, road: Road, traffics: Vec<Traffic>) -> Group {
    Group {
        name: name.to_owned(),
        buffer_kib,
        road,
        told: vec![1.0],
        deployment: Deployment::WithoutNeighbours,
        feeds: false,
        backends: vec![Backend::SockOps, Backend::TcHtb],
        bbr: true,
        exclusive: false,
        chance: matches!(road, Road::Lossy(_)) || traffics.iter().any(Traffic::is_exchangeable),
        traffics,
    }
}

/// All groups, those that take longest first.
pub(super) fn all() -> Vec<Group> {
    let told = vec![0.97, 1.0, 1.05, 1.25, 5.0];
    let narrow = NARROW_MBPS as f64;
    let half = LINK / 2.0;
    let queued = Flow {
        count: 5,
        kind: "queued",
        ..managed(0, 10.0)
    };
    const HELD_MBPS: f64 = 150.0;
    let held = Flow {
        kind: "held",
        behaviour: Behaviour {
            max_rate_bps: Some((HELD_MBPS * 1e6) as u64),
            ..Behaviour::default()
        },
        ..managed(1, HELD_MBPS)
    };
    let own_queue = vec![
        traffic(
            "five flows behind it",
            LENGTH_S,
            vec![queued.clone(), bulk(1, LINK - 10.0)],
        ),
        traffic(
            "five flows behind it, no loss elsewhere",
            LENGTH_S,
            vec![queued, held],
        ),
    ];
    let mut groups = vec![
        Group {
            told: told.clone(),
            ..group("64 KiB", 64, Road::Plain, basic(BASIC_S))
        },
        Group {
            told: told.clone(),
            bbr: false,
            // Ten packets are half a millisecond: a softirq of another lane that long is a loss.
            exclusive: true,
            ..group("16 KiB", 16, Road::Plain, basic(BASIC_S))
        },
        Group {
            told,
            bbr: false,
            ..group("512 KiB", 512, Road::Plain, exchangeable(basic(8.0)))
        },
        group("as told", 64, Road::Plain, further()),
        group(
            "40 ms",
            512,
            Road::Long(Duration::from_millis(40)),
            exchangeable(basic(12.0)),
        ),
        group("5 ms", 64, Road::Long(Duration::from_millis(5)), basic(5.0)),
        group(
            "way of 50 Mbit/s",
            64,
            Road::Narrow,
            exchangeable(vec![
                traffic("alone", LENGTH_S, vec![managed(0, narrow)]),
                // Two flows take longer to share a queue of 20 ms: BBR's, until one of them
                // probes for the round-trip time, each 10 s.
                traffic(
                    "beside a plain connection",
                    8.0,
                    vec![managed(0, narrow / 2.0), plain(0, narrow / 2.0)],
                ),
            ]),
        ),
        Group {
            deployment: Deployment::Canary,
            ..group(
                "canary",
                64,
                Road::Plain,
                vec![traffic(
                    "beside an observing host",
                    LENGTH_S,
                    vec![managed(0, half), flow(MANAGED[1], "observing", half)],
                )],
            )
        },
        Group {
            feeds: true,
            // Rates leave others their share exactly, which a flow of BBR cannot hold.
            bbr: false,
            ..group("feeds", 64, Road::Plain, basic(LENGTH_S))
        },
        Group {
            // tc_htb does not take the place of a queue that somebody configured.
            backends: vec![Backend::SockOps],
            // Losses at the receiver's link keep the host's own queue short without us. Where there
            // are none, plain TCP stands still in it, too.
            chance: true,
            ..group("own queue", 64, Road::OwnQueue, own_queue)
        },
    ];
    for (name, share, exclusive) in [("0.1 % lost", 0.001, false), ("1 % lost", 0.01, true)] {
        groups.push(Group {
            // Each loss asks for a round trip at once: a core that is busy elsewhere halves rates.
            exclusive,
            ..group(name, 64, Road::Lossy(share), basic(BASIC_S))
        });
    }
    groups
}

/// The most telling cases, for the gate.
pub(super) fn quick() -> Vec<Group> {
    let keep = |group: &str, told: &[f64], traffics: &[&str]| {
        let found = all().into_iter().find(|one| one.name == group);
        found.map(|mut one| {
            one.told = told.to_vec();
            one.bbr = false;
            one.traffics
                .retain(|traffic| traffics.contains(&traffic.name.as_str()));
            one
        })
    };
    [
        keep(
            "64 KiB",
            &[1.0, 1.25],
            &["two flows", "beside an unmanaged host"],
        ),
        keep(
            "as told",
            &[1.0],
            &["maxima of their own", "slow link", "own maximum removed"],
        ),
        keep("way of 50 Mbit/s", &[1.0], &["beside a plain connection"]),
        keep("canary", &[1.0], &["beside an observing host"]),
        keep("1 % lost", &[1.0], &["alone", "beside an unmanaged host"]),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_cases_have_one_name() {
        let mut names: Vec<String> = all()
            .iter()
            .flat_map(|group| {
                group
                    .traffics
                    .iter()
                    .map(|traffic| format!("{}: {}", group.name, traffic.name))
            })
            .collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn fair_shares_fill_the_link_that_all_flows_of_a_case_share() {
        for group in all() {
            for traffic in &group.traffics {
                let sum: f64 = traffic.flows.iter().map(|flow| flow.share_mbps).sum();
                let whole = match group.road {
                    Road::Narrow => NARROW_MBPS as f64,
                    _ => LINK,
                };
                let is_held = traffic.flows.iter().any(|flow| flow.kind == "held");
                // Shares in thirds beside 60 of UDP are rounded down.
                let least = if is_held { 0.0 } else { 0.96 * whole };
                assert!(
                    (least..=whole + 1e-9).contains(&sum),
                    "{}: {}: {sum}",
                    group.name,
                    traffic.name
                );
            }
        }
    }

    #[test]
    fn every_case_of_the_quick_form_is_one_of_all() {
        let cases: usize = quick().iter().map(|group| group.traffics.len()).sum();
        assert_eq!((quick().len(), cases), (5, 9));
        assert!(quick().iter().all(|group| !group.bbr));
    }

    #[test]
    fn what_is_measured_is_within_the_traffic_and_longer_than_half_a_second() {
        for traffic in all().iter().flat_map(|group| &group.traffics) {
            for span in &traffic.spans {
                assert!(span.from_s >= FIRST_S && span.to_s <= traffic.length_s);
                assert!(span.to_s - span.from_s >= 1.0, "{}", traffic.name);
            }
        }
    }
}
