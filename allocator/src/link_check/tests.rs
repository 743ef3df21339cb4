//! Hand-made networks of one switch, whose hosts tell what daemons tell.

use proptest::prelude::*;

use super::lowering::TARGET;
use super::*;

const MS: u64 = 1_000_000;
const GBIT: f64 = 1e9;
/// Part of a capacity that the engine hands out.
const DERATED: f64 = 0.99;
/// Time for which a start meets congestion, whatever its rate.
const START_MS: u64 = 800;
/// Longest time to a name, and from the end of its cause to its end.
const NAMED_MS: u64 = 5_000;
const TAKEN_BACK_MS: u64 = 10_000;

/// Credit of an instance: its uplink carries its real capacity while there is any, and the baseline
/// otherwise.
#[derive(Debug, Clone, Copy)]
struct Credit {
    baseline_bps: f64,
    bits: f64,
}

/// One host with its links: what they can carry, and who uses them.
#[derive(Debug, Clone)]
struct WorldHost {
    real_up_bps: f64,
    real_down_bps: f64,
    speed_bps: f64,
    /// Rate of senders to it that nobody paces, and of what it sends to others.
    others_bps: f64,
    /// Its interface counts what does not fit its links as held up by an allowance.
    counts_held_up: bool,
    /// It counts bursts besides, all the time, on its uplink.
    counts_bursts: bool,
    credit: Option<Credit>,
    /// Held-up packets were counted in this second, on each link.
    held_up: [bool; 2],
    /// Bytes on its links within the last second, in bit.
    carried_bits: [f64; 2],
    /// Links whose word it tells.
    told: HostWord,
    congested_ms: BTreeMap<u32, u64>,
    is_connected: bool,
}

/// Flow from one host to another that uses at most `demand_bps`.
#[derive(Debug, Clone, Copy)]
struct Flow {
    from: u32,
    to: u32,
    demand_bps: f64,
    /// Time of its start, whose losses end after [`START_MS`].
    started_ms: u64,
}

/// Hosts at one switch. Link 2h goes from host h, link 2h + 1 to it; each was told 1 Gbit/s.
struct World {
    check: LinkCheck,
    hosts: Vec<WorldHost>,
    flows: Vec<Flow>,
    /// Rate of each flow in the last step, as handed out.
    rates_bps: Vec<f64>,
    /// Loads that were handed out in the last second.
    handed_out_bps: Vec<f64>,
    /// Baseline of the first host's uplink, as it is told.
    baseline_bps: Option<f64>,
    now_ms: u64,
    /// Changes of states with their times.
    changes: Vec<(u64, u32, LinkState)>,
    /// Faults of hosts that came and went.
    faults: Vec<(u32, HostFault, bool)>,
}

struct WorldFacts<'a> {
    handed_out_bps: &'a [f64],
    baseline_bps: Option<f64>,
    hosts: u32,
}

impl LinkFacts for WorldFacts<'_> {
    fn told_bps(&self, _: LinkId) -> f64 {
        GBIT
    }

    fn baseline_bps(&self, link: LinkId) -> Option<f64> {
        self.baseline_bps.filter(|_| link == up(0))
    }

    fn line_rate_bps(&self, _: LinkId) -> f64 {
        GBIT
    }

    fn handed_out_bps(&self, link: LinkId) -> f64 {
        self.handed_out_bps[link.index()]
    }

    /// These networks know no history: their means move within a second.
    fn handed_out_before_bps(&self, link: LinkId, _: u64) -> f64 {
        self.handed_out_bps(link)
    }

    fn access(&self, host: HostId) -> Option<(LinkId, LinkId)> {
        (host.0 < self.hosts).then(|| (up(host.0), down(host.0)))
    }

    fn switch(&self, _: HostId) -> Option<u32> {
        Some(0)
    }

    fn inner_links(&self, _: HostId, _: HostId, _: &mut dyn FnMut(LinkId)) {}
}

fn up(host: u32) -> LinkId {
    LinkId(2 * host)
}

fn down(host: u32) -> LinkId {
    LinkId(2 * host + 1)
}

impl WorldHost {
    fn up_bps(&self) -> f64 {
        match self.credit {
            Some(Credit { baseline_bps, bits }) if bits <= 0.0 => baseline_bps,
            _ => self.real_up_bps,
        }
    }
}

impl World {
    fn new(hosts: u32) -> Self {
        let host = WorldHost {
            real_up_bps: GBIT,
            real_down_bps: GBIT,
            speed_bps: 0.0,
            others_bps: 0.0,
            counts_held_up: false,
            counts_bursts: false,
            credit: None,
            held_up: [false; 2],
            carried_bits: [0.0; 2],
            told: HostWord::default(),
            congested_ms: BTreeMap::new(),
            is_connected: true,
        };
        Self {
            check: LinkCheck::new(LinkCheckConfig::default()),
            hosts: vec![host; hosts as usize],
            flows: Vec::new(),
            rates_bps: Vec::new(),
            handed_out_bps: vec![0.0; 2 * hosts as usize],
            baseline_bps: None,
            now_ms: 0,
            changes: Vec::new(),
            faults: Vec::new(),
        }
    }

    fn flow(&mut self, from: u32, to: u32) {
        self.flows.push(Flow {
            from,
            to,
            demand_bps: f64::INFINITY,
            started_ms: self.now_ms,
        });
    }

    /// Shares capacities among some flows max-min, by raising all rates together.
    fn share(capacities_bps: &[f64], flows: &[Flow], bounds_bps: &[f64]) -> Vec<f64> {
        let mut rates = vec![0.0; flows.len()];
        let mut free = capacities_bps.to_vec();
        let mut open: Vec<usize> = (0..flows.len()).collect();
        while !open.is_empty() {
            let users = |link: LinkId| {
                let uses = |&&at: &&usize| up(flows[at].from) == link || down(flows[at].to) == link;
                open.iter().filter(uses).count() as f64
            };
            let step = |at: usize| {
                [up(flows[at].from), down(flows[at].to)]
                    .into_iter()
                    .map(|link| free[link.index()] / users(link))
                    .fold(bounds_bps[at] - rates[at], f64::min)
            };
            let least = open
                .iter()
                .map(|&at| step(at))
                .fold(f64::INFINITY, f64::min);
            let ended: Vec<usize> = (open.iter().copied())
                .filter(|&at| step(at) <= least + 1.0)
                .collect();
            for &at in &open {
                rates[at] += least;
                free[up(flows[at].from).index()] -= least;
                free[down(flows[at].to).index()] -= least;
            }
            open.retain(|at| !ended.contains(at));
        }
        rates
    }

    /// Lets 100 ms pass.
    fn step(&mut self) {
        self.now_ms += 100;
        let links = 2 * self.hosts.len() as u32;
        let in_force: Vec<f64> = (0..links)
            .map(|link| DERATED * self.check.lowered_bps(LinkId(link)).unwrap_or(GBIT))
            .collect();
        let demands: Vec<f64> = self.flows.iter().map(|flow| flow.demand_bps).collect();
        self.rates_bps = Self::share(&in_force, &self.flows, &demands);
        let others = |host: &WorldHost| host.others_bps;
        let real: Vec<f64> = (self.hosts.iter())
            .flat_map(|host| [host.up_bps(), host.real_down_bps - others(host)])
            .collect();
        let used = Self::share(&real, &self.flows, &self.rates_bps);
        let mut handed_out = vec![0.0; links as usize];
        let mut carried = vec![0.0; links as usize];
        for (at, flow) in self.flows.iter().enumerate() {
            for link in [up(flow.from), down(flow.to)] {
                handed_out[link.index()] += self.rates_bps[at];
                carried[link.index()] += used[at];
            }
        }
        for (mean, now) in self.handed_out_bps.iter_mut().zip(&handed_out) {
            *mean += (now - *mean) * 0.3;
        }
        for index in 0..self.hosts.len() {
            let own = index as u32;
            let flows = (self.flows.iter().zip(&self.rates_bps)).zip(&used);
            let mut congested = BTreeMap::new();
            let mut has_uncongested = false;
            for ((flow, rate_bps), used_bps) in flows.filter(|((flow, _), _)| flow.from == own) {
                let is_congested =
                    *used_bps < rate_bps - 1e3 || self.now_ms - flow.started_ms < START_MS;
                let is_backlogged = flow.demand_bps > rate_bps + 1e3;
                if is_congested {
                    let since = self.hosts[index].congested_ms.get(&flow.to);
                    congested.insert(flow.to, since.copied().unwrap_or(self.now_ms));
                }
                has_uncongested |= is_backlogged && !is_congested;
            }
            let host = &mut self.hosts[index];
            host.congested_ms = congested;
            for (at, held_up) in host.held_up.iter_mut().enumerate() {
                let link = 2 * index + at;
                *held_up |= host.counts_held_up && handed_out[link] > real[link] + 1e3;
            }
            host.held_up[0] |= host.counts_bursts;
            if let Some(credit) = &mut host.credit {
                credit.bits += (credit.baseline_bps - carried[2 * index]) / 10.0;
            }
            host.carried_bits[0] += carried[2 * index] / 10.0;
            host.carried_bits[1] += (carried[2 * index + 1] + host.others_bps) / 10.0;
            if self.now_ms.is_multiple_of(1_000) {
                let [up_bits, down_bits] = std::mem::take(&mut host.carried_bits);
                let [up_held, down_held] = std::mem::take(&mut host.held_up);
                for (word, bits, is_held_up) in [
                    (&mut host.told.uplink, up_bits, up_held),
                    (&mut host.told.downlink, down_bits, down_held),
                ] {
                    word.speed_bps = host.speed_bps;
                    word.is_held_up = is_held_up;
                    // Hosts tell what has moved by a part of the link.
                    if word
                        .carried_bps
                        .is_none_or(|told| (bits - told).abs() > GBIT / 64.0)
                    {
                        word.carried_bps = Some(bits);
                    }
                }
            }
            if self.now_ms.is_multiple_of(500) && host.is_connected {
                let now_ms = self.now_ms;
                let is_told = |(_, since_ms): &(&u32, &u64)| now_ms - **since_ms >= 1_000;
                host.told.congested = (host.congested_ms.iter())
                    .filter(is_told)
                    .map(|(&to, _)| HostId(to))
                    .collect();
                host.told.has_uncongested = has_uncongested;
                let word = host.told.clone();
                let meets = host.others_bps > 0.0;
                let facts = WorldFacts {
                    handed_out_bps: &self.handed_out_bps,
                    baseline_bps: self.baseline_bps,
                    hosts: self.hosts.len() as u32,
                };
                let now_ns = self.now_ms * MS;
                self.check.tell(now_ns, HostId(own), word, &facts);
                self.check.set_others(down(own), meets);
            }
        }
        let facts = WorldFacts {
            handed_out_bps: &self.handed_out_bps,
            baseline_bps: self.baseline_bps,
            hosts: self.hosts.len() as u32,
        };
        let (changes, faults, now_ms) = (&mut self.changes, &mut self.faults, self.now_ms);
        self.check
            .tick(now_ms * MS, &facts, &mut |change| match change {
                LinkChange::State { link, evidence, .. } => {
                    changes.push((now_ms, link.0, evidence.state));
                }
                LinkChange::Fault { host, fault, has } => faults.push((host.0, fault, has)),
                LinkChange::Capacity(_) => {}
            });
    }

    fn run(&mut self, ms: u64) {
        let end_ms = self.now_ms + ms;
        while self.now_ms < end_ms {
            self.step();
        }
    }

    /// Asserts that `link` alone is named, as `state`, within the bound from now on; and that it
    /// then stays so.
    fn assert_named(&mut self, link: LinkId, state: LinkState) {
        self.changes.clear();
        self.run(NAMED_MS);
        let named: Vec<(LinkId, LinkState)> = self.check.named().collect();
        assert_eq!(named, [(link, state)], "{:?}", self.changes);
        self.run(120_000);
        let named: Vec<(LinkId, LinkState)> = self.check.named().collect();
        assert_eq!(named, [(link, state)], "{:?}", self.changes);
        assert_eq!(self.changes.len(), 1, "it flaps: {:?}", self.changes);
    }

    /// Asserts that nothing is named any more within the bound from now on, and nothing lowered.
    fn assert_taken_back(&mut self) {
        self.changes.clear();
        self.run(TAKEN_BACK_MS);
        assert_eq!(self.check.named().count(), 0, "{:?}", self.changes);
        assert_eq!(self.changes.len(), 1, "it flaps: {:?}", self.changes);
        assert_eq!(self.check.lowered_count(), 0);
        self.run(60_000);
        assert_eq!(self.changes.len(), 1, "it comes back: {:?}", self.changes);
    }

    fn assert_nothing_named(&self) {
        assert_eq!(self.changes, []);
        assert_eq!(self.check.lowered_count(), 0);
    }
}

/// Eight senders to host 0.
fn incast() -> World {
    let mut world = World::new(9);
    for sender in 1..9 {
        world.flow(sender, 0);
    }
    world
}

#[test]
fn a_capacity_that_is_1_25_times_too_high_is_named_lowered_and_restored() {
    let mut world = incast();
    world.run(20_000);
    world.assert_nothing_named();
    world.hosts[0].real_down_bps = 0.8 * GBIT;
    world.assert_named(down(0), LinkState::CarriesLess);
    let lowered_bps = world.check.lowered_bps(down(0)).expect("lowered");
    assert!(
        (0.7 * GBIT..0.9 * GBIT).contains(&lowered_bps),
        "{lowered_bps}"
    );
    // Probes overshoot for a while; most of the time the queue is empty.
    let mut congested = 0;
    for _ in 0..600 {
        world.step();
        congested += u32::from(!world.hosts[1].congested_ms.is_empty());
    }
    assert!(congested < 300, "{congested} of 600 steps");
    world.hosts[0].real_down_bps = GBIT;
    world.assert_taken_back();
}

/// A receiver tells of the end before its senders do, and of the next beginning with a part of a
/// second.
#[test]
fn flows_that_end_and_begin_lower_a_link_no_further() {
    let mut world = incast();
    world.hosts[0].real_down_bps = 0.8 * GBIT;
    world.run(10_000);
    let flows = world.flows.clone();
    let mut least_bps = world.check.lowered_bps(down(0)).expect("lowered");
    for turn in 0..20 {
        world.hosts[1..]
            .iter_mut()
            .for_each(|sender| sender.is_connected = false);
        world.flows.clear();
        for _ in 0..9 {
            world.step();
            least_bps = least_bps.min(world.check.lowered_bps(down(0)).unwrap_or(GBIT));
        }
        world.hosts[1..]
            .iter_mut()
            .for_each(|sender| sender.is_connected = true);
        world.run(100 * (turn % 7));
        world.flows.clone_from(&flows);
        let now_ms = world.now_ms;
        world
            .flows
            .iter_mut()
            .for_each(|flow| flow.started_ms = now_ms);
        for _ in 0..30 {
            world.step();
            least_bps = least_bps.min(world.check.lowered_bps(down(0)).unwrap_or(GBIT));
        }
    }
    // Words are off by 1/64 at most.
    assert!(
        least_bps > TARGET * 0.8 * GBIT * (1.0 - 1.0 / 32.0),
        "{least_bps}"
    );
}

#[test]
fn an_uplink_that_carries_less_is_named_and_not_its_receivers() {
    let mut world = World::new(4);
    for receiver in 1..4 {
        world.flow(0, receiver);
    }
    world.run(10_000);
    world.hosts[0].real_up_bps = 0.8 * GBIT;
    world.assert_named(up(0), LinkState::CarriesLess);
    world.hosts[0].real_up_bps = GBIT;
    world.assert_taken_back();
}

/// Between two hosts nothing tells the two links apart but what they have carried.
#[test]
fn of_two_full_links_the_one_that_has_not_proven_its_capacity_is_named() {
    let mut world = World::new(3);
    world.hosts[1].real_down_bps = 0.8 * GBIT;
    world.flow(0, 2);
    world.run(10_000);
    world.flows[0].to = 1;
    world.assert_named(down(1), LinkState::CarriesLess);
}

#[test]
fn a_sender_whose_other_flows_meet_no_congestion_has_a_right_uplink() {
    let mut world = World::new(3);
    world.hosts[1].real_down_bps = 0.3 * GBIT;
    world.flow(0, 1);
    world.flow(0, 2);
    world.run(NAMED_MS);
    let named: Vec<(LinkId, LinkState)> = world.check.named().collect();
    assert_eq!(named, [(down(1), LinkState::CarriesLess)]);
}

/// A queue of its host holds one sender up. Its claims come and go, and leave the other one less.
#[test]
fn a_sender_behind_a_queue_of_its_host_names_no_link_of_a_receiver_that_serves_the_others() {
    let mut world = World::new(3);
    world.flow(1, 0);
    world.flow(2, 0);
    world.hosts[1].real_up_bps = 0.05 * GBIT;
    for turn in 0..600 {
        // Its demand is what it uses, but for a fifth of each second and more.
        world.flows[0].demand_bps = if turn % 8 < 2 {
            f64::INFINITY
        } else {
            0.06 * GBIT
        };
        world.step();
    }
    let receivers: Vec<_> = (world.changes.iter())
        .filter(|(_, link, _)| *link == down(0).0)
        .collect();
    assert!(receivers.is_empty(), "{receivers:?}");
    assert_eq!(world.check.lowered_bps(down(0)), None);
}

#[test]
fn a_capacity_that_is_1_25_times_too_low_is_named_by_the_interface_or_by_what_it_carries() {
    for by_speed in [true, false] {
        let mut world = incast();
        world.run(10_000);
        let host = &mut world.hosts[0];
        host.real_down_bps = 1.25 * GBIT;
        if by_speed {
            host.speed_bps = 1.25 * GBIT;
            // Its own uplink is of that speed, too.
            world.run(NAMED_MS);
            let named: Vec<(LinkId, LinkState)> = world.check.named().collect();
            let more = LinkState::CarriesMore;
            assert_eq!(named, [(up(0), more), (down(0), more)]);
            world.hosts[0].speed_bps = GBIT;
            world.run(TAKEN_BACK_MS);
            assert_eq!(world.check.named().count(), 0);
        } else {
            // With the headroom of a shared link the rates let it carry more.
            host.others_bps = 0.3 * GBIT;
            world.assert_named(down(0), LinkState::CarriesMore);
            world.hosts[0].others_bps = 0.0;
            world.assert_taken_back();
        }
        assert_eq!(world.check.lowered_count(), 0);
    }
}

/// Both links have proven their capacity, and are equally full.
#[test]
fn an_instance_whose_credit_runs_out_is_named_lowered_and_has_its_peak_with_new_credit() {
    for tenth in 0..10 {
        let mut world = World::new(2);
        world.flow(0, 1);
        world.hosts[0].counts_held_up = true;
        world.hosts[0].credit = Some(Credit {
            baseline_bps: 0.6 * GBIT,
            bits: 4e9 + f64::from(tenth) * 0.04e9,
        });
        let credit_bits = |world: &World| world.hosts[0].credit.map_or(0.0, |credit| credit.bits);
        while credit_bits(&world) > 0.0 {
            world.step();
            world.assert_nothing_named();
        }
        world.run(NAMED_MS);
        let named: Vec<(LinkId, LinkState)> = world.check.named().collect();
        assert_eq!(
            named,
            [(up(0), LinkState::CarriesLess)],
            "{:?}",
            world.changes
        );
        let mut congested = 0;
        for _ in 0..3_000 {
            world.step();
            let lowered_bps = world.check.lowered_bps(up(0));
            assert!(lowered_bps.is_some(), "given up at {} ms", world.now_ms);
            congested += u32::from(!world.hosts[0].congested_ms.is_empty());
        }
        assert!(congested < 1_500, "{congested} of 3,000 steps");
        assert_eq!(world.changes.len(), 1, "it flaps: {:?}", world.changes);
        let facts = WorldFacts {
            handed_out_bps: &world.handed_out_bps,
            baseline_bps: None,
            hosts: 2,
        };
        assert!(world.check.evidence(up(0), &facts).by_allowance);
        // At rest it saves up credit for more than the time that follows.
        let flows = std::mem::take(&mut world.flows);
        world.run(20_000);
        world.flows = flows;
        world.run(TAKEN_BACK_MS);
        assert_eq!(world.check.named().count(), 0, "{:?}", world.changes);
        assert_eq!(world.check.lowered_count(), 0);
        assert!(credit_bits(&world) > 0.0);
    }
}

/// By half of the peak it would stay congested, and be given up.
#[test]
fn an_instance_is_lowered_to_a_baseline_that_is_a_fifth_of_its_peak() {
    for is_told in [true, false] {
        let mut world = World::new(2);
        world.flow(0, 1);
        world.hosts[0].counts_held_up = true;
        world.hosts[0].credit = Some(Credit {
            baseline_bps: 0.2 * GBIT,
            bits: 4e9,
        });
        world.baseline_bps = is_told.then_some(0.2 * GBIT);
        while world.hosts[0]
            .credit
            .is_some_and(|credit| credit.bits > 0.0)
        {
            world.step();
        }
        world.run(NAMED_MS);
        let mut lowered = Vec::new();
        for _ in 0..2_000 {
            world.step();
            lowered.extend(world.check.lowered_bps(up(0)));
        }
        if is_told {
            assert_eq!(lowered.len(), 2_000, "given up");
            let least_bps = lowered.iter().copied().fold(GBIT, f64::min);
            assert!(
                (0.18 * GBIT..=0.2 * GBIT).contains(&least_bps),
                "{least_bps}"
            );
        } else {
            assert!(lowered.len() < 1_000, "half of the peak does not fit");
        }
    }
}

#[test]
fn an_allowance_names_its_link_though_the_other_end_tells_nothing() {
    for counts_held_up in [true, false] {
        let mut world = World::new(2);
        world.hosts[1].is_connected = false;
        world.hosts[0].counts_held_up = counts_held_up;
        world.flow(0, 1);
        world.run(10_000);
        world.hosts[0].real_up_bps = 0.6 * GBIT;
        if counts_held_up {
            world.assert_named(up(0), LinkState::CarriesLess);
            world.hosts[0].real_up_bps = GBIT;
            world.assert_taken_back();
        } else {
            world.run(60_000);
            world.assert_nothing_named();
        }
    }
}

/// An allowance holds up bursts of a few packets of a link that is far from full.
#[test]
fn bursts_that_an_allowance_holds_up_name_nothing_and_explain_no_congestion_elsewhere() {
    let mut world = World::new(3);
    world.hosts[0].counts_bursts = true;
    world.flow(0, 1);
    world.flow(0, 2);
    for flow in &mut world.flows {
        flow.demand_bps = 0.2 * GBIT;
    }
    world.run(120_000);
    world.assert_nothing_named();
    for flow in &mut world.flows {
        flow.demand_bps = f64::INFINITY;
    }
    world.hosts[1].real_down_bps = 0.3 * GBIT;
    world.run(NAMED_MS);
    let named: Vec<(LinkId, LinkState)> = world.check.named().collect();
    assert_eq!(named, [(down(1), LinkState::CarriesLess)]);
}

#[test]
fn an_interface_that_is_slower_than_told_is_named_at_rest() {
    let mut world = World::new(2);
    world.run(10_000);
    world.hosts[1].speed_bps = GBIT / 10.0;
    world.run(NAMED_MS);
    let less = LinkState::CarriesLess;
    let named: Vec<(LinkId, LinkState)> = world.check.named().collect();
    assert_eq!(named, [(up(1), less), (down(1), less)]);
    assert_eq!(world.check.lowered_count(), 0, "nothing was measured");
    world.hosts[1].speed_bps = GBIT;
    world.run(TAKEN_BACK_MS);
    assert_eq!(world.check.named().count(), 0);
}

/// The link is full and carries what it was told: congestion there is no matter of capacity.
#[test]
fn an_unmanaged_sender_is_named_as_others_traffic_and_nothing_else() {
    for others in [0.1, 0.5, 0.9] {
        let mut world = incast();
        world.run(10_000);
        world.hosts[0].others_bps = others * GBIT;
        world.assert_named(down(0), LinkState::HasOthersTraffic);
        world.hosts[0].others_bps = 0.0;
        world.assert_taken_back();
    }
}

/// The maxima of its flows may fill twice the shared link, and so all of its uplink.
#[test]
fn a_lone_sender_beside_an_unmanaged_one_has_a_right_uplink() {
    let mut world = World::new(2);
    world.flow(0, 1);
    world.run(10_000);
    world.hosts[1].others_bps = 0.4 * GBIT;
    world.assert_named(down(1), LinkState::HasOthersTraffic);
    world.hosts[1].others_bps = 0.0;
    world.assert_taken_back();
}

#[test]
fn steady_load_at_0_97_and_idle_hosts_are_as_told() {
    let mut world = incast();
    for flow in &mut world.flows {
        flow.demand_bps = 0.97 * GBIT / 8.0;
    }
    world.run(120_000);
    world.assert_nothing_named();
    let facts = WorldFacts {
        handed_out_bps: &world.handed_out_bps,
        baseline_bps: None,
        hosts: 9,
    };
    let state = |link| world.check.evidence(link, &facts).state;
    assert_eq!(state(down(0)), LinkState::AsTold);
    world.flows.clear();
    world.run(120_000);
    world.assert_nothing_named();
}

#[test]
fn bursts_name_nothing_even_if_each_of_them_overruns_the_link_for_a_moment() {
    let mut world = incast();
    for turn in 0..200 {
        // The rates of a start are not in force yet: the link has less for this moment.
        world.hosts[0].real_down_bps = 0.5 * GBIT;
        world.run(300);
        world.hosts[0].real_down_bps = GBIT;
        world.run(300 + turn % 7 * 100);
        let flows = std::mem::take(&mut world.flows);
        world.run(turn % 5 * 100);
        world.flows = flows;
    }
    world.assert_nothing_named();
}

#[test]
fn what_does_not_fit_as_far_as_a_link_may_be_lowered_is_only_named() {
    for (real, is_lowered) in [(0.5, false), (0.74, false), (0.78, true)] {
        let mut world = incast();
        world
            .check
            .reconfigure(LinkCheckConfig { max_lowering: 0.25 });
        world.hosts[0].real_down_bps = real * GBIT;
        let mut least_bps = GBIT;
        for _ in 0..300 {
            world.step();
            let lowered_bps = world.check.lowered_bps(down(0));
            least_bps = lowered_bps.unwrap_or(GBIT).min(least_bps);
        }
        let expected_bps = if is_lowered { 0.75 * GBIT } else { GBIT };
        assert_eq!(least_bps, expected_bps, "{real}");
        let named: Vec<(LinkId, LinkState)> = world.check.named().collect();
        assert_eq!(named, [(down(0), LinkState::CarriesLess)]);
    }
}

/// A link that falls to a tenth for some seconds carries all again at once.
#[test]
fn a_link_that_falls_far_is_not_held_back_when_it_comes_back() {
    for fallen in [0.1, 0.3, 0.45] {
        let mut world = incast();
        world.run(5_000);
        world.hosts[0].real_down_bps = fallen * GBIT;
        world.run(5_000);
        world.hosts[0].real_down_bps = GBIT;
        world.run(1_000);
        let carried_bps: f64 = world.rates_bps.iter().sum();
        assert!(carried_bps > 0.9 * GBIT, "{fallen}: {carried_bps} bit/s");
    }
}

#[test]
fn without_lowering_it_is_named_and_taken_back_all_the_same() {
    let mut world = incast();
    world
        .check
        .reconfigure(LinkCheckConfig { max_lowering: 0.0 });
    world.run(10_000);
    world.hosts[0].real_down_bps = 0.8 * GBIT;
    world.assert_named(down(0), LinkState::CarriesLess);
    assert_eq!(world.check.lowered_count(), 0);
    world.hosts[0].real_down_bps = GBIT;
    world.assert_taken_back();
}

#[test]
fn a_named_link_that_falls_idle_keeps_its_state_for_a_minute() {
    let mut world = incast();
    world.hosts[0].real_down_bps = 0.8 * GBIT;
    world.run(10_000);
    assert_eq!(world.check.named().count(), 1);
    let flows = std::mem::take(&mut world.flows);
    world.run(30_000);
    assert_eq!(world.check.named().count(), 1);
    world.flows = flows;
    world.run(30_000);
    assert_eq!(world.changes.len(), 1, "{:?}", world.changes);
    world.flows.clear();
    world.run(70_000);
    assert_eq!(world.check.named().count(), 0);
    assert_eq!(world.check.lowered_count(), 0);
    assert_eq!(world.check.next_due_ns(), None, "nothing is left to do");
}

#[test]
fn what_a_host_said_ends_with_its_session() {
    let mut world = incast();
    world.hosts[0].real_down_bps = 0.8 * GBIT;
    world.run(10_000);
    world.hosts[0].is_connected = false;
    world.check.forget(HostId(0), [up(0), down(0)]);
    world.run(600);
    assert_eq!(world.check.named().count(), 0);
    assert_eq!(world.check.lowered_count(), 0);
    let facts = WorldFacts {
        handed_out_bps: &[0.0; 18],
        baseline_bps: None,
        hosts: 9,
    };
    let state = world.check.evidence(down(0), &facts).state;
    assert_eq!(state, LinkState::Unknown);
    // Its senders still meet congestion: that of a host which tells nothing is nobody's.
    world.run(20_000);
    assert_eq!(world.check.named().count(), 0);
}

#[test]
fn a_restart_takes_back_what_is_named_and_it_is_named_anew() {
    let mut world = incast();
    let fault = HostFault::AddressNotInPrefix;
    world.hosts[0].real_down_bps = 0.8 * GBIT;
    world.hosts[1].told.faults.insert(fault);
    world.run(10_000);
    assert_eq!((world.changes.len(), world.faults.len()), (1, 1));
    let facts = WorldFacts {
        handed_out_bps: &world.handed_out_bps,
        baseline_bps: None,
        hosts: 9,
    };
    let mut changes = Vec::new();
    (world.check).restart(&facts, &mut |change| changes.push(change));
    let evidence = world.check.evidence(down(0), &facts);
    assert_eq!(evidence.state, LinkState::Unknown);
    assert_eq!(
        changes,
        [
            LinkChange::State {
                link: down(0),
                before: LinkState::CarriesLess,
                evidence,
            },
            LinkChange::Fault {
                host: HostId(1),
                fault,
                has: false,
            },
        ]
    );
    assert_eq!(world.check.named().count(), 0);
    assert_eq!(world.check.faults().count(), 0);
    assert_eq!(world.check.lowered_count(), 0);
    world.run(NAMED_MS);
    let named: Vec<(LinkId, LinkState)> = world.check.named().collect();
    assert_eq!(named, [(down(0), LinkState::CarriesLess)]);
    assert_eq!(world.faults, [(1, fault, true), (1, fault, true)]);
}

#[test]
fn a_host_with_a_fault_is_named_once_and_taken_back_with_its_word_or_its_session() {
    let of_hosts = [
        HostFault::AddressNotInPrefix,
        HostFault::CongestionControlChanged,
    ];
    for (fault, by_word) in of_hosts
        .into_iter()
        .flat_map(|of| [(of, true), (of, false)])
    {
        let mut world = World::new(2);
        world.hosts[1].told.faults.insert(fault);
        world.run(60_000);
        assert_eq!(world.faults, [(1, fault, true)]);
        let named: Vec<(HostId, HostFault)> = world.check.faults().collect();
        assert_eq!(named, [(HostId(1), fault)]);
        if by_word {
            world.hosts[1].told.faults.clear();
        } else {
            world.hosts[1].is_connected = false;
            world.check.forget(HostId(1), [up(1), down(1)]);
        }
        world.run(1_000);
        assert_eq!(world.faults, [(1, fault, true), (1, fault, false)]);
        assert_eq!(world.check.faults().count(), 0);
    }
}

/// A virtual address, say: two hosts have an address in the prefix of one.
#[test]
fn a_prefix_of_several_hosts_is_named_at_its_host_while_any_other_tells_of_it() {
    let mut world = World::new(4);
    for other in [2, 3] {
        // Itself and hosts that do not exist are passed over.
        world.hosts[other].told.in_prefixes_of = vec![HostId(1), HostId(other as u32), HostId(99)];
    }
    world.run(60_000);
    let fault = HostFault::PrefixOfSeveralHosts;
    assert_eq!(world.faults, [(1, fault, true)]);
    assert_eq!(world.check.fault_seen_at(HostId(1), fault), Some(HostId(2)));
    assert_eq!(world.check.fault_counts(), [0, 0, 1, 0]);
    world.hosts[2].is_connected = false;
    world.check.forget(HostId(2), [up(2), down(2)]);
    world.run(2_000);
    assert_eq!(world.check.fault_seen_at(HostId(1), fault), Some(HostId(3)));
    world.hosts[3].told.in_prefixes_of.clear();
    world.run(2_000);
    assert_eq!(world.faults, [(1, fault, true), (1, fault, false)]);
    assert_eq!(world.check.faults().count(), 0);
    assert_eq!(world.check.next_due_ns(), None, "nothing is left to do");
}

#[test]
fn flows_beyond_a_bound_name_their_host_once_they_have_stood_and_until_they_are_long_gone() {
    let mut world = World::new(3);
    let fault = HostFault::FlowsBeyondBound;
    let note = |world: &mut World, host, has| {
        let now_ns = world.now_ms * MS;
        world.check.set_flows_beyond(now_ns, HostId(host), has);
    };
    // Bursts of starts wait for their turn.
    for _ in 0..20 {
        note(&mut world, 1, true);
        world.run(1_500);
        note(&mut world, 1, false);
        world.run(300);
    }
    assert_eq!(world.faults, []);
    note(&mut world, 1, true);
    world.run(NAMED_MS);
    assert_eq!(world.faults, [(1, fault, true)]);
    // One that comes and goes stays named.
    for _ in 0..20 {
        note(&mut world, 1, false);
        world.run(3_000);
        note(&mut world, 1, true);
        world.run(300);
    }
    assert_eq!(world.faults.len(), 1);
    // The daemon tells of a table of its own, and takes it back later.
    world.hosts[1].told.faults.insert(fault);
    world.run(1_000);
    note(&mut world, 1, false);
    world.run(60_000);
    assert_eq!(world.faults.len(), 1);
    world.hosts[1].told.faults.clear();
    world.run(TAKEN_BACK_MS);
    assert_eq!(world.faults, [(1, fault, true), (1, fault, false)]);
    assert_eq!(world.check.fault_counts(), [0; 4]);
}

/// A daemon that gets no processor does not measure what its interface carries.
#[test]
fn a_receiver_that_has_not_measured_yet_is_not_named() {
    let mut world = incast();
    world.hosts[0].real_down_bps = 0.5 * GBIT;
    world.hosts[0].is_connected = false;
    let facts = WorldFacts {
        handed_out_bps: &[0.0; 18],
        baseline_bps: None,
        hosts: 9,
    };
    world.check.tell(0, HostId(0), HostWord::default(), &facts);
    world.run(20_000);
    world.assert_nothing_named();
}

/// A host tells of its own two links alone, whatever it tells.
#[test]
fn a_host_that_lies_lowers_no_link_that_carries_its_capacity() {
    let mut world = incast();
    for liar in 1..9 {
        world.hosts[liar].is_connected = false;
    }
    for _ in 0..600 {
        world.step();
        let facts = WorldFacts {
            handed_out_bps: &world.handed_out_bps,
            baseline_bps: None,
            hosts: 9,
        };
        for liar in 1..9 {
            let word = HostWord {
                congested: (0..64).map(HostId).collect(),
                ..HostWord::default()
            };
            world
                .check
                .tell(world.now_ms * MS, HostId(liar), word, &facts);
        }
    }
    assert_eq!(world.check.lowered_bps(down(0)), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any load on a network that is as told: demands, starts and ends, at any time.
    #[test]
    fn a_network_that_is_as_told_is_never_named(
        steps in prop::collection::vec(
            (0..6_u32, 0..6_u32, prop_oneof![Just(f64::INFINITY), 1e6..2e9], 1..60_u64),
            1..40,
        ),
    ) {
        let mut world = World::new(6);
        for host in &mut world.hosts {
            host.speed_bps = GBIT;
        }
        for (from, to, demand_bps, tenths) in steps {
            if from == to {
                world.flows.pop();
            } else {
                world.flow(from, to);
                if let Some(flow) = world.flows.last_mut() {
                    flow.demand_bps = demand_bps;
                }
            }
            world.run(tenths * 100);
            prop_assert_eq!(&world.changes, &[]);
        }
        prop_assert_eq!(world.check.lowered_count(), 0);
    }
}

mod network;
