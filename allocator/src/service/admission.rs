//! Admission of handshakes: the queue of connection attempts, sans-IO. Allocator and relay use it
//! alike.
//!
//! ```text
//!  first packet ─► address proven? ─no─► Retry, and nothing is kept
//!                       │ yes
//!                       ▼
//!                    waiting ──► begun, in turn ──► begun, its turn over ──► Hello
//!                       │             │  a turn lasts a few signatures' time  │
//!                       ▼             └───────────── deadline ────────────────┘
//!            refused as busy, or dropped
//! ```
//!
//! - *One deadline* runs from the first packet to the Hello: the end of the host's own handshake
//!   time-out. A host that has waited for most of it still has the time of one turn.
//! - *Turns* bound the handshakes in work at a time. A peer that stalls keeps its turn for the time
//!   of a few signatures, and its connection until the deadline or until another one displaces it.
//! - *Fewest first, newest first.* The network with the fewest handshakes under way is next, in it
//!   the address with the fewest, and of its attempts the newest. A flood therefore waits behind
//!   itself, and under overload the allocator serves those whose hosts still wait.
//! - *Networks nest.* A network of /24 (IPv6: /64) counts by its /20 (/56) and /16 (/48), too.
//!   Thousands of one owner's networks are one flood.
//! - *Known addresses have turns of their own.* An address is known if the topology gives it to a
//!   host, or if a host had its Hello from there. Some turns beyond the common ones are for those
//!   alone, and where somebody has to go, it is a stranger first. A flood from any number of other
//!   networks therefore delays no known host. One from known addresses delays strangers no more
//!   than another flood does.
//! - *Abandoned attempts cost no signature.* A host's first packet carries its handshake time-out
//!   ([`ratewright_proto::handshake_timeout`]). The host is refused in time; after that it no
//!   longer listens, and retransmissions of its first packet are ignored.

use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use indexmap::IndexMap;
use rustc_hash::{FxBuildHasher, FxHashSet};

#[cfg(test)]
mod tests;

/// Bounds of an [`Admission`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionConfig {
    /// Maximum of attempts that wait.
    pub max_waiting: usize,
    /// Maximum of handshakes in turn. More would only make each of them last longer.
    pub turns: usize,
    /// Maximum of handshakes of known addresses in turn beside these.
    pub reserved_turns: usize,
    /// Maximum of handshakes in turn of one network of /16 (IPv6: /48), /20 (/56) and /24 (/64).
    pub turns_per_network: [usize; 3],
    /// Maximum of handshakes in turn of one address.
    pub turns_per_address: usize,
    /// Maximum of handshakes under way whose turn is over.
    pub max_overdue: usize,
    /// Minimum duration of a turn.
    pub min_turn_ns: u64,
    /// Maximum duration of a turn.
    pub max_turn_ns: u64,
    /// Maximum time from the beginning of a handshake to its Hello, or four turns if they are
    /// longer.
    pub deadline_ns: u64,
    /// Assumed handshake time-out of a peer that does not state one.
    pub patience_ns: u64,
}

impl Default for AdmissionConfig {
    fn default() -> Self {
        Self {
            max_waiting: 8_192,
            turns: 16,
            reserved_turns: 4,
            turns_per_network: [15, 15, 14],
            turns_per_address: 12,
            max_overdue: 512,
            min_turn_ns: 100_000_000,
            max_turn_ns: 1_000_000_000,
            deadline_ns: 2_000_000_000,
            patience_ns: 2_000_000_000,
        }
    }
}

/// Duration of a turn, in signatures of this machine.
const SIGNATURES_PER_TURN: u64 = 64;

/// Minimum duration of the deadline, in turns.
const TURNS_PER_DEADLINE: u64 = 4;

/// Upper bound of the handshake time-out that a peer states.
const MAX_PATIENCE_NS: u64 = 10_000_000_000;

/// Maximum of addresses that are known by a Hello.
const MAX_GREETED: usize = 65_536;

/// Samples in the search for an attempt to displace: they meet the address with most of them.
const SAMPLES: usize = 8;

/// Number of a connection attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Facts about an attempt from its first packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionAttempt {
    /// Source address.
    pub source: IpAddr,
    /// The source has proven its address.
    pub validated: bool,
    /// The topology gives the source to a host.
    pub is_host: bool,
    /// Handshake time-out of its host, if stated.
    pub patience_ns: Option<u64>,
    /// Identity: a retransmission of the first packet has the same one.
    pub id: u64,
}

/// Decision about a first packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfferOutcome {
    /// Send a Retry: the source has to prove its address, and nothing is kept.
    Retry,
    /// Ignore it: the attempt was refused, and this retransmission left before the host heard of
    /// it.
    Rejected,
    /// It waits.
    Waits {
        /// Number of the attempt from now on.
        ticket: Ticket,
        /// Attempt to refuse as busy, because the queue is full.
        displaced: Option<Ticket>,
    },
}

/// Next action of the endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdmissionStep {
    /// Begin the handshake. Call [`Admission::record_cost`] with its cost, and
    /// [`Admission::finish`] at its Hello or end.
    Begin {
        /// Attempt to begin.
        ticket: Ticket,
        /// Time by which its Hello has to come.
        deadline_ns: u64,
    },
    /// Refuse it as busy.
    Refuse(Ticket),
    /// Drop it: its host no longer listens.
    Drop(Ticket),
    /// Close it; [`Admission::finish`] need not be called.
    Close(Ticket),
}

#[derive(Debug, Clone, Copy)]
struct WaitingAttempt {
    source: IpAddr,
    is_known: bool,
    id: u64,
    /// Time of its refusal as busy.
    refuse_ns: u64,
    /// Time from which its host no longer listens.
    abandoned_ns: u64,
}

#[derive(Debug, Clone, Copy)]
struct Handshake {
    source: IpAddr,
    is_known: bool,
    /// Its turn is one of those for known addresses.
    is_reserved: bool,
    turn_ends_ns: u64,
    deadline_ns: u64,
    in_turn: bool,
    /// Its Hello has come, and it is kept for its turn alone.
    has_hello: bool,
}

/// Handshakes of an address or a network.
#[derive(Debug, Default, Clone, Copy)]
struct HandshakeCount {
    in_turn: usize,
    /// All under way, those in turn included.
    handshakes: usize,
}

/// Lengths of the networks that an address counts with, from the widest on: IPv4 and IPv6.
const NETWORK_BITS: [(u32, u32); 3] = [(16, 48), (20, 56), (24, 64)];

/// Handshakes or attempts of a network of each length that weigh as one of the longest.
const NETWORK_SHARES: [usize; 3] = [16, 4, 1];

/// Levels of the tree: the networks, and the address.
const LEVELS: usize = NETWORK_BITS.len() + 1;

/// A network, or an address at the tree's last level.
#[derive(Debug, Default)]
struct Network {
    count: HandshakeCount,
    /// Attempts that wait, below it,
    waiting: usize,
    /// and those of known addresses among them.
    known_waiting: usize,
    /// Of an address: its attempts that wait, in the order of arrival.
    tickets: VecDeque<Ticket>,
    /// Of a network: the next smaller ones, or the addresses.
    parts: IndexMap<IpAddr, Network, FxBuildHasher>,
}

/// Returns the key of the network, or of the address itself, at a level of the tree.
fn key_at(source: IpAddr, level: usize) -> IpAddr {
    let Some(&(bits_v4, bits_v6)) = NETWORK_BITS.get(level) else {
        return source;
    };
    match source {
        IpAddr::V4(v4) => Ipv4Addr::from(u32::from(v4) & (u32::MAX << (32 - bits_v4))).into(),
        IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6) & (u128::MAX << (128 - bits_v6))).into(),
    }
}

/// Weight of the networks of an address, from the number of each: the heaviest counts.
fn weight(numbers: [usize; NETWORK_BITS.len()]) -> usize {
    let shares = numbers.iter().zip(NETWORK_SHARES);
    shares
        .map(|(number, share)| number / share)
        .max()
        .unwrap_or(0)
}

/// The newest values, each once.
#[derive(Debug)]
struct Newest<T> {
    values: FxHashSet<T>,
    order: VecDeque<T>,
}

impl<T: Copy + Eq + Hash> Newest<T> {
    fn new() -> Self {
        Self {
            values: FxHashSet::default(),
            order: VecDeque::new(),
        }
    }

    fn contains(&self, value: &T) -> bool {
        self.values.contains(value)
    }

    /// Adds a value, at the cost of the oldest if there are more than `most`.
    fn insert(&mut self, value: T, most: usize) {
        if !self.values.insert(value) {
            return;
        }
        self.order.push_back(value);
        if self.order.len() > most
            && let Some(oldest) = self.order.pop_front()
        {
            self.values.remove(&oldest);
        }
    }
}

/// Queue of connection attempts; see the [module](self).
#[derive(Debug)]
pub struct Admission {
    config: AdmissionConfig,
    last: u64,
    /// Smoothed duration of a handshake's beginning here, its signature included.
    signature_ns: u64,
    waiting: IndexMap<Ticket, WaitingAttempt, FxBuildHasher>,
    refusals: BTreeSet<(u64, Ticket)>,
    handshakes: IndexMap<Ticket, Handshake, FxBuildHasher>,
    /// Handshakes in common turns,
    in_turn: usize,
    /// and in those for known addresses.
    in_reserved_turn: usize,
    /// Handshakes of known addresses.
    known_handshakes: usize,
    turn_ends: BTreeSet<(u64, Ticket)>,
    deadlines: BTreeSet<(u64, Ticket)>,
    /// All addresses with attempts or handshakes.
    tree: Network,
    /// Attempts that were refused or dropped last, at most `max_waiting`: a flood of them must not
    /// make it grow.
    rejected: Newest<u64>,
    /// Addresses of the last hosts that had their Hello.
    greeted: Newest<IpAddr>,
    random: u64,
}

impl Admission {
    /// Creates an empty queue.
    pub fn new(config: AdmissionConfig) -> Self {
        Self {
            config,
            last: 0,
            signature_ns: 0,
            waiting: IndexMap::default(),
            refusals: BTreeSet::new(),
            handshakes: IndexMap::default(),
            in_turn: 0,
            in_reserved_turn: 0,
            known_handshakes: 0,
            turn_ends: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            tree: Network::default(),
            rejected: Newest::new(),
            greeted: Newest::new(),
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// Returns the number of attempts that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of handshakes under way.
    pub fn under_way(&self) -> usize {
        self.handshakes.len()
    }

    /// Returns the present duration of a turn: several times the signatures that may be ahead of
    /// it. It follows this machine's own speed, which no peer can change.
    pub fn turn_ns(&self) -> u64 {
        let config = &self.config;
        (SIGNATURES_PER_TURN * self.signature_ns).clamp(config.min_turn_ns, config.max_turn_ns)
    }

    /// Decides on an attempt's first packet.
    pub fn offer(&mut self, now_ns: u64, attempt: ConnectionAttempt) -> OfferOutcome {
        if !attempt.validated {
            return OfferOutcome::Retry;
        }
        if self.rejected.contains(&attempt.id) {
            return OfferOutcome::Rejected;
        }
        let displaced = (self.waiting.len() >= self.config.max_waiting)
            .then(|| self.make_room())
            .flatten();
        self.last += 1;
        let ticket = Ticket(self.last);
        // Bounded, since the peer states it and no one can verify it.
        let patience_ns = attempt
            .patience_ns
            .unwrap_or(self.config.patience_ns)
            .min(MAX_PATIENCE_NS);
        let source = attempt.source.to_canonical();
        let is_known = attempt.is_host || self.greeted.contains(&source);
        let waiting = WaitingAttempt {
            source,
            is_known,
            id: attempt.id,
            // The last quarter is for the refusal's transit, and for a next attempt that is not
            // too late.
            refuse_ns: now_ns.saturating_add(patience_ns - patience_ns / 4),
            abandoned_ns: now_ns.saturating_add(patience_ns),
        };
        self.waiting.insert(ticket, waiting);
        self.refusals.insert((waiting.refuse_ns, ticket));
        let address = self.tree.change(source, &|network| {
            network.waiting += 1;
            network.known_waiting += usize::from(is_known);
        });
        address.tickets.push_back(ticket);
        OfferOutcome::Waits { ticket, displaced }
    }

    /// Removes one attempt that waits: the oldest of the address with most of them among a few
    /// samples, and a stranger's unless known addresses have more than half.
    fn make_room(&mut self) -> Option<Ticket> {
        let strangers_go = self.tree.known_waiting <= self.config.max_waiting / 2;
        let mut worst = None;
        for _ in 0..SAMPLES {
            // Samples instead of a search: under a flood nearly every sample is the flood's.
            let at = self.draw(self.waiting.len());
            let (_, waiting) = self.waiting.get_index(at)?;
            let path = self.tree.path(waiting.source)?;
            let numbers = path.map(|network| network.waiting);
            let goes = strangers_go && !waiting.is_known;
            worst = worst.max(Some((goes, load(numbers), waiting.source)));
        }
        let (_, _, source) = worst?;
        let [.., address] = self.tree.path(source)?;
        let oldest = *address.tickets.front()?;
        self.drop_waiting(oldest);
        Some(oldest)
    }

    /// Returns a pseudo-random number below `bound` (SplitMix64).
    fn draw(&mut self, bound: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as usize % bound.max(1)
    }

    /// Returns the next action; `None` until [`next_timeout`](Self::next_timeout), another attempt,
    /// or an end.
    pub fn next(&mut self, now_ns: u64) -> Option<AdmissionStep> {
        if let Some(&(at_ns, ticket)) = self.deadlines.first()
            && at_ns <= now_ns
        {
            self.finish(ticket);
            return Some(AdmissionStep::Close(ticket));
        }
        while let Some(&(at_ns, ticket)) = self.turn_ends.first()
            && at_ns <= now_ns
        {
            self.end_turn(ticket);
            if self
                .handshakes
                .get(&ticket)
                .is_some_and(|handshake| handshake.has_hello)
            {
                self.finish(ticket);
            }
        }
        // Stalled peers may keep their connections only up to a bound; the largest holder loses
        // one.
        let in_turn = self.in_turn + self.in_reserved_turn;
        if self.handshakes.len() - in_turn > self.config.max_overdue
            && let Some(ticket) = self.overdue_of_busiest()
        {
            self.finish(ticket);
            return Some(AdmissionStep::Close(ticket));
        }
        if let Some(&(at_ns, ticket)) = self.refusals.first()
            && at_ns <= now_ns
        {
            let listens = self
                .waiting
                .get(&ticket)
                .is_some_and(|waiting| now_ns < waiting.abandoned_ns);
            self.drop_waiting(ticket);
            return Some(if listens {
                AdmissionStep::Refuse(ticket)
            } else {
                AdmissionStep::Drop(ticket)
            });
        }
        // Each handshake costs a signature on this thread: more at a time would only finish later.
        let common = (self.in_turn < self.config.turns).then(|| self.choose(false));
        if let Some(ticket) = common.flatten() {
            return Some(self.begin(now_ns, ticket, false));
        }
        let is_free = self.in_reserved_turn < self.config.reserved_turns;
        let ticket = is_free.then(|| self.choose(true)).flatten()?;
        Some(self.begin(now_ns, ticket, true))
    }

    /// Returns the latest time of the next call of [`next`](Self::next).
    pub fn next_timeout(&self) -> Option<u64> {
        [&self.deadlines, &self.turn_ends, &self.refusals]
            .into_iter()
            .filter_map(|set| Some(set.first()?.0))
            .min()
    }

    /// Chooses the newest attempt of the address with the fewest handshakes under way, in the
    /// network with the fewest. For a reserved turn it is one of the known addresses.
    fn choose(&self, is_reserved: bool) -> Option<Ticket> {
        let mut search = Search {
            config: &self.config,
            is_reserved,
            best: None,
        };
        self.tree.find_best(&mut search, 0, [0; LEVELS]);
        search.best.map(|(_, Reverse(ticket))| ticket)
    }

    fn begin(&mut self, now_ns: u64, ticket: Ticket, is_reserved: bool) -> AdmissionStep {
        let waiting = self.waiting[&ticket];
        self.forget(ticket);
        let turn_ns = self.turn_ns();
        let longest_ns = self.config.deadline_ns.max(TURNS_PER_DEADLINE * turn_ns);
        // At least one turn: a host whose turn comes late can still finish its handshake.
        let deadline_ns = waiting.abandoned_ns.clamp(
            now_ns.saturating_add(turn_ns),
            now_ns.saturating_add(longest_ns),
        );
        let handshake = Handshake {
            source: waiting.source,
            is_known: waiting.is_known,
            is_reserved,
            turn_ends_ns: now_ns.saturating_add(turn_ns),
            deadline_ns,
            in_turn: true,
            has_hello: false,
        };
        self.turn_ends.insert((handshake.turn_ends_ns, ticket));
        self.deadlines.insert((deadline_ns, ticket));
        self.handshakes.insert(ticket, handshake);
        self.known_handshakes += usize::from(handshake.is_known);
        *self.turns_of(is_reserved) += 1;
        self.count(waiting.source, |count| {
            count.in_turn += 1;
            count.handshakes += 1;
        });
        AdmissionStep::Begin {
            ticket,
            deadline_ns,
        }
    }

    /// Records the duration of a handshake's beginning: our first flight, with its signature.
    pub fn record_cost(&mut self, cost_ns: u64) {
        // An interrupted one counts for no more than the slowest machine that we serve on.
        let cost_ns = cost_ns.min(self.config.max_turn_ns / SIGNATURES_PER_TURN * 4);
        self.signature_ns = if self.signature_ns == 0 {
            cost_ns
        } else {
            // The weight of 1/8 is that of TCP's smoothed round-trip time (RFC 6298).
            (7 * self.signature_ns + cost_ns) / 8
        };
    }

    /// Records the Hello of a handshake, which has no deadline any more. Its turn goes on, since
    /// the Welcome costs as much as the handshake, until [`finish`](Self::finish) or its end.
    pub fn hello_received(&mut self, ticket: Ticket) {
        let Some(handshake) = self.handshakes.get_mut(&ticket) else {
            return;
        };
        handshake.has_hello = true;
        let (in_turn, deadline_ns) = (handshake.in_turn, handshake.deadline_ns);
        self.greeted.insert(handshake.source, MAX_GREETED);
        self.deadlines.remove(&(deadline_ns, ticket));
        if !in_turn {
            self.finish(ticket);
        }
    }

    /// Removes a handshake that is over: its host has its Welcome, or has gone.
    pub fn finish(&mut self, ticket: Ticket) {
        self.end_turn(ticket);
        let Some(handshake) = self.handshakes.swap_remove(&ticket) else {
            return;
        };
        self.deadlines.remove(&(handshake.deadline_ns, ticket));
        self.known_handshakes -= usize::from(handshake.is_known);
        self.count(handshake.source, |count| count.handshakes -= 1);
    }

    /// True while a handshake is under way.
    pub fn is_under_way(&self, ticket: Ticket) -> bool {
        self.handshakes.contains_key(&ticket)
    }

    fn end_turn(&mut self, ticket: Ticket) {
        let Some(handshake) = self
            .handshakes
            .get_mut(&ticket)
            .filter(|handshake| handshake.in_turn)
        else {
            return;
        };
        handshake.in_turn = false;
        let (source, at_ns) = (handshake.source, handshake.turn_ends_ns);
        let is_reserved = handshake.is_reserved;
        self.turn_ends.remove(&(at_ns, ticket));
        *self.turns_of(is_reserved) -= 1;
        self.count(source, |count| count.in_turn -= 1);
    }

    fn turns_of(&mut self, is_reserved: bool) -> &mut usize {
        if is_reserved {
            &mut self.in_reserved_turn
        } else {
            &mut self.in_turn
        }
    }

    /// Finds a handshake whose turn is over, of the address with most of them among a few samples,
    /// and a stranger's unless known addresses have more than half.
    fn overdue_of_busiest(&mut self) -> Option<Ticket> {
        let strangers_go = self.known_handshakes <= self.config.max_overdue / 2;
        let mut worst = None;
        for _ in 0..SAMPLES {
            let at = self.draw(self.handshakes.len());
            let (&ticket, handshake) = self.handshakes.get_index(at)?;
            if !handshake.in_turn {
                let path = self.tree.path(handshake.source)?;
                let numbers = path.map(|network| network.count.handshakes);
                let goes = strangers_go && !handshake.is_known;
                worst = worst.max(Some((goes, load(numbers), Reverse(ticket))));
            }
        }
        if let Some((_, _, Reverse(ticket))) = worst {
            return Some(ticket);
        }
        let overdue = self
            .handshakes
            .iter()
            .find(|(_, handshake)| !handshake.in_turn);
        overdue.map(|(&ticket, _)| ticket)
    }

    /// Removes an attempt that waits, and remembers it so that its retransmissions are ignored.
    fn drop_waiting(&mut self, ticket: Ticket) {
        if let Some(waiting) = self.waiting.get(&ticket) {
            self.rejected.insert(waiting.id, self.config.max_waiting);
        }
        self.forget(ticket);
    }

    /// Removes an attempt that waits.
    fn forget(&mut self, ticket: Ticket) {
        let Some(waiting) = self.waiting.swap_remove(&ticket) else {
            return;
        };
        self.refusals.remove(&(waiting.refuse_ns, ticket));
        let address = self.tree.change(waiting.source, &|network| {
            network.waiting -= 1;
            network.known_waiting -= usize::from(waiting.is_known);
        });
        // At the back, unless its neighbours have a longer handshake time-out.
        if address.tickets.back() == Some(&ticket) {
            address.tickets.pop_back();
        } else if let Ok(at) = address.tickets.binary_search(&ticket) {
            address.tickets.remove(at);
        }
        self.tree.remove_if_idle(waiting.source, 0);
    }

    fn count(&mut self, source: IpAddr, change: impl Fn(&mut HandshakeCount)) {
        self.tree
            .change(source, &|network| change(&mut network.count));
        self.tree.remove_if_idle(source, 0);
    }
}

/// Result of [`load`].
type Load = (usize, usize, usize, usize);

/// Order by which an address is favoured or disfavoured, from the numbers along its path: the
/// weight of its networks, then the number of each but the widest, then its own.
fn load(numbers: [usize; LEVELS]) -> Load {
    let [widest, wide, network, own] = numbers;
    (weight([widest, wide, network]), wide, network, own)
}

/// Candidate of [`Admission::choose`]: the smallest is next.
type Candidate = (Load, Reverse<Ticket>);

/// Search for the attempt that is next.
struct Search<'a> {
    config: &'a AdmissionConfig,
    /// The turn is for known addresses alone, whatever their networks have.
    is_reserved: bool,
    best: Option<Candidate>,
}

impl Search<'_> {
    /// Returns true if an attempt in a part of the tree may begin.
    fn admits(&self, part: &Network, level: usize) -> bool {
        let most = match self.config.turns_per_network.get(level) {
            Some(_) if self.is_reserved => usize::MAX,
            Some(&most) => most,
            None => self.config.turns_per_address,
        };
        let waiting = if self.is_reserved {
            part.known_waiting
        } else {
            part.waiting
        };
        waiting > 0 && part.count.in_turn < most
    }
}

impl Network {
    /// Changes this network, all networks of an address in it and the address, which are made if
    /// missing. Returns the address.
    fn change(&mut self, source: IpAddr, change: &impl Fn(&mut Self)) -> &mut Self {
        change(self);
        let mut part = self;
        for level in 0..LEVELS {
            part = part.parts.entry(key_at(source, level)).or_default();
            change(part);
        }
        part
    }

    /// Returns the networks of an address from the widest on, and the address.
    fn path(&self, source: IpAddr) -> Option<[&Self; LEVELS]> {
        let mut path = [self; LEVELS];
        let mut part = self;
        for (level, place) in path.iter_mut().enumerate() {
            part = part.parts.get(&key_at(source, level))?;
            *place = part;
        }
        Some(path)
    }

    /// Finds the best attempt below this network, which is above `level`. `numbers` are the
    /// handshakes along the path to it.
    fn find_best(&self, search: &mut Search<'_>, level: usize, numbers: [usize; LEVELS]) {
        let is_address = level + 1 == LEVELS;
        // Whole networks are passed over: a flood of many small ones must not cost a search each
        // time.
        for part in self.parts.values() {
            if !search.admits(part, level) {
                continue;
            }
            let mut numbers = numbers;
            numbers[level] = part.count.handshakes;
            if !is_address {
                part.find_best(search, level + 1, numbers);
            } else if let Some(&newest) = part.tickets.back() {
                let candidate = (load(numbers), Reverse(newest));
                if search.best.is_none_or(|best| candidate < best) {
                    search.best = Some(candidate);
                }
            }
        }
    }

    /// Removes an address without attempts and handshakes, and its networks as far as they are
    /// empty. The part of this network at `level` is looked at.
    fn remove_if_idle(&mut self, source: IpAddr, level: usize) {
        let key = key_at(source, level);
        let Some(part) = self.parts.get_mut(&key) else {
            return;
        };
        if level + 1 < LEVELS {
            part.remove_if_idle(source, level + 1);
        }
        if part.count.handshakes == 0 && part.waiting == 0 && part.parts.is_empty() {
            self.parts.swap_remove(&key);
        }
    }
}
