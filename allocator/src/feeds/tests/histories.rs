//! Random histories of messages: lies, silence, repetitions, stale and contradicting readings cost
//! a link at most the configured share, and nothing once they are too old.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;
const HOSTS: u32 = 4;

/// State of links as the engine was told.
#[derive(Debug, Default)]
struct EngineLinks {
    capacities_bps: BTreeMap<u32, f64>,
    dummies_bps: BTreeMap<u32, f64>,
    bounded: BTreeMap<(u32, u32), f64>,
}

impl EngineLinks {
    fn apply(&mut self, now_ns: u64, feeds: &mut Feeds, topology: &Topology) {
        let bounds = apply_to(feeds, now_ns, topology, &mut |event| match event {
            EngineEvent::Capacity { link, capacity_bps } => {
                self.capacities_bps.insert(link, capacity_bps);
            }
            EngineEvent::Start(spec) => {
                self.dummies_bps
                    .insert(spec.number.index(), spec.demand_bps);
            }
            EngineEvent::End(number) => {
                self.dummies_bps.remove(&number.index());
            }
            other => panic!("no feed asks for {other:?}"),
        });
        for (sender, flow) in bounds {
            let demand_bps = feeds.demand_bps(sender, flow);
            self.bounded.insert((sender.0, flow), demand_bps);
        }
    }

    /// Returns what the feeds take of a link, in shares of its capacity.
    fn taken(&self, link: LinkId, topology: &Topology) -> f64 {
        let whole_bps = topology.effective_capacity_bps(link) as f64;
        let capacity_bps = self.capacities_bps.get(&link.0).copied();
        let dummy_bps = self.dummies_bps.get(&link.0).copied().unwrap_or(0.0);
        (whole_bps - capacity_bps.unwrap_or(whole_bps) + dummy_bps) / whole_bps
    }
}

/// Applies the feeds; hands over the engine's events, and returns the flows with other demands.
pub(super) fn apply_to(
    feeds: &mut Feeds,
    now_ns: u64,
    topology: &Topology,
    events: &mut dyn FnMut(EngineEvent),
) -> Vec<(HostId, u32)> {
    let mut bounds = Vec::new();
    feeds.apply(now_ns, topology, &mut |change| match change {
        FeedChange::Engine(event) => events(event),
        FeedChange::Demand { sender, flow } => bounds.push((sender, flow)),
    });
    bounds
}

/// Of one step: who tells what, and the time until the next one.
pub(super) type Step = (Option<u32>, Telemetry, u64);

/// A counter: it stands, grows as a link's does, or says anything.
fn counter() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 0..100_000_000_u64, any::<u64>()]
}

fn age() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 0..200 * MS, any::<u64>()]
}

fn entry() -> impl Strategy<Value = Telemetry> {
    let hosts = || 0..HOSTS;
    let counts = (
        hosts(),
        prop_oneof![0..64_u32, any::<u32>()],
        proptest::collection::vec(hosts(), 0..4),
        (any::<bool>(), any::<bool>(), any::<bool>()),
        age(),
    );
    let counts = counts.prop_map(|(receiver, active_senders, senders, flags, age_ns)| {
        let count = ReceiverCount {
            receiver,
            active_senders,
            senders,
            excludes_managed: flags.0,
            stands: flags.1,
            age_ns,
            ..ReceiverCount::default()
        };
        Telemetry {
            receivers: vec![count],
            whole: flags.2,
            ..Telemetry::default()
        }
    });
    let credits = (
        (hosts(), hosts(), proptest::option::of(0..3_u32)),
        (counter(), counter(), counter(), counter()),
        (counter(), age()),
    );
    let credits = credits.prop_map(|(ends, bytes, (packets, age_ns))| {
        let credit = CreditState {
            sender: ends.0,
            receiver: ends.1,
            flow: ends.2,
            granted_bytes: bytes.0,
            consumed_bytes: bytes.1,
            accumulated_bytes: bytes.2,
            sender_bucket_bytes: bytes.3,
            packets,
            age_ns,
            ..CreditState::default()
        };
        Telemetry {
            credits: vec![credit],
            ..Telemetry::default()
        }
    });
    let links = (
        prop_oneof![Just(OWN_UPLINK), Just(OWN_DOWNLINK), 0..64_u32],
        (counter(), counter(), proptest::option::of(counter())),
        (counter(), counter(), any::<u64>(), age()),
        (
            prop_oneof![Just(0), 0..20 * MS, any::<u64>()],
            counter(),
            any::<bool>(),
        ),
    );
    let links = links.prop_map(|(link, bytes, others, state)| {
        let reading = LinkInt {
            link,
            queue_bytes: bytes.0,
            tx_bytes: bytes.1,
            managed_bytes: bytes.2,
            shaped_packets: others.0,
            timestamp_ns: others.1,
            bandwidth_bps: others.2,
            age_ns: others.3,
            interval_ns: state.0,
            former_queue_bytes: state.1,
        };
        Telemetry {
            links: vec![reading],
            whole: state.2,
            ..Telemetry::default()
        }
    });
    // The last one says that all stands.
    prop_oneof![counts, credits, links, Just(Telemetry::default())]
}

pub(super) fn steps(
    reporters: impl Strategy<Value = Option<u32>>,
) -> impl Strategy<Value = Vec<Step>> {
    let pause = prop_oneof![Just(0), 0..20 * MS, Just(10 * MS), 0..300 * MS];
    proptest::collection::vec((reporters, entry(), pause), 1..120)
}

fn play(
    feeds: &mut Feeds,
    engine: &mut EngineLinks,
    topology: &Topology,
    steps: &[Step],
    mut check: impl FnMut(&EngineLinks),
) -> u64 {
    let mut now_ns = 1_000 * MS;
    let loads_bps: Vec<f64> = topology.links().iter().map(|_| 1e9).collect();
    for (reporter, telemetry, pause_ns) in steps {
        let reporter = match reporter {
            Some(host) => Reporter::Host(HostId(*host)),
            None => Reporter::Collector,
        };
        feeds.take(now_ns, reporter, telemetry, topology, |host| {
            host.0 % 2 == 0
        });
        if feeds.wants_loads(now_ns) {
            feeds.observe(now_ns, &mut loads_bps.clone());
        }
        if feeds.next_due_ns().is_some_and(|due_ns| due_ns <= now_ns) {
            engine.apply(now_ns, feeds, topology);
            check(engine);
        }
        now_ns += pause_ns;
    }
    now_ns
}

proptest! {
    #[test]
    fn no_history_takes_more_of_a_link_than_its_share_or_gives_more_than_its_capacity(
        steps in steps(proptest::option::of(0..HOSTS)),
        max_share in 0.0..0.9_f64,
    ) {
        let topology = topology();
        let config = FeedsConfig { max_share, ..FeedsConfig::default() };
        let mut feeds = Feeds::new(config, &topology);
        let mut engine = EngineLinks::default();
        let mut most: f64 = 0.0;
        let mut least: f64 = 0.0;
        play(&mut feeds, &mut engine, &topology, &steps, |engine| {
            for link in topology.links() {
                let taken = engine.taken(link.id, &topology);
                (most, least) = (most.max(taken), least.min(taken));
            }
            for (key, &demand_bps) in &engine.bounded {
                assert!(demand_bps >= 1e7, "{key:?}: a hundredth of the uplink stays");
            }
        });
        prop_assert!(most <= max_share + 1e-9, "{most} of {max_share}");
        prop_assert!(least >= -1e-9, "{least}");
    }

    #[test]
    fn silence_brings_the_answer_without_feeds_within_the_maximum_age(
        steps in steps(proptest::option::of(0..HOSTS)),
    ) {
        let topology = topology();
        let config = FeedsConfig::default();
        let mut feeds = Feeds::new(config.clone(), &topology);
        let mut engine = EngineLinks::default();
        let told_ns = play(&mut feeds, &mut engine, &topology, &steps, |_| {});
        let end_ns = told_ns + config.max_age_ns + 2 * config.interval_ns;
        while let Some(due_ns) = feeds.next_due_ns().filter(|&due_ns| due_ns <= end_ns) {
            engine.apply(due_ns.max(told_ns), &mut feeds, &topology);
        }
        for link in topology.links() {
            prop_assert!(engine.taken(link.id, &topology).abs() < 1e-9, "{:?}", link.id);
        }
        prop_assert!(engine.bounded.values().all(|demand_bps| demand_bps.is_infinite()));
        let status = feeds.status();
        prop_assert_eq!((status.links, status.flows), (0, 0));
        prop_assert_eq!(feeds.next_due_ns(), None, "nothing is left to do");
    }

    #[test]
    fn a_host_moves_its_own_two_links_and_its_own_flows_whatever_it_tells(
        steps in steps(Just(Some(1))),
    ) {
        let topology = topology();
        let mut feeds = Feeds::new(FeedsConfig::default(), &topology);
        let mut engine = EngineLinks::default();
        play(&mut feeds, &mut engine, &topology, &steps, |_| {});
        let own = [topology.host_uplink(HostId(1)), topology.host_downlink(HostId(1))];
        let moved = engine.capacities_bps.keys().chain(engine.dummies_bps.keys());
        for &link in moved {
            prop_assert!(own.contains(&LinkId(link)), "link {link}");
        }
        prop_assert!(engine.bounded.keys().all(|&(sender, _)| sender == 1));
    }
}
