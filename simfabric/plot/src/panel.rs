//! Panels: axes, curves or bars, and references.

use super::axis::extent;
use super::style::RGBColor;
use super::{Axis, Bars, Curve, Mark};

/// The data of a panel.
#[derive(Clone, PartialEq, Debug)]
pub enum Content {
    /// Curves over a numeric x axis.
    Curves(Vec<Curve>),
    /// Bars, grouped along the x axis.
    Bars {
        /// Names of the groups.
        groups: Vec<String>,
        /// Bars of each name.
        series: Vec<Bars>,
    },
}

/// One panel.
#[derive(Clone, PartialEq, Debug)]
pub struct Panel {
    /// Title above it; nothing if empty.
    pub title: String,
    /// The x axis; of bars, only its label counts.
    pub x: Axis,
    /// The y axis.
    pub y: Axis,
    /// Curves or bars.
    pub content: Content,
    /// Horizontal references, drawn behind the data.
    pub marks: Vec<Mark>,
    /// Vertical references, drawn behind the data: x, and a text at the top.
    pub events: Vec<(f64, String)>,
}

impl Panel {
    /// Names and colours of curves or bars that have no colour yet.
    pub(super) fn uncoloured(&mut self) -> Vec<(&str, &mut Option<RGBColor>)> {
        let all: Vec<(&str, &mut Option<RGBColor>)> = match &mut self.content {
            Content::Curves(curves) => {
                let curves = curves.iter_mut();
                curves.map(|c| (&*c.name, &mut c.colour)).collect()
            }
            Content::Bars { series, .. } => {
                let series = series.iter_mut();
                series.map(|b| (&*b.name, &mut b.colour)).collect()
            }
        };
        all.into_iter()
            .filter(|(_, colour)| colour.is_none())
            .collect()
    }

    /// A panel of curves.
    pub fn curves(title: impl Into<String>, x: Axis, y: Axis, curves: Vec<Curve>) -> Self {
        Self {
            title: title.into(),
            x,
            y,
            content: Content::Curves(curves),
            marks: Vec::new(),
            events: Vec::new(),
        }
    }

    /// A panel of grouped bars.
    pub fn bars(
        title: impl Into<String>,
        x_label: impl Into<String>,
        y: Axis,
        groups: Vec<String>,
        series: Vec<Bars>,
    ) -> Self {
        Self {
            content: Content::Bars { groups, series },
            ..Self::curves(title, Axis::linear(x_label), y, Vec::new())
        }
    }

    /// Adds a horizontal line.
    #[must_use]
    pub fn mark(self, at: f64, text: impl Into<String>) -> Self {
        self.band(at, at, text)
    }

    /// Adds a shaded band.
    #[must_use]
    pub fn band(mut self, from: f64, to: f64, text: impl Into<String>) -> Self {
        self.marks.push(Mark {
            from,
            to,
            text: text.into(),
        });
        self
    }

    /// Adds a vertical dashed line.
    #[must_use]
    pub fn event(mut self, x: f64, text: impl Into<String>) -> Self {
        self.events.push((x, text.into()));
        self
    }

    /// Ends of the x axis.
    pub(super) fn x_range(&self) -> (f64, f64) {
        let curves = match &self.content {
            // Group i takes the unit from i to i + 1.
            Content::Bars { groups, .. } => return (0.0, groups.len().max(1) as f64),
            Content::Curves(curves) => curves,
        };
        self.x.ends_or(|| {
            let values = curves.iter().flat_map(|c| c.points.iter().map(|p| p.0));
            match extent(values, self.x.log) {
                None if self.x.log => (1.0, 10.0),
                None => (0.0, 1.0),
                Some((low, high)) if low < high => (low, high),
                // All points at one x: an axis of no length cannot be drawn.
                Some((low, _)) if self.x.log => (low / 2.0, low * 2.0),
                Some((low, _)) => (low - 0.5, low + 0.5),
            }
        })
    }

    /// The lowest and highest y of the data, positive ones only for a logarithmic axis.
    fn y_extent(&self) -> Option<(f64, f64)> {
        match &self.content {
            Content::Curves(curves) => {
                let values = curves.iter().flat_map(|c| {
                    let ends = c.whiskers.iter().flat_map(|whisker| whisker.1);
                    c.points.iter().map(|p| p.1).chain(ends)
                });
                extent(values, self.y.log)
            }
            Content::Bars { series, .. } => {
                let values = series.iter().flat_map(|s| {
                    let ends = s.intervals.iter().flatten().flatten();
                    s.values.iter().flatten().chain(ends).copied()
                });
                extent(values, self.y.log)
            }
        }
    }

    /// Ends of the y axis. A linear axis over data that are not negative begins at 0. Both kinds
    /// leave a margin above the data.
    pub(super) fn y_range(&self) -> (f64, f64) {
        self.y.ends_or(|| {
            let Some((low, high)) = self.y_extent() else {
                return if self.y.log { (0.1, 10.0) } else { (0.0, 1.0) };
            };
            // A margin by a factor, and at least an octave, so that equal values make an axis, too.
            if self.y.log {
                return (low / 1.4, (high * 1.4).max(low * 2.0));
            }
            let low = low.min(0.0);
            let margin = (high.max(0.0) - low).max(f64::MIN_POSITIVE) * 0.08;
            let high = if high > low {
                high.max(0.0) + margin
            } else {
                low + 1.0
            };
            (if low < 0.0 { low - margin } else { 0.0 }, high)
        })
    }
}
