//! Results of a run, as one JSON object or a table.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use hdrhistogram::Histogram;
use indexmap::IndexMap;
use serde::Serialize;

/// Quantiles of a time, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LatencyQuantiles {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
}

impl LatencyQuantiles {
    /// Of a histogram of nanoseconds; nothing if it is empty.
    #[must_use]
    pub fn of(histogram: &Histogram<u64>) -> Option<Self> {
        let at = |q| histogram.value_at_quantile(q) as f64 / 1e3;
        (!histogram.is_empty()).then(|| Self {
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
        })
    }
}

/// The figures of a run. Those of time and traffic are of the measurement alone, without what came
/// before and after it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SwarmResults {
    /// From a flowlet's start, when its host's session takes it, to its first rate, when the
    /// session reports it; null if no flowlet started.
    pub start_to_rate_us: Option<LatencyQuantiles>,
    /// Rates delivered by the hosts' sessions in a second.
    pub updates_per_s: f64,
    /// Rates delivered for each second of the allocator's processor time; null if that is unknown.
    pub updates_per_s_per_core: Option<f64>,
    /// Bytes to and from the allocator, with IP and UDP headers, over what all hosts can send in
    /// that time.
    pub control_share_of_capacity: f64,
    /// Flows on which both ends disagree at the end.
    pub lost_views: u64,
    /// Processor time of the allocator, all threads; null if its process is unknown.
    pub allocator_cpu_s: Option<f64>,
    /// Processor time of each of the allocator's threads, by name.
    pub allocator_threads_cpu_s: IndexMap<String, f64>,
    /// Resident memory of the allocator at the end; null if its process is unknown.
    pub allocator_memory_bytes: Option<u64>,
    /// `quic` or `udp`.
    pub transport: &'static str,
    /// Hosts.
    pub sessions: u32,
    /// Flows that were active at the end.
    pub flows: usize,
    /// Length of the measurement.
    pub seconds: f64,
    /// Seed of everything random.
    pub seed: u64,
    /// The workload; null for a fixed number of flows.
    pub workload: Option<String>,
    /// Its offered load.
    pub load: Option<f64>,
    /// Modelled capacity of a host's link, each way.
    pub host_bps: u64,
    /// Factor by which links, and sessions with them, are slower than on the fabric that they stand
    /// for; see [`TimeDilation`](super::time_dilation::TimeDilation).
    pub slow_motion: f64,
    /// Flowlets started in a second.
    pub starts_per_s: f64,
    /// First rates among the updates.
    pub first_rates: u64,
    /// Flowlets, since the beginning, that ended before they had a rate.
    pub ended_unanswered: u64,
    /// Arrivals since the beginning that were dropped at the limit of active flows.
    pub blocked: u64,
    /// Lateness of this program with starts. If it is large, this program and not the allocator was
    /// short of processor time.
    pub start_lateness_us: Option<LatencyQuantiles>,
    /// Bytes to the allocator, with IP and UDP headers.
    pub bytes_up: u64,
    /// Bytes from the allocator, with IP and UDP headers.
    pub bytes_down: u64,
    /// Packets to the allocator.
    pub packets_up: u64,
    /// Packets from the allocator.
    pub packets_down: u64,
    /// Counters of the hosts' sessions during the measurement, by their names in
    /// [`Counters`](ratewright_proto::Counters).
    pub session_counters: IndexMap<&'static str, u64>,
    /// Longest turn of the sessions' loop.
    pub longest_turn_ms: f64,
    /// Sessions that went back from sealed datagrams to QUIC, since the beginning.
    pub fallbacks: u64,
    /// Those of them before the measurement began.
    pub fallbacks_before: u64,
    /// Sessions that were lost and came back, since the beginning.
    pub sessions_lost: u64,
    /// Those of them before the measurement began.
    pub sessions_lost_before: u64,
    /// Those of them before all hosts had their first session.
    pub sessions_lost_connecting: u64,
    /// Time until all hosts had their first session.
    pub connect_s: f64,
    /// Reason of the last lost session or failed attempt to connect; empty without one.
    pub last_loss: String,
    /// Datagrams that were lost on purpose, since the beginning.
    pub datagrams_lost_on_purpose: u64,
    /// Commit of the program.
    pub commit: &'static str,
}

impl SwarmResults {
    /// The results for people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED);
        table.set_header([
            "",
            &format!("{} sessions over {}", self.sessions, self.transport),
        ]);
        let quantiles = |quantiles: Option<LatencyQuantiles>| {
            // No sample, no quantile: a run may have no start at all.
            quantiles.map_or("none".to_owned(), |q| {
                format!("p50 {:.1}, p99 {:.1}, p99.9 {:.1} µs", q.p50, q.p99, q.p999)
            })
        };
        let unknown = || "unknown".to_owned();
        let rows = [
            ("start to first rate", quantiles(self.start_to_rate_us)),
            ("rate updates", format!("{:.0}/s", self.updates_per_s)),
            (
                "rate updates per core of the allocator",
                self.updates_per_s_per_core
                    .map_or_else(unknown, |rate| format!("{rate:.0}/s")),
            ),
            (
                "allocator's processor time",
                self.allocator_cpu_s.map_or_else(unknown, |cpu_s| {
                    format!("{cpu_s:.2} s of {:.1} s", self.seconds)
                }),
            ),
            (
                "control traffic",
                format!(
                    "{:.3} % of the hosts' capacity",
                    100.0 * self.control_share_of_capacity
                ),
            ),
            ("flowlet starts", format!("{:.0}/s", self.starts_per_s)),
            ("flows at the end", self.flows.to_string()),
            (
                "flows on which both ends disagree",
                self.lost_views.to_string(),
            ),
            ("lateness of starts", quantiles(self.start_lateness_us)),
            (
                "sessions lost, back to QUIC",
                format!(
                    "{}, {} {}",
                    self.sessions_lost, self.fallbacks, self.last_loss
                ),
            ),
        ];
        for (name, figure) in rows {
            table.add_row([name.to_owned(), figure]);
        }
        if let Some(column) = table.column_mut(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.to_string()
    }
}
