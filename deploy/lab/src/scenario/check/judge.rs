//! Judgement of a case: named in time where operators look, nothing else named, and taken back.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use crate::scenario::figures::round;

/// Time in seconds within which a change is named.
pub const NAMED_WITHIN_S: f64 = 5.0;
/// Time in seconds within which a name is taken back after the change was undone.
pub const TAKEN_BACK_WITHIN_S: f64 = 10.0;
/// Places at which a name stands.
pub(super) const PLACES: [&str; 4] = ["status", "explain", "page", "metrics"];

/// Name that a change has to be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named {
    /// The link whose name ends so, and its state.
    Link(&'static str, &'static str),
    /// A link between switches that flows of the case are told to cross, and its state.
    OfPaths(&'static str),
    /// A host, and its fault.
    Host(&'static str, &'static str),
}

impl Named {
    /// Returns true if a link or host is the one, or one of those; `paths` has the links between
    /// switches that the flows are told to cross.
    pub(super) fn is_of(self, who: &str, paths: &BTreeSet<String>) -> bool {
        match self {
            Self::Link(end, _) => who.ends_with(end),
            Self::OfPaths(_) => paths.contains(who),
            Self::Host(host, _) => who == host,
        }
    }

    /// Returns true if `name` is it: `link state` or `host fault`.
    pub(super) fn is(self, name: &str, paths: &BTreeSet<String>) -> bool {
        name.split_once(' ')
            .is_some_and(|(who, what)| self.is_of(who, paths) && what == self.label())
    }

    /// Label in metrics.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Link(_, state) | Self::OfPaths(state) => state,
            Self::Host(_, fault) => fault,
        }
    }
}

/// One run of a case.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct CheckRun {
    /// Time from the change to its name, in seconds; `None`: it was not named.
    pub(super) named_s: Option<f64>,
    /// Places at which the name stood then.
    pub(super) seen_in: BTreeSet<&'static str>,
    /// Time from the end of the change until nothing was named, in seconds; `None`: it was not.
    pub(super) taken_back_s: Option<f64>,
    /// Other names, at any time.
    pub(super) others: BTreeSet<String>,
}

impl fmt::Display for CheckRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.named_s {
            Some(s) => write!(f, "named after {s:.1} s")?,
            None => write!(f, "not named")?,
        }
        match self.taken_back_s {
            Some(s) => write!(f, ", taken back after {s:.1} s")?,
            None => write!(f, ", not taken back")?,
        }
        if !self.others.is_empty() {
            write!(f, "; also {}", joined(&self.others))?;
        }
        Ok(())
    }
}

/// One element of `checks`. Times are seconds, one for each run; null: never.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheckRow {
    /// Name of the case.
    pub name: &'static str,
    /// State or fault that has to be named.
    pub wanted: &'static str,
    /// From the change to its name.
    pub named_s: Vec<Option<f64>>,
    /// From the end of the change until nothing is named.
    pub taken_back_s: Vec<Option<f64>>,
    /// Places at which it stood in every run in which it was named.
    pub seen_in: BTreeSet<&'static str>,
    /// Other names at any time.
    pub others: BTreeSet<String>,
    /// Promises that the case breaks, in words; empty: none.
    pub missed: Vec<String>,
}

impl CheckRow {
    pub(super) fn new(name: &'static str, named: Named, runs: &[CheckRun]) -> Self {
        let times = |of: fn(&CheckRun) -> Option<f64>| -> Vec<Option<f64>> {
            runs.iter().map(|run| of(run).map(round)).collect()
        };
        let mut seen_in = BTreeSet::from(PLACES);
        for run in runs.iter().filter(|run| run.named_s.is_some()) {
            seen_in.retain(|place| run.seen_in.contains(place));
        }
        let mut row = Self {
            name,
            wanted: named.label(),
            named_s: times(|run| run.named_s),
            taken_back_s: times(|run| run.taken_back_s),
            seen_in,
            others: runs.iter().flat_map(|run| run.others.clone()).collect(),
            missed: Vec::new(),
        };
        for (times, within_s, what) in [
            (&row.named_s, NAMED_WITHIN_S, "named"),
            (&row.taken_back_s, TAKEN_BACK_WITHIN_S, "taken back"),
        ] {
            let late = times.iter().filter(|s| s.is_none_or(|s| s > within_s));
            let late = late.count();
            if late > 0 {
                let runs = times.len();
                let missed = format!("not {what} within {within_s} s in {late} of {runs} runs");
                row.missed.push(missed);
            }
        }
        for place in PLACES.iter().filter(|place| !row.seen_in.contains(*place)) {
            row.missed.push(format!("not in {place}"));
        }
        if !row.others.is_empty() {
            row.missed
                .push(format!("also named: {}", joined(&row.others)));
        }
        row
    }
}

fn joined(names: &BTreeSet<String>) -> String {
    names
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Says which cases miss something; `None` if none does.
pub(super) fn verdict(rows: &[CheckRow]) -> Option<String> {
    let missed: Vec<String> = (rows.iter())
        .filter(|row| !row.missed.is_empty())
        .map(|row| format!("{}: {}", row.name, row.missed.join("; ")))
        .collect();
    (!missed.is_empty()).then(|| missed.join(". "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LESS: Named = Named::Link("->h4", "carries_less");

    fn run(named_s: Option<f64>, taken_back_s: Option<f64>) -> CheckRun {
        CheckRun {
            named_s,
            seen_in: BTreeSet::from(PLACES),
            taken_back_s,
            others: BTreeSet::new(),
        }
    }

    #[test]
    fn a_name_is_of_its_link_and_state() {
        let paths = BTreeSet::from(["leaf1->spine2".to_owned()]);
        let is = |named: Named, name| named.is(name, &paths);
        assert!(is(LESS, "leaf1->h4 carries_less"));
        assert!(!is(LESS, "leaf1->h4 carries_more"));
        assert!(!is(LESS, "h4->leaf1 carries_less"));
        assert!(is(Named::Host("h1", "a_fault"), "h1 a_fault"));
        assert!(!is(Named::Host("h1", "a_fault"), "h11 a_fault"));
        let misled = Named::OfPaths("wrong_path");
        assert!(is(misled, "leaf1->spine2 wrong_path"));
        assert!(!is(misled, "leaf1->spine2 carries_less"));
        assert!(!is(misled, "leaf1->spine1 wrong_path"));
    }

    #[test]
    fn a_case_is_kept_within_both_times_and_missed_by_either() {
        let row = |runs: &[CheckRun]| CheckRow::new("case", LESS, runs).missed;
        assert!(row(&[run(Some(5.0), Some(10.0))]).is_empty());
        assert_eq!(
            row(&[run(Some(1.0), Some(1.0)), run(Some(5.1), Some(10.1))]),
            [
                "not named within 5 s in 1 of 2 runs",
                "not taken back within 10 s in 1 of 2 runs"
            ]
        );
        let never = row(&[run(None, None)]);
        assert_eq!(never.len(), 2, "{never:?}");
    }

    #[test]
    fn what_stands_in_no_place_and_what_else_is_named_are_missed() {
        let mut spoilt = run(Some(1.0), Some(1.0));
        spoilt.seen_in.remove("explain");
        spoilt.others.insert("h1->leaf1 carries_less".to_owned());
        let row = CheckRow::new("case", LESS, &[run(Some(1.0), Some(1.0)), spoilt]);
        assert_eq!(
            row.missed,
            ["not in explain", "also named: h1->leaf1 carries_less"]
        );
        assert!(verdict(&[row]).is_some_and(|text| text.starts_with("case: not in explain")));
    }
}
