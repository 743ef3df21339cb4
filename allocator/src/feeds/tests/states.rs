//! Hosts that tell a state: it stands while they are heard, and no longer; what the allocator
//! believes is within the hysteresis of what they measured.

use proptest::prelude::*;
use ratewright_proto::telemetry::TelemetrySender;

use super::*;

const MS: u64 = 1_000_000;
const HOST: HostId = HostId(1);

/// One host of production's sender, before feeds.
struct World {
    topology: Topology,
    config: FeedsConfig,
    feeds: Feeds,
    sender: TelemetrySender,
    now_ns: u64,
    tx_bytes: u64,
    managed_bytes: u64,
    /// Messages that came, and those among them that only said that all stands.
    messages: (u32, u32),
}

impl World {
    fn new() -> Self {
        let topology = topology();
        let config = FeedsConfig::default();
        Self {
            feeds: Feeds::new(config.clone(), &topology),
            sender: TelemetrySender::new(config.sync_terms(), HOST.0),
            topology,
            config,
            now_ns: 1_000 * MS,
            tx_bytes: 0,
            managed_bytes: 0,
            messages: (0, 0),
        }
    }

    fn capacity_bps(&self) -> f64 {
        let uplink = self.topology.host_uplink(HOST);
        self.topology.effective_capacity_bps(uplink) as f64
    }

    fn reconnect(&mut self) {
        self.sender = TelemetrySender::new(self.config.sync_terms(), HOST.0);
    }

    /// Lets an interval pass in which both links carry these shares of themselves, of which the
    /// host knows what is managed on its uplink, and `handed_out` is allocated on all links.
    /// Nothing comes of it if the host `is_silent`.
    fn pass(
        &mut self,
        external: f64,
        managed: f64,
        senders: u32,
        handed_out: f64,
        is_silent: bool,
    ) {
        self.now_ns += self.config.interval_ns;
        let capacity_bps = self.capacity_bps();
        let bytes =
            |share: f64| (share * capacity_bps / 8e9 * self.config.interval_ns as f64) as u64;
        self.tx_bytes += bytes(external + managed);
        self.managed_bytes += bytes(managed);
        let uplink = LinkInt {
            link: OWN_UPLINK,
            tx_bytes: self.tx_bytes,
            managed_bytes: Some(self.managed_bytes),
            timestamp_ns: self.now_ns,
            bandwidth_bps: capacity_bps as u64,
            ..LinkInt::default()
        };
        let downlink = LinkInt {
            link: OWN_DOWNLINK,
            managed_bytes: None,
            ..uplink
        };
        let mut count = count(HOST.0, 0);
        count.receivers[0].active_senders = senders;
        let measured = Telemetry {
            links: vec![uplink, downlink],
            ..count
        };
        let message = self.sender.measure(self.now_ns, measured);
        if let Some(message) = message.filter(|_| !is_silent) {
            self.messages.0 += 1;
            self.messages.1 += u32::from(message.is_empty() && !message.whole);
            let host = Reporter::Host(HOST);
            (self.feeds).take(self.now_ns, host, &message, &self.topology, |_| true);
        }
        if self.feeds.wants_loads(self.now_ns) {
            let mut loads_bps = vec![handed_out * capacity_bps; self.topology.links().len()];
            self.feeds.observe(self.now_ns, &mut loads_bps);
        }
        if (self.feeds.next_due_ns()).is_some_and(|due_ns| due_ns <= self.now_ns) {
            self.feeds.apply(self.now_ns, &self.topology, &mut |_| {});
        }
    }

    /// Returns the external load of the uplink and of the downlink, and the flows of the downlink,
    /// as they have an effect; loads in shares of the links.
    fn effects(&self) -> (f64, f64, f64) {
        let links = [
            self.topology.host_uplink(HOST),
            self.topology.host_downlink(HOST),
        ];
        let [up, down] = links.map(|link| self.feeds.effect(link).copied().unwrap_or_default());
        let capacity_bps = self.capacity_bps();
        (
            up.external_bps / capacity_bps,
            down.external_bps / capacity_bps,
            down.flows,
        )
    }
}

#[test]
fn what_was_told_once_has_its_effect_while_the_host_is_heard() {
    let mut world = World::new();
    for _ in 0..100 {
        world.pass(0.3, 0.2, 3, 0.2, false);
    }
    let (up, down, flows) = world.effects();
    assert!(
        (up - 0.3).abs() < 0.01 && (down - 0.3).abs() < 0.015,
        "{up} {down}"
    );
    assert_eq!(flows, 3.0);
    // The whole state without links, then the links, then two bytes in every third interval.
    let (messages, keep_alives) = world.messages;
    assert!(
        keep_alives >= 30 && messages <= keep_alives + 4,
        "{:?}",
        world.messages
    );
}

#[test]
fn it_fades_once_the_host_is_silent_and_comes_again_with_its_first_word() {
    let mut world = World::new();
    for _ in 0..20 {
        world.pass(0.3, 0.2, 3, 0.2, false);
    }
    let intervals = world.config.max_age_ns / world.config.interval_ns + 2;
    for _ in 0..intervals {
        world.pass(0.3, 0.2, 3, 0.2, true);
    }
    assert_eq!(world.effects(), (0.0, 0.0, 0.0));
    assert_eq!(world.feeds.status().links, 0, "all is forgotten");
    for _ in 0..4 {
        world.pass(0.3, 0.2, 3, 0.2, false);
    }
    let (up, _, flows) = world.effects();
    assert!((up - 0.3).abs() < 0.01 && flows == 3.0, "{up} {flows}");
}

#[test]
fn half_way_between_fresh_and_too_old_it_has_half_of_its_effect() {
    let mut world = World::new();
    for _ in 0..20 {
        world.pass(0.3, 0.2, 3, 0.2, false);
    }
    let heard_ns = world.now_ns;
    let said = world.messages.0;
    world.pass(0.3, 0.2, 3, 0.2, false);
    let heard_ns = if world.messages.0 > said {
        world.now_ns
    } else {
        heard_ns
    };
    let half_ns = (world.config.fresh_ns + world.config.max_age_ns) / 2;
    while world.now_ns < heard_ns + half_ns {
        world.pass(0.3, 0.2, 3, 0.2, true);
    }
    let (up, _, _) = world.effects();
    // The last word came up to two intervals before `heard_ns`, of six in which it fades.
    assert!((0.3 / 6.0..=0.3 / 6.0 * 3.1).contains(&up), "{up}");
}

#[test]
fn what_a_host_takes_back_does_not_stand() {
    let mut world = World::new();
    for _ in 0..20 {
        world.pass(0.3, 0.2, 3, 0.2, false);
    }
    let host = Reporter::Host(HOST);
    for interval in 0..20 {
        world.now_ns += world.config.interval_ns;
        let message = Telemetry {
            whole: interval == 0,
            ..Telemetry::default()
        };
        (world.feeds).take(world.now_ns, host, &message, &world.topology, |_| true);
        world
            .feeds
            .apply(world.now_ns, &world.topology, &mut |_| {});
    }
    assert_eq!(world.effects(), (0.0, 0.0, 0.0));
}

#[test]
fn another_host_or_a_collector_keeps_nothing_alive() {
    let mut world = World::new();
    for _ in 0..20 {
        world.pass(0.3, 0.2, 3, 0.2, false);
    }
    for _ in 0..20 {
        world.now_ns += world.config.interval_ns;
        for reporter in [Reporter::Host(HostId(2)), Reporter::Collector] {
            let nothing = Telemetry::default();
            (world.feeds).take(world.now_ns, reporter, &nothing, &world.topology, |_| true);
        }
        world
            .feeds
            .apply(world.now_ns, &world.topology, &mut |_| {});
    }
    assert_eq!(world.effects(), (0.0, 0.0, 0.0));
}

/// The downlink's host cannot tell managed traffic apart: it says nothing when its load stands,
/// although other flows make it up.
#[test]
fn what_is_handed_out_moves_the_external_load_of_a_reading_that_stands() {
    let mut world = World::new();
    for _ in 0..30 {
        world.pass(0.3, 0.2, 0, 0.2, false);
    }
    let before = world.messages;
    let (_, down, _) = world.effects();
    assert!((down - 0.3).abs() < 0.015, "{down}");
    for (handed_out, external) in [(0.4, 0.1), (0.05, 0.45), (0.2, 0.3)] {
        // Two turns of the comparison: what was measured a moment ago is compared in the second.
        for _ in 0..12 {
            world.pass(0.3, 0.2, 0, handed_out, false);
        }
        let (_, down, _) = world.effects();
        assert!((down - external).abs() < 0.016, "{handed_out}: {down}");
    }
    let (messages, keep_alives) = world.messages;
    assert_eq!(
        messages - before.0,
        keep_alives - before.1,
        "nothing was told anew"
    );
}

#[test]
fn a_reading_before_the_first_observation_counts_once_there_is_one() {
    let mut world = World::new();
    // The first two messages come before any load was observed.
    for _ in 0..12 {
        world.pass(0.3, 0.2, 0, 0.2, false);
    }
    let (_, down, _) = world.effects();
    assert!((down - 0.3).abs() < 0.015, "{down}");
    assert!(world.feeds.status().feeds["int"].refused.is_empty());
}

proptest! {
    /// The bound of docs/internals/feeds.md. `events`: the session is lost (0) or the host is
    /// silent (1, 2) for an interval.
    #[test]
    fn beliefs_are_within_the_hysteresis_of_what_was_measured(
        intervals in proptest::collection::vec(
            (prop_oneof![Just(300_u32), 295..306_u32, 20..500_u32], 0..400_u32, 0..60_u8),
            1..150,
        ),
    ) {
        let mut world = World::new();
        // Words of this session that came.
        let mut heard = 0;
        for (external, managed, event) in intervals {
            let external = f64::from(external) / 1000.0;
            if event == 0 {
                world.reconnect();
                heard = 0;
            }
            let said = world.messages.0;
            let is_silent = (1..=2).contains(&event);
            world.pass(external, f64::from(managed) / 1000.0, 0, 0.2, is_silent);
            if is_silent {
                // What was said is lost with the connection.
                world.reconnect();
                heard = 0;
                continue;
            }
            heard += 1;
            prop_assert!(world.messages.0 - said <= 1);
            // The first reading of a session measures nothing; what was marked is applied at once.
            if heard > 1 {
                let (up, _, _) = world.effects();
                let bound = world.config.state_hysteresis + world.config.hysteresis / 2.0 + 1e-3;
                prop_assert!((up - external).abs() <= bound, "{} {}", up, external);
            }
        }
    }
}
