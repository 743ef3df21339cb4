//! Grouped bars of a panel, with the value above each.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::canvas::{Canvas, Chart, DrawError};
use super::curves::whisker;
use super::style::{self, INK, MUTED};
use super::{Mark, Measured};
use crate::digits::short;

/// Share of a group's width that its bars take.
const FILLED: f64 = 0.82;
/// Height of a value above its bar in pixels, with the distance to it.
const TEXT: i32 = 16;
/// Largest number of bars with values above them; texts of more would overlap.
const MOST_VALUES: usize = 24;
/// Width in pixels from which a bar has room for a decimal behind two or three digits.
const WIDE: i32 = 48;

/// Bars of one name, one for each group.
#[derive(Clone, PartialEq, Debug)]
pub struct Bars {
    /// Name in the legend.
    pub name: String,
    /// Colour; unless set, the picture gives equal names one, in the order of their appearance.
    pub colour: Option<RGBColor>,
    /// Outlines alone, as for a paper's own values.
    pub hollow: bool,
    /// Values, one for each group; `None` leaves a gap.
    pub values: Vec<Option<f64>>,
    /// Ends of the values' intervals, one for each group where there are any.
    pub intervals: Vec<Option<[f64; 2]>>,
}

impl Bars {
    /// Filled bars of any colour.
    pub fn new(name: impl Into<String>, values: Vec<Option<f64>>) -> Self {
        let name = name.into();
        Self {
            colour: None,
            name,
            hollow: false,
            values,
            intervals: Vec::new(),
        }
    }

    /// Bars of means, each with its interval.
    pub fn estimates<M: Copy + Into<Measured>>(
        name: impl Into<String>,
        values: &[Option<M>],
    ) -> Self {
        let measured = || values.iter().map(|value| value.map(Into::<Measured>::into));
        Self {
            intervals: measured().map(|m| m?.interval).collect(),
            ..Self::new(name, measured().map(|m| Some(m?.value)).collect())
        }
    }

    /// Sets another colour.
    #[must_use]
    pub fn colour(mut self, colour: RGBColor) -> Self {
        self.colour = Some(colour);
        self
    }

    /// Draws outlines alone.
    #[must_use]
    pub fn hollow(mut self) -> Self {
        self.hollow = true;
        self
    }
}

/// Draws the bars and the names of the groups.
pub(super) fn draw<X, Y>(
    chart: &mut Chart<'_, '_, X, Y>,
    area: &Canvas<'_>,
    groups: &[String],
    series: &[Bars],
    marks: &[Mark],
    (low, high): (f64, f64),
    log: bool,
) -> Result<(), DrawError>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    // Bars begin at 0, which a logarithmic axis does not have.
    let base = if log { low } else { 0.0_f64.clamp(low, high) };
    let width = FILLED / series.len().max(1) as f64;
    let written = groups.len() * series.len() <= MOST_VALUES;
    for (number, bars) in series.iter().enumerate() {
        for (group, value) in bars.values.iter().enumerate().take(groups.len()) {
            let Some(value) = value.filter(|v| v.is_finite()) else {
                continue;
            };
            let left = group as f64 + (1.0 - FILLED) / 2.0 + number as f64 * width;
            let corners = [
                (left + width * 0.06, base),
                (left + width * 0.94, value.clamp(low, high)),
            ];
            let colour = bars.colour.unwrap_or(INK);
            let fill = if bars.hollow {
                style::line(colour, 2)
            } else {
                colour.filled()
            };
            chart.draw_series(std::iter::once(Rectangle::new(corners, fill)))?;
            let middle = left + width / 2.0;
            let ends = bars.intervals.get(group).copied().flatten();
            let ends = ends.map(|ends| ends.map(|y| y.clamp(low, high)));
            if let Some([from, to]) = ends {
                whisker(chart, middle, (from, to), INK)?;
            }
            if written {
                // Above the whisker, too.
                let top = ends.map_or(value, |[_, to]| to.max(value));
                let mut above = chart.backend_coord(&(middle, top.clamp(low, high)));
                // A mark's line would cross the digits: the value then stands above the line.
                let [from, to] = corners.map(|at| chart.backend_coord(&at).0);
                let lines = marks.iter().flat_map(|mark| [mark.from, mark.to]);
                let lines = lines.map(|at| chart.backend_coord(&(middle, at.clamp(low, high))).1);
                if let Some(line) = lines
                    .filter(|y| (above.1 - TEXT..above.1).contains(y))
                    .min()
                {
                    above.1 = line;
                }
                write(
                    area,
                    above,
                    -4,
                    VPos::Bottom,
                    &shortened(value, to - from >= WIDE),
                    &style::font(10, MUTED),
                )?;
            }
        }
    }
    for (group, name) in groups.iter().enumerate() {
        let below = chart.backend_coord(&(group as f64 + 0.5, low));
        write(area, below, 7, VPos::Top, name, &style::font(12, INK))?;
    }
    Ok(())
}

/// A value that is as narrow as its bar: two significant digits, or the whole number; one decimal
/// if the bar is wide.
fn shortened(value: f64, wide: bool) -> String {
    // The bounds are where rounding to the digits of a branch would reach the next power of ten.
    match value.abs() {
        v if v >= 9.95 && !wide => format!("{value:.0}"),
        v if v >= 0.995 => format!("{value:.1}"),
        v if v >= 0.0995 => format!("{value:.2}"),
        _ => short(value),
    }
}

/// Writes a text centred at a point of the picture, moved down by `lower` pixels.
fn write(
    area: &Canvas<'_>,
    (x, y): (i32, i32),
    lower: i32,
    vertical: VPos,
    text: &str,
    font: &TextStyle<'static>,
) -> Result<(), DrawError> {
    // The chart's coordinates are those of the picture, the area's begin at its own corner.
    let (left, top) = area.get_base_pixel();
    area.draw(&Text::new(
        text.to_owned(),
        (x - left, y - top + lower),
        font.pos(Pos::new(HPos::Center, vertical)),
    ))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Axis, Bars, Panel, Picture};
    use super::shortened;
    use crate::style;

    /// Height of a text in the picture.
    fn height_of(text: &str, mark: Option<f64>) -> f64 {
        let bars = Bars {
            name: "bars".to_owned(),
            colour: Some(style::colour(0)),
            hollow: false,
            values: vec![Some(0.93), Some(0.37), Some(2.0)],
            intervals: Vec::new(),
        };
        let groups = ["a", "b", "c"].map(str::to_owned).to_vec();
        let panel = Panel::bars("p", "x", Axis::linear("y"), groups, vec![bars]);
        let panel = match mark {
            Some(at) => panel.mark(at, ""),
            None => panel,
        };
        let svg = Picture::new("t", "s", vec![panel])
            .svg()
            .expect("a picture");
        let end = svg.find(text).expect("the text is there");
        let tag = &svg[svg[..end].rfind("<text").expect("in a tag")..end];
        let y = tag.split(" y=\"").nth(1).expect("a height");
        y.split('"')
            .next()
            .and_then(|y| y.parse().ok())
            .expect("a number")
    }

    #[test]
    fn a_wide_bar_has_room_for_a_decimal() {
        let texts = [187.84, 9.96, 0.93].map(|v| [shortened(v, false), shortened(v, true)]);
        assert_eq!(texts, [["188", "187.8"], ["10", "10.0"], ["0.93", "0.93"]]);
    }

    #[test]
    fn a_value_stands_above_a_mark_that_would_cross_it() {
        assert!(height_of("0.93", Some(1.0)) < height_of("0.93", None));
        for clear in ["0.37", "2.0"] {
            assert!((height_of(clear, Some(1.0)) - height_of(clear, None)).abs() < 0.5);
        }
    }
}
