//! Judgement of a case: every flow has what is due to it, and the network loses no more than
//! without us.

use serde::Serialize;

use super::cases::{ANY, Flow, Span};
use crate::measure::stats::{median, minimum};
use crate::scenario::figures::round;

/// Retransmissions over those without us that are allowed.
const RETRANSMITTED: f64 = 1.5;
/// So few are allowed in any case.
const FEW_RETRANSMITTED: f64 = 500.0;
/// A flow stands still where it has less than this of what is due to it, for half a second.
const STANDSTILL: f64 = 0.25;

/// One run of a case.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Sample {
    /// Payload rate of each flow.
    pub(super) mbps: Vec<f64>,
    /// Least payload rate of each flow in any half second.
    pub(super) least_mbps: Vec<f64>,
    /// Segments that all flows' senders sent again.
    pub(super) retransmitted: u64,
}

/// One element of `cases`. Rates are Mbit/s of payload, one for each flow; equal flows of one host
/// count as one, and flows of one kind stand in the order of their rates.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ObeyRow {
    /// Name of the case.
    pub name: String,
    /// Back end of the daemons.
    pub backend: &'static str,
    /// Congestion control of all flows, with and without us.
    pub congestion: &'static str,
    /// 4 or 6.
    pub family: u8,
    /// Number of pairs of runs.
    pub runs: usize,
    /// Kind of each flow.
    pub kinds: Vec<&'static str>,
    /// Fair share of each flow.
    pub fair: Vec<f64>,
    /// Due of each flow: the lesser of its fair share and what it has without us. Where
    /// chance decides which flow has more, it is the least of the runs without us.
    pub due: Vec<f64>,
    /// With Ratewright: medians of the runs.
    pub with: Vec<f64>,
    /// Without: medians of the runs.
    pub without: Vec<f64>,
    /// Segments retransmitted by all flows: median of the runs.
    pub retransmitted_with: f64,
    /// Those without Ratewright.
    pub retransmitted_without: f64,
    /// Least rate of any half second of any run.
    pub least_half_second_with: Vec<f64>,
    /// That without Ratewright; where chance decides, of all runs of as many flows.
    pub least_half_second_without: Vec<f64>,
    /// Least of the flows' rates over what is due to each.
    pub least_of_due: f64,
    /// Promises that the case breaks, in words; empty: none.
    pub missed: Vec<String>,
}

/// Names of a row.
#[derive(Debug, Clone)]
pub(super) struct RowKey {
    pub(super) name: String,
    pub(super) backend: &'static str,
    pub(super) congestion: &'static str,
    pub(super) family: u8,
}

impl ObeyRow {
    /// Judges the runs of a case, of which `pairs` were asked for, and others followed a miss.
    /// `payload` is the share of a link's capacity that is payload; `without` are the case's own
    /// runs without us, and all that show what plain TCP does there.
    pub(super) fn new(
        key: RowKey,
        flows: &[Flow],
        span: &Span,
        payload: f64,
        (with, pairs): (&[Sample], usize),
        [without, plain]: [Vec<Sample>; 2],
    ) -> ObeyRow {
        let fair = flows
            .iter()
            .map(|flow| flow.share_mbps * span.scale * payload);
        let rates = |samples: &[Sample]| of_runs(samples, flows, |one| &one.mbps, median);
        let least = |samples: &[Sample]| of_runs(samples, flows, |one| &one.least_mbps, minimum);
        let retransmitted = |samples: &[Sample]| {
            let all: Vec<f64> = samples.iter().map(|one| one.retransmitted as f64).collect();
            median(&all).unwrap_or(0.0)
        };
        let is_chance = flows.iter().all(|flow| flow.kind == ANY);
        let mut row = ObeyRow {
            name: key.name,
            backend: key.backend,
            congestion: key.congestion,
            family: key.family,
            runs: with.len().min(without.len()),
            kinds: flows.iter().map(|flow| flow.kind).collect(),
            due: fair
                .clone()
                .zip(if is_chance {
                    of_runs(&plain, flows, |one| &one.mbps, minimum)
                } else {
                    rates(&without)
                })
                .map(|(fair, without)| round(fair.min(without)))
                .collect(),
            fair: fair.map(round).collect(),
            with: rates(with),
            without: rates(&without),
            retransmitted_with: retransmitted(with),
            retransmitted_without: retransmitted(&without),
            least_half_second_with: least(with),
            least_half_second_without: least(&plain),
            least_of_due: f64::INFINITY,
            missed: Vec::new(),
        };
        let most = plain.iter().map(|one| one.retransmitted as f64);
        let expected = if is_chance {
            most.fold(row.retransmitted_without, f64::max)
        } else {
            row.retransmitted_without
        };
        // What stays away from all further runs but one was the machine's.
        let repeated = if with.len() > pairs {
            of_runs(with, flows, |one| &one.least_mbps, second_least)
        } else {
            row.least_half_second_with.clone()
        };
        row.judge(flows, expected, &repeated);
        row
    }

    /// `expected` retransmissions: those without us, in the worst run where chance decides.
    /// `half_second`: least rate of each flow in a half second that counts.
    fn judge(&mut self, flows: &[Flow], expected: f64, half_second: &[f64]) {
        let due = self.due.clone();
        for (i, flow) in flows.iter().enumerate() {
            let (with, due) = (self.with[i], due[i]);
            if due > 0.0 {
                self.least_of_due = round(self.least_of_due.min(with / due));
            }
            if with < flow.bound * due {
                self.missed.push(format!(
                    "{} has {with:.1} of {due:.1} Mbit/s",
                    name(flow, i)
                ));
            }
        }
        let allowed = (RETRANSMITTED * expected).max(FEW_RETRANSMITTED);
        if self.retransmitted_with > allowed {
            self.missed.push(format!(
                "{:.0} retransmissions, {expected:.0} without",
                self.retransmitted_with
            ));
        }
        let stands = |least: &[f64], i: usize| least[i] < STANDSTILL * due[i];
        // What plain TCP does on the same road is no fault of ours.
        if (0..flows.len()).any(|i| stands(&self.least_half_second_without, i)) {
            return;
        }
        for (i, flow) in flows.iter().enumerate() {
            if stands(half_second, i) {
                self.missed.push(format!(
                    "{} has {:.1} of {:.1} Mbit/s for half a second",
                    name(flow, i),
                    half_second[i],
                    due[i]
                ));
            }
        }
    }
}

/// Returns the second least value; the only one of one.
fn second_least(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(1).or(values.first()).copied()
}

fn name(flow: &Flow, index: usize) -> String {
    format!("flow {} ({})", index + 1, flow.kind)
}

/// A figure of each flow over all runs; flows of one kind are sorted in each run.
fn of_runs(
    samples: &[Sample],
    flows: &[Flow],
    figure: fn(&Sample) -> &Vec<f64>,
    summary: impl Fn(&[f64]) -> Option<f64>,
) -> Vec<f64> {
    let runs: Vec<Vec<f64>> = samples
        .iter()
        .map(|one| sorted_by_kind(figure(one), flows))
        .collect();
    (0..flows.len())
        .map(|i| {
            let of_flow: Vec<f64> = runs.iter().map(|run| run[i]).collect();
            round(summary(&of_flow).unwrap_or(0.0))
        })
        .collect()
}

fn sorted_by_kind(values: &[f64], flows: &[Flow]) -> Vec<f64> {
    let mut out = values.to_vec();
    for flow in flows {
        let places: Vec<usize> = (0..flows.len())
            .filter(|i| flows[*i].kind == flow.kind)
            .collect();
        let mut of_kind: Vec<f64> = places.iter().map(|i| values[*i]).collect();
        of_kind.sort_by(f64::total_cmp);
        for (place, value) in places.into_iter().zip(of_kind) {
            out[place] = value;
        }
    }
    out
}

/// One line on all rows that miss something; `None` if none does.
#[must_use]
pub fn verdict(rows: &[ObeyRow]) -> Option<String> {
    let missed: Vec<&ObeyRow> = rows.iter().filter(|row| !row.missed.is_empty()).collect();
    let first = missed.first()?;
    Some(format!(
        "{} of {} cases do not obey the network; the first: {} ({}, {}, IPv{}): {}",
        missed.len(),
        rows.len(),
        first.name,
        first.backend,
        first.congestion,
        first.family,
        first.missed.join("; ")
    ))
}

#[cfg(test)]
mod tests {
    use super::super::cases;
    use super::*;

    fn row(kinds: [&'static str; 2], with: &[Sample], without: &[Sample]) -> ObeyRow {
        row_of(kinds, (with, with.len()), without)
    }

    fn row_of(kinds: [&'static str; 2], with: (&[Sample], usize), without: &[Sample]) -> ObeyRow {
        let mut flows = cases::quick()[0].traffics[0].flows.clone();
        for (flow, kind) in flows.iter_mut().zip(kinds) {
            (flow.kind, flow.share_mbps) = (kind, 100.0);
        }
        let span = Span {
            name: "",
            from_s: 1.0,
            to_s: 5.0,
            scale: 1.0,
        };
        let key = RowKey {
            name: "case".to_owned(),
            backend: "sock_ops",
            congestion: "cubic",
            family: 4,
        };
        let without = [without.to_vec(), without.to_vec()];
        ObeyRow::new(key, &flows, &span, 1.0, with, without)
    }

    fn sample(mbps: [f64; 2], least_mbps: [f64; 2], retransmitted: u64) -> Sample {
        Sample {
            mbps: mbps.to_vec(),
            least_mbps: least_mbps.to_vec(),
            retransmitted,
        }
    }

    const KINDS: [&str; 2] = ["managed", "plain"];

    #[test]
    fn a_flow_is_due_the_lesser_of_its_share_and_what_it_has_without_us() {
        let calm = [90.0, 70.0];
        // The second has 50 without us, so that 41 are enough; the first is due 100 of 150.
        let without = sample([150.0, 50.0], calm, 0);
        let fair = row(
            KINDS,
            &[sample([81.0, 41.0], calm, 0)],
            std::slice::from_ref(&without),
        );
        assert!(fair.missed.is_empty(), "{:?}", fair.missed);
        assert_eq!(fair.least_of_due, 0.81);
        let less = row(KINDS, &[sample([79.0, 39.0], calm, 0)], &[without]);
        assert_eq!(less.missed.len(), 2, "{:?}", less.missed);
        assert_eq!(verdict(std::slice::from_ref(&fair)), None);
        let line = verdict(&[fair, less]).unwrap();
        assert!(line.starts_with("1 of 2 cases") && line.contains("79.0 of 100.0"));
    }

    #[test]
    fn a_half_second_without_progress_counts_unless_plain_tcp_has_one() {
        let still = sample([95.0, 95.0], [10.0, 90.0], 0);
        let calm = sample([95.0, 95.0], [90.0, 90.0], 0);
        let missed = |with: &[Sample], without: &[Sample]| row(KINDS, with, without).missed.len();
        let one = std::slice::from_ref;
        // Of several runs the worst counts,
        let [still_once, still_twice] = [1, 2].map(|times| {
            let mut runs = vec![calm.clone(); 3];
            runs[..times].fill(still.clone());
            runs
        });
        let all_calm = vec![calm.clone(); 3];
        assert_eq!(missed(&still_once, &all_calm), 1);
        // and of further runs that followed a miss, any second one.
        for (runs, count) in [(&still_once, 0), (&still_twice, 1)] {
            let row = row_of(KINDS, (runs, 1), &all_calm);
            assert_eq!(row.missed.len(), count, "{:?}", row.missed);
            assert_eq!(row.least_half_second_with, [10.0, 90.0]);
        }
        assert_eq!(missed(one(&still), one(&still)), 0);
        assert_eq!(missed(one(&calm), one(&calm)), 0);
    }

    #[test]
    fn where_chance_decides_a_flow_is_due_what_it_has_in_plain_tcps_worst_run() {
        let calm = [90.0, 90.0];
        let without = [
            sample([60.0, 130.0], calm, 0),
            sample([95.0, 95.0], calm, 0),
        ];
        let of =
            |kinds, least: f64| row(kinds, &[sample([least, 190.0 - least], calm, 0)], &without);
        assert!(of([ANY, ANY], 49.0).missed.is_empty());
        assert_eq!(of([ANY, ANY], 47.0).missed.len(), 1);
        assert_eq!(of(KINDS, 49.0).missed.len(), 1);
    }

    #[test]
    fn half_as_many_retransmissions_more_are_allowed_or_a_few() {
        let rates = [95.0, 95.0];
        let missed = |with: u64, without: u64| {
            let sample = |lost| [sample(rates, rates, lost)];
            row(KINDS, &sample(with), &sample(without)).missed.len()
        };
        assert_eq!(missed(500, 0), 0);
        assert_eq!(missed(501, 0), 1);
        assert_eq!(missed(1_500, 1_000), 0);
        assert_eq!(missed(1_501, 1_000), 1);
    }

    #[test]
    fn equal_flows_are_compared_in_the_order_of_their_rates() {
        let calm = [90.0, 90.0];
        let runs = [
            sample([120.0, 60.0], calm, 0),
            sample([60.0, 120.0], calm, 0),
        ];
        assert_eq!(
            row(["managed", "managed"], &runs, &runs).with,
            [60.0, 120.0]
        );
        // Flows of two kinds are not exchanged.
        assert_eq!(row(KINDS, &runs, &runs).with, [90.0, 90.0]);
    }
}
