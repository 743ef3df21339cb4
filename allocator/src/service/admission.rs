//! Who may shake hands, and when: the queue of connection attempts, sans-IO. Allocator and relay
//! use it alike.
//!
//! ```text
//!  first packet ─► address shown? ─no─► Retry, and nothing is kept
//!                       │ yes
//!                       ▼
//!                    waiting ──► begun, in turn ──► begun, its turn over ──► Hello
//!                       │             │  a turn lasts a few signatures' time  │
//!                       ▼             └───────────── deadline ────────────────┘
//!            told that we are busy, or forgotten
//! ```
//!
//! - *One deadline* runs from the first packet to the Hello: when the host's own patience is over. Who waited for us for
//!   most of it has a turn's time left.
//! - *Turns* bound what is worked on at a time; a peer that stalls keeps its turn for a few signatures' time, and
//!   its connection until the deadline, or until it has to make room.
//! - *Fewest first, newest first.* The prefix with the fewest handshakes under way is next, in it the address with the
//!   fewest, and of its attempts the newest: whoever floods waits behind itself, and under overload those are
//!   served whose hosts still wait.
//! - *Abandoned attempts cost no signature.* A host's first packet says for how long it waits
//!   ([`ratewright_proto::handshake_timeout`]). It is told in time that we are busy; after that nobody listens, not to what it
//!   had sent anew either.

use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use indexmap::IndexMap;
use rustc_hash::{FxBuildHasher, FxHashSet};

#[cfg(test)]
mod tests;

/// Bounds of an [`Admission`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionConfig {
    /// Attempts that wait.
    pub max_waiting: usize,
    /// Handshakes that are worked on at a time. More would only make each of them last longer.
    pub turns: usize,
    /// Handshakes of one prefix that are worked on at a time.
    pub turns_per_prefix: usize,
    /// Handshakes of one address that are worked on at a time.
    pub turns_per_address: usize,
    /// Handshakes under way whose turn is over.
    pub max_overdue: usize,
    /// Shortest time of a turn.
    pub min_turn_ns: u64,
    /// Longest time of a turn.
    pub max_turn_ns: u64,
    /// Longest time from the beginning of a handshake to its Hello, or a few turns if that is
    /// longer.
    pub deadline_ns: u64,
    /// How long a peer waits that does not say.
    pub patience_ns: u64,
}

impl Default for AdmissionConfig {
    fn default() -> Self {
        Self {
            max_waiting: 8_192,
            turns: 16,
            turns_per_prefix: 14,
            turns_per_address: 12,
            max_overdue: 512,
            min_turn_ns: 100_000_000,
            max_turn_ns: 1_000_000_000,
            deadline_ns: 2_000_000_000,
            patience_ns: 2_000_000_000,
        }
    }
}

/// A turn lasts as long as so many signatures take here.
const SIGNATURES_PER_TURN: u64 = 64;

/// The deadline leaves room for so many turns.
const TURNS_PER_DEADLINE: u64 = 4;

/// Longest wait that a peer is believed.
const MAX_PATIENCE_NS: u64 = 10_000_000_000;

/// Attempts that are looked at for the one to make room: whoever has most of what waits is met
/// among them.
const SAMPLES: usize = 8;

/// One attempt to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// What is known of an attempt from its first packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionAttempt {
    /// Where it comes from.
    pub source: IpAddr,
    /// It has shown that the address is its own.
    pub validated: bool,
    /// For how long its host waits, if it says.
    pub patience_ns: Option<u64>,
    /// Tells it from others: its first packet, sent anew, has the same.
    pub id: u64,
}

/// What becomes of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfferOutcome {
    /// It has to show its address first; nothing is kept.
    Retry,
    /// It was told that we are busy, and this was sent anew before it heard: nobody listens any
    /// more.
    Over,
    /// It waits.
    Waits {
        /// What it is called from now on.
        ticket: Ticket,
        /// This one is to be told that we are busy, to make room.
        instead_of: Option<Ticket>,
    },
}

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdmissionStep {
    /// Begin the handshake, and call [`Admission::record_cost`] with its cost and
    /// [`Admission::left`] at its Hello or end.
    Begin {
        /// Whose.
        ticket: Ticket,
        /// When its Hello has to be there.
        deadline_ns: u64,
    },
    /// Tell it that we are busy.
    Refuse(Ticket),
    /// Forget it: nobody listens any more.
    Drop(Ticket),
    /// Close it; [`Admission::left`] need not be called.
    Close(Ticket),
}

#[derive(Debug, Clone, Copy)]
struct WaitingAttempt {
    source: IpAddr,
    id: u64,
    /// When it is told that we are busy.
    refuse_ns: u64,
    /// From then on nobody listens.
    abandoned_ns: u64,
}

#[derive(Debug, Clone, Copy)]
struct Handshake {
    source: IpAddr,
    turn_ends_ns: u64,
    deadline_ns: u64,
    in_turn: bool,
    /// It has said its Hello and is kept for its turn alone.
    introduced: bool,
}

/// What an address or a prefix has.
#[derive(Debug, Default, Clone, Copy)]
struct HandshakeCount {
    in_turn: usize,
    /// Those in turn included.
    begun: usize,
}

#[derive(Debug, Default)]
struct Address {
    count: HandshakeCount,
    /// In the order of arrival.
    waiting: VecDeque<Ticket>,
}

#[derive(Debug, Default)]
struct Prefix {
    count: HandshakeCount,
    waiting: usize,
    addresses: IndexMap<IpAddr, Address, FxBuildHasher>,
}

/// The queue; see the [module](self).
#[derive(Debug)]
pub struct Admission {
    config: AdmissionConfig,
    last: u64,
    /// Smoothed time that the beginning of a handshake takes here, the signature in it.
    signature_ns: u64,
    waiting: IndexMap<Ticket, WaitingAttempt, FxBuildHasher>,
    refusals: BTreeSet<(u64, Ticket)>,
    begun: IndexMap<Ticket, Handshake, FxBuildHasher>,
    in_turn: usize,
    turn_ends: BTreeSet<(u64, Ticket)>,
    deadlines: BTreeSet<(u64, Ticket)>,
    prefixes: IndexMap<IpAddr, Prefix, FxBuildHasher>,
    /// Attempts that were turned away last, as many as may wait.
    over: FxHashSet<u64>,
    over_order: VecDeque<u64>,
    random: u64,
}

/// What an address is counted with: its /24, or for IPv6 its /64.
fn prefix_of(source: IpAddr) -> IpAddr {
    match source.to_canonical() {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            Ipv4Addr::new(a, b, c, 0).into()
        }
        IpAddr::V6(v6) => {
            let network = u128::from(v6) & (u128::MAX << 64);
            Ipv6Addr::from(network).into()
        }
    }
}

impl Admission {
    /// An empty queue.
    pub fn new(config: AdmissionConfig) -> Self {
        Self {
            config,
            last: 0,
            signature_ns: 0,
            waiting: IndexMap::default(),
            refusals: BTreeSet::new(),
            begun: IndexMap::default(),
            in_turn: 0,
            turn_ends: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            prefixes: IndexMap::default(),
            over: FxHashSet::default(),
            over_order: VecDeque::new(),
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// Attempts that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Handshakes under way.
    pub fn under_way(&self) -> usize {
        self.begun.len()
    }

    /// How long a turn lasts now: as many signatures as may be ahead of this one's, several times
    /// over. It follows this machine's own speed, which no peer can change.
    pub fn turn_ns(&self) -> u64 {
        let config = &self.config;
        (SIGNATURES_PER_TURN * self.signature_ns).clamp(config.min_turn_ns, config.max_turn_ns)
    }

    /// Takes an attempt's first packet.
    pub fn offer(&mut self, now_ns: u64, attempt: ConnectionAttempt) -> OfferOutcome {
        if !attempt.validated {
            return OfferOutcome::Retry;
        }
        if self.over.contains(&attempt.id) {
            return OfferOutcome::Over;
        }
        let instead_of = (self.waiting.len() >= self.config.max_waiting)
            .then(|| self.make_room())
            .flatten();
        self.last += 1;
        let ticket = Ticket(self.last);
        let patience_ns = attempt
            .patience_ns
            .unwrap_or(self.config.patience_ns)
            .min(MAX_PATIENCE_NS);
        let source = attempt.source.to_canonical();
        let waiting = WaitingAttempt {
            source,
            id: attempt.id,
            // The rest is for the answer's way, and for a next attempt that is not too late.
            refuse_ns: now_ns.saturating_add(patience_ns - patience_ns / 4),
            abandoned_ns: now_ns.saturating_add(patience_ns),
        };
        self.waiting.insert(ticket, waiting);
        self.refusals.insert((waiting.refuse_ns, ticket));
        let prefix = self.prefixes.entry(prefix_of(source)).or_default();
        prefix.waiting += 1;
        let address = prefix.addresses.entry(source).or_default();
        address.waiting.push_back(ticket);
        OfferOutcome::Waits { ticket, instead_of }
    }

    /// Takes one out that waits: the oldest of the address that has most, as far as a few samples
    /// tell.
    fn make_room(&mut self) -> Option<Ticket> {
        let mut worst: Option<(usize, usize, IpAddr)> = None;
        for _ in 0..SAMPLES {
            let at = self.draw(self.waiting.len());
            let (_, waiting) = self.waiting.get_index(at)?;
            let prefix = &self.prefixes[&prefix_of(waiting.source)];
            let own = prefix.addresses[&waiting.source].waiting.len();
            worst = worst.max(Some((prefix.waiting, own, waiting.source)));
        }
        let (_, _, source) = worst?;
        let prefix = &self.prefixes[&prefix_of(source)];
        let oldest = *prefix.addresses[&source].waiting.front()?;
        self.drop_waiting(oldest);
        Some(oldest)
    }

    /// A number below `bound` (SplitMix64).
    fn draw(&mut self, bound: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as usize % bound.max(1)
    }

    /// The next thing to do; nothing until [`next_timeout`](Self::next_timeout), another attempt,
    /// or an end.
    pub fn next(&mut self, now_ns: u64) -> Option<AdmissionStep> {
        if let Some(&(at_ns, ticket)) = self.deadlines.first()
            && at_ns <= now_ns
        {
            self.left(ticket);
            return Some(AdmissionStep::Close(ticket));
        }
        while let Some(&(at_ns, ticket)) = self.turn_ends.first()
            && at_ns <= now_ns
        {
            self.end_turn(ticket);
            if self
                .begun
                .get(&ticket)
                .is_some_and(|begun| begun.introduced)
            {
                self.left(ticket);
            }
        }
        if self.begun.len() - self.in_turn > self.config.max_overdue
            && let Some(ticket) = self.overdue_of_busiest()
        {
            self.left(ticket);
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
        if self.in_turn >= self.config.turns {
            return None;
        }
        let ticket = self.choose()?;
        Some(self.begin(now_ns, ticket))
    }

    /// When [`next`](Self::next) is to be called at the latest.
    pub fn next_timeout(&self) -> Option<u64> {
        [&self.deadlines, &self.turn_ends, &self.refusals]
            .into_iter()
            .filter_map(|set| Some(set.first()?.0))
            .min()
    }

    /// The newest attempt of the address with the fewest handshakes under way, of the prefix with
    /// the fewest.
    fn choose(&self) -> Option<Ticket> {
        let config = &self.config;
        let newest = |address: &Address| address.waiting.back().copied();
        let best = |prefix: &Prefix| {
            prefix
                .addresses
                .values()
                .filter(|address| address.count.in_turn < config.turns_per_address)
                .filter_map(|address| Some((address.count.begun, Reverse(newest(address)?))))
                .min()
        };
        let chosen = self
            .prefixes
            .values()
            .filter(|prefix| prefix.waiting > 0 && prefix.count.in_turn < config.turns_per_prefix)
            .filter_map(|prefix| Some((prefix.count.begun, best(prefix)?)))
            .min()?;
        let (_, (_, Reverse(ticket))) = chosen;
        Some(ticket)
    }

    fn begin(&mut self, now_ns: u64, ticket: Ticket) -> AdmissionStep {
        let waiting = self.waiting[&ticket];
        self.forget(ticket);
        let turn_ns = self.turn_ns();
        let longest_ns = self.config.deadline_ns.max(TURNS_PER_DEADLINE * turn_ns);
        let deadline_ns = waiting.abandoned_ns.clamp(
            now_ns.saturating_add(turn_ns),
            now_ns.saturating_add(longest_ns),
        );
        let begun = Handshake {
            source: waiting.source,
            turn_ends_ns: now_ns.saturating_add(turn_ns),
            deadline_ns,
            in_turn: true,
            introduced: false,
        };
        self.turn_ends.insert((begun.turn_ends_ns, ticket));
        self.deadlines.insert((deadline_ns, ticket));
        self.begun.insert(ticket, begun);
        self.in_turn += 1;
        self.count(waiting.source, |count| {
            count.in_turn += 1;
            count.begun += 1;
        });
        AdmissionStep::Begin {
            ticket,
            deadline_ns,
        }
    }

    /// The beginning of a handshake record_cost this long: our first flight, with its signature.
    pub fn record_cost(&mut self, cost_ns: u64) {
        // One that was held up counts for no more than the slowest machine that we serve on.
        let cost_ns = cost_ns.min(self.config.max_turn_ns / SIGNATURES_PER_TURN * 4);
        self.signature_ns = if self.signature_ns == 0 {
            cost_ns
        } else {
            (7 * self.signature_ns + cost_ns) / 8
        };
    }

    /// The Hello of a handshake is there: it has no deadline any more. Its turn goes on, since the
    /// Welcome costs as much as the handshake, until [`left`](Self::left) is called or it is over.
    pub fn introduced(&mut self, ticket: Ticket) {
        let Some(begun) = self.begun.get_mut(&ticket) else {
            return;
        };
        begun.introduced = true;
        let (in_turn, deadline_ns) = (begun.in_turn, begun.deadline_ns);
        self.deadlines.remove(&(deadline_ns, ticket));
        if !in_turn {
            self.left(ticket);
        }
    }

    /// A handshake that had begun is over: its host has its Welcome, or has gone.
    pub fn left(&mut self, ticket: Ticket) {
        self.end_turn(ticket);
        let Some(begun) = self.begun.swap_remove(&ticket) else {
            return;
        };
        self.deadlines.remove(&(begun.deadline_ns, ticket));
        self.count(begun.source, |count| count.begun -= 1);
    }

    /// Whether a handshake that had begun is still to say its Hello.
    pub fn is_under_way(&self, ticket: Ticket) -> bool {
        self.begun.contains_key(&ticket)
    }

    fn end_turn(&mut self, ticket: Ticket) {
        let Some(begun) = self.begun.get_mut(&ticket).filter(|begun| begun.in_turn) else {
            return;
        };
        begun.in_turn = false;
        let (source, at_ns) = (begun.source, begun.turn_ends_ns);
        self.turn_ends.remove(&(at_ns, ticket));
        self.in_turn -= 1;
        self.count(source, |count| count.in_turn -= 1);
    }

    /// Of those whose turn is over: one of the address that has most, as far as a few samples tell.
    fn overdue_of_busiest(&mut self) -> Option<Ticket> {
        let mut worst = None;
        for _ in 0..SAMPLES {
            let at = self.draw(self.begun.len());
            let (&ticket, begun) = self.begun.get_index(at)?;
            if !begun.in_turn {
                let prefix = &self.prefixes[&prefix_of(begun.source)];
                let own = prefix.addresses[&begun.source].count.begun;
                worst = worst.max(Some((prefix.count.begun, own, Reverse(ticket))));
            }
        }
        if let Some((_, _, Reverse(ticket))) = worst {
            return Some(ticket);
        }
        let overdue = self.begun.iter().find(|(_, begun)| !begun.in_turn);
        overdue.map(|(&ticket, _)| ticket)
    }

    /// Takes one off those that wait, whose host will not hear of it any more, or is told that we
    /// are busy.
    fn drop_waiting(&mut self, ticket: Ticket) {
        if let Some(waiting) = self.waiting.get(&ticket)
            && self.over.insert(waiting.id)
        {
            self.over_order.push_back(waiting.id);
            if self.over_order.len() > self.config.max_waiting
                && let Some(oldest) = self.over_order.pop_front()
            {
                self.over.remove(&oldest);
            }
        }
        self.forget(ticket);
    }

    /// Takes one off those that wait.
    fn forget(&mut self, ticket: Ticket) {
        let Some(waiting) = self.waiting.swap_remove(&ticket) else {
            return;
        };
        self.refusals.remove(&(waiting.refuse_ns, ticket));
        if let Some(prefix) = self.prefixes.get_mut(&prefix_of(waiting.source)) {
            prefix.waiting -= 1;
            if let Some(address) = prefix.addresses.get_mut(&waiting.source) {
                // At one of the ends, unless its neighbours are more patient.
                if address.waiting.back() == Some(&ticket) {
                    address.waiting.pop_back();
                } else if let Ok(at) = address.waiting.binary_search(&ticket) {
                    address.waiting.remove(at);
                }
            }
        }
        self.remove_if_idle(waiting.source);
    }

    fn count(&mut self, source: IpAddr, change: impl Fn(&mut HandshakeCount)) {
        let prefix = self.prefixes.entry(prefix_of(source)).or_default();
        change(&mut prefix.count);
        change(&mut prefix.addresses.entry(source).or_default().count);
        self.remove_if_idle(source);
    }

    /// Forgets an address that has nothing any more, and its prefix.
    fn remove_if_idle(&mut self, source: IpAddr) {
        let of = prefix_of(source);
        let Some(prefix) = self.prefixes.get_mut(&of) else {
            return;
        };
        if let Some(address) = prefix.addresses.get(&source)
            && address.count.begun == 0
            && address.waiting.is_empty()
        {
            prefix.addresses.swap_remove(&source);
        }
        if prefix.addresses.is_empty() {
            self.prefixes.swap_remove(&of);
        }
    }
}
