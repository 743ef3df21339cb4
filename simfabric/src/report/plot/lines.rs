//! Lines of a panel.

use plotters::prelude::*;

use super::draw::{Chart, Failure};
use super::{Content, Curve, Panel, extent, style};

/// The ends of the x axis, from the data unless they are given.
pub(super) fn x_range(panel: &Panel) -> (f64, f64) {
    if let Some(range) = panel.x.range {
        return range;
    }
    let Content::Lines(lines) = &panel.content else {
        return (0.0, 1.0);
    };
    let values = lines.iter().flat_map(|l| l.points.iter().map(|p| p.0));
    match extent(values, panel.x.log) {
        None if panel.x.log => (1.0, 10.0),
        None => (0.0, 1.0),
        Some((low, high)) if low < high => (low, high),
        Some((low, _)) if panel.x.log => (low / 2.0, low * 2.0),
        Some((low, _)) => (low - 0.5, low + 0.5),
    }
}

/// Draws lines; points outside the plane are moved to its edge.
pub(super) fn draw<X, Y>(
    chart: &mut Chart<'_, '_, X, Y>,
    lines: &[Curve],
    (x_low, x_high): (f64, f64),
    (y_low, y_high): (f64, f64),
) -> Result<(), Failure>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    for line in lines {
        let points: Vec<(f64, f64)> = line
            .points
            .iter()
            .filter(|(x, y)| x.is_finite() && y.is_finite())
            .map(|(x, y)| (x.clamp(x_low, x_high), y.clamp(y_low, y_high)))
            .collect();
        let stroke = style::line(line.colour, 2);
        if line.dashed {
            chart.draw_series(DashedLineSeries::new(points.iter().copied(), 6, 4, stroke))?;
        } else {
            chart.draw_series(LineSeries::new(points.iter().copied(), stroke))?;
        }
        if line.dots {
            let dots = points
                .iter()
                .map(|p| Circle::new(*p, 3, line.colour.filled()));
            chart.draw_series(dots)?;
        }
    }
    Ok(())
}
