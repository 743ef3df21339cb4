//! Obedience to the network: where the topology file is wrong, or hosts are not managed, nobody is
//! worse off than without Ratewright. Each case runs by turns with and without it.
//!
//! | module | what |
//! |---|---|
//! | `cases` | the table of cases |
//! | `side` | a network with or without a control plane, and a run in it |
//! | [`judge`] | figures of a case, and the judgement on them |
//!
//! Groups share nothing, so that several run at a time, each on a lane of its own. Those that ask
//! for it run one by one when the others are done.

mod cases;
pub mod judge;
mod side;

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Error, Result, bail};

use super::outcome::RunOutcome;
use crate::lab::context::Lab;
use crate::options::Backend;
use crate::traffic::protocol::Congestion;
use cases::{Group, Traffic};
use judge::{ObeyRow, RowKey, Sample};
use side::{Column, Side};

/// Groups that run at a time for each core: flows of 200 Mbit/s take a quarter of one.
const LANES_PER_CORE: usize = 2;
/// Pairs of a case that misses, over those of other cases. Its judgement is on all of them.
const TIMES_WHERE_MISSED: usize = 3;

/// Times that the topology says the capacity in columns beyond the first.
const TOLD_ELSEWHERE: [f64; 2] = [1.0, 1.25];

/// Results of the lanes.
#[derive(Debug, Default)]
struct Progress {
    waiting: VecDeque<(usize, Group)>,
    rows: Vec<(usize, ObeyRow)>,
    failed: Option<Error>,
}

/// Runs all cases that the command line asks for.
///
/// A lab that fails, or that the user ends, after its first group has results of those before.
///
/// # Errors
/// When the lab itself fails; cases that miss something are results.
pub fn run(lab: &Lab) -> Result<RunOutcome> {
    let backends: Vec<Backend> = match lab.options.backend {
        Backend::Auto => vec![Backend::SockOps, Backend::TcHtb],
        one => vec![one],
    };
    let groups = chosen(lab, &backends);
    if groups.is_empty() {
        bail!("no case of obey has these back ends and a name with the text of --only");
    }
    if groups.iter().any(|group| group.bbr) && !is_available(Congestion::Bbr) {
        lab.live
            .say("this kernel has no bbr: its column is left out");
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (exclusive, shared): (Vec<_>, Vec<_>) = groups
        .into_iter()
        .enumerate()
        .partition(|(_, group)| group.exclusive);
    let progress = Mutex::new(Progress::default());
    for (groups, most) in [(shared, cores * LANES_PER_CORE), (exclusive, 1)] {
        let lanes = most.min(groups.len());
        {
            let mut progress = lock(&progress);
            if progress.failed.is_some() {
                break;
            }
            progress.waiting = groups.into();
        }
        std::thread::scope(|scope| {
            // Each lane starts its own processes, which live as long as the thread does.
            for _ in 0..lanes {
                scope.spawn(|| work(lab, &progress));
            }
        });
    }
    let mut progress = progress
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    progress.rows.sort_by_key(|(group, _)| *group);
    let rows: Vec<ObeyRow> = progress.rows.into_iter().map(|(_, row)| row).collect();
    let broken_off = match progress.failed {
        Some(error) if rows.is_empty() => return Err(error),
        failed => failed.map(|error| format!("{error:#}")),
    };
    let names: Vec<&str> = backends.iter().map(|backend| backend.name()).collect();
    Ok(RunOutcome {
        broken_off,
        missed: judge::verdict(&rows),
        cases: Some(rows),
        ..RunOutcome::empty(names.join(", "))
    })
}

/// Groups with the back ends and the cases that the command line leaves.
fn chosen(lab: &Lab, backends: &[Backend]) -> Vec<Group> {
    let mut groups = if lab.options.quick {
        cases::quick()
    } else {
        cases::all()
    };
    let only = &lab.options.only;
    let is_chosen =
        |name: &str| only.is_empty() || only.iter().any(|text| name.contains(text.as_str()));
    for group in &mut groups {
        group.backends.retain(|backend| backends.contains(backend));
        let name = group.name.clone();
        group
            .traffics
            .retain(|traffic| is_chosen(&format!("{name}: {}", traffic.name)));
    }
    groups.retain(|group| !group.backends.is_empty() && !group.traffics.is_empty());
    groups
}

fn lock(progress: &Mutex<Progress>) -> MutexGuard<'_, Progress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

fn work(lab: &Lab, progress: &Mutex<Progress>) {
    loop {
        let next = lock(progress).waiting.pop_front();
        let Some((number, group)) = next else {
            return;
        };
        match run_group(lab, number, &group) {
            Ok(rows) => {
                let rows = rows.into_iter().map(|row| (number, row));
                lock(progress).rows.extend(rows);
            }
            Err(error) => {
                // The others end at their next step; their errors follow from this one.
                lab.cancel.set();
                let mut progress = lock(progress);
                progress.waiting.clear();
                progress
                    .failed
                    .get_or_insert(error.context(format!("group `{}`", group.name)));
                return;
            }
        }
    }
}

/// Samples of one traffic on one side in one column: of each run, of each span.
type Runs = Vec<Vec<Sample>>;

/// A group whose cases are run by turns.
struct Played<'a> {
    group: &'a Group,
    /// Pairs of each case that are asked for.
    pairs: usize,
    columns: Vec<Column>,
    /// The first is without us.
    sides: Vec<Side>,
    /// By traffic, column and side.
    runs: Vec<Vec<Vec<Runs>>>,
}

/// Place of a case in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct CasePlace {
    traffic: usize,
    column: usize,
    side: usize,
}

fn run_group(lab: &Lab, number: usize, group: &Group) -> Result<Vec<ObeyRow>> {
    let mut played = Played::build(lab, number, group)?;
    let pairs = played.pairs;
    let all: Vec<CasePlace> = played.places().collect();
    for turn in 0..pairs {
        played.play(lab, turn, &all)?;
    }
    // Only further pairs tell what misses by chance from what misses always. All of them count.
    let missed: BTreeSet<CasePlace> = played
        .rows()
        .into_iter()
        .filter(|(_, row)| !row.missed.is_empty())
        .flat_map(|(place, _)| played.compared_with(place).into_iter().chain([place]))
        .collect();
    if !missed.is_empty() {
        let missed: Vec<CasePlace> = missed.into_iter().collect();
        for turn in pairs..pairs * TIMES_WHERE_MISSED {
            played.play(lab, turn, &missed)?;
        }
    }
    let rows = played.rows().into_iter().map(|(_, row)| row).collect();
    played.sides.into_iter().for_each(Side::finish);
    Ok(rows)
}

impl<'a> Played<'a> {
    fn build(lab: &Lab, number: usize, group: &'a Group) -> Result<Self> {
        let columns = columns(lab, group);
        lab.live
            .say(format!("building the networks of `{}`", group.name));
        let mut kinds = vec![None];
        for told in &group.told {
            kinds.extend(group.backends.iter().map(|backend| Some((*backend, *told))));
        }
        let mut sides = Vec::new();
        for (index, kind) in kinds.into_iter().enumerate() {
            sides.push(Side::build(
                lab,
                &format!("g{number}s{index}"),
                group,
                kind,
            )?);
        }
        let runs = vec![vec![vec![Runs::new(); sides.len()]; columns.len()]; group.traffics.len()];
        Ok(Played {
            group,
            pairs: usize::from(lab.options.runs()),
            columns,
            sides,
            runs,
        })
    }

    /// Cases, those without us included, in the order of traffics, columns and sides.
    fn places(&self) -> impl Iterator<Item = CasePlace> {
        let traffics = self.group.traffics.iter().enumerate();
        traffics.flat_map(move |(t, traffic)| {
            (0..self.columns.len()).flat_map(move |column| {
                let sides = self.sides.iter().enumerate();
                sides
                    .filter(move |(_, side)| runs_on(traffic, column, side))
                    .map(move |(side, _)| CasePlace {
                        traffic: t,
                        column,
                        side,
                    })
            })
        })
    }

    /// Runs each of the cases once, in the order of traffics and columns.
    fn play(&mut self, lab: &Lab, turn: usize, places: &[CasePlace]) -> Result<()> {
        let is_alike =
            |a: &CasePlace, b: &CasePlace| (a.traffic, a.column) == (b.traffic, b.column);
        for sides in places.chunk_by(is_alike) {
            for offset in 0..sides.len() {
                // The order changes from turn to turn.
                self.play_one(lab, sides[(offset + turn) % sides.len()])?;
            }
        }
        Ok(())
    }

    fn play_one(&mut self, lab: &Lab, place: CasePlace) -> Result<()> {
        let traffic = &self.group.traffics[place.traffic];
        let column = self.columns[place.column];
        let side = &mut self.sides[place.side];
        let what = format!(
            "{}: {}, {}, IPv{}",
            self.group.name,
            traffic.name,
            column.congestion.name(),
            column.family()
        );
        side.show(lab, &what);
        let samples = side.run(lab, traffic, column)?;
        lab.live
            .say(format!("{what}, {}: {}", side.name(), told(&samples)));
        self.runs[place.traffic][place.column][place.side].push(samples);
        Ok(())
    }

    /// Returns the cases without us with which a case is compared: its own, or where chance decides
    /// those of all traffics of as many flows, in columns of the same congestion control. These are
    /// alike.
    fn compared_with(&self, case: CasePlace) -> Vec<CasePlace> {
        let place = |at: CasePlace| (at.traffic, at.column);
        let road = |at: CasePlace| {
            let flows = self.group.traffics[at.traffic].flows.len();
            (flows, self.columns[at.column].congestion)
        };
        let is_compared = |at: &CasePlace| {
            place(*at) == place(case) || (self.group.chance && road(*at) == road(case))
        };
        self.places()
            .filter(|at| at.side == 0 && is_compared(at))
            .collect()
    }

    fn rows(&self) -> Vec<(CasePlace, ObeyRow)> {
        let mut rows = Vec::new();
        for place in self.places().filter(|place| place.side > 0) {
            let traffic = &self.group.traffics[place.traffic];
            let column = self.columns[place.column];
            let of_column = &self.runs[place.traffic][place.column];
            let plain: Runs = self
                .compared_with(place)
                .into_iter()
                .flat_map(|at| self.runs[at.traffic][at.column][0].iter().cloned())
                .collect();
            let side = &self.sides[place.side];
            let without = [&of_column[0], &plain];
            let with = (&of_column[place.side], self.pairs);
            let of_case = rows_of(self.group, traffic, column, side, with, without);
            rows.extend(of_case.into_iter().map(|row| (place, row)));
        }
        rows
    }
}

/// Returns true if the traffic runs on a side in a column: always without us, else by what the
/// topology says.
fn runs_on(traffic: &Traffic, column: usize, side: &Side) -> bool {
    let told_here: &[f64] = match (traffic.any_told, column) {
        (false, _) => &[1.0],
        (true, 0) => return true,
        (true, _) => &TOLD_ELSEWHERE,
    };
    side.kind.is_none_or(|(_, told)| told_here.contains(&told))
}

fn rows_of(
    group: &Group,
    traffic: &Traffic,
    column: Column,
    side: &Side,
    (with, pairs): (&Runs, usize),
    without: [&Runs; 2],
) -> Vec<ObeyRow> {
    let Some((backend, told)) = side.kind.filter(|_| !with.is_empty()) else {
        return Vec::new();
    };
    let of_span = |runs: &Runs, span: usize| -> Vec<Sample> {
        runs.iter().map(|samples| samples[span].clone()).collect()
    };
    let spans = traffic.spans.iter().enumerate();
    spans
        .map(|(index, span)| {
            let mut name = format!("{}: {}", group.name, traffic.name);
            if group.told.len() > 1 && traffic.any_told {
                name += &format!(", told {told} times");
            }
            if !span.name.is_empty() {
                name += &format!(" {}", span.name);
            }
            let key = RowKey {
                name,
                backend: backend.name(),
                congestion: column.congestion.name(),
                family: column.family(),
            };
            ObeyRow::new(
                key,
                &traffic.flows,
                span,
                column.payload(),
                (&of_span(with, index), pairs),
                without.map(|runs| of_span(runs, index)),
            )
        })
        .collect()
}

/// Columns of a group: both families with CUBIC, and BBR over IPv4.
fn columns(lab: &Lab, group: &Group) -> Vec<Column> {
    let mut columns: Vec<Column> = lab
        .options
        .family()
        .each()
        .iter()
        .map(|v6| Column {
            congestion: Congestion::Cubic,
            v6: *v6,
        })
        .collect();
    if group.bbr && is_available(Congestion::Bbr) {
        columns.push(Column {
            congestion: Congestion::Bbr,
            v6: columns[0].v6,
        });
    }
    columns
}

fn is_available(congestion: Congestion) -> bool {
    std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")
        .is_ok_and(|all| all.split_whitespace().any(|name| name == congestion.name()))
}

/// A run's figures in a message.
fn told(samples: &[Sample]) -> String {
    let one = |sample: &Sample| {
        let rates: Vec<String> = sample
            .mbps
            .iter()
            .map(|mbps| format!("{mbps:.1}"))
            .collect();
        rates.join(" and ")
    };
    let all: Vec<String> = samples.iter().map(one).collect();
    let retransmitted = samples.first().map_or(0, |sample| sample.retransmitted);
    format!(
        "{} Mbit/s, {retransmitted} retransmitted",
        all.join("; then ")
    )
}
