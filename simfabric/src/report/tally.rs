//! The verdicts of several figures together.

use std::fmt;

use super::figure::{Figure, Verdict};

/// Number of rows by verdict, and the names of those that are off.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// In the order of [`Verdict::ALL`].
    counts: [usize; Verdict::ALL.len()],
    off: Vec<String>,
}

impl Tally {
    /// Counts the rows of a figure.
    pub fn add(&mut self, figure: &Figure) {
        for row in &figure.rows {
            // All verdicts, also those without rows, are printed: zero `off` is what counts.
            for (verdict, count) in Verdict::ALL.iter().zip(&mut self.counts) {
                *count += usize::from(row.verdict == *verdict);
            }
            if row.verdict == Verdict::Off {
                self.off.push(format!("{}: {}", figure.figure, row.name));
            }
        }
    }

    /// Rows that are off, each with its figure's name.
    #[must_use]
    pub fn off(&self) -> &[String] {
        &self.off
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
    use crate::report::figure::Row;

    #[test]
    fn rows_are_counted_by_verdict_and_those_that_are_off_are_named() {
        let mut figure = Figure::new("flowtune-x", "t", 1, true);
        figure.rows = vec![
            Row::judged("a", 2.0, 2.0, "x", 0.1),
            Row::judged("b", 2.0, 5.0, "x", 0.1),
            Row::judged("c", 2.0, 5.0, "x", 0.1).explained("because of 3"),
            Row::judged("d", "near-empty", 5.0, "x", 0.1),
            Row::judged("e", 2.0, f64::NAN, "x", 0.1),
        ];
        let mut tally = Tally::default();
        tally.add(&figure);
        tally.add(&figure);
        assert_eq!(
            tally.to_string(),
            "10 rows: 2 reproduced, 2 explained, 2 off, 2 no-figure, 2 not-measured"
        );
        assert_eq!(tally.off(), ["flowtune-x: b", "flowtune-x: b"]);
    }
}
