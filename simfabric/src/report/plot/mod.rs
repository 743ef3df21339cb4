//! SVG pictures: panels of lines or grouped bars in a grid, one legend above, one palette.
//!
//! A [`Picture`] is data: an experiment builds it and [`write`](Picture::write) draws it. Values
//! that do not fit a given axis are drawn at its end.

mod bars;
mod draw;
mod lines;
pub mod style;

use std::path::Path;

use plotters::style::RGBColor;

use super::figure::{ReportError, write_text};

/// An axis.
#[derive(Clone, PartialEq, Debug)]
pub struct Axis {
    /// Its name, with the unit in parentheses.
    pub label: String,
    /// Its ends; `None`: from the data.
    pub range: Option<(f64, f64)>,
    /// Logarithmic.
    pub log: bool,
}

impl Axis {
    /// A linear axis over the data.
    pub fn linear(label: impl Into<String>) -> Self {
        Self {
            label: label.into(),
            range: None,
            log: false,
        }
    }

    /// A logarithmic axis over the data.
    pub fn log(label: impl Into<String>) -> Self {
        Self {
            log: true,
            ..Self::linear(label)
        }
    }

    /// With its ends given.
    #[must_use]
    pub fn over(mut self, low: f64, high: f64) -> Self {
        self.range = Some((low, high));
        self
    }
}

/// A line.
#[derive(Clone, PartialEq, Debug)]
pub struct Curve {
    /// In the legend; lines of equal names in several panels share one entry.
    pub name: String,
    /// Its colour; see [`style::colour_of`].
    pub colour: RGBColor,
    /// Dashed, as for a paper's own curve.
    pub dashed: bool,
    /// With a dot at every point.
    pub dots: bool,
    /// x and y.
    pub points: Vec<(f64, f64)>,
}

impl Curve {
    /// A solid line without dots, in the colour of its name.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        let name = name.into();
        Self {
            colour: style::colour_of(&name),
            name,
            dashed: false,
            dots: false,
            points,
        }
    }

    /// In another colour.
    #[must_use]
    pub fn colour(mut self, colour: RGBColor) -> Self {
        self.colour = colour;
        self
    }

    /// With a dot at every point.
    #[must_use]
    pub fn dots(mut self) -> Self {
        self.dots = true;
        self
    }

    /// Dashed.
    #[must_use]
    pub fn dashed(mut self) -> Self {
        self.dashed = true;
        self
    }
}

/// Bars of one name, one for each group.
#[derive(Clone, PartialEq, Debug)]
pub struct Bars {
    /// In the legend.
    pub name: String,
    /// Their colour.
    pub colour: RGBColor,
    /// Drawn as an outline only, as for a paper's own values.
    pub hollow: bool,
    /// One for each group; `None` leaves a gap.
    pub values: Vec<Option<f64>>,
}

impl Bars {
    /// Filled bars in the colour of their name.
    pub fn new(name: impl Into<String>, values: Vec<Option<f64>>) -> Self {
        let name = name.into();
        Self {
            colour: style::colour_of(&name),
            name,
            hollow: false,
            values,
        }
    }

    /// In another colour.
    #[must_use]
    pub fn colour(mut self, colour: RGBColor) -> Self {
        self.colour = colour;
        self
    }

    /// As an outline.
    #[must_use]
    pub fn hollow(mut self) -> Self {
        self.hollow = true;
        self
    }
}

/// What a panel shows.
#[derive(Clone, PartialEq, Debug)]
pub enum Content {
    /// Lines over a numeric x axis.
    Lines(Vec<Curve>),
    /// Bars, grouped along the x axis.
    Bars {
        /// The names of the groups.
        groups: Vec<String>,
        /// The bars of each.
        series: Vec<Bars>,
    },
}

/// A horizontal reference: a capacity, an equal share, a paper's bound.
#[derive(Clone, PartialEq, Debug)]
pub struct Mark {
    /// Where, or from where to where.
    pub from: f64,
    /// Equal to `from` for a line; otherwise a band is shaded.
    pub to: f64,
    /// Written at its right end, or at its left one if a line goes through there.
    pub text: String,
}

/// One panel.
#[derive(Clone, PartialEq, Debug)]
pub struct Panel {
    /// Above it.
    pub title: String,
    /// The x axis; of bars, only its label counts.
    pub x: Axis,
    /// The y axis.
    pub y: Axis,
    /// Lines or bars.
    pub content: Content,
    /// References, drawn behind.
    pub marks: Vec<Mark>,
}

impl Panel {
    /// A panel of lines.
    pub fn lines(title: impl Into<String>, x: Axis, y: Axis, lines: Vec<Curve>) -> Self {
        Self {
            title: title.into(),
            x,
            y,
            content: Content::Lines(lines),
            marks: Vec::new(),
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
            title: title.into(),
            x: Axis::linear(x_label),
            y,
            content: Content::Bars { groups, series },
            marks: Vec::new(),
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

    /// The lowest and highest y of the data, positive ones only for a logarithmic axis.
    fn y_extent(&self) -> Option<(f64, f64)> {
        let of_lines = |lines: &[Curve]| {
            extent(
                lines.iter().flat_map(|l| l.points.iter().map(|p| p.1)),
                self.y.log,
            )
        };
        match &self.content {
            Content::Lines(lines) => of_lines(lines),
            Content::Bars { series, .. } => extent(
                series
                    .iter()
                    .flat_map(|s| s.values.iter().flatten().copied()),
                self.y.log,
            ),
        }
    }

    /// The ends of the y axis. A linear axis over data that are not negative begins at 0; either
    /// kind leaves room above.
    fn y_range(&self) -> (f64, f64) {
        if let Some(range) = self.y.range {
            return range;
        }
        let Some((low, high)) = self.y_extent() else {
            return if self.y.log { (0.1, 10.0) } else { (0.0, 1.0) };
        };
        if self.y.log {
            (low / 1.4, (high * 1.4).max(low * 2.0))
        } else {
            let low = low.min(0.0);
            let room = (high.max(0.0) - low).max(f64::MIN_POSITIVE) * 0.08;
            let high = if high > low {
                high.max(0.0) + room
            } else {
                low + 1.0
            };
            (if low < 0.0 { low - room } else { 0.0 }, high)
        }
    }
}

/// The least and largest finite value.
fn extent(values: impl Iterator<Item = f64>, positive: bool) -> Option<(f64, f64)> {
    values
        .filter(|v| v.is_finite() && (!positive || *v > 0.0))
        .fold(None, |found, v| match found {
            None => Some((v, v)),
            Some((low, high)) => Some((f64::min(low, v), f64::max(high, v))),
        })
}

/// A picture.
#[derive(Clone, PartialEq, Debug)]
pub struct Picture {
    /// At the top.
    pub title: String,
    /// Under the title, in smaller type; the commit is added.
    pub subtitle: String,
    /// Row by row.
    pub panels: Vec<Panel>,
    /// Panels side by side.
    pub columns: usize,
    /// Width and height of a panel in pixels.
    pub panel_size: (u32, u32),
}

impl Picture {
    /// A picture of panels of 560 × 360 pixels.
    pub fn new(title: impl Into<String>, subtitle: impl Into<String>, panels: Vec<Panel>) -> Self {
        Self {
            title: title.into(),
            subtitle: subtitle.into(),
            columns: panels.len().clamp(1, 2),
            panels,
            panel_size: (560, 360),
        }
    }

    /// With so many panels side by side.
    #[must_use]
    pub fn columns(mut self, columns: usize) -> Self {
        self.columns = columns.max(1);
        self
    }

    /// With panels of another size.
    #[must_use]
    pub fn panel_size(mut self, width: u32, height: u32) -> Self {
        self.panel_size = (width, height);
        self
    }

    /// Draws into an SVG file, making its directory if it is missing.
    ///
    /// # Errors
    /// If the file cannot be written or drawn.
    pub fn write(&self, path: &Path) -> Result<(), ReportError> {
        let svg = self.svg().map_err(|error| ReportError::Draw {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
        write_text(path, &svg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture() -> Picture {
        let line = Curve::new("dctcp", vec![(0.0, 1.0), (1.0, 3.0)]).dots();
        let log = Curve::new("flowtune", vec![(1.0, 0.5), (10.0, 0.0), (100.0, 900.0)]).dashed();
        Picture::new(
            "Title & more",
            "sub",
            vec![
                Panel::lines(
                    "first",
                    Axis::linear("time (ms)"),
                    Axis::linear("rate (Gbit/s)"),
                    vec![line],
                )
                .mark(2.0, "fair share"),
                Panel::lines("second", Axis::log("n"), Axis::log("y"), vec![log]),
                Panel::bars(
                    "third",
                    "size of the flow",
                    Axis::linear("ratio"),
                    vec!["small".into(), "large".into()],
                    vec![
                        Bars::new("xcp", vec![Some(1.5), None]),
                        Bars::new("paper", vec![Some(2.0), Some(-1.0)]).hollow(),
                    ],
                )
                .band(1.0, 2.0, "paper"),
                Panel::lines("empty", Axis::linear("x"), Axis::log("y"), vec![]),
            ],
        )
    }

    /// A line that rises to the mark at the right end has the text at the left one.
    #[test]
    fn a_marks_text_keeps_clear_of_lines() {
        let text_x = |points: Vec<(f64, f64)>| -> f64 {
            let y = Axis::linear("y").over(0.0, 10.0);
            let lines = vec![Curve::new("rising", points)];
            let panel = Panel::lines("panel", Axis::linear("x").over(0.0, 10.0), y, lines);
            let svg = Picture::new("t", "s", vec![panel.mark(8.0, "the mark")])
                .svg()
                .unwrap();
            let end = svg.find("the mark").unwrap();
            let start = svg[..end].rfind("x=\"").unwrap() + 3;
            let digits = svg[start..].split('"').next().unwrap();
            digits.parse().unwrap()
        };
        let clear = text_x(vec![(0.0, 0.0), (10.0, 5.0)]);
        let crossed = text_x(vec![(0.0, 0.0), (10.0, 8.5)]);
        assert!(crossed < clear / 2.0, "{crossed} {clear}");
        // Both ends are taken: as usual.
        assert_eq!(text_x(vec![(0.0, 8.2), (10.0, 8.2)]), clear);
    }

    #[test]
    fn every_word_is_in_the_picture() {
        let svg = picture().svg().unwrap();
        for word in [
            "Title &amp; more",
            "sub",
            "first",
            "second",
            "third",
            "empty",
            "time (ms)",
            "rate (Gbit/s)",
            "size of the flow",
            "ratio",
            "small",
            "large",
            "dctcp",
            "flowtune",
            "xcp",
            "fair share",
        ] {
            assert!(svg.contains(word), "{word}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn a_picture_is_a_function_of_its_data() {
        assert_eq!(picture().svg().unwrap(), picture().svg().unwrap());
    }
}
