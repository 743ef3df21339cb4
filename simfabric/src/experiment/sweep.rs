//! Cases × seeds in parallel, and estimates over the seeds.
//!
//! A process does each run once, keeps its result, and writes it into the
//! [folder of runs](super::store) if there is one: figures that need equal runs share them, and a
//! long form that was stopped goes on where it was.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rayon::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::monitor::MONITOR;
use super::store::RunStore;
use super::{ExperimentError, Settings};
use crate::report::estimate::Estimate;
use crate::report::file::file_stem;
use crate::time::Span;

/// Results of one case, one for each seed in the order of [`Settings::seeds`]; `None` of a run that
/// was left out, because [no run was to begin](super::monitor::Monitor::close) any more.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Replicas<S>(pub Vec<Option<S>>);

/// Name and key of the runs of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CasePlan {
    /// Name of the runs' files.
    pub name: String,
    /// All that a run depends on but its seed: parameters, network, workload, times.
    pub key: String,
    /// Simulated time of a run.
    pub time: Span,
}

impl CasePlan {
    /// Returns the key of a run: equal runs have equal keys.
    fn run_key(&self, seed: u64) -> String {
        format!("{}\nseed {seed}\n{}", self.name, self.key)
    }
}

/// The result of a run: it is kept in memory, and in a file.
pub trait Sample: Clone + Send + Sync + Serialize + DeserializeOwned + 'static {}

impl<S: Clone + Send + Sync + Serialize + DeserializeOwned + 'static> Sample for S {}

/// Count of the runs that sweeps asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunCount {
    /// Runs that are there.
    pub there: usize,
    /// Runs that were left out.
    pub left_out: usize,
    /// Other commits than this program's, of runs that were read from the folder.
    pub commits: BTreeSet<String>,
}

impl RunCount {
    /// Says which part of the runs is missing, and which commits some are of.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let all = self.there + self.left_out;
        let part = (self.left_out > 0).then(|| {
            format!(
                "{} of {all} runs are there; values are means over their seeds alone",
                self.there
            )
        });
        let commits: Vec<&str> = self.commits.iter().map(String::as_str).collect();
        let others = (!commits.is_empty())
            .then(|| format!("some runs are of commit {}", commits.join(", ")));
        part.into_iter().chain(others).collect()
    }
}

/// A result, and its commit if that is not this program's.
struct KnownRun {
    sample: Arc<dyn Any + Send + Sync>,
    commit: Option<String>,
}

/// Runs of this process.
struct Known {
    runs: BTreeMap<String, KnownRun>,
    count: RunCount,
}

fn known() -> MutexGuard<'static, Known> {
    static KNOWN: Mutex<Known> = Mutex::new(Known {
        runs: BTreeMap::new(),
        count: RunCount {
            there: 0,
            left_out: 0,
            commits: BTreeSet::new(),
        },
    });
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Known {
    fn keep<S: Sample>(&mut self, key: String, sample: S, commit: Option<String>) {
        let sample = Arc::new(sample);
        self.runs.insert(key, KnownRun { sample, commit });
    }

    /// Returns the result of a run that was asked for, and counts it.
    fn take<S: Sample>(&mut self, key: &str) -> Option<S> {
        let run = self.runs.get(key);
        let sample: Option<S> = run.and_then(|run| run.sample.downcast_ref().cloned());
        if sample.is_some() {
            self.count.there += 1;
        } else {
            self.count.left_out += 1;
        }
        let commit = run.and_then(|run| run.commit.clone());
        self.count.commits.extend(commit);
        sample
    }
}

/// Takes the count of the runs that sweeps asked for since it was last taken.
#[must_use]
pub fn take_run_count() -> RunCount {
    std::mem::take(&mut known().count)
}

/// Does the runs of every case under every seed that are not known, on all threads of the pool:
/// all cases under one seed, in their order, and then under the next. A form that is stopped has
/// more cases then, and fewer seeds. Results are in the order of the cases, whatever the number of
/// threads.
///
/// # Errors
/// The first run that fails, or whose result cannot be written.
pub fn sweep<C: Sync, S: Sample>(
    settings: &Settings,
    cases: &[C],
    plan: impl Fn(&C) -> Result<CasePlan, ExperimentError>,
    run: impl Fn(&C, u64) -> Result<S, ExperimentError> + Sync,
) -> Result<Vec<Replicas<S>>, ExperimentError> {
    let mut wanted = Vec::new();
    // Two cases of a sweep may be one.
    let mut seen = BTreeSet::new();
    let mut missing = Vec::new();
    for case in cases {
        let plan = plan(case)?;
        for seed in settings.seeds() {
            let key = plan.run_key(seed);
            if seen.insert(key.clone()) && !known().runs.contains_key(&key) {
                let file = settings.store.as_ref().map(|store| {
                    let path = store.path(&format!("{}-{seed}", file_stem(&plan.name)), &key);
                    (store, path)
                });
                if let Some((sample, commit)) = file
                    .as_ref()
                    .and_then(|(store, path)| store.read::<S>(path, &key))
                {
                    known().keep(key.clone(), sample, commit);
                } else {
                    MONITOR.expect(plan.time);
                    let path = file.map(|(_, path)| path);
                    missing.push((case, seed, key.clone(), path, plan.time));
                }
            }
            wanted.push(key);
        }
    }
    let one = |(case, seed, key, path, time): (&C, u64, String, Option<PathBuf>, Span)| {
        if MONITOR.is_closed() {
            return MONITOR.done(time);
        }
        let sample = run(case, seed)?;
        if let Some(path) = path {
            RunStore::write(&path, &key, &sample)?;
        }
        known().keep(key, sample, None);
        Ok(())
    };
    missing.sort_by_key(|(_, seed, ..)| *seed);
    // Threads take them in order, one by one.
    missing.into_iter().par_bridge().try_for_each(one)?;
    let mut known = known();
    let samples: Vec<Option<S>> = wanted.iter().map(|key| known.take(key)).collect();
    let seeds = settings.seeds().count().max(1);
    let of_case = samples.chunks(seeds).map(<[_]>::to_vec);
    Ok(of_case.map(Replicas).collect())
}

impl<S> Replicas<S> {
    /// Returns the results that are there.
    pub fn samples(&self) -> impl Iterator<Item = &S> {
        self.0.iter().flatten()
    }

    /// Makes another result of each.
    #[must_use]
    pub fn map<T>(&self, of: impl Fn(&S) -> T) -> Replicas<T> {
        Replicas(self.0.iter().map(|run| run.as_ref().map(&of)).collect())
    }

    /// Returns a value of each seed, if its run is there and has it.
    pub fn values(&self, value: impl Fn(&S) -> Option<f64>) -> Vec<Option<f64>> {
        let of = |run: &Option<S>| run.as_ref().and_then(&value);
        self.0.iter().map(of).collect()
    }

    /// Returns the number of results that are there.
    #[must_use]
    pub fn count(&self) -> usize {
        self.samples().count()
    }

    /// Returns the first result that is there.
    #[must_use]
    pub fn first(&self) -> Option<&S> {
        self.samples().next()
    }

    /// Estimates the mean of a value. `None` if a run has no such value.
    pub fn estimate(&self, value: impl Fn(&S) -> Option<f64>) -> Option<Estimate> {
        let values: Option<Vec<f64>> = self.samples().map(value).collect();
        Estimate::of(values?)
    }

    /// Estimates the mean of a value of two cases, such as a ratio, seed by seed: flows of equal
    /// seeds are equal, so that much of their chance cancels.
    pub fn paired<T>(
        &self,
        other: &Replicas<T>,
        value: impl Fn(&S, &T) -> Option<f64>,
    ) -> Option<Estimate> {
        let pairs = self.0.iter().zip(&other.0);
        let both = pairs.filter_map(|(own, other)| own.as_ref().zip(other.as_ref()));
        let values: Option<Vec<f64>> = both.map(|(own, other)| value(own, other)).collect();
        Estimate::of(values?)
    }

    /// Sums a count over the runs.
    pub fn total(&self, count: impl Fn(&S) -> usize) -> usize {
        self.samples().map(count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    fn settings() -> Settings {
        Settings {
            first_seed: 5,
            seed_count: 3,
            quick: true,
            set: Vec::new(),
            store: None,
        }
    }

    fn plan_of(name: &str, case: u64) -> Result<CasePlan, ExperimentError> {
        Ok(CasePlan {
            name: name.to_owned(),
            key: case.to_string(),
            time: Span::ZERO,
        })
    }

    #[test]
    fn results_are_in_the_order_of_cases_and_seeds() {
        let settings = settings();
        let cases = [100, 200];
        let plan = |case: &u64| plan_of("order", *case);
        let found = sweep(&settings, &cases, plan, |case, seed| Ok(case + seed)).unwrap();
        assert_eq!(found[0].0, [105, 106, 107].map(Some));
        assert_eq!(found[1].0, [205, 206, 207].map(Some));
        let mean = found[1].estimate(|&value| Some(value as f64)).unwrap();
        assert_eq!((mean.mean, mean.runs), (206.0, 3));
        let apart = found[1].paired(&found[0], |b, a| Some((b - a) as f64));
        assert_eq!(apart.unwrap().interval(), Some([100.0; 2]));
        assert_eq!(found[0].estimate(|&v| (v != 106).then_some(0.0)), None);
        let plan = |case: &u64| plan_of("failure", *case);
        let failed = sweep(&settings, &cases, plan, |_, seed| match seed {
            6 => Err(ExperimentError::Stopped),
            _ => Ok(0),
        });
        assert!(matches!(failed, Err(ExperimentError::Stopped)));
    }

    /// A run that is left out leaves the others of its case, and their pairs.
    #[test]
    fn a_run_that_was_left_out_is_in_no_estimate() {
        let part = Replicas(vec![Some(1.0), None, Some(3.0)]);
        let whole = Replicas(vec![Some(2.0), Some(100.0), Some(6.0)]);
        let mean = part.estimate(|value| Some(*value)).unwrap();
        assert_eq!((mean.mean, mean.runs), (2.0, 2));
        let ratio = whole.paired(&part, |whole, part| Some(whole / part));
        assert_eq!(ratio.map(|of| (of.mean, of.runs)), Some((2.0, 2)));
        assert_eq!((part.count(), part.first()), (2, Some(&1.0)));
        let none = Replicas::<f64>(vec![None]);
        assert_eq!(none.estimate(|value| Some(*value)), None);
    }

    /// Equal cases are one run, in one sweep and in two, and in two processes with one folder.
    #[test]
    fn a_run_is_done_once() {
        let dir = std::env::temp_dir().join(format!("simfabric-sweep-{}", std::process::id()));
        let mut settings = settings();
        settings.store = Some(RunStore {
            dir: dir.clone(),
            same_commit: false,
        });
        let done = AtomicUsize::new(0);
        let once = |name: &'static str, cases: &[u64]| {
            let run = |case: &u64, seed| {
                done.fetch_add(1, Relaxed);
                Ok(*case as f64 / seed as f64)
            };
            sweep(&settings, cases, |case| plan_of(name, *case), run).unwrap()
        };
        let first = once("once", &[1, 1]);
        assert_eq!((&first[0], done.load(Relaxed)), (&first[1], 3));
        assert_eq!((&once("once", &[1])[0], done.load(Relaxed)), (&first[0], 3));
        // Another process knows nothing.
        known().runs.retain(|key, _| !key.starts_with("once\n"));
        assert_eq!((&once("once", &[1])[0], done.load(Relaxed)), (&first[0], 3));
        once("once", &[2]);
        assert_eq!(done.load(Relaxed), 6);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
