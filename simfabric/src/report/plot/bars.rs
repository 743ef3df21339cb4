//! Grouped bars of a panel, with the value above each.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::draw::{Canvas, Chart, Failure};
use super::style::{self, INK, MUTED};
use super::{Bars, Mark};
use crate::report::figure::short;

/// The share of a group's width that its bars take.
const FILLED: f64 = 0.82;
/// Pixels that a value takes above its bar, with the distance to it.
const TEXT: i32 = 16;
/// With more bars than this the values are left out.
const MOST_VALUES: usize = 24;

/// Draws the bars and the names of the groups.
pub(super) fn draw<X, Y>(
    chart: &mut Chart<'_, '_, X, Y>,
    area: &Canvas<'_>,
    groups: &[String],
    series: &[Bars],
    marks: &[Mark],
    (low, high): (f64, f64),
    log: bool,
) -> Result<(), Failure>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
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
            let fill = if bars.hollow {
                style::line(bars.colour, 2)
            } else {
                bars.colour.filled()
            };
            chart.draw_series(std::iter::once(Rectangle::new(corners, fill)))?;
            if written {
                let middle = left + width / 2.0;
                let mut above = chart.backend_coord(&(middle, value.clamp(low, high)));
                // Above a mark's line that would go through it.
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
                    &two_digits(value),
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

/// A value as narrow as its bar: two digits, or the whole number.
fn two_digits(value: f64) -> String {
    match value.abs() {
        v if v >= 9.95 => format!("{value:.0}"),
        v if v >= 0.995 => format!("{value:.1}"),
        v if v >= 0.0995 => format!("{value:.2}"),
        _ => short(value),
    }
}

/// Writes a text centred at a point of the picture, `lower` pixels further down.
fn write(
    area: &Canvas<'_>,
    (x, y): (i32, i32),
    lower: i32,
    vertical: VPos,
    text: &str,
    font: &TextStyle<'static>,
) -> Result<(), Failure> {
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
    use crate::report::plot::style;

    /// The height at which a text stands in the picture.
    fn height_of(text: &str, mark: Option<f64>) -> f64 {
        let bars = Bars {
            name: "bars".to_owned(),
            colour: style::colour(0),
            hollow: false,
            values: vec![Some(0.93), Some(0.37), Some(2.0)],
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
    fn a_value_stands_above_a_mark_that_would_cross_it() {
        assert!(height_of("0.93", Some(1.0)) < height_of("0.93", None));
        for clear in ["0.37", "2.0"] {
            assert!((height_of(clear, Some(1.0)) - height_of(clear, None)).abs() < 0.5);
        }
    }
}
