//! SVG pictures: panels of curves or grouped bars in a grid, one legend above, one palette.
//!
//! A [`Picture`] is data: the caller builds it and [`write`](Picture::write) draws it. The title,
//! the legend and the program's commit are added. Values beyond an axis are drawn at its end.
//!
//! | file | holds |
//! |---|---|
//! | `axis.rs` | [`Axis`]: linear, logarithmic, or with names; its ends |
//! | `curves.rs` | [`Curve`], also of a distribution |
//! | `bars.rs` | [`Bars`]: one name's bars, one for each group |
//! | `panel.rs` | [`Panel`]: axes, data, horizontal and vertical references |
//! | `draw.rs` | the frame: titles, legend, grid, references |
//! | `canvas.rs` | types of the drawing library |
//! | [`style`] | colours and fonts |
//! | [`mod@commit`], [`digits`] | texts of pictures and tables: the program's commit, short numbers |
//! | [`mod@file`] | files that are written as a whole |
//!
//! ```no_run
//! use ratewright_plot::{Axis, Curve, Panel, Picture, style};
//!
//! let rates = vec![
//!     Curve::new("Cubic", vec![(0.0, 9.1), (1.0, 4.2)]),
//!     Curve::new("with Ratewright", vec![(0.0, 9.4), (1.0, 4.7)]).colour(style::OURS),
//! ];
//! let panel = Panel::curves("rates", Axis::linear("time (s)"), Axis::linear("Gbit/s"), rates)
//!     .mark(9.4, "link capacity")
//!     .event(0.5, "second flow");
//! let times = vec![Curve::distribution("Cubic", vec![0.31, 0.27, 0.94])];
//! let share = Axis::linear("share of flows (%)").over(0.0, 100.0);
//! let time = Axis::linear("completion time (s)").starting_at(0.0);
//! let stairs = Panel::curves("", time, share, times);
//! let picture = Picture::new("Two flows", "one link", vec![panel, stairs])
//!     .columns(1)
//!     .row_heights(&[400, 200]);
//! picture.write("rates.svg".as_ref())?;
//! # Ok::<(), ratewright_plot::PictureError>(())
//! ```

mod axis;
mod bars;
mod canvas;
pub mod commit;
mod curves;
pub mod digits;
mod draw;
pub mod file;
mod panel;
pub mod style;

use std::path::{Path, PathBuf};

use indexmap::IndexSet;

pub use axis::{Axis, Mark};
pub use bars::Bars;
pub use curves::{Curve, Dots};
pub use panel::{Content, Panel};

use file::{WriteError, write_text};

/// A picture that could not be drawn or written.
#[derive(Debug, thiserror::Error)]
pub enum PictureError {
    /// Its file or directory.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The drawing library refused.
    #[error("{}: cannot be drawn: {reason}", path.display())]
    Draw {
        /// The file.
        path: PathBuf,
        /// The library's error.
        reason: String,
    },
}

/// A measured value, as a picture shows it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Measured {
    /// The value, such as a mean.
    pub value: f64,
    /// Ends of its interval, if it has one.
    pub interval: Option<[f64; 2]>,
}

/// A picture.
#[derive(Clone, PartialEq, Debug)]
pub struct Picture {
    /// Title at the top.
    pub title: String,
    /// Line under the title, in smaller type; the commit is added.
    pub subtitle: String,
    /// Panels, row by row.
    pub panels: Vec<Panel>,
    /// Number of panels side by side.
    pub columns: usize,
    /// Width and height of a panel in pixels.
    pub panel_size: (u32, u32),
    /// Heights of the first rows in pixels, where they differ from a panel's.
    pub row_heights: Vec<u32>,
}

impl Picture {
    /// A picture of panels of 560 × 360 pixels. Curves and bars without a colour get one each, in
    /// the order in which their names first appear.
    pub fn new(
        title: impl Into<String>,
        subtitle: impl Into<String>,
        mut panels: Vec<Panel>,
    ) -> Self {
        let mut names: IndexSet<String> = IndexSet::new();
        for (name, colour) in panels.iter_mut().flat_map(Panel::uncoloured) {
            let (index, _) = names.insert_full(name.to_owned());
            *colour = Some(style::colour(index));
        }
        Self {
            title: title.into(),
            subtitle: subtitle.into(),
            columns: panels.len().clamp(1, 2),
            panels,
            panel_size: (560, 360),
            row_heights: Vec::new(),
        }
    }

    /// Sets the number of panels side by side.
    #[must_use]
    pub fn columns(mut self, columns: usize) -> Self {
        self.columns = columns.max(1);
        self
    }

    /// Sets width and height of panels in pixels.
    #[must_use]
    pub fn panel_size(mut self, width: u32, height: u32) -> Self {
        self.panel_size = (width, height);
        self
    }

    /// Sets the heights of the first rows in pixels, such as that of a strip under a panel.
    #[must_use]
    pub fn row_heights(mut self, heights: &[u32]) -> Self {
        self.row_heights = heights.to_vec();
        self
    }

    /// Draws into an SVG file, making its directory if it is missing.
    ///
    /// # Errors
    /// If the file cannot be written or drawn.
    pub fn write(&self, path: &Path) -> Result<(), PictureError> {
        let svg = self.svg().map_err(|error| PictureError::Draw {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
        Ok(write_text(path, &svg)?)
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
                Panel::curves(
                    "first",
                    Axis::linear("time (ms)"),
                    Axis::linear("rate (Gbit/s)"),
                    vec![line],
                )
                .mark(2.0, "fair share"),
                Panel::curves("second", Axis::log("n"), Axis::log("y"), vec![log]),
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
                Panel::curves("empty", Axis::linear("x"), Axis::log("y"), vec![]),
            ],
        )
    }

    /// A curve that rises to the mark at the right end has the text at the left one.
    #[test]
    fn a_marks_text_keeps_clear_of_curves() {
        let text_x = |points: Vec<(f64, f64)>| -> f64 {
            let y = Axis::linear("y").over(0.0, 10.0);
            let lines = vec![Curve::new("rising", points)];
            let panel = Panel::curves("panel", Axis::linear("x").over(0.0, 10.0), y, lines);
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
    fn a_curve_without_a_name_has_no_place_in_the_legend() {
        let svg = |names: &[&str]| {
            let curve = |name: &&str| Curve::new(*name, vec![(0.0, 1.0), (1.0, 3.0)]);
            let curves = names.iter().map(curve).collect();
            let panel = Panel::curves("p", Axis::linear("x"), Axis::linear("y"), curves);
            Picture::new("t", "s", vec![panel]).svg().unwrap()
        };
        let texts = |svg: String| svg.matches("<text").count();
        assert_eq!(texts(svg(&["a", ""])), texts(svg(&["a"])));
        assert_eq!(texts(svg(&["a", "b"])), texts(svg(&["a"])) + 1);
    }

    #[test]
    fn a_picture_is_a_function_of_its_data() {
        assert_eq!(picture().svg().unwrap(), picture().svg().unwrap());
    }

    /// The y attribute of the tag around a text.
    fn height_of(svg: &str, text: &str) -> f64 {
        let end = svg.find(text).unwrap();
        let start = svg[..end].rfind(" y=\"").unwrap() + 4;
        svg[start..].split('"').next().unwrap().parse().unwrap()
    }

    #[test]
    fn rows_have_the_heights_that_are_asked_for() {
        let panel = |title: &str| {
            let curve = Curve::new("dctcp", vec![(0.0, 1.0), (1.0, 3.0)]);
            Panel::curves(title, Axis::linear("x"), Axis::linear("y"), vec![curve])
        };
        let picture = Picture::new("t", "s", ["upper", "second", "lower"].map(panel).to_vec());
        let picture = picture.columns(1).panel_size(500, 300);
        let even = picture.svg().unwrap();
        assert!((height_of(&even, "lower") - height_of(&even, "second") - 300.0).abs() < 1.0);
        // Rows beyond those that are given keep a panel's height.
        let uneven = picture.clone().row_heights(&[400, 150]).svg().unwrap();
        assert!((height_of(&uneven, "second") - height_of(&uneven, "upper") - 400.0).abs() < 1.0);
        assert!((height_of(&uneven, "lower") - height_of(&uneven, "second") - 150.0).abs() < 1.0);
        assert!(uneven.contains("height=\"938\"") && even.contains("height=\"988\""));
        // Heights that are those of panels change nothing.
        assert_eq!(picture.row_heights(&[300]).svg().unwrap(), even);
    }

    #[test]
    fn events_are_named_below_each_other_while_they_are_few() {
        let svg = |count: usize| {
            let curve = Curve::new("dctcp", vec![(0.0, 1.0), (20.0, 3.0)])
                .rings()
                .width(3);
            let panel = Panel::curves("", Axis::linear("x"), Axis::linear("y"), vec![curve]);
            let add = |panel: Panel, i: usize| panel.event(i as f64, format!("event {i}."));
            Picture::new("t", "s", vec![(0..count).fold(panel, add)])
                .svg()
                .unwrap()
        };
        let few = svg(3);
        assert!(height_of(&few, "event 0.") < height_of(&few, "event 1."));
        assert!(height_of(&few, "event 1.") < height_of(&few, "event 2."));
        assert!(!svg(9).contains("event 0."));
    }
}
