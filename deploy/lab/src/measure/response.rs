//! Response times of a traced flow's rate, from times of writes at the sender and of reads at the
//! receiver.

use ratewright_cli::clock::{NS_PER_MS, NS_PER_S};

/// A rate is judged over this: a few dozen packets at the lab's rates.
const WINDOW_NS: u64 = 5 * NS_PER_MS;
/// Share of the fair rate from which a rate counts as fair.
const FAIR: f64 = 0.95;

/// Mean rate in bit/s while a source that writes `bytes` at regular times had something in flight.
/// A burst counts from its write until its last byte was read; overlapping ones count once. `marks`
/// are (time, bytes before), `arrivals` (time, bytes until then). The first write is the
/// connection's, and is left out. `None` if no burst arrived as a whole.
#[must_use]
pub fn busy_share(marks: &[(u64, u64)], arrivals: &[(u64, u64)], bytes: u64) -> Option<f64> {
    let (mut carried, mut busy_ns, mut busy_until) = (0, 0, 0);
    for (at, before) in marks.iter().skip(1) {
        let Some(end) = read_at(arrivals, before + bytes) else {
            break;
        };
        carried += bytes;
        // Time that the burst before was in flight has been counted already.
        busy_ns += end.saturating_sub((*at).max(busy_until));
        busy_until = busy_until.max(end);
    }
    (carried > 0 && busy_ns > 0).then(|| carried as f64 * 8.0 * NS_PER_S as f64 / busy_ns as f64)
}

/// Returns the time at which the receiver had read `bytes` bytes.
fn read_at(arrivals: &[(u64, u64)], bytes: u64) -> Option<u64> {
    let at = arrivals.partition_point(|(_, total)| *total < bytes);
    arrivals.get(at).map(|(at, _)| *at)
}

/// Milliseconds from each rise of demand until the rate was within 5 % of `fair_bps`: the earliest
/// arrival after which at least 5 ms, up to another arrival, bring that much. `fast_ns` for one
/// that never was. Each mark is a rise: (time, bytes written before).
#[must_use]
pub fn rise_times_ms(
    marks: &[(u64, u64)],
    arrivals: &[(u64, u64)],
    fair_bps: f64,
    fast_ns: u64,
) -> Vec<f64> {
    // Bytes come in bursts: a window that ends between two would miss part of what it carried.
    let rate_bps = |(from, bytes): (u64, u64)| {
        let end = arrivals.partition_point(|(at, _)| *at < from + WINDOW_NS);
        arrivals.get(end).map_or(0.0, |(at, total)| {
            total.saturating_sub(bytes) as f64 * 8.0 * NS_PER_S as f64 / (at - from) as f64
        })
    };
    // The last rise may have been cut short.
    let whole = marks.len().saturating_sub(1);
    marks[..whole]
        .iter()
        .map(|&(risen, _)| {
            let until = risen + fast_ns;
            // Bytes that arrive at the very moment were sent before it.
            let first = arrivals.partition_point(|(at, _)| *at <= risen);
            let before = first.checked_sub(1).map_or(0, |last| arrivals[last].1);
            let fair = std::iter::once((risen, before))
                .chain(arrivals[first..].iter().copied())
                .take_while(|(at, _)| *at < until)
                .find(|from| rate_bps(*from) >= FAIR * fair_bps)
                .map_or(until, |(at, _)| at);
            fair.saturating_sub(risen) as f64 / NS_PER_MS as f64
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1,000 bytes every 10 ms from 0 on (the first is the connection's), read at 200,000 byte/s
    /// from the moment of the write: busy 5 ms of 10.
    #[test]
    fn only_time_with_bytes_on_their_way_counts() {
        let marks: Vec<(u64, u64)> = (0..10).map(|i| (i * 10 * NS_PER_MS, i * 1_000)).collect();
        let arrivals: Vec<(u64, u64)> = (0..10)
            .flat_map(|i| {
                (1..=10).map(move |k| (i * 10 * NS_PER_MS + k * NS_PER_MS / 2, i * 1_000 + k * 100))
            })
            .collect();
        let rate = busy_share(&marks, &arrivals, 1_000).unwrap();
        assert!((rate - 1.6e6).abs() < 1.0, "{rate}");
        assert_eq!(busy_share(&marks, &[], 1_000), None);
    }

    /// Bursts that take twice as long as the time between them are one busy period.
    #[test]
    fn bursts_that_overlap_share_their_time() {
        let marks: Vec<(u64, u64)> = (0..10).map(|i| (i * NS_PER_MS, i * 1_000)).collect();
        let arrivals: Vec<(u64, u64)> = (1..=10).map(|i| (i * 2 * NS_PER_MS, i * 1_000)).collect();
        // Nine bursts from 1 ms to 20 ms.
        let rate = busy_share(&marks, &arrivals, 1_000).unwrap();
        assert!((rate - 9_000.0 * 8.0 / 0.019).abs() < 1.0, "{rate}");
    }

    /// 100 bytes a millisecond, 1,000 from 7 ms after the rise on.
    #[test]
    fn a_rise_ends_where_the_fair_rate_begins() {
        let risen = 100 * NS_PER_MS;
        let mut total = 0;
        let arrivals: Vec<(u64, u64)> = (0..400)
            .map(|tenth| {
                let at = tenth * NS_PER_MS / 10 + risen - 10 * NS_PER_MS;
                total += if at <= risen + 7 * NS_PER_MS { 10 } else { 100 };
                (at, total)
            })
            .collect();
        let marks = [(risen, 0), (10 * risen, 0)];
        let fair_bps = 1_000.0 * 8.0 * 1e3;
        let times = rise_times_ms(&marks, &arrivals, fair_bps, 20 * NS_PER_MS);
        assert_eq!(times.len(), 1);
        assert!((6.5..=7.1).contains(&times[0]), "{times:?}");
        let never = rise_times_ms(&marks, &arrivals, 2.0 * fair_bps, 20 * NS_PER_MS);
        assert_eq!(never, [20.0]);
    }

    /// Bursts of six segments at 0.734 ms: 94.7 Mbit/s, though some 5 ms hold six bursts, and some
    /// seven.
    #[test]
    fn a_rate_of_bursts_is_judged_by_whole_bursts() {
        let arrivals: Vec<(u64, u64)> = (0..100)
            .map(|burst| (burst * 734_000, burst * 8_688))
            .collect();
        let marks = [(734_000, 0), (90 * 734_000, 0)];
        let times = rise_times_ms(&marks, &arrivals, 94.7e6, 60 * NS_PER_MS);
        assert_eq!(times, [0.0]);
        let never = rise_times_ms(&marks, &arrivals, 100e6, 60 * NS_PER_MS);
        assert_eq!(never, [60.0]);
    }
}
