//! Several hosts' state machines over a network that delays, loses and reorders.

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;
const LEASE_NS: u64 = 100 * MS;
const ACCESS: AccessCapacity = AccessCapacity::new(64_000_000, 64_000_000);
const HANDED_OUT_BPS: u64 = 63_000_000;
/// The receiver; senders have other numbers.
const RECEIVER: u32 = 100;

struct World {
    now_ns: u64,
    hosts: IndexMap<u32, SecondLine>,
    /// Arrival, sender, receiver, message.
    under_way: Vec<(u64, u32, u32, PeerMessage)>,
}

impl World {
    fn new(senders: u32) -> Self {
        let mut hosts = IndexMap::new();
        for id in (0..senders).chain([RECEIVER]) {
            let mut line = SecondLine::default();
            line.on_session(0, ACCESS, LEASE_NS, 0);
            hosts.insert(id, line);
        }
        Self {
            now_ns: 0,
            hosts,
            under_way: Vec::new(),
        }
    }

    fn flow(demand_bps: Option<u64>) -> FlowDemand {
        FlowDemand {
            host: RECEIVER,
            demand_bps,
        }
    }

    fn start(&mut self, host: u32) {
        let line = &mut self.hosts[&host];
        line.engage();
        line.set_flows(self.now_ns, &[Self::flow(None)]);
    }

    fn stop(&mut self, host: u32) {
        self.hosts[&host].set_flows(self.now_ns, &[]);
    }

    fn rate(&self, host: u32) -> Option<u64> {
        let rates = self.hosts[&host].rates(self.now_ns, &[Self::flow(None)]);
        rates[0].map(|rate| rate.rate_bps)
    }

    /// Runs until `until_ns` in steps of a tenth of a millisecond. `delay` gives each message's
    /// delay, or loses it.
    fn run(&mut self, until_ns: u64, mut delay: impl FnMut() -> Option<u64>) {
        while self.now_ns < until_ns {
            self.now_ns += MS / 10;
            let now_ns = self.now_ns;
            let arrived: Vec<_> = self
                .under_way
                .extract_if(.., |(at_ns, ..)| *at_ns <= now_ns)
                .collect();
            for (_, from, to, message) in arrived {
                if let Some(line) = self.hosts.get_mut(&to) {
                    line.on_message(now_ns, from, &message);
                }
            }
            for (&id, line) in &mut self.hosts {
                line.on_timeout(now_ns);
                while let Some((to, message)) = line.poll(now_ns) {
                    if let Some(delay_ns) = delay() {
                        self.under_way.push((now_ns + delay_ns, id, to, message));
                    }
                }
            }
        }
    }
}

#[test]
fn eight_senders_are_at_an_eighth_one_round_trip_after_the_last_began() {
    let mut world = World::new(8);
    for host in 0..8 {
        world.start(host);
        let now = world.now_ns;
        // A round trip of one millisecond, and a step at each end.
        world.run(now + MS + MS / 5, || Some(MS / 2));
    }
    for host in 0..8 {
        assert_eq!(world.rate(host), Some(HANDED_OUT_BPS / 8), "sender {host}");
    }
    world.stop(3);
    let now = world.now_ns;
    world.run(now + MS + MS / 5, || Some(MS / 2));
    assert_eq!(world.rate(0), Some(HANDED_OUT_BPS / 7));
}

#[test]
fn senders_are_plain_tcp_one_lease_after_their_receiver_was_lost() {
    let mut world = World::new(2);
    world.start(0);
    world.run(50 * MS, || Some(MS / 2));
    assert!(world.rate(0).is_some());
    // Nothing gets through any more.
    world.run(50 * MS + LEASE_NS, || None);
    assert_eq!(world.rate(0), None);
    // And nothing has to be done when it comes back.
    let now = world.now_ns;
    world.run(now + LEASE_NS / 2, || Some(MS / 2));
    assert_eq!(world.rate(0), Some(HANDED_OUT_BPS));
}

#[test]
fn the_allocators_return_frees_the_shares() {
    let mut world = World::new(2);
    world.start(0);
    world.start(1);
    world.run(20 * MS, || Some(MS / 2));
    let now = world.now_ns;
    world.hosts[&0].on_session(now, ACCESS, LEASE_NS, 0);
    assert!(!world.hosts[&0].is_engaged());
    world.run(now + 2 * MS, || Some(MS / 2));
    assert_eq!(world.rate(1), Some(HANDED_OUT_BPS));
}

proptest! {
    /// Whatever is lost, delayed or reordered: no rate is in force without a demand of the last
    /// lease, and once the network is well again all senders have the same share.
    #[test]
    fn senders_agree_once_the_network_is_well(
        fates in proptest::collection::vec((0..4_u64, 0..150_u64), 1..80),
        started in proptest::collection::vec(any::<bool>(), 5),
    ) {
        let mut world = World::new(5);
        let mut fates = fates.iter().cycle();
        let mut cruel = || {
            let &(fate, delay_ms) = fates.next()?;
            (fate > 0).then_some(delay_ms * MS)
        };
        for (host, &starts) in (0..5).zip(&started) {
            if starts {
                world.start(host);
            }
            let now = world.now_ns;
            world.run(now + 30 * MS, &mut cruel);
        }
        let now = world.now_ns;
        // All that was held up arrives or is dead, then two leases pass in peace.
        world.run(now + 150 * MS + 2 * LEASE_NS, || Some(MS / 2));
        let senders = started.iter().filter(|&&starts| starts).count() as u64;
        for (host, &starts) in (0..5).zip(&started) {
            let expected = starts.then(|| HANDED_OUT_BPS / senders);
            prop_assert_eq!(world.rate(host), expected);
        }
    }
}
