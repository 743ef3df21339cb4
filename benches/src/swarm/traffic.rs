//! Traffic of a swarm's hosts: starts and ends of flowlets, and their times.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use ratewright_proto::{FlowId, FlowPath, StartRecord};

use super::options::Offer;
use super::own_links::Carriage;
use super::target::HOSTS_PER_RACK;

/// Maximum of starts and ends in one turn, during which datagrams wait.
const MOST_AT_ONCE: usize = 64;
/// Maximum of a host's flows: the default limit of a session.
const MOST_PER_HOST: usize = 16_384;

/// A flowlet's start or end, for the session of the host with this index.
#[derive(Debug, Clone, PartialEq)]
pub enum TrafficAction {
    /// A flowlet starts.
    Start(usize, StartRecord),
    /// A flowlet ends.
    End(usize, FlowId),
}

#[derive(Debug, Clone, Copy, Default)]
struct FlowState {
    flow: FlowId,
    /// Index of the host at the other end.
    to: u32,
    /// Index among the active flows; none while the slot is free.
    active: Option<u32>,
    started_ns: u64,
    answered: bool,
    /// Bits left to carry at `since_ns`, for flows that end by size.
    remaining_bits: f64,
    rate_bps: u64,
    since_ns: u64,
    /// Time at which all bits are carried, at the present rate.
    finish_ns: Option<u64>,
    /// Its earliest entry among the finishes.
    scheduled_ns: Option<u64>,
}

#[derive(Debug, Default)]
struct HostFlows {
    slots: Vec<FlowState>,
    free: VecDeque<u32>,
}

/// All flows of a swarm.
#[derive(Debug)]
pub struct Traffic {
    offer: Offer,
    rng: Pcg64Mcg,
    /// The hosts' numbers in the topology.
    hosts: Vec<u32>,
    tables: Vec<HostFlows>,
    active: Vec<(u32, u32)>,
    /// Interfaces of the hosts, out and in, if they are asked for.
    carried: Vec<[Carriage; 2]>,
    counts_carried: bool,
    /// Time from the beginning until flows between racks are misled, if they ever are.
    misled_after_ns: Option<u64>,
    misled_from_ns: Option<u64>,
    /// Flows between racks take a path that is not the topology's.
    is_misled: bool,
    /// Flows that are yet to start before the arrivals begin.
    initial: u32,
    /// The next arrival; nothing while there are none.
    arrival_ns: Option<f64>,
    finishes: BinaryHeap<Reverse<(u64, u32, u32)>>,
    frozen: bool,
    /// Flows that ended before they had a rate.
    pub unanswered: u64,
    /// Arrivals that were dropped at the limit of active flows.
    pub blocked: u64,
    /// Flowlets started.
    pub starts: u64,
}

impl Traffic {
    /// No traffic yet.
    #[must_use]
    pub fn new(offer: Offer, seed: u64) -> Self {
        Self {
            offer,
            rng: Pcg64Mcg::seed_from_u64(seed),
            hosts: Vec::new(),
            tables: Vec::new(),
            active: Vec::new(),
            carried: Vec::new(),
            counts_carried: false,
            misled_after_ns: None,
            misled_from_ns: None,
            is_misled: false,
            initial: 0,
            arrival_ns: None,
            finishes: BinaryHeap::new(),
            frozen: true,
            unanswered: 0,
            blocked: 0,
            starts: 0,
        }
    }

    /// Counts from the beginning on what hosts' interfaces carry.
    pub fn count_carried(&mut self) {
        self.counts_carried = true;
    }

    /// Misleads flows between racks from so long after the beginning on: they carry half of their
    /// rates, and meet congestion.
    pub fn mislead_after(&mut self, after: Duration) {
        self.misled_after_ns = Some(after.as_nanos() as u64);
    }

    fn mislead_if_due(&mut self, now_ns: u64) {
        if self.is_misled || self.misled_from_ns.is_none_or(|from_ns| now_ns < from_ns) {
            return;
        }
        self.is_misled = true;
        for index in 0..self.active.len() {
            let (host, slot) = self.active[index];
            let state = self.tables[host as usize].slots[slot as usize];
            let (from, to) = (host as usize, state.to as usize);
            // Until now it carried all of its rate.
            let rates = [state.rate_bps, self.carried_bps(from, to, state.rate_bps)];
            change_carried(&mut self.carried, now_ns, [from, to], rates);
        }
    }

    /// Returns what a flow between these hosts carries of its rate, in bit/s.
    fn carried_bps(&self, from: usize, to: usize, rate_bps: u64) -> u64 {
        let rack = |host: usize| self.hosts[host] / HOSTS_PER_RACK;
        if self.is_misled && rack(from) != rack(to) {
            rate_bps / 2
        } else {
            rate_bps
        }
    }

    /// Returns the numbers of the hosts to which flows of a host meet congestion.
    pub fn congested(&self, host: usize) -> Vec<u32> {
        if !self.is_misled {
            return Vec::new();
        }
        let slots = self.tables.get(host).map_or(&[][..], |table| &table.slots);
        let active = slots.iter().filter(|state| state.active.is_some());
        active
            .filter(|state| state.rate_bps > 0)
            .map(|state| (state.to as usize, state.rate_bps))
            .filter(|&(to, rate_bps)| self.carried_bps(host, to, rate_bps) < rate_bps)
            .map(|(to, _)| self.hosts[to])
            .collect()
    }

    /// Returns the bytes that a host's interface has sent and received so far; none before the
    /// beginning, or if they are not counted.
    pub fn carried_bytes(&mut self, now_ns: u64, host: usize) -> [u64; 2] {
        self.mislead_if_due(now_ns);
        let ways = self.carried.get_mut(host);
        ways.map_or([0; 2], |ways| {
            ways.each_mut().map(|carriage| carriage.bytes(now_ns))
        })
    }

    /// Begins, with hosts of these numbers.
    pub fn begin(&mut self, now_ns: u64, hosts: Vec<u32>) {
        self.tables.resize_with(hosts.len(), HostFlows::default);
        if self.counts_carried {
            self.carried.resize(hosts.len(), Default::default());
        }
        self.hosts = hosts;
        self.misled_from_ns = self.misled_after_ns.map(|after_ns| now_ns + after_ns);
        self.frozen = false;
        match self.offer {
            // A fixed number starts before churn begins; sized flows build up by arrivals.
            Offer::Fixed { flows, .. } => self.initial = flows,
            Offer::Sized { .. } => self.next_arrival(now_ns as f64),
        }
    }

    /// From now on nothing starts or ends.
    pub fn freeze(&mut self) {
        self.frozen = true;
        self.arrival_ns = None;
    }

    /// Flows that are active.
    #[must_use]
    pub fn active(&self) -> usize {
        self.active.len()
    }

    /// Returns true once all initial flows have started.
    #[must_use]
    pub fn is_filled(&self) -> bool {
        self.initial == 0
    }

    /// Active flows without a rate. Scans all.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let waits = |&&(host, slot): &&(u32, u32)| {
            !self.tables[host as usize].slots[slot as usize].answered
        };
        self.active.iter().filter(waits).count()
    }

    fn next_arrival(&mut self, from_ns: f64) {
        let per_s = match self.offer {
            Offer::Fixed { churn_per_s, .. } => churn_per_s,
            Offer::Sized { arrivals_per_s, .. } => arrivals_per_s,
        };
        self.arrival_ns = (per_s > 0.0).then(|| {
            // 1 − u lies in (0, 1], so that the logarithm is finite.
            let u: f64 = self.rng.random();
            from_ns - (1.0 - u).ln() * 1e9 / per_s
        });
    }

    /// Appends due starts and ends to `actions`, and their lateness to `late_ns`.
    pub fn due(&mut self, now_ns: u64, actions: &mut Vec<TrafficAction>, late_ns: &mut Vec<u64>) {
        if self.frozen {
            return;
        }
        // In parts, so that sessions are served between them.
        while self.initial > 0 && actions.len() < MOST_AT_ONCE {
            self.initial -= 1;
            self.start(now_ns, actions);
            if self.initial == 0 {
                self.next_arrival(now_ns as f64);
            }
        }
        // Ends before starts: a slot that is free now can be used at once.
        self.finish(now_ns, actions);
        while actions.len() < MOST_AT_ONCE
            && let Some(at_ns) = self.arrival_ns
            && at_ns <= now_ns as f64
        {
            // Lateness of this program, which start-to-rate times do not include.
            late_ns.push(now_ns - at_ns as u64);
            // From the planned time, so that the process stays Poisson however late this program
            // is.
            self.next_arrival(at_ns);
            match self.offer {
                // Every start found its host's table full.
                Offer::Fixed { .. } if self.active.is_empty() => {}
                Offer::Fixed { .. } => {
                    // A replacement keeps the number of flows: one ends for each that starts.
                    let victim = self.rng.random_range(0..self.active.len());
                    let (host, slot) = self.active[victim];
                    self.end(now_ns, host, slot, actions);
                    self.start(now_ns, actions);
                }
                Offer::Sized { most_flows, .. } if self.active.len() >= most_flows as usize => {
                    self.blocked += 1;
                }
                Offer::Sized { .. } => self.start(now_ns, actions),
            }
        }
    }

    /// Returns the time at which [`due`](Self::due) has something, if no rate changes before.
    #[must_use]
    pub fn next_ns(&self) -> Option<u64> {
        if self.frozen {
            return None;
        }
        if self.initial > 0 {
            return Some(0);
        }
        let finish_ns = self.finishes.peek().map(|Reverse(finish)| finish.0);
        // Rounded up: a wake-up a fraction too early would find nothing due.
        let arrival_ns = self.arrival_ns.map(|at_ns| at_ns as u64 + 1);
        [finish_ns, arrival_ns].into_iter().flatten().min()
    }

    fn start(&mut self, now_ns: u64, actions: &mut Vec<TrafficAction>) {
        let count = self.hosts.len();
        let host = self.rng.random_range(0..count);
        // One of the others: indices from the host's own on are shifted by one below.
        let other = self.rng.random_range(0..count - 1);
        let to = other + usize::from(other >= host);
        let destination = self.hosts[to];
        let bits = match &self.offer {
            Offer::Fixed { .. } => f64::INFINITY,
            Offer::Sized { sizes, .. } => 8.0 * sizes.sample(&mut self.rng) as f64,
        };
        let path = FlowPath::Hash(self.rng.random());
        let table = &mut self.tables[host];
        // The slot that has rested longest, so that late messages of its former flow are over.
        let slot = match table.free.pop_front() {
            Some(slot) => slot,
            None if table.slots.len() < MOST_PER_HOST => {
                let slot = table.slots.len() as u32;
                table.slots.push(FlowState {
                    flow: FlowId::new(slot, 0),
                    ..FlowState::default()
                });
                slot
            }
            None => {
                self.blocked += 1;
                return;
            }
        };
        let state = &mut table.slots[slot as usize];
        *state = FlowState {
            flow: state.flow.next_generation(),
            to: to as u32,
            active: Some(self.active.len() as u32),
            started_ns: now_ns,
            remaining_bits: bits,
            since_ns: now_ns,
            ..FlowState::default()
        };
        self.active.push((host as u32, slot));
        self.starts += 1;
        let record = StartRecord::new(state.flow, destination, path);
        actions.push(TrafficAction::Start(host, record));
    }

    fn end(&mut self, now_ns: u64, host: u32, slot: u32, actions: &mut Vec<TrafficAction>) {
        let state = self.tables[host as usize].slots[slot as usize];
        if state.active.is_some() {
            let (from, to) = (host as usize, state.to as usize);
            let before_bps = self.carried_bps(from, to, state.rate_bps);
            change_carried(&mut self.carried, now_ns, [from, to], [before_bps, 0]);
        }
        let table = &mut self.tables[host as usize];
        let state = &mut table.slots[slot as usize];
        let Some(at) = state.active.take() else {
            return;
        };
        if !state.answered {
            self.unanswered += 1;
        }
        actions.push(TrafficAction::End(host as usize, state.flow));
        table.free.push_back(slot);
        // The last entry moves here, so its flow's index is changed below.
        self.active.swap_remove(at as usize);
        if let Some(&(moved, slot)) = self.active.get(at as usize) {
            self.tables[moved as usize].slots[slot as usize].active = Some(at);
        }
    }

    /// Ends what has been carried.
    fn finish(&mut self, now_ns: u64, actions: &mut Vec<TrafficAction>) {
        while actions.len() < MOST_AT_ONCE
            && let Some(&Reverse((at_ns, host, slot))) = self.finishes.peek()
            && at_ns <= now_ns
        {
            self.finishes.pop();
            let state = &mut self.tables[host as usize].slots[slot as usize];
            // The flow has already ended, or an earlier entry stands for it.
            if state.active.is_none() || state.scheduled_ns != Some(at_ns) {
                continue;
            }
            state.scheduled_ns = None;
            match state.finish_ns {
                Some(finish_ns) if finish_ns <= now_ns => self.end(now_ns, host, slot, actions),
                Some(finish_ns) => {
                    // It has become slower since.
                    state.scheduled_ns = Some(finish_ns);
                    self.finishes.push(Reverse((finish_ns, host, slot)));
                }
                None => {}
            }
        }
    }

    /// Records a flow's rate. Returns the flow's wait in nanoseconds if it is the first.
    pub fn on_rate(
        &mut self,
        now_ns: u64,
        host: usize,
        flow: FlowId,
        rate_bps: u64,
    ) -> Option<u64> {
        let state = self
            .tables
            .get_mut(host)?
            .slots
            .get_mut(flow.slot() as usize)?;
        // A rate for an earlier generation of the slot is no answer to this flow.
        if state.flow != flow || state.active.is_none() {
            return None;
        }
        // Flows of a fixed offer never end by size.
        if state.remaining_bits.is_finite() {
            let carried =
                state.rate_bps as f64 * now_ns.saturating_sub(state.since_ns) as f64 / 1e9;
            state.remaining_bits = (state.remaining_bits - carried).max(0.0);
            state.finish_ns = (rate_bps > 0)
                .then(|| now_ns + (state.remaining_bits * 1e9 / rate_bps as f64) as u64);
            if let Some(finish_ns) = state.finish_ns
                // A later finish keeps its entry: `finish` corrects it when it comes up.
                && state.scheduled_ns.is_none_or(|at_ns| finish_ns < at_ns)
            {
                state.scheduled_ns = Some(finish_ns);
                self.finishes
                    .push(Reverse((finish_ns, host as u32, flow.slot())));
            }
        }
        let before_bps = std::mem::replace(&mut state.rate_bps, rate_bps);
        let to = state.to as usize;
        state.since_ns = now_ns;
        let first = !std::mem::replace(&mut state.answered, true);
        let wait_ns = first.then(|| now_ns.saturating_sub(state.started_ns));
        let rates = [before_bps, rate_bps].map(|bps| self.carried_bps(host, to, bps));
        change_carried(&mut self.carried, now_ns, [host, to], rates);
        wait_ns
    }
}

/// Takes that a flow between these ends has another rate than before, in bit/s.
fn change_carried(
    carried: &mut [[Carriage; 2]],
    now_ns: u64,
    ends: [usize; 2],
    [before_bps, after_bps]: [u64; 2],
) {
    for (way, end) in ends.into_iter().enumerate() {
        if let Some(ways) = carried.get_mut(end) {
            ways[way].change(now_ns, before_bps, after_bps);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratewright_sizes::SizeDistribution;

    fn run(traffic: &mut Traffic, until_ns: u64, rate_bps: u64) -> (usize, usize) {
        let (mut now_ns, mut starts, mut ends) = (0, 0, 0);
        let (mut actions, mut late) = (Vec::new(), Vec::new());
        while now_ns < until_ns {
            traffic.due(now_ns, &mut actions, &mut late);
            for action in actions.drain(..) {
                match action {
                    TrafficAction::Start(host, record) => {
                        starts += 1;
                        traffic.on_rate(now_ns, host, record.flow(), rate_bps);
                    }
                    TrafficAction::End(..) => ends += 1,
                }
            }
            now_ns = traffic.next_ns().unwrap_or(until_ns).max(now_ns + 1);
        }
        (starts, ends)
    }

    #[test]
    fn a_fixed_number_of_flows_is_replaced_at_the_rate_asked_for() {
        let offer = Offer::Fixed {
            flows: 500,
            churn_per_s: 10_000.0,
        };
        let mut traffic = Traffic::new(offer, 3);
        traffic.begin(0, (0..16).collect());
        let (starts, ends) = run(&mut traffic, 1_000_000_000, 1_000_000);
        assert_eq!(traffic.active(), 500);
        assert_eq!(starts, ends + 500);
        assert!((9_500..10_500).contains(&ends), "{ends} replacements");
        assert_eq!((traffic.unanswered, traffic.waiting()), (0, 0));
    }

    #[test]
    fn a_flow_lasts_as_long_as_its_rate_needs_for_its_size() {
        let offer = Offer::Sized {
            sizes: SizeDistribution::constant(1_000),
            arrivals_per_s: 100_000.0,
            most_flows: u32::MAX,
        };
        // 8 Mbit/s carry 1000 bytes in 1 ms: by Little's law 100 flows are active.
        let mut traffic = Traffic::new(offer, 3);
        traffic.begin(0, (0..16).collect());
        let (starts, _) = run(&mut traffic, 1_000_000_000, 8_000_000);
        assert!((98_000..102_000).contains(&starts), "{starts} starts");
        assert!(
            (60..140).contains(&traffic.active()),
            "{} active",
            traffic.active()
        );
    }

    #[test]
    fn interfaces_carry_what_flows_do_from_their_first_rate_to_their_end() {
        let offer = Offer::Sized {
            sizes: SizeDistribution::constant(1_000),
            arrivals_per_s: 10_000.0,
            most_flows: u32::MAX,
        };
        let mut traffic = Traffic::new(offer, 3);
        traffic.count_carried();
        traffic.begin(0, (0..16).collect());
        let (starts, ends) = run(&mut traffic, 1_000_000_000, 8_000_000);
        assert!(ends > 9_000, "{ends} of {starts} ended");
        // Whatever is sent is received, and a flow of 1,000 bytes ends up to a nanosecond late.
        let mut sums = [0; 2];
        for host in 0..16 {
            let [sent, received] = traffic.carried_bytes(1_000_000_000, host);
            sums[0] += sent;
            sums[1] += received;
        }
        assert!(sums[0].abs_diff(sums[1]) <= 16, "{sums:?}");
        let (least, most) = (ends as u64 * 1_000, starts as u64 * 1_000);
        assert!((least - 16..=most + 1_000).contains(&sums[0]), "{sums:?}");
    }

    #[test]
    fn misled_flows_between_racks_carry_half_of_their_rates_and_meet_congestion() {
        let offer = Offer::Fixed {
            flows: 200,
            churn_per_s: 0.0,
        };
        let mut traffic = Traffic::new(offer, 3);
        traffic.count_carried();
        traffic.mislead_after(Duration::from_secs(1));
        // Two hosts in each of two racks.
        traffic.begin(0, vec![0, 1, HOSTS_PER_RACK, HOSTS_PER_RACK + 1]);
        run(&mut traffic, 1, 8_000_000);
        let mut sent = |now_s: u64| -> [u64; 4] {
            std::array::from_fn(|host| traffic.carried_bytes(now_s * 1_000_000_000, host)[0])
        };
        let (before, after) = (sent(1), sent(2));
        for host in 0..4 {
            let slots = traffic.tables[host].slots.iter();
            let crosses = slots.filter(|state| (state.to < 2) != (host < 2)).count() as u64;
            let all = traffic.tables[host].slots.len() as u64;
            let near = |bytes: u64, wanted: u64| bytes.abs_diff(wanted) < wanted / 100;
            assert!(near(before[host], all * 1_000_000), "{before:?}");
            let misled = all * 1_000_000 - crosses * 500_000;
            assert!(near(after[host] - before[host], misled), "{after:?}");
            let congested = traffic.congested(host);
            assert_eq!(congested.len() as u64, crosses);
            let here = traffic.hosts[host] / HOSTS_PER_RACK;
            assert!(congested.iter().all(|to| to / HOSTS_PER_RACK != here));
        }
    }

    #[test]
    fn a_rate_that_changes_moves_the_end() {
        let offer = Offer::Sized {
            sizes: SizeDistribution::constant(1_000),
            arrivals_per_s: 1.0,
            most_flows: 1,
        };
        let mut traffic = Traffic::new(offer, 3);
        traffic.begin(0, vec![7, 9]);
        let mut actions = Vec::new();
        let at_ns = traffic.next_ns().unwrap();
        traffic.due(at_ns, &mut actions, &mut Vec::new());
        let Some(TrafficAction::Start(host, record)) = actions.pop() else {
            panic!("one flow starts");
        };
        // Half of it at 8 Mbit/s takes 0.5 ms, the rest at 1 Mbit/s 4 ms; a stale rate changes
        // nothing.
        let flow = record.flow();
        assert_eq!(traffic.on_rate(at_ns + 10, host, flow, 8_000_000), Some(10));
        assert_eq!(
            traffic.on_rate(at_ns + 500_010, host, flow, 1_000_000),
            None
        );
        traffic.on_rate(at_ns + 500_020, host, flow.next_generation(), 1);
        traffic.freeze();
        traffic.frozen = false;
        traffic.due(at_ns + 4_500_000, &mut actions, &mut Vec::new());
        assert_eq!(actions, []);
        traffic.due(at_ns + 4_500_020, &mut actions, &mut Vec::new());
        assert_eq!(actions, [TrafficAction::End(host, flow)]);
    }
}
