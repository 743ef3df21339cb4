//! Axes of a panel and their ends.

/// An axis.
#[derive(Clone, PartialEq, Debug)]
pub struct Axis {
    /// Name, with the unit in parentheses.
    pub label: String,
    /// Low and high end; `None`: from the data.
    pub ends: (Option<f64>, Option<f64>),
    /// True for a logarithmic axis.
    pub log: bool,
    /// Names that stand at 1, 2, … instead of numbers, if there are any.
    pub names: Vec<String>,
}

impl Axis {
    /// A linear axis over the data.
    pub fn linear(label: impl Into<String>) -> Self {
        Self {
            label: label.into(),
            ends: (None, None),
            log: false,
            names: Vec::new(),
        }
    }

    /// A logarithmic axis over the data.
    pub fn log(label: impl Into<String>) -> Self {
        Self {
            log: true,
            ..Self::linear(label)
        }
    }

    /// An x axis with a name at each of 1, 2, … and no numbers.
    pub fn names(label: impl Into<String>, names: Vec<String>) -> Self {
        // Half a step on either side keeps the outermost names within the panel.
        let high = names.len() as f64 + 0.5;
        Self {
            names,
            ..Self::linear(label).over(0.5, high)
        }
    }

    /// Sets both ends.
    #[must_use]
    pub fn over(mut self, low: f64, high: f64) -> Self {
        self.ends = (Some(low), Some(high));
        self
    }

    /// Sets the low end alone.
    #[must_use]
    pub fn starting_at(mut self, low: f64) -> Self {
        self.ends.0 = Some(low);
        self
    }

    /// The ends, from `data` where they are not set.
    pub(super) fn ends_or(&self, data: impl FnOnce() -> (f64, f64)) -> (f64, f64) {
        match self.ends {
            (Some(low), Some(high)) => (low, high),
            (low, high) => {
                let data = data();
                (low.unwrap_or(data.0), high.unwrap_or(data.1))
            }
        }
    }

    /// The text beside a value.
    pub(super) fn text(&self, value: f64) -> String {
        if self.names.is_empty() {
            return number(value);
        }
        // The drawing library may put grid lines between names, too; these stay without text.
        let place = value.round();
        let at_name = (value - place).abs() < 1e-6 && place >= 1.0;
        let name = self.names.get((place - 1.0) as usize);
        name.filter(|_| at_name).cloned().unwrap_or_default()
    }
}

/// A value beside an axis: no more digits than it needs, thousands as `k`, millions as `M`.
fn number(value: f64) -> String {
    use crate::digits::short;
    match value.abs() {
        v if v >= 1e6 => format!("{}M", short(value / 1e6)),
        v if v >= 1e4 => format!("{}k", short(value / 1e3)),
        // Grid lines are sums of steps, so the one at 0 may miss it by a rounding.
        v if v < 1e-9 => "0".to_owned(),
        _ => short(value),
    }
}

/// The least and largest finite value, of the positive ones alone for a logarithmic axis.
pub(super) fn extent(values: impl Iterator<Item = f64>, positive: bool) -> Option<(f64, f64)> {
    values
        .filter(|v| v.is_finite() && (!positive || *v > 0.0))
        .fold(None, |found, v| match found {
            None => Some((v, v)),
            Some((low, high)) => Some((f64::min(low, v), f64::max(high, v))),
        })
}

/// A horizontal reference: a capacity, an equal share, a paper's bound.
#[derive(Clone, PartialEq, Debug)]
pub struct Mark {
    /// Low end of a band, or the height of a line.
    pub from: f64,
    /// High end of a band; equal to `from` for a line.
    pub to: f64,
    /// Text at its right end, or at its left one if a curve passes there.
    pub text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_at_whole_numbers_alone() {
        let axis = Axis::names("size", vec!["small".to_owned(), "large".to_owned()]);
        let texts = [0.5, 1.0, 1.5, 2.0, 2.5, 3.0].map(|value| axis.text(value));
        assert_eq!(texts, ["", "small", "", "large", "", ""]);
        assert_eq!(axis.ends_or(|| (0.0, 0.0)), (0.5, 2.5));
    }

    #[test]
    fn an_end_that_is_not_set_comes_from_the_data() {
        let data = || (3.0, 7.0);
        assert_eq!(Axis::linear("x").ends_or(data), (3.0, 7.0));
        assert_eq!(Axis::linear("x").starting_at(0.0).ends_or(data), (0.0, 7.0));
        assert_eq!(Axis::linear("x").over(1.0, 2.0).ends_or(data), (1.0, 2.0));
    }

    #[test]
    fn numbers_are_as_short_as_they_can_be() {
        let texts = [0.25, 1_000.0, 20_000.0, 3e6, 1e-12].map(number);
        assert_eq!(texts, ["0.25", "1000", "20k", "3M", "0"]);
    }
}
