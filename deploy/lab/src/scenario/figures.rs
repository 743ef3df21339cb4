//! The figures of a phase, as the results file has them. Every key is always there; a figure that
//! the scenario does not have, or that could not be measured, is null.

use serde::Serialize;

use crate::measure::stats::{median, minimum, percentile};

/// One phase's figures.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Least Jain's index of the settled 50 ms windows.
    pub jain_settled_min: Option<f64>,
    /// Their median.
    pub jain_settled_median: Option<f64>,
    /// Number of those windows.
    pub jain_settled_windows: Option<usize>,
    /// Least rate of a flow between two changes, over its fair share of the link (fairness).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_min: Option<f64>,
    /// Share of the bottleneck that was used while any flow was active.
    pub utilization_active: Option<f64>,
    /// Segments that the senders have sent again (fairness).
    pub retransmitted: Option<u64>,
    /// From a flowlet's first byte to its first paced transmission.
    pub first_paced_us: Option<FirstPaced>,
    /// From the kernel's seeing a flowlet begin to its first rate.
    pub first_rate_us: Option<FirstPaced>,
    /// Coflow completion times.
    pub completion_s: Option<Completion>,
    /// Least link use over 100 ms while the allocator or a daemon was dead.
    pub utilization_outage_min: Option<f64>,
    /// Longest time from a kill until no socket concerned was paced any more.
    pub fallback_ms: Option<f64>,
    /// Longest time from a restart until rates were fair again, for good.
    pub recovery_ms: Option<f64>,
    /// Connections that broke.
    pub connections_lost: Option<usize>,
    /// The failures one by one.
    pub outages: Vec<Outage>,
    /// Names that the check of links and hosts has given (fairness, mixed).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_as_told: Option<u64>,
    /// Rates of the long flows by weight.
    pub weights: Option<Vec<WeightRate>>,
    /// Completion times of the short flows in milliseconds.
    pub short_flow_ms: Option<TimeQuantiles>,
    /// Rate of the only one of 50 downloads that is read (use).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reader_mbps: Option<f64>,
    /// Rate of a bulk flow beside applications that write little (use).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bulk_mbps: Option<f64>,
    /// Times until what a receiver no longer used was with others (use).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redistributed_ms: Option<Redistributed>,
    /// Shares of on-off sources while they had something to send (use).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_off: Option<Vec<OnOff>>,
    /// From a rise of demand until the rate is within 5 % of fair (use).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rise_ms: Option<Rise>,
    /// The reader's rate around a receiver's stall, for the picture (use).
    #[serde(skip)]
    pub courses: Courses,
    /// Rates and processor time of links without a shaper (links).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub links: Option<Vec<LinkRow>>,
    /// Traffic from outside, and daemons without an allocator (feeds).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feeds: Option<FeedsFigures>,
    /// Results of the connections of the safety scenario.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub safety: Option<Vec<SafetyRow>>,
}

/// `feeds`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct FeedsFigures {
    /// From the outside flow's start until the managed flows have no more than their fair rate and
    /// a tenth, in windows of 20 ms; null: never.
    pub give_way_ms: Option<f64>,
    /// From its end until the managed flows have 95 % of the link; null: never.
    pub take_back_ms: Option<f64>,
    /// Mean rate of the outside flow over a fair one, from 300 ms after its start on.
    pub outside_of_fair: Option<f64>,
    /// Mean queue of the port while the outside flow runs.
    pub queue_mean_kb: Option<f64>,
    /// Largest queue seen in that time.
    pub queue_max_kb: Option<f64>,
    /// Packets that the port dropped in that time.
    pub packets_lost: Option<u64>,
    /// Without an allocator: from the eighth sender's start until each has its fair rate within
    /// 10 %, in windows of 50 ms; null: never.
    pub fair_ms: Option<f64>,
    /// From a demand to the share that answers it: medians and 99th percentiles of the senders'
    /// daemons, the largest of each.
    pub share_us_p50: Option<f64>,
    /// Likewise.
    pub share_us_p99: Option<f64>,
    /// Least Jain's index of 50 ms windows, from 100 ms after the eighth start on.
    pub jain_min: Option<f64>,
    /// Least link use over 100 ms in that time.
    pub utilization_min: Option<f64>,
    /// Packets that the port dropped in that time.
    pub packets_lost_alone: Option<u64>,
}

/// `first_paced_us`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FirstPaced {
    /// Median in microseconds.
    pub p50: f64,
    /// 99th percentile in microseconds.
    pub p99: f64,
    /// Number of flowlets.
    pub count: usize,
}

impl FirstPaced {
    /// Summarises samples; `None` for none.
    #[must_use]
    pub fn of(samples_us: &[f64]) -> Option<FirstPaced> {
        Some(FirstPaced {
            p50: round(median(samples_us)?),
            p99: round(percentile(samples_us, 99.0)?),
            count: samples_us.len(),
        })
    }
}

/// `completion_s`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Completion {
    /// Median in seconds.
    pub p50: f64,
    /// 90th percentile in seconds.
    pub p90: f64,
    /// 95th percentile in seconds.
    pub p95: f64,
    /// Number of runs.
    pub runs: usize,
    /// Every run, in order.
    pub samples: Vec<f64>,
    /// Completion times of the single transfers of all runs.
    pub transfers: TimeQuantiles,
}

/// Quantiles of a set of times.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TimeQuantiles {
    /// Least.
    pub min: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
    /// Number of samples.
    pub count: usize,
}

impl TimeQuantiles {
    /// Summarises samples; `None` for none.
    #[must_use]
    pub fn of(samples: &[f64]) -> Option<TimeQuantiles> {
        let at = |p| percentile(samples, p).map(round);
        Some(TimeQuantiles {
            min: round(minimum(samples)?),
            p50: at(50.0)?,
            p90: at(90.0)?,
            p95: at(95.0)?,
            p99: at(99.0)?,
            max: at(100.0)?,
            count: samples.len(),
        })
    }
}

/// One failure of the failover scenario.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outage {
    /// Name of the killed process.
    pub killed: String,
    /// Least link use over 100 ms from the kill to the restart.
    pub utilization_min: f64,
    /// Least link use over 100 ms from the restart until rates were fair for good.
    pub utilization_recovery_min: Option<f64>,
    /// From the kill until no socket concerned was paced any more.
    pub fallback_ms: Option<f64>,
    /// From the restart until rates were fair for good.
    pub recovery_ms: Option<f64>,
}

/// One element of `weights`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WeightRate {
    /// The policy's weight.
    pub weight: f64,
    /// Mean payload rate of the long flows of this weight.
    pub rate_mbps: f64,
}

/// One speed and number of flows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LinkRow {
    /// Speed in the topology file; without Ratewright, plain TCP runs in the same turns.
    pub link_mbps: u32,
    /// Flows at a time.
    pub flows: usize,
    /// Payload received, median of the runs.
    pub payload_gbps: f64,
    /// Over the payload of the link's rate; null without Ratewright, where nothing limits it.
    pub of_rate: Option<f64>,
    /// Processor time of the whole machine per bit of payload, median of the runs, in picoseconds.
    pub processor_ps_per_bit: f64,
    /// That of plain TCP with applications' own maxima of the same rate, what the kernel's pacing
    /// takes by itself; null with Ratewright.
    pub own_maxima_ps_per_bit: Option<f64>,
    /// Number of runs.
    pub runs: usize,
}

/// One row of the results: all runs of a back end, a fate and an address family.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SafetyRow {
    /// Back end of the daemons; without Ratewright, that whose network it is.
    pub backend: &'static str,
    /// `leased`, `lapsed`, `released`; `cubic` without Ratewright.
    pub fate: &'static str,
    /// 4 or 6.
    pub family: u8,
    /// Number of runs.
    pub runs: usize,
    /// Connections in all.
    pub connections: usize,
    /// Connections that had not ended at the time-out.
    pub unfinished: usize,
    /// Those that broke.
    pub broken: usize,
    /// Bytes that were written, or were to be written, and never read by the receiver.
    pub missing_bytes: u64,
    /// Connections that were seen in back-off without sending data.
    pub silent_backoff: usize,
    /// Connections that were seen under a maximum pacing rate which their application had not set;
    /// null with `tc_htb`, which sets none.
    pub held: Option<usize>,
    /// Times from connecting until the receiver had everything.
    pub completion_s: Option<TimeQuantiles>,
    /// The times themselves.
    #[serde(skip)]
    pub samples_s: Vec<f64>,
}

/// Times until what a receiver no longer used was with others.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Redistributed {
    /// Median in milliseconds; null if it took longer than was waited for.
    pub p50: Option<f64>,
    /// Largest; null likewise.
    pub max: Option<f64>,
    /// Number of trials.
    pub count: usize,
    /// Number of trials that took longer than the wait.
    pub never: usize,
    /// Every time for a receiver that is stopped; null where it took longer.
    pub stopped: Vec<Option<f64>>,
    /// Likewise for one that loses power.
    pub unplugged: Vec<Option<f64>>,
    /// Likewise for one that reads slowly.
    pub slow: Vec<Option<f64>>,
}

/// Share of an on-off source.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct OnOff {
    /// Length of a burst, in milliseconds.
    pub on_ms: u64,
    /// Length of a rest, in milliseconds.
    pub off_ms: u64,
    /// Its rate while it had something to send, over its fair share (what the link leaves of it
    /// included).
    pub share: f64,
}

/// Times from a rise of demand until the rate was within 5 % of fair.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rise {
    /// Median in milliseconds.
    pub p50: f64,
    /// 99th percentile; that of a rate that was never fair is how long it was waited for.
    pub p99: f64,
    /// Number of rises.
    pub count: usize,
    /// Demands that the sender's daemon raised in the same time; null without Ratewright.
    pub raised: Option<u64>,
}

/// The reader's rate around a stall: (seconds after it, Mbit/s).
pub type Course = Vec<(f64, f64)>;

/// Courses by the kind of stall, one of each for the picture.
pub type Courses = Vec<(&'static str, Course)>;

/// Rounds to four decimals, so that results can be read.
#[must_use]
pub fn round(value: f64) -> f64 {
    (value * 10_000.0).round() / 10_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_its_key_whether_it_was_measured_or_not() {
        let value = serde_json::to_value(Figures::default()).unwrap();
        for key in [
            "jain_settled_min",
            "jain_settled_median",
            "utilization_active",
            "retransmitted",
            "first_paced_us",
            "first_rate_us",
            "completion_s",
            "utilization_outage_min",
            "fallback_ms",
            "recovery_ms",
            "connections_lost",
            "weights",
        ] {
            assert_eq!(value.get(key), Some(&serde_json::Value::Null), "{key}");
        }
    }
}
