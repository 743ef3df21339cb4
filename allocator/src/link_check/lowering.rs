//! Lowered capacity of a link that carries less: set to what it carries, probed, and restored.
//!
//! A link that carries less by congestion is lowered to [`TARGET`] of the most that it carried in
//! the samples, by at most [`LinkCheckConfig::max_lowering`](super::LinkCheckConfig) of its
//! capacity, or to [`BELOW_BASELINE`] of its baseline. The most, because a word may be of a second
//! in which flows began or ended. What carries less than that bound is only named: lowering would
//! end no congestion, and hold flows back once the link carries more. From then on its queue
//! drains. After [`PAUSE_NS`] it is probed: its capacity grows by [`STEP`], then by twice as much,
//! every [`PROBE_NS`], until it is the told one or it carries less than the one in force. If that
//! stands for [`NAME_NS`], the link is lowered anew. A link that is not in use is not probed. What
//! lowering does not end is no matter of capacity (a lossy line, say): after [`FUTILE_NS`] the told
//! one is in force again, and is not lowered for [`GIVEN_UP_NS`]. A link that carries more is only
//! named.
//!
//! An allowance may save up credit while its link rests. What was carried in the second before may
//! be credit's: then the link is lowered anew. Probes find credit that has come back, as they find
//! a repair.

use super::{IDLE_NS, NAME_NS, SECOND_NS};

/// Part of what a link carries to which it is lowered: what hosts tell may be 1/64 too much, and
/// the queue has to drain.
pub(super) const TARGET: f64 = 0.96;
/// Part of a link's baseline to which it may be lowered: [`TARGET`], less what hosts tell too
/// little.
pub(super) const BELOW_BASELINE: f64 = 0.9;
/// Time from lowering to the first probe,
const PAUSE_NS: u64 = 4 * SECOND_NS;
/// and from a probe to the next.
const PROBE_NS: u64 = SECOND_NS * 3 / 2;
/// Growth of the first probe.
const STEP: f64 = 0.08;
/// Time after which lowering that did not end the congestion is given up,
const FUTILE_NS: u64 = 4 * SECOND_NS;
/// and for which it is not tried again.
const GIVEN_UP_NS: u64 = 60 * SECOND_NS;
/// Time without congestion at the told capacity that ends a lowering.
const RESTORED_NS: u64 = 2 * SECOND_NS;
/// Part of a lowered capacity that a link in use carries.
const IN_USE: f64 = 0.5;

/// Lowered capacity of one link, if it is lowered.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Lowering {
    lowered: Option<Lowered>,
    given_up_until_ns: u64,
}

/// A capacity in force that is less than the told one.
#[derive(Debug, Clone, Copy)]
struct Lowered {
    capacity_bps: f64,
    /// Time at which it was lowered last.
    at_ns: u64,
    /// Growth of the next probe.
    step: f64,
    /// Time of the next probe.
    probe_ns: u64,
    /// Time since which congestion has not ended; `None` without congestion.
    congested_ns: Option<u64>,
    /// Time at which the told capacity was reached again.
    restored_ns: Option<u64>,
}

/// Figures of a link that carries less, at one tick.
#[derive(Debug, Clone, Copy)]
pub(super) struct Carriage {
    /// Capacity that the allocator was told, in bit/s.
    pub(super) told_bps: f64,
    /// Least capacity to which it may be lowered, in bit/s.
    pub(super) floor_bps: f64,
    /// Rate that it carried in the last second, in bit/s,
    pub(super) carried_bps: f64,
    /// and the most of the samples.
    pub(super) most_bps: f64,
    /// Congestion was the link's since the last tick.
    pub(super) is_congested: bool,
    /// Last time with evidence for its state.
    pub(super) seen_ns: u64,
}

impl Lowering {
    /// Returns the capacity in force, in bit/s, if it is not the told one.
    pub(super) fn capacity_bps(&self) -> Option<f64> {
        self.lowered.map(|lowered| lowered.capacity_bps)
    }

    /// Puts the told capacity in force.
    pub(super) fn end(&mut self) {
        self.lowered = None;
    }

    /// Lowers, probes or restores the capacity. Returns true if the link carries what was told, or
    /// has not been in use for long.
    pub(super) fn judge(&mut self, now_ns: u64, link: &Carriage) -> bool {
        let &Carriage {
            told_bps,
            floor_bps,
            carried_bps,
            most_bps,
            is_congested,
            seen_ns,
        } = link;
        let target_bps = (TARGET * most_bps).max(floor_bps);
        let fits = most_bps > floor_bps;
        let Some(mut lowered) = self.lowered else {
            if is_congested && fits && target_bps < told_bps && self.given_up_until_ns <= now_ns {
                self.lowered = Some(Lowered::to(now_ns, now_ns, target_bps));
            }
            return false;
        };
        if floor_bps >= told_bps || lowered.capacity_bps < floor_bps || (is_congested && !fits) {
            self.lowered = None;
            return false;
        }
        if lowered.capacity_bps >= told_bps && lowered.restored_ns.is_none() {
            // The told one is another.
            lowered.restored_ns = Some(now_ns);
        }
        let was_congested = lowered.congested_ns.is_some();
        match (is_congested, lowered.congested_ns) {
            (true, Some(since_ns)) if now_ns.saturating_sub(since_ns) >= FUTILE_NS => {
                self.given_up_until_ns = now_ns.saturating_add(GIVEN_UP_NS);
                self.lowered = None;
                return false;
            }
            (true, Some(since_ns))
                if now_ns.saturating_sub(since_ns.max(lowered.at_ns)) >= NAME_NS
                    && target_bps < lowered.capacity_bps =>
            {
                lowered = Lowered::to(now_ns, since_ns, target_bps);
            }
            (true, since_ns) => {
                lowered.congested_ns = since_ns.or(Some(now_ns));
                lowered.probe_ns = now_ns.saturating_add(PAUSE_NS);
            }
            (false, _) => lowered.congested_ns = None,
        }
        if was_congested || is_congested {
            self.lowered = Some(lowered);
            return false;
        }
        let is_over = match lowered.restored_ns {
            Some(restored_ns) => now_ns.saturating_sub(restored_ns) >= RESTORED_NS,
            None => now_ns.saturating_sub(seen_ns) >= IDLE_NS,
        };
        if is_over {
            self.lowered = None;
            return true;
        }
        if lowered.restored_ns.is_none()
            && lowered.probe_ns <= now_ns
            && carried_bps >= IN_USE * lowered.capacity_bps
        {
            lowered.capacity_bps *= 1.0 + lowered.step;
            lowered.step *= 2.0;
            lowered.probe_ns = now_ns.saturating_add(PROBE_NS);
            if lowered.capacity_bps >= told_bps {
                lowered.capacity_bps = told_bps;
                lowered.restored_ns = Some(now_ns);
            }
        }
        self.lowered = Some(lowered);
        false
    }
}

impl Lowered {
    fn to(now_ns: u64, congested_ns: u64, capacity_bps: f64) -> Self {
        Self {
            capacity_bps,
            at_ns: now_ns,
            step: STEP,
            probe_ns: now_ns.saturating_add(PAUSE_NS),
            congested_ns: Some(congested_ns),
            restored_ns: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: f64 = 1e6;

    /// A lossy line: it carries 800 Mbit/s of 1,000, and congestion whatever is handed out.
    #[test]
    fn what_lowering_does_not_end_is_given_up_after_four_seconds_and_left_for_a_minute() {
        let mut lowering = Lowering::default();
        let carriage = Carriage {
            told_bps: 1_000.0 * MBIT,
            floor_bps: 500.0 * MBIT,
            carried_bps: 800.0 * MBIT,
            most_bps: 800.0 * MBIT,
            is_congested: true,
            seen_ns: 0,
        };
        let mut lowered_s = Vec::new();
        for half_s in 0..200 {
            assert!(!lowering.judge(half_s * SECOND_NS / 2, &carriage));
            if lowering.capacity_bps().is_some() {
                lowered_s.push(half_s as f64 / 2.0);
            }
        }
        let (first, second): (Vec<f64>, Vec<f64>) = lowered_s.iter().partition(|&&s| s < 60.0);
        assert_eq!((first[0], first.len()), (0.0, 8), "{first:?}");
        assert_eq!((second[0], second.len()), (64.0, 8), "{second:?}");
    }
}
