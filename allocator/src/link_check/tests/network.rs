//! Hand-made networks of leaves and spines, where flows may be elsewhere than they are told to be.

use proptest::prelude::*;

use super::*;

const LEAVES: u32 = 3;
const HOSTS_PER_LEAF: u32 = 4;
const SPINES: u32 = 2;
const HOSTS: u32 = LEAVES * HOSTS_PER_LEAF;
/// First link from a leaf to a spine; those from spines to leaves follow.
const FIRST_UP: u32 = 2 * HOSTS;
const FIRST_DOWN: u32 = FIRST_UP + LEAVES * SPINES;
const LINKS: usize = (FIRST_DOWN + LEAVES * SPINES) as usize;

fn leaf_of(host: u32) -> u32 {
    host / HOSTS_PER_LEAF
}

fn leaf_up(leaf: u32, spine: u32) -> LinkId {
    LinkId(FIRST_UP + leaf * SPINES + spine)
}

fn leaf_down(leaf: u32, spine: u32) -> LinkId {
    LinkId(FIRST_DOWN + leaf * SPINES + spine)
}

/// Flow that is told to cross one spine, and crosses this or another one.
#[derive(Debug, Clone, Copy)]
struct FabricFlow {
    from: u32,
    to: u32,
    told_spine: u32,
    spine: u32,
    demand_bps: f64,
    started_ms: u64,
    /// Bound of its rate since it met congestion: daemons ask for 9/8 of what a flow uses.
    yields_to_bps: f64,
}

impl FabricFlow {
    fn path(&self, spine: u32) -> Vec<LinkId> {
        let (first, last) = (leaf_of(self.from), leaf_of(self.to));
        let mut path = vec![up(self.from)];
        if first != last {
            path.extend([leaf_up(first, spine), leaf_down(last, spine)]);
        }
        path.push(down(self.to));
        path
    }
}

/// Hosts at leaves of 1 Gbit/s, and spines.
struct Fabric {
    check: LinkCheck,
    /// The check is told which links flows cross.
    knows_paths: bool,
    /// Capacities as told, and as they are.
    told_bps: Vec<f64>,
    real_bps: Vec<f64>,
    flows: Vec<FabricFlow>,
    handed_out_bps: Vec<f64>,
    carried_bits: Vec<f64>,
    words: Vec<HostWord>,
    congested_ms: Vec<BTreeMap<u32, u64>>,
    /// Links whose devices count what an allowance holds up.
    held_up: BTreeSet<LinkId>,
    /// Hosts tell of their congestion by turns, the odd ones and the even ones.
    by_turns: bool,
    now_ms: u64,
    changes: Vec<(u64, u32, LinkState)>,
}

struct FabricFacts<'a> {
    knows_paths: bool,
    told_bps: &'a [f64],
    handed_out_bps: &'a [f64],
    flows: &'a [FabricFlow],
}

impl LinkFacts for FabricFacts<'_> {
    fn told_bps(&self, link: LinkId) -> f64 {
        self.told_bps[link.index()]
    }

    fn line_rate_bps(&self, link: LinkId) -> f64 {
        self.told_bps[link.index()]
    }

    fn handed_out_bps(&self, link: LinkId) -> f64 {
        self.handed_out_bps[link.index()]
    }

    /// These networks know no history: their means move within a second.
    fn handed_out_before_bps(&self, link: LinkId, _: u64) -> f64 {
        self.handed_out_bps(link)
    }

    fn access(&self, host: HostId) -> Option<(LinkId, LinkId)> {
        (host.0 < HOSTS).then(|| (up(host.0), down(host.0)))
    }

    fn switch(&self, host: HostId) -> Option<u32> {
        Some(leaf_of(host.0))
    }

    fn inner_links(&self, from: HostId, to: HostId, visit: &mut dyn FnMut(LinkId)) {
        let flows = self.flows.iter().filter(|_| self.knows_paths);
        for flow in flows.filter(|flow| (flow.from, flow.to) == (from.0, to.0)) {
            let path = flow.path(flow.told_spine);
            path[1..path.len() - 1].iter().for_each(|&link| visit(link));
        }
    }
}

/// Shares capacities max-min, by raising all rates together.
fn share(capacities_bps: &[f64], paths: &[Vec<LinkId>], bounds_bps: &[f64]) -> Vec<f64> {
    let mut rates = vec![0.0; paths.len()];
    let mut free = capacities_bps.to_vec();
    let mut open: Vec<usize> = (0..paths.len()).collect();
    while !open.is_empty() {
        let mut users = vec![0.0; free.len()];
        for &at in &open {
            paths[at].iter().for_each(|link| users[link.index()] += 1.0);
        }
        let step = |at: usize, rates: &[f64], free: &[f64]| {
            (paths[at].iter())
                .map(|link| free[link.index()] / users[link.index()])
                .fold(bounds_bps[at] - rates[at], f64::min)
        };
        let steps: Vec<f64> = open.iter().map(|&at| step(at, &rates, &free)).collect();
        let least = steps.iter().copied().fold(f64::INFINITY, f64::min);
        for &at in &open {
            rates[at] += least;
            paths[at]
                .iter()
                .for_each(|link| free[link.index()] -= least);
        }
        let mut steps = steps.into_iter();
        open.retain(|_| steps.next().is_some_and(|step| step > least + 1.0));
    }
    rates
}

impl Fabric {
    /// Makes a network whose links between switches have this capacity.
    fn new(inner_bps: f64) -> Self {
        let mut told_bps = vec![GBIT; LINKS];
        told_bps[FIRST_UP as usize..].fill(inner_bps);
        Self {
            check: LinkCheck::new(LinkCheckConfig::default()),
            knows_paths: true,
            real_bps: told_bps.clone(),
            told_bps,
            flows: Vec::new(),
            handed_out_bps: vec![0.0; LINKS],
            carried_bits: vec![0.0; LINKS],
            words: vec![HostWord::default(); HOSTS as usize],
            congested_ms: vec![BTreeMap::new(); HOSTS as usize],
            held_up: BTreeSet::new(),
            by_turns: false,
            now_ms: 0,
            changes: Vec::new(),
        }
    }

    fn flow(&mut self, from: u32, to: u32, spine: u32) {
        self.flows.push(FabricFlow {
            from,
            to,
            told_spine: spine,
            spine,
            demand_bps: f64::INFINITY,
            started_ms: self.now_ms,
            yields_to_bps: f64::INFINITY,
        });
    }

    /// Lets 100 ms pass.
    fn step(&mut self) {
        self.now_ms += 100;
        let in_force: Vec<f64> = (self.told_bps.iter().enumerate())
            .map(|(link, &told_bps)| {
                let lowered_bps = self.check.lowered_bps(LinkId(link as u32));
                DERATED * lowered_bps.unwrap_or(told_bps)
            })
            .collect();
        let flows = self.flows.clone();
        let told: Vec<_> = flows
            .iter()
            .map(|flow| flow.path(flow.told_spine))
            .collect();
        let real: Vec<_> = flows.iter().map(|flow| flow.path(flow.spine)).collect();
        let demands: Vec<f64> = (flows.iter())
            .map(|flow| flow.demand_bps.min(flow.yields_to_bps))
            .collect();
        let rates = share(&in_force, &told, &demands);
        let used = share(&self.real_bps, &real, &rates);
        let mut handed_out = vec![0.0; LINKS];
        for at in 0..flows.len() {
            // A flow that its rate holds back asks for more.
            let meets = used[at] < rates[at] - 1e3;
            let bound_bps = if meets || demands[at] < flows[at].demand_bps {
                1.125 * used[at]
            } else {
                f64::INFINITY
            };
            self.flows[at].yields_to_bps = bound_bps;
            for link in &told[at] {
                handed_out[link.index()] += rates[at];
            }
            for link in &real[at] {
                self.carried_bits[link.index()] += used[at] / 10.0;
            }
        }
        for (mean, now) in self.handed_out_bps.iter_mut().zip(&handed_out) {
            *mean += (now - *mean) * 0.3;
        }
        for host in 0..HOSTS {
            let mut congested = BTreeMap::new();
            let mut has_uncongested = false;
            for (at, flow) in flows
                .iter()
                .enumerate()
                .filter(|(_, flow)| flow.from == host)
            {
                let is_new = self.now_ms - flow.started_ms < START_MS;
                let is_congested = used[at] < rates[at] - 1e3 || is_new;
                if is_congested {
                    let since = self.congested_ms[host as usize].get(&flow.to).copied();
                    congested.insert(flow.to, since.unwrap_or(self.now_ms));
                }
                has_uncongested |= !is_congested && flow.demand_bps > rates[at] + 1e3;
            }
            self.congested_ms[host as usize] = congested;
            let word = &mut self.words[host as usize];
            if self.now_ms.is_multiple_of(1_000) {
                for (word, link) in [
                    (&mut word.uplink, up(host)),
                    (&mut word.downlink, down(host)),
                ] {
                    word.is_held_up = self.held_up.contains(&link);
                    let bits = std::mem::take(&mut self.carried_bits[link.index()]);
                    if (word.carried_bps).is_none_or(|told| (bits - told).abs() > GBIT / 64.0) {
                        word.carried_bps = Some(bits);
                    }
                }
            }
            if self.now_ms.is_multiple_of(500) {
                let now_ms = self.now_ms;
                word.congested = (self.congested_ms[host as usize].iter())
                    .filter(|(_, since_ms)| now_ms - **since_ms >= 1_000)
                    .map(|(&to, _)| HostId(to))
                    .collect();
                let turn = self.now_ms / 2_500 % 2;
                if self.by_turns && turn != u64::from(host % 2) {
                    word.congested.clear();
                }
                word.has_uncongested = has_uncongested;
                let word = word.clone();
                self.act(|check, now_ns, facts, _| check.tell(now_ns, HostId(host), word, facts));
            }
        }
        self.act(|check, now_ns, facts, changes| {
            check.tick(now_ns, facts, &mut |change| {
                if let LinkChange::State { link, evidence, .. } = change {
                    changes.push((now_ns / MS, link.0, evidence.state));
                }
            });
        });
    }

    fn act(
        &mut self,
        act: impl FnOnce(&mut LinkCheck, u64, &FabricFacts<'_>, &mut Vec<(u64, u32, LinkState)>),
    ) {
        let facts = FabricFacts {
            knows_paths: self.knows_paths,
            told_bps: &self.told_bps,
            handed_out_bps: &self.handed_out_bps,
            flows: &self.flows,
        };
        act(&mut self.check, self.now_ms * MS, &facts, &mut self.changes);
    }

    fn run(&mut self, ms: u64) {
        let end_ms = self.now_ms + ms;
        while self.now_ms < end_ms {
            self.step();
        }
    }

    fn named(&self) -> Vec<(LinkId, LinkState)> {
        self.check.named().collect()
    }

    /// Asserts that these links alone are named within the bound, that they stay so, and that all
    /// is taken back once `mend` has mended the network.
    fn assert_named_and_taken_back(
        &mut self,
        named: &[(LinkId, LinkState)],
        mend: impl FnOnce(&mut Self),
    ) {
        assert_eq!(self.changes, [], "before");
        self.run(NAMED_MS);
        assert_eq!(self.named(), named, "{:?}", self.changes);
        self.run(120_000);
        assert_eq!(self.named(), named, "{:?}", self.changes);
        assert_eq!(self.changes.len(), named.len(), "{:?}", self.changes);
        mend(self);
        self.run(TAKEN_BACK_MS);
        assert_eq!(self.named(), [], "{:?}", self.changes);
        self.run(60_000);
        assert_eq!(self.changes.len(), 2 * named.len(), "{:?}", self.changes);
        assert_eq!(self.check.lowered_count(), 0);
    }
}

/// Each host of the first leaf sends to one of the second, over both spines.
fn across(inner_bps: f64) -> Fabric {
    let mut fabric = Fabric::new(inner_bps);
    for host in 0..HOSTS_PER_LEAF {
        fabric.flow(host, HOSTS_PER_LEAF + host, host % SPINES);
    }
    fabric.run(20_000);
    fabric
}

/// Links of the paths from the first leaf to the second, in the order of their numbers.
fn both_paths(state: LinkState) -> Vec<(LinkId, LinkState)> {
    let ups = (0..SPINES).map(|spine| leaf_up(0, spine));
    let downs = (0..SPINES).map(|spine| leaf_down(1, spine));
    ups.chain(downs).map(|link| (link, state)).collect()
}

#[test]
fn flows_that_collide_on_another_path_are_named_where_they_are_told_to_be() {
    // Links between switches that are as fast as two hosts, and ones that bind by themselves.
    for inner_bps in [2.0 * GBIT, 1.5 * GBIT] {
        let mut fabric = across(inner_bps);
        fabric.flows[1].spine = 0;
        fabric.assert_named_and_taken_back(&both_paths(LinkState::WrongPath), |fabric| {
            fabric.flows[1].spine = 1;
        });
    }
}

/// Flows that share a queue lose packets by turns.
#[test]
fn flows_that_meet_on_a_wrong_path_by_turns_stay_named_so() {
    let mut fabric = across(2.0 * GBIT);
    for flow in [1, 3] {
        fabric.flows[flow].spine = 0;
    }
    fabric.run(NAMED_MS);
    fabric.by_turns = true;
    fabric.run(60_000);
    assert_eq!(fabric.named(), both_paths(LinkState::WrongPath));
    assert_eq!(fabric.changes.len(), 4, "{:?}", fabric.changes);
}

#[test]
fn a_link_between_switches_that_lost_a_member_is_named_and_no_host_is() {
    let mut fabric = across(2.0 * GBIT);
    // Another leaf's senders tell the way down apart from the way up.
    fabric.flow(8, 5, 0);
    fabric.flow(9, 7, 0);
    fabric.run(20_000);
    fabric.real_bps[leaf_down(1, 0).index()] = GBIT;
    let less = [(leaf_down(1, 0), LinkState::CarriesLess)];
    fabric.assert_named_and_taken_back(&less, |fabric| {
        fabric.real_bps[leaf_down(1, 0).index()] = 2.0 * GBIT;
    });
}

/// A host has more flows than are looked at: congestion on their ways is not its receivers'.
#[test]
fn pairs_of_hosts_whose_way_nobody_knows_name_nothing() {
    for knows_paths in [true, false] {
        let mut fabric = Fabric::new(GBIT);
        fabric.knows_paths = knows_paths;
        for host in 0..2 {
            fabric.flow(host, HOSTS_PER_LEAF + host, 0);
        }
        fabric.run(20_000);
        fabric.real_bps[leaf_up(0, 0).index()] = 0.6 * GBIT;
        fabric.run(30_000);
        let named = fabric.named();
        assert!(
            named.iter().all(|(link, _)| link.0 >= FIRST_UP),
            "{named:?}"
        );
        assert_eq!(named.is_empty(), !knows_paths, "{named:?}");
    }
}

/// Nobody can tell the two links of one path apart.
#[test]
fn a_link_that_all_flows_cross_with_another_one_is_named_with_it() {
    // Handed out to a half, and of a quarter.
    let mut fabric = Fabric::new(4.0 * GBIT);
    for host in 0..2 {
        fabric.flow(host, HOSTS_PER_LEAF + host, 1);
    }
    fabric.run(20_000);
    fabric.real_bps[leaf_up(0, 1).index()] = GBIT;
    let less = [leaf_up(0, 1), leaf_down(1, 1)].map(|link| (link, LinkState::CarriesLess));
    fabric.assert_named_and_taken_back(&less, |fabric| {
        fabric.real_bps[leaf_up(0, 1).index()] = 4.0 * GBIT;
    });
}

/// Nothing was carried before: it may be each host's own link, as far as anybody knows.
#[test]
fn hosts_links_that_never_carried_as_much_are_named_themselves() {
    let mut fabric = Fabric::new(2.0 * GBIT);
    for host in 0..HOSTS_PER_LEAF {
        fabric.real_bps[up(host).index()] = 0.8 * GBIT;
        fabric.flow(host, HOSTS_PER_LEAF + host, host % SPINES);
    }
    fabric.run(10_000);
    let named = fabric.named();
    let is_access =
        |&(link, state): &(LinkId, LinkState)| link.0 < FIRST_UP && state == LinkState::CarriesLess;
    assert!(named.iter().all(is_access), "{named:?}");
    for host in 0..HOSTS_PER_LEAF {
        let own = (up(host), LinkState::CarriesLess);
        assert!(named.contains(&own), "{named:?}");
    }
}

#[test]
fn one_hosts_link_that_carries_less_names_nothing_between_switches() {
    for is_uplink in [true, false] {
        let mut fabric = across(4.0 * GBIT);
        let link = if is_uplink { up(0) } else { down(4) };
        // It has receivers, or senders, in several racks.
        fabric.flow(0, 9, 1);
        fabric.flow(8, 4, 1);
        fabric.run(20_000);
        fabric.real_bps[link.index()] = 0.6 * GBIT;
        fabric.run(30_000);
        let named = fabric.named();
        assert!(named.iter().all(|(link, _)| link.0 < FIRST_UP), "{named:?}");
        assert!(named.contains(&(link, LinkState::CarriesLess)), "{named:?}");
    }
}

/// Allowances for bursts end at two hosts at once, just after these carried as much.
#[test]
fn hosts_links_whose_allowances_are_spent_are_named_themselves() {
    let mut fabric = across(4.0 * GBIT);
    let spent = [up(0), up(1)];
    for link in spent {
        fabric.real_bps[link.index()] = 0.5 * GBIT;
        fabric.held_up.insert(link);
    }
    fabric.run(NAMED_MS);
    let less = spent.map(|link| (link, LinkState::CarriesLess));
    assert_eq!(fabric.named(), less);
    assert_eq!(fabric.changes.len(), 2, "{:?}", fabric.changes);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Any load on a network that is as told, whatever its links between switches have.
    #[test]
    fn a_network_of_several_paths_that_is_as_told_is_never_named(
        inner_bps in prop_oneof![Just(GBIT), Just(2.0 * GBIT), 0.5e9..4e9],
        steps in prop::collection::vec(
            (
                0..HOSTS,
                0..HOSTS,
                0..SPINES,
                prop_oneof![Just(f64::INFINITY), 1e6..2e9],
                1..40_u64,
            ),
            1..40,
        ),
    ) {
        let mut fabric = Fabric::new(inner_bps);
        for (from, to, spine, demand_bps, tenths) in steps {
            if from == to {
                fabric.flows.pop();
            } else {
                fabric.flow(from, to, spine);
                if let Some(flow) = fabric.flows.last_mut() {
                    flow.demand_bps = demand_bps;
                }
            }
            fabric.run(tenths * 100);
            prop_assert_eq!(&fabric.changes, &[]);
        }
        prop_assert_eq!(fabric.check.lowered_count(), 0);
    }
}
