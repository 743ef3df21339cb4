//! Windows of time over a recording.

use ratewright_cli::clock::NS_PER_MS;

use super::recording::{PortRecord, Recording};
use super::stats::jain;
use crate::traffic::protocol::BIN_NS;

/// Width of the windows over which fairness is judged.
pub const FAIRNESS_WINDOW_NS: u64 = 50 * NS_PER_MS;
/// Time after a start or stop that the windows leave out.
pub const SETTLING_NS: u64 = 100 * NS_PER_MS;

/// Jain's index in each settled window: 50 ms wide, aligned to the receiver's bins, wholly outside
/// the 100 ms after any start or stop, with at least two flows active (one flow alone is fair by
/// definition, and would only flatter the median). Returns (window start, index).
#[must_use]
pub fn settled_jain(recording: &Recording) -> Vec<(u64, f64)> {
    let mut out = Vec::new();
    for (mut from, end) in settled_spans(recording) {
        while from + FAIRNESS_WINDOW_NS <= end {
            let to = from + FAIRNESS_WINDOW_NS;
            let rates = active_rates(recording, from, to);
            if rates.len() >= 2 {
                out.push((from, jain(&rates)));
            }
            from = to;
        }
    }
    out
}

/// Mean rate of each flow between two changes over its fair share of `capacity_bps`, from 100 ms
/// after the first of them.
#[must_use]
pub fn settled_shares(recording: &Recording, capacity_bps: f64) -> Vec<f64> {
    let mut out = Vec::new();
    for (from, end) in settled_spans(recording) {
        let to = end / BIN_NS * BIN_NS;
        if from + FAIRNESS_WINDOW_NS <= to {
            let rates = active_rates(recording, from, to);
            let fair_bps = capacity_bps / rates.len() as f64;
            out.extend(rates.into_iter().map(|rate| rate / fair_bps));
        }
    }
    out
}

/// Spans between two starts or stops, without the first 100 ms. They begin on borders of bins,
/// since rates are exact there only.
fn settled_spans(recording: &Recording) -> Vec<(u64, u64)> {
    let mut changes: Vec<u64> = recording
        .flows
        .values()
        .flat_map(|f| [f.started_ns, f.ended_ns])
        .flatten()
        .collect();
    changes.sort_unstable();
    let after = |at: u64| (at + SETTLING_NS).next_multiple_of(BIN_NS);
    let pairs = changes.windows(2);
    pairs.map(|pair| (after(pair[0]), pair[1])).collect()
}

/// Rates of all flows that are active from `from_ns` to `to_ns`.
#[must_use]
pub fn active_rates(recording: &Recording, from_ns: u64, to_ns: u64) -> Vec<f64> {
    recording
        .flows
        .values()
        .filter(|f| {
            // Wholly active: a flow that came or went within would count as slow.
            f.started_ns.is_some_and(|at| at <= from_ns) && f.ended_ns.is_none_or(|at| at >= to_ns)
        })
        .map(|f| f.rate_bps(from_ns, to_ns))
        .collect()
}

/// Share of the bottleneck's capacity that was used while any flow was active.
#[must_use]
pub fn utilization_active(recording: &Recording, port: &PortRecord) -> f64 {
    let (mut used, mut total) = (0.0, 0.0);
    for (from, to) in active_spans(recording) {
        used += port.utilization(from, to) * (to - from) as f64;
        total += (to - from) as f64;
    }
    if total == 0.0 { 0.0 } else { used / total }
}

/// Spans of time in which at least one flow was active, in order. A flow without an end lasts to
/// the last sample of the ports.
fn active_spans(recording: &Recording) -> Vec<(u64, u64)> {
    let last = recording
        .ports
        .iter()
        .filter_map(|p| p.samples.last())
        .map(|s| s.0)
        .max()
        .unwrap_or(0);
    let mut spans: Vec<(u64, u64)> = recording
        .flows
        .values()
        .filter_map(|f| Some((f.started_ns?, f.ended_ns.unwrap_or(last))))
        .collect();
    // The merge below needs spans by their beginnings.
    spans.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (from, to) in spans {
        match merged.last_mut() {
            Some((_, end)) if from <= *end => *end = (*end).max(to),
            _ => merged.push((from, to)),
        }
    }
    merged
}

/// Link use in consecutive windows of `width_ns` from `from_ns` to `to_ns`, as far as there are
/// samples.
#[must_use]
pub fn utilization_windows(port: &PortRecord, from_ns: u64, to_ns: u64, width_ns: u64) -> Vec<f64> {
    let to_ns = port
        .samples
        .last()
        .map_or(from_ns, |(at, _)| to_ns.min(*at));
    (0..to_ns.saturating_sub(from_ns) / width_ns)
        .map(|i| port.utilization(from_ns + i * width_ns, from_ns + (i + 1) * width_ns))
        .collect()
}

/// First moment from `from_ns` on at which fairness holds: Jain's index of the active flows is at
/// least `bound` in `sustained` windows of 50 ms in a row. Returns the start of the first of them.
#[must_use]
pub fn fair_from(
    recording: &Recording,
    from_ns: u64,
    to_ns: u64,
    bound: f64,
    sustained: usize,
) -> Option<u64> {
    let fair_at = |from: u64| {
        let rates = active_rates(recording, from, from + FAIRNESS_WINDOW_NS);
        rates.len() >= 2 && jain(&rates) >= bound
    };
    let mut at = from_ns.next_multiple_of(BIN_NS);
    while at + sustained as u64 * FAIRNESS_WINDOW_NS <= to_ns {
        if (0..sustained as u64).all(|i| fair_at(at + i * FAIRNESS_WINDOW_NS)) {
            return Some(at);
        }
        // By one bin and not by a window, so that the answer is exact to 10 ms.
        at += BIN_NS;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::recording::FlowRecord;
    use ratewright_cli::clock::NS_PER_S;

    /// Two flows: one from 0 to 2 s at 10 bytes a bin, one from 1 s to 2 s at `second` bytes a bin.
    fn recording(second: u64) -> Recording {
        let mut recording = Recording::new();
        let flow = |started, bins| FlowRecord {
            started_ns: Some(started),
            ended_ns: Some(2 * NS_PER_S),
            bins,
            ..Default::default()
        };
        recording.flows.insert(1, flow(0, vec![10; 200]));
        recording.flows.insert(
            2,
            flow(
                NS_PER_S,
                (0..200)
                    .map(|bin| if bin < 100 { 0 } else { second })
                    .collect(),
            ),
        );
        recording
    }

    #[test]
    fn only_settled_windows_with_company_count() {
        let windows = settled_jain(&recording(10));
        // From 1.1 s to 2 s: eighteen windows of 50 ms.
        assert_eq!(windows.len(), 18);
        assert_eq!(windows[0].0, 1_100 * NS_PER_MS);
        assert!(windows.iter().all(|(_, j)| (j - 1.0).abs() < 1e-12));
        // Shares 10 and 30: (40)² / (2 · 1000) = 0.8.
        assert!(
            settled_jain(&recording(30))
                .iter()
                .all(|(_, j)| (j - 0.8).abs() < 1e-12)
        );
    }

    #[test]
    fn shares_are_of_the_capacity_over_the_flows_that_are_there() {
        // Ten bytes in 10 ms are 8 kbit/s: all of the link alone, and half of twice as much.
        let shares = |capacity_bps| settled_shares(&recording(30), capacity_bps);
        let near = |shares: Vec<f64>, wanted: [f64; 3]| {
            shares.len() == 3 && (0..3).all(|i| (shares[i] - wanted[i]).abs() < 1e-9)
        };
        assert!(near(shares(8e3), [1.0, 2.0, 6.0]), "{:?}", shares(8e3));
        assert!(near(shares(32e3), [0.25, 0.5, 1.5]), "{:?}", shares(32e3));
    }

    #[test]
    fn fairness_is_found_where_it_begins() {
        assert_eq!(
            fair_from(&recording(10), 0, 2 * NS_PER_S, 0.99, 4),
            Some(NS_PER_S)
        );
        assert_eq!(fair_from(&recording(30), 0, 2 * NS_PER_S, 0.99, 4), None);
    }

    #[test]
    fn use_is_counted_only_while_flows_are_active() {
        let mut recording = recording(10);
        recording.flows.shift_remove(&1);
        // 1,000 byte/s for two seconds, on a link of 1,000 byte/s from 1 s to 2 s only.
        let samples = vec![(0, 0), (NS_PER_S, 100), (2 * NS_PER_S, 1_000)];
        recording.ports.push(PortRecord {
            name: "p".into(),
            capacity_bps: 8_000,
            samples,
        });
        assert!((utilization_active(&recording, &recording.ports[0]) - 0.9).abs() < 1e-9);
        assert_eq!(
            utilization_windows(&recording.ports[0], 0, 2 * NS_PER_S, NS_PER_S).len(),
            2
        );
    }
}
