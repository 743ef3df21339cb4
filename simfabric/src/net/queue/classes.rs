//! The scheduler of a port with several classes (IEEE 802.1Q-2018 §8.6.8): a queue for each class,
//! a rule by which they take turns, shapers, and pauses of single classes.
//!
//! | service | rule |
//! |---|---|
//! | [`Service::Strict`] | the first such class that has a packet goes, before all weighted ones |
//! | [`Service::Weighted`] | deficit round robin (Shreedhar and Varghese 1996) among such classes |
//!
//! A class's deficit may fall below 0 by less than a packet, and is made up for in its next turns
//! (surplus round robin, Floyd and Jacobson 1995). So no look at the next packet's size is needed,
//! which not every discipline knows before it has decided on drops. Shares are those of deficit
//! round robin.
//!
//! A packet's class is its [`class`](crate::Packet::class); the last class takes all beyond
//! it. A packet that is being sent is not interrupted. A class that is paused or shaped keeps what
//! it has of its turn.

use arrayvec::ArrayVec;

use super::shaper::{Shaper, ShaperConfig};
use super::{Discipline, Next, Queue, QueueConfig, QueueContext};
use crate::flow::FlowId;
use crate::net::{Notice, Tap};
use crate::packet::{Packet, PacketId, PacketSlab};
use crate::rng::Stream;
use crate::time::Time;

/// The most classes that a port can have: those of IEEE 802.1Q.
pub const MAX_CLASSES: usize = 8;

/// A set of classes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct ClassMask(pub u8);

impl ClassMask {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// All classes.
    pub const ALL: Self = Self(u8::MAX);

    /// Makes a set of one class, below [`MAX_CLASSES`].
    #[must_use]
    pub const fn of(class: usize) -> Self {
        Self(1 << class)
    }

    /// Returns true if the class is in the set.
    #[must_use]
    pub const fn contains(self, class: usize) -> bool {
        self.0 >> class & 1 != 0
    }

    /// Returns true if no class is in the set.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the classes that are in both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns the classes that are in one of the sets.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the classes that are not in the set.
    #[must_use]
    pub const fn complement(self) -> Self {
        Self(!self.0)
    }

    /// Returns the classes of this set that are not in the other.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the lowest class of the set.
    #[must_use]
    pub const fn first(self) -> Option<usize> {
        if self.0 == 0 {
            None
        } else {
            Some(self.0.trailing_zeros() as usize)
        }
    }

    /// Iterates over the classes of the set, lowest first.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self;
        std::iter::from_fn(move || {
            let class = rest.first()?;
            rest = rest.without(Self::of(class));
            Some(class)
        })
    }
}

/// Rule by which a class is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Service {
    /// Before all weighted classes and all strict ones of a higher number.
    #[default]
    Strict,
    /// A share of what the strict classes leave, by this weight of at least 1.
    Weighted(u16),
}

/// A class with its parameters.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ClassConfig {
    /// Queue of the class, which has no classes of its own.
    pub queue: QueueConfig,
    /// Rule by which it is served.
    pub service: Service,
    /// Limit of its rate.
    pub shaper: Option<ShaperConfig>,
}

/// Bytes per unit of weight and turn: less than a full packet, so that turns are short.
const QUANTUM_BYTES: i64 = 1_024;

/// One class.
#[derive(Debug)]
struct Class {
    queue: Queue,
    shaper: Option<Shaper>,
    /// Bytes that its turn adds; 0 in a strict class.
    quantum_bytes: i64,
    /// Bytes that it may still send in its turn; below 0 what it owes.
    deficit_bytes: i64,
}

/// Length of a class's queue.
#[derive(Clone, Copy, Debug)]
struct Length {
    packets: u32,
    bytes: u64,
}

impl Length {
    #[inline]
    fn of(queue: &impl Discipline) -> Self {
        Self {
            packets: queue.packets(),
            bytes: queue.bytes(),
        }
    }
}

/// Gives a packet to a class. Returns the lengths before and after: a discipline may drop others
/// for this packet.
#[inline]
fn enqueue(queue: &mut impl Discipline, q: &mut QueueContext<'_>, id: PacketId) -> [Length; 2] {
    let before = Length::of(queue);
    queue.enqueue(q, id);
    [before, Length::of(queue)]
}

/// Takes a class's next packet, with the lengths before and after.
#[inline]
fn dequeue(
    queue: &mut impl Discipline,
    q: &mut QueueContext<'_>,
) -> (Option<PacketId>, [Length; 2]) {
    let before = Length::of(queue);
    let id = queue.dequeue(q);
    (id, [before, Length::of(queue)])
}

/// Queues of classes with their scheduler.
#[derive(Debug)]
pub struct Classes {
    classes: ArrayVec<Class, MAX_CLASSES>,
    /// Classes that have packets.
    backlog: ClassMask,
    strict: ClassMask,
    shaped: ClassMask,
    /// Strict classes whose queues pass packets unchanged.
    passing: ClassMask,
    /// The weighted class whose turn it is.
    turn: usize,
    packets: u32,
    bytes: u64,
}

impl Classes {
    /// Returns the number of classes.
    pub(crate) fn classes(&self) -> usize {
        self.classes.len()
    }

    /// Makes empty queues for at most [`MAX_CLASSES`] classes of a port of this rate.
    #[must_use]
    pub fn new(configs: &[ClassConfig], rate_bps: u64, rng: &mut Stream) -> Self {
        let (mut strict, mut shaped) = (ClassMask::NONE, ClassMask::NONE);
        let mut passing = ClassMask::NONE;
        let mut classes = ArrayVec::new();
        for (i, config) in configs.iter().take(MAX_CLASSES).enumerate() {
            let quantum_bytes = match config.service {
                Service::Strict => {
                    strict = strict.or(ClassMask::of(i));
                    0
                }
                Service::Weighted(weight) => i64::from(weight.max(1)) * QUANTUM_BYTES,
            };
            if config.shaper.is_some() {
                shaped = shaped.or(ClassMask::of(i));
            }
            let queue = config.queue.build(rate_bps, rng);
            if strict.contains(i) && queue.is_transparent() {
                passing = passing.or(ClassMask::of(i));
            }
            classes.push(Class {
                queue,
                shaper: config.shaper.map(|shaper| Shaper::new(shaper, rate_bps)),
                quantum_bytes,
                deficit_bytes: 0,
            });
        }
        Self {
            classes,
            backlog: ClassMask::NONE,
            strict,
            shaped,
            passing,
            turn: 0,
            packets: 0,
            bytes: 0,
        }
    }

    /// Updates the sums after a change of one class, from its lengths before and after.
    #[inline]
    fn update(&mut self, class: usize, [before, after]: [Length; 2]) {
        self.packets = self.packets - before.packets + after.packets;
        self.bytes = self.bytes - before.bytes + after.bytes;
        let bit = ClassMask::of(class);
        self.backlog = if after.packets > 0 {
            self.backlog.or(bit)
        } else {
            self.backlog.without(bit)
        };
    }

    /// Takes a class's next packet.
    #[inline]
    fn take(&mut self, q: &mut QueueContext<'_>, class: usize) -> Option<PacketId> {
        // Compiled for the most common discipline and for any, as in ports.
        let (id, lengths) = match &mut self.classes[class].queue {
            Queue::DropTail(queue) => dequeue(queue, q),
            queue => dequeue(queue, q),
        };
        self.update(class, lengths);
        id
    }

    /// Selects one of these classes and gives it the turn.
    fn choose(&mut self, ready: ClassMask) -> Option<usize> {
        if let Some(class) = ready.and(self.strict).first() {
            return Some(class);
        }
        if ready.is_empty() {
            return None;
        }
        // Every turn adds a quantum, so that a class that owes has enough after some turns.
        loop {
            if ready.contains(self.turn) && self.classes[self.turn].deficit_bytes > 0 {
                return Some(self.turn);
            }
            self.turn = (self.turn + 1) % self.classes.len();
            if ready.contains(self.turn) {
                let class = &mut self.classes[self.turn];
                // What is left of a turn that a pause interrupted does not add up.
                class.deficit_bytes =
                    (class.deficit_bytes + class.quantum_bytes).min(class.quantum_bytes);
            }
        }
    }
}

impl Discipline for Classes {
    fn enqueue(&mut self, q: &mut QueueContext<'_>, id: PacketId) {
        let class = usize::from(q.packet(id).class).min(self.classes.len() - 1);
        let lengths = match &mut self.classes[class].queue {
            Queue::DropTail(queue) => enqueue(queue, q, id),
            queue => enqueue(queue, q, id),
        };
        self.update(class, lengths);
    }

    fn dequeue(&mut self, q: &mut QueueContext<'_>) -> Option<PacketId> {
        while let Some(class) = self.backlog.first() {
            let id = self.take(q, class);
            // A class that dropped all that it had leaves the turn to the next.
            if id.is_some() {
                return id;
            }
        }
        None
    }

    fn select(&mut self, q: &mut QueueContext<'_>, open: ClassMask) -> Next {
        let mut ready = self.backlog.and(open);
        let mut opens_at = Time::MAX;
        for class in ready.and(self.shaped).iter() {
            if let Some(shaper) = &self.classes[class].shaper
                && shaper.opens_at() > q.now
            {
                ready = ready.without(ClassMask::of(class));
                opens_at = opens_at.min(shaper.opens_at());
            }
        }
        while let Some(class) = self.choose(ready) {
            let Some(id) = self.take(q, class) else {
                // It dropped all that it had.
                ready = ready.without(ClassMask::of(class));
                continue;
            };
            let wire_bytes = q.packet(id).wire_bytes;
            let has_more = self.backlog.contains(class);
            let class = &mut self.classes[class];
            if let Some(shaper) = &mut class.shaper {
                shaper.charge(q.now, wire_bytes);
            }
            if class.quantum_bytes > 0 {
                class.deficit_bytes -= i64::from(wire_bytes);
                // An empty class saves nothing up, and its debts stay (§3 of deficit round robin).
                if !has_more {
                    class.deficit_bytes = class.deficit_bytes.min(0);
                }
            }
            return Next::Packet(id);
        }
        if opens_at < Time::MAX {
            Next::At(opens_at)
        } else {
            Next::Nothing
        }
    }

    fn is_transparent(&self) -> bool {
        let mut classes = 0..self.classes.len();
        self.shaped.is_empty() && classes.all(|class| self.passing.contains(class))
    }

    #[inline]
    fn opens_at(&self, class: u8) -> Time {
        let class = usize::from(class).min(self.classes.len() - 1);
        let shaper = self.classes[class].shaper.as_ref();
        shaper.map_or(Time::ZERO, Shaper::opens_at)
    }

    #[inline]
    fn next_opens_at(&self) -> Time {
        if !self.backlog.without(self.shaped).is_empty() {
            return Time::ZERO;
        }
        let shapers = self
            .backlog
            .iter()
            .filter_map(|class| self.classes[class].shaper.as_ref());
        shapers.map(Shaper::opens_at).min().unwrap_or(Time::ZERO)
    }

    #[inline]
    fn pass(&mut self, now: Time, class: u8, wire_bytes: u16) -> bool {
        let class = usize::from(class).min(self.classes.len() - 1);
        if !self.passing.without(self.backlog).contains(class) {
            return false;
        }
        match &mut self.classes[class].shaper {
            None => true,
            Some(shaper) if shaper.opens_at() <= now => {
                shaper.charge(now, wire_bytes);
                true
            }
            Some(_) => false,
        }
    }

    fn bytes_of(&self, class: u8) -> u64 {
        let class = usize::from(class).min(self.classes.len() - 1);
        self.classes[class].queue.bytes()
    }

    fn tap(&self) -> Tap {
        let taps = self.classes.iter().map(|class| class.queue.tap());
        taps.into_iter()
            .find(|tap| *tap != Tap::None)
            .unwrap_or_default()
    }

    fn take_mark(&mut self, now: Time, flow: FlowId) -> bool {
        self.classes
            .iter_mut()
            .any(|c| c.queue.take_mark(now, flow))
    }

    fn next_tick(&self) -> Option<Time> {
        let ticks = self.classes.iter().filter_map(|c| c.queue.next_tick());
        ticks.min()
    }

    fn on_tick(&mut self, q: &mut QueueContext<'_>, notices: &mut Vec<Notice>) {
        for class in &mut self.classes {
            if class.queue.next_tick().is_some_and(|at| at <= q.now) {
                class.queue.on_tick(q, notices);
            }
        }
    }

    fn visit(&self, packets: &PacketSlab, each: &mut dyn FnMut(&Packet)) {
        let queues = self.classes.iter().map(|class| &class.queue);
        queues.for_each(|queue| queue.visit(packets, each));
    }

    fn packets(&self) -> u32 {
        self.packets
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::port::ByteTime;
    use crate::net::queue::testing::{Bench, packet, stream};
    use crate::net::queue::{DropReason, Limit, drop_tail, ecn_threshold};
    use crate::packet::{Flags, Packet};
    use crate::time::Span;

    const RATE_BPS: u64 = 10_000_000_000;

    fn of_class(class: u8, seq: u64) -> Packet {
        Packet {
            class,
            ..packet(0, seq, 1_000)
        }
    }

    fn bench(classes: &[ClassConfig]) -> Bench<Classes> {
        Bench::new(Classes::new(classes, RATE_BPS, &mut stream()))
    }

    fn strict(limit: Limit) -> ClassConfig {
        ClassConfig {
            queue: QueueConfig::DropTail(drop_tail::Config { limit }),
            ..ClassConfig::default()
        }
    }

    fn weighted(weight: u16) -> ClassConfig {
        ClassConfig {
            service: Service::Weighted(weight),
            ..ClassConfig::default()
        }
    }

    #[test]
    fn the_first_strict_class_goes_first_and_each_in_its_order() {
        let mut bench = bench(&vec![strict(Limit::packets(10)); 2]);
        for (seq, class) in [1, 0, 1, 0, 7, 0].into_iter().enumerate() {
            bench.put(of_class(class, seq as u64));
        }
        assert_eq!((bench.queue.packets(), bench.queue.bytes()), (6, 6_000));
        let order: Vec<u64> = std::iter::from_fn(|| bench.take()).map(|p| p.seq).collect();
        assert_eq!(order, [1, 3, 5, 0, 2, 4]);
        assert_eq!((bench.queue.packets(), bench.queue.bytes()), (0, 0));
    }

    /// Packets that turns count or marks change do not pass, nor those that a shaper holds back.
    /// Classes beyond the last are that one.
    #[test]
    fn strict_classes_pass_packets_unchanged_while_their_shaper_lets_them() {
        let shaped = ClassConfig {
            shaper: Some(ShaperConfig {
                share: 0.5,
                burst_bytes: 0,
            }),
            ..ClassConfig::default()
        };
        let marking = ClassConfig {
            queue: QueueConfig::EcnThreshold(ecn_threshold::Config::packets(0, Limit::default())),
            ..ClassConfig::default()
        };
        let plain = ClassConfig::default;
        let ns = |ns| Time::ZERO + Span::from_ns(ns);
        // 1,000 bytes at half of 10 Gbit/s take 1.6 µs.
        for (classes, is_transparent, [first, second, later]) in [
            (vec![plain(), plain()], true, [[true, true]; 3]),
            (
                vec![shaped, plain()],
                false,
                [[true, true], [false, true], [true, true]],
            ),
            (vec![plain(), weighted(1)], false, [[true, false]; 3]),
            (vec![marking, plain()], false, [[false, true]; 3]),
        ] {
            let mut queue = Classes::new(&classes, RATE_BPS, &mut stream());
            assert_eq!(queue.is_transparent(), is_transparent, "{classes:?}");
            for (at, expected) in [(0, first), (1_599, second), (1_600, later)] {
                let passed = [0, 7].map(|class| queue.pass(ns(at), class, 1_000));
                assert_eq!(passed, expected, "{classes:?} at {at} ns");
            }
        }
    }

    #[test]
    fn a_full_class_drops_and_the_other_does_not() {
        let mut bench = bench(&vec![strict(Limit::packets(2)); 2]);
        for seq in 0..5 {
            bench.put(of_class(1, seq));
        }
        bench.put(of_class(0, 9));
        assert_eq!(bench.drops(DropReason::Full), 3);
        let order: Vec<u64> = std::iter::from_fn(|| bench.take()).map(|p| p.seq).collect();
        assert_eq!(order, [9, 0, 1]);
    }

    #[test]
    fn a_class_has_the_marks_of_its_own_queue() {
        let class = ClassConfig {
            queue: QueueConfig::EcnThreshold(ecn_threshold::Config::packets(1, Limit::default())),
            ..ClassConfig::default()
        };
        let mut bench = bench(&vec![class; 2]);
        for (seq, class) in [0, 1, 0, 1].into_iter().enumerate() {
            bench.put(of_class(class, seq as u64));
        }
        let marked: Vec<u64> = std::iter::from_fn(|| bench.take())
            .filter(|p| p.flags.contains(Flags::CE))
            .map(|p| p.seq)
            .collect();
        assert_eq!(marked, [2, 3]);
    }

    /// Shreedhar and Varghese, theorem 3: bytes of backlogged classes are as their weights, within
    /// a turn's bytes and a packet, for any sizes of packets.
    #[test]
    fn backlogged_weighted_classes_share_bytes_by_their_weights() {
        let (weights, sizes) = ([1_u16, 2, 5], [84_u16, 1_538, 700]);
        let mut bench = bench(&weights.map(weighted));
        let mut sent = [0_i64; 3];
        for round in 0..30_000_u64 {
            for (class, size) in sizes.into_iter().enumerate() {
                // Always backlogged, with sizes that vary.
                let size = if round % 3 == 0 { size } else { 64 + size / 2 };
                let backlog = bench.queue.classes[class].queue.packets();
                for seq in u64::from(backlog)..4 {
                    bench.put(Packet {
                        class: class as u8,
                        ..packet(0, seq, size)
                    });
                }
            }
            let taken = bench.take().expect("all are backlogged");
            sent[usize::from(taken.class)] += i64::from(taken.wire_bytes);
            for (a, b) in [(0, 1), (0, 2), (1, 2)] {
                let (wa, wb) = (i64::from(weights[a]), i64::from(weights[b]));
                let unfair = (sent[a] * wb - sent[b] * wa).abs();
                let bound = 2 * (wa * wb * QUANTUM_BYTES + wa.max(wb) * 1_538);
                assert!(unfair <= bound, "{sent:?} after {round} packets");
            }
        }
        let total: i64 = sent.iter().sum();
        for (class, share) in [0.125, 0.25, 0.625].into_iter().enumerate() {
            let found = sent[class] as f64 / total as f64;
            assert!((found - share).abs() < 0.001, "class {class}: {found}");
        }
    }

    #[test]
    fn a_weighted_class_alone_has_the_link_and_saves_nothing_up() {
        let mut bench = bench(&[weighted(1), weighted(1)]);
        for seq in 0..100 {
            bench.put(of_class(0, seq));
            assert_eq!(bench.take().map(|p| p.seq), Some(seq));
        }
        // Class 1 sent nothing until now, and gets no more than its half from now on.
        for seq in 0..40 {
            bench.put(of_class(0, seq));
            bench.put(of_class(1, seq));
        }
        let first = (0..40).filter_map(|_| bench.take());
        let of_second = first.filter(|p| p.class == 1).count();
        assert!((19..=21).contains(&of_second), "{of_second}");
    }

    #[test]
    fn a_strict_class_goes_before_weighted_ones() {
        let mut bench = bench(&[weighted(3), strict(Limit::default()), weighted(1)]);
        for seq in 0..3 {
            for class in 0..3 {
                bench.put(of_class(class, seq));
            }
        }
        let order: Vec<u8> = std::iter::from_fn(|| bench.take())
            .map(|p| p.class)
            .collect();
        assert_eq!(order[..3], [1, 1, 1]);
    }

    #[test]
    fn a_paused_class_waits_and_leaves_the_others_their_turns() {
        let mut bench = bench(&[strict(Limit::default()), weighted(1), weighted(1)]);
        for seq in 0..4 {
            for class in 0..3 {
                bench.put(of_class(class, seq));
            }
        }
        let open = ClassMask::of(0).or(ClassMask::of(1)).complement();
        let mut others = Vec::new();
        while let Some(packet) = bench.take_open(open) {
            others.push((packet.class, packet.seq));
        }
        assert_eq!(others, [(2, 0), (2, 1), (2, 2), (2, 3)]);
        assert_eq!(bench.select(open), Next::Nothing);
        assert_eq!(bench.queue.packets(), 8);
        let order: Vec<u8> = std::iter::from_fn(|| bench.take())
            .map(|p| p.class)
            .collect();
        assert_eq!(order, [0, 0, 0, 0, 1, 1, 1, 1]);
    }

    #[test]
    fn a_shaped_class_leaves_the_link_to_others_until_its_time() {
        let shaped = ClassConfig {
            shaper: Some(ShaperConfig {
                share: 0.1,
                burst_bytes: 0,
            }),
            ..ClassConfig::default()
        };
        let mut bench = bench(&[shaped, strict(Limit::default())]);
        for (seq, class) in [0, 0, 1].into_iter().enumerate() {
            bench.put(of_class(class, seq as u64));
        }
        assert_eq!(bench.take().map(|p| p.seq), Some(0));
        bench.now = Time::ZERO + ByteTime::of_rate(RATE_BPS).of(1_000);
        assert_eq!(bench.take().map(|p| p.seq), Some(2));
        // 1,000 bytes at a tenth of 10 Gbit/s take 8 µs.
        let due = Time::from_us(8);
        assert_eq!(bench.select(ClassMask::ALL), Next::At(due));
        bench.now = due - Span(1);
        assert_eq!(bench.select(ClassMask::ALL), Next::At(due));
        bench.now = due;
        assert_eq!(bench.take().map(|p| p.seq), Some(1));
    }
}
