//! The verdicts of several figures together.

use std::fmt;

use super::figure::{Figure, Verdict};

/// Number of rows by verdict, and the rows whose verdict is not the recorded one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// In the order of [`Verdict::ALL`].
    counts: [usize; Verdict::ALL.len()],
    unexpected: Vec<String>,
}

impl Tally {
    /// Counts the rows of a figure.
    pub fn add(&mut self, figure: &Figure) {
        for row in &figure.rows {
            for (verdict, count) in Verdict::ALL.iter().zip(&mut self.counts) {
                *count += usize::from(row.verdict == *verdict);
            }
            if !row.is_as_recorded() {
                let verdicts = [row.verdict, row.expected_verdict()];
                let [verdict, expected] = verdicts.map(Verdict::as_str);
                self.unexpected.push(format!(
                    "{}: {}: {verdict}, not {expected}",
                    figure.figure, row.name
                ));
            }
        }
    }

    /// Rows whose verdict differs from the recorded one, each with its figure's name.
    #[must_use]
    pub fn unexpected(&self) -> &[String] {
        &self.unexpected
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows", self.counts.iter().sum::<usize>())?;
        for (i, (verdict, count)) in Verdict::ALL.iter().zip(self.counts).enumerate() {
            let mark = if i == 0 { ':' } else { ',' };
            write!(f, "{mark} {count} {}", verdict.as_str())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::estimate::Estimate;
    use crate::report::figure::{Claim, Row};

    #[test]
    fn rows_are_counted_by_verdict_and_unexpected_ones_are_named() {
        let mut figure = Figure::new("flowtune-x", "t", (1, 2), true);
        let row = |name: &str, claim, mean| Row::judge(name, claim, Estimate::of([mean; 2]), "x");
        let two = || Claim::number(2.0, 0.1);
        figure.rows = vec![
            row("a", two(), 2.0),
            row("b", two(), 5.0),
            row("c", two(), 5.0).disagrees_because("3 of 4 wait"),
            row("d", two(), 2.0).disagrees_because("a cause that is gone"),
            row("e", Claim::words("near-empty"), 5.0),
            row("f", two(), 2.0).undecided_because("few flows"),
            row("g", two(), 5.0).undecided_because("few flows"),
        ];
        let mut tally = Tally::default();
        tally.add(&figure);
        assert_eq!(
            tally.to_string(),
            "7 rows: 3 agrees, 3 disagrees, 1 no figure"
        );
        assert_eq!(
            tally.unexpected(),
            [
                "flowtune-x: b: disagrees, not agrees",
                "flowtune-x: d: agrees, not disagrees",
                "flowtune-x: g: disagrees, not no figure"
            ]
        );
    }
}
