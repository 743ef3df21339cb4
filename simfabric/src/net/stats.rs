//! Counters of a port.

use crate::flow::PacketCount;
use crate::net::port::IntTable;
use crate::net::queue::MAX_CLASSES;
use crate::time::{Span, Time};

/// Reason for the drop of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DropReason {
    /// The queue or the switch's buffer was full.
    Full,
    /// The discipline chose to drop it (RED, CoDel).
    Early,
    /// The link is down, or failed while the packet was on it.
    LinkDown,
    /// No route leads to the destination.
    NoRoute,
    /// The link lost it, as it loses a share of all packets.
    Lost,
}

impl DropReason {
    /// All reasons, in the order of [`Losses::by_reason`].
    pub const ALL: [Self; 5] = [
        Self::Full,
        Self::Early,
        Self::LinkDown,
        Self::NoRoute,
        Self::Lost,
    ];
}

/// Histogram of a queue's length, weighted by time.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// Picoseconds by number of packets; the last entry counts all greater lengths.
    spans: Vec<u64>,
}

impl Histogram {
    /// Lengths from here on count as one.
    const TOP: usize = 65_535;

    fn add(&mut self, packets: u32, span: Span) {
        let at = (packets as usize).min(Self::TOP);
        // Grown on demand: most queues stay far below the highest length.
        if at >= self.spans.len() {
            self.spans.resize(at + 1, 0);
        }
        self.spans[at] += span.0;
    }

    /// Returns the length that the queue did not exceed for this share of the time.
    #[must_use]
    pub fn quantile(&self, share: f64) -> u32 {
        let total: u64 = self.spans.iter().sum();
        let wanted = share * total as f64;
        let mut sum = 0;
        for (packets, span) in self.spans.iter().enumerate() {
            sum += span;
            // Share 0 is the least length that occurred, which may be above 0.
            if sum > 0 && sum as f64 >= wanted {
                return packets as u32;
            }
        }
        0
    }
}

/// Losses of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Losses {
    /// Packets that the queue dropped, on arrival or later.
    pub dropped: PacketCount,
    /// Packets that were on the wire when the link failed, or that it lost by chance.
    pub lost: PacketCount,
    /// All drops and losses by [`DropReason`].
    pub by_reason: [u64; 5],
}

/// Pauses of a port by its far end (priority flow control).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pauses {
    /// Number of pauses, of any class.
    pub count: u64,
    /// Time with at least one class paused.
    pub time: Span,
    /// The longest pause of a class without a resume, the present ones included.
    pub longest: Option<LongPause>,
}

/// A pause of a class without a resume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LongPause {
    /// The class.
    pub class: u8,
    /// Begin of the pause.
    pub since: Time,
    /// Length, as far as the run has come.
    pub span: Span,
}

/// Counters that most ports do not need.
#[derive(Clone, Copy, Debug, Default)]
struct RareCounters {
    losses: Losses,
    pauses: Pauses,
    /// Time since which a class is paused, from the end of the warm-up on.
    paused_since: Option<Time>,
    /// Begin of the pause of each class that is paused.
    began: [Option<Time>; MAX_CLASSES],
}

impl RareCounters {
    /// Iterates over the pauses that last until now.
    fn present(&self, now: Time) -> impl Iterator<Item = LongPause> {
        let began = self.began.iter().enumerate();
        began.filter_map(move |(class, since)| {
            let (class, since) = (class as u8, (*since)?);
            let span = now.since(since);
            Some(LongPause { class, since, span })
        })
    }
}

/// Counters of a port's sending end. Each offered packet was sent, dropped, or waits. Each sent
/// packet arrived, was lost with the link, or is on the wire.
///
/// Two cache lines; losses and pauses are rarer and elsewhere.
#[derive(Clone, Debug, Default)]
#[repr(C, align(64))]
pub struct PortStats {
    /// Σ packets × picoseconds.
    packet_time: u128,
    /// Σ bytes × picoseconds.
    byte_time: u128,
    /// Time of the queue's last change.
    since: Time,
    /// Histogram of the queue's length, if the run keeps one.
    pub histogram: Option<Box<Histogram>>,
    /// Largest number of waiting bytes.
    pub max_bytes: u64,
    /// Largest number of waiting packets.
    pub max_packets: u32,
    /// Packets that came to the port.
    pub offered: PacketCount,
    /// Packets that the port sent.
    pub sent: PacketCount,
    /// Packets that the queue marked.
    pub marks: u64,
    /// Time at which counting began.
    began: Time,
    rare: Option<Box<RareCounters>>,
    /// Entry of the switch's table of telemetry, if that is refreshed periodically. It stands with
    /// the counters that it tells.
    pub(crate) int_table: Option<Box<IntTable>>,
}

const _: () = assert!(
    size_of::<PortStats>() == 128,
    "counters are two cache lines"
);

impl PortStats {
    pub(crate) fn count_drop(&mut self, wire_bytes: u16, reason: DropReason) {
        // Allocated with the first loss: most ports lose no packet, and counters stay two lines.
        let losses = &mut self.rare.get_or_insert_default().losses;
        losses.dropped.add(wire_bytes);
        losses.by_reason[reason as usize] += 1;
    }

    pub(crate) fn count_loss(&mut self, wire_bytes: u16, reason: DropReason) {
        let losses = &mut self.rare.get_or_insert_default().losses;
        losses.lost.add(wire_bytes);
        losses.by_reason[reason as usize] += 1;
    }

    /// Adds what the other end of the port counted.
    pub(crate) fn add_losses(&mut self, others: &Losses) {
        if *others != Losses::default() {
            let losses = &mut self.rare.get_or_insert_default().losses;
            losses.dropped = losses.dropped + others.dropped;
            losses.lost = losses.lost + others.lost;
            for (count, other) in losses.by_reason.iter_mut().zip(others.by_reason) {
                *count += other;
            }
        }
    }

    /// Returns the drops and losses.
    #[must_use]
    pub fn losses(&self) -> Losses {
        self.rare
            .as_deref()
            .map_or_else(Losses::default, |r| r.losses)
    }

    /// Counts a pause of one more class, or a resume after which classes may still be paused.
    pub(crate) fn count_pause(&mut self, now: Time, class: u8, pause: bool, any_paused: bool) {
        let rare = self.rare.get_or_insert_default();
        rare.pauses.count += u64::from(pause);
        let began = &mut rare.began[usize::from(class)];
        if pause {
            began.get_or_insert(now);
        } else if let Some(since) = began.take() {
            let span = now.since(since);
            let ended = LongPause { class, since, span };
            rare.pauses.longest = longer(rare.pauses.longest, ended);
        }
        match rare.paused_since {
            None if any_paused => rare.paused_since = Some(now),
            Some(since) if !any_paused => {
                rare.pauses.time += now.since(since);
                rare.paused_since = None;
            }
            _ => {}
        }
    }

    /// Returns the pauses, with the time of the present one up to the last call of
    /// `account`.
    #[must_use]
    pub fn pauses(&self) -> Pauses {
        let Some(rare) = &self.rare else {
            return Pauses::default();
        };
        let mut pauses = rare.pauses;
        if let Some(since) = rare.paused_since {
            pauses.time += self.since.since(since);
        }
        let present = rare.present(self.since);
        pauses.longest = present.fold(pauses.longest, longer);
        pauses
    }

    /// Returns true if a class has been paused since a time or longer.
    pub(crate) fn is_paused_since(&self, time: Time) -> bool {
        let rare = self.rare.iter();
        let mut began = rare.flat_map(|rare| rare.began.iter().flatten());
        began.any(|since| *since <= time)
    }

    /// Takes away the packets, marks and losses that `before` has counted.
    #[must_use]
    pub(crate) fn since(mut self, before: &Self) -> Self {
        self.offered = self.offered - before.offered;
        self.sent = self.sent - before.sent;
        self.marks -= before.marks;
        if let (Some(rare), Some(before)) = (&mut self.rare, &before.rare) {
            let (losses, before) = (&mut rare.losses, &before.losses);
            losses.dropped = losses.dropped - before.dropped;
            losses.lost = losses.lost - before.lost;
            for (count, before) in losses.by_reason.iter_mut().zip(before.by_reason) {
                *count -= before;
            }
        }
        self
    }

    /// Accounts for this length of the queue from the last call until now.
    #[inline]
    pub(crate) fn account(&mut self, now: Time, packets: u32, bytes: u64) {
        let span = now.since(self.since);
        self.since = now;
        // An empty queue adds nothing to the sums, and spares two 128-bit products.
        if packets > 0 {
            self.packet_time += u128::from(packets) * u128::from(span.0);
            self.byte_time += u128::from(bytes) * u128::from(span.0);
        }
        if let Some(histogram) = &mut self.histogram {
            histogram.add(packets, span);
        }
    }

    #[inline]
    pub(crate) fn record_length(&mut self, packets: u32, bytes: u64) {
        self.max_packets = self.max_packets.max(packets);
        self.max_bytes = self.max_bytes.max(bytes);
    }

    /// Resets means, maxima and the histogram at the end of a warm-up.
    pub(crate) fn reset_averages(&mut self, now: Time) {
        (self.packet_time, self.byte_time) = (0, 0);
        (self.max_packets, self.max_bytes) = (0, 0);
        (self.began, self.since) = (now, now);
        if let Some(rare) = &mut self.rare {
            rare.pauses = Pauses::default();
            rare.paused_since = rare.paused_since.map(|_| now);
        }
        if let Some(histogram) = &mut self.histogram {
            **histogram = Histogram::default();
        }
    }

    fn mean(&self, sum: u128) -> f64 {
        let span = self.since.since(self.began).0;
        if span == 0 {
            0.0
        } else {
            sum as f64 / span as f64
        }
    }

    /// Returns the mean number of waiting packets, over time.
    #[must_use]
    pub fn mean_packets(&self) -> f64 {
        self.mean(self.packet_time)
    }

    /// Returns the mean number of waiting bytes, over time.
    #[must_use]
    pub fn mean_bytes(&self) -> f64 {
        self.mean(self.byte_time)
    }
}

/// Returns the longer of two pauses; of equals the first.
fn longer(longest: Option<LongPause>, other: LongPause) -> Option<LongPause> {
    Some(longest.filter(|l| l.span >= other.span).unwrap_or(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_weigh_by_how_long_they_lasted() {
        let mut stats = PortStats {
            histogram: Some(Box::default()),
            ..PortStats::default()
        };
        stats.account(Time(10), 0, 0);
        stats.account(Time(30), 3, 300);
        stats.account(Time(100), 1, 100);
        assert!((stats.mean_packets() - 1.3).abs() < 1e-12);
        assert!((stats.mean_bytes() - 130.0).abs() < 1e-12);
        let histogram = stats.histogram.as_ref().unwrap();
        assert_eq!(
            [0.1, 0.5, 0.8, 0.81, 1.0].map(|q| histogram.quantile(q)),
            [0, 1, 1, 3, 3]
        );
        stats.reset_averages(Time(100));
        stats.account(Time(200), 2, 1);
        assert!((stats.mean_packets() - 2.0).abs() < 1e-12);
        assert_eq!(stats.histogram.unwrap().quantile(0.5), 2);
    }
}
