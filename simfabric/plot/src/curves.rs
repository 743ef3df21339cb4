//! Curves of a panel.

use plotters::prelude::*;

use super::canvas::{Chart, DrawError};
use super::{Measured, style};

/// Marks at the points of a curve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dots {
    /// No marks.
    None,
    /// Discs.
    Filled,
    /// Rings, for a curve that often lies on or near another of its colour.
    Rings,
}

/// A curve.
#[derive(Clone, PartialEq, Debug)]
pub struct Curve {
    /// Name in the legend; curves of equal names in several panels share one entry, and an empty
    /// name has none.
    pub name: String,
    /// Colour; unless set, the picture gives equal names one, in the order of their appearance.
    pub colour: Option<RGBColor>,
    /// Dashed, as for a paper's own curve.
    pub dashed: bool,
    /// Marks at its points.
    pub dots: Dots,
    /// Width in pixels: 2 unless it should stand out or back.
    pub width: u32,
    /// Points, x and y.
    pub points: Vec<(f64, f64)>,
    /// Whiskers: x, and the ends of an interval of y.
    pub whiskers: Vec<(f64, [f64; 2])>,
}

impl Curve {
    /// A solid curve without dots, of any colour.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        let name = name.into();
        Self {
            colour: None,
            name,
            dashed: false,
            dots: Dots::None,
            width: 2,
            points,
            whiskers: Vec::new(),
        }
    }

    /// A curve through means, with a dot and the interval at each.
    pub fn estimates(
        name: impl Into<String>,
        points: impl IntoIterator<Item = (f64, impl Into<Measured>)>,
    ) -> Self {
        let points = points.into_iter().map(|(x, y)| (x, y.into()));
        let points: Vec<(f64, Measured)> = points.collect();
        let means = points.iter().map(|(x, y)| (*x, y.value)).collect();
        let whiskers = points.iter().filter_map(|(x, y)| Some((*x, y.interval?)));
        Self {
            whiskers: whiskers.collect(),
            ..Self::new(name, means).dots()
        }
    }

    /// A cumulative distribution: the share of the samples, in per cent, that x is not below.
    pub fn distribution(name: impl Into<String>, mut samples: Vec<f64>) -> Self {
        samples.sort_unstable_by(f64::total_cmp);
        let step = 100.0 / samples.len().max(1) as f64;
        // Two points per sample make a stair: the share jumps where the sample lies.
        let stair = |(i, x): (usize, &f64)| [(*x, i as f64 * step), (*x, (i + 1) as f64 * step)];
        Self::new(name, samples.iter().enumerate().flat_map(stair).collect())
    }

    /// Sets another colour.
    #[must_use]
    pub fn colour(mut self, colour: RGBColor) -> Self {
        self.colour = Some(colour);
        self
    }

    /// Adds a disc at every point.
    #[must_use]
    pub fn dots(mut self) -> Self {
        self.dots = Dots::Filled;
        self
    }

    /// Adds a ring at every point.
    #[must_use]
    pub fn rings(mut self) -> Self {
        self.dots = Dots::Rings;
        self
    }

    /// Makes the curve dashed.
    #[must_use]
    pub fn dashed(mut self) -> Self {
        self.dashed = true;
        self
    }

    /// Sets the width in pixels.
    #[must_use]
    pub fn width(mut self, pixels: u32) -> Self {
        self.width = pixels;
        self
    }
}

/// Draws curves; points outside the plane are moved to its edge.
pub(super) fn draw<X, Y>(
    chart: &mut Chart<'_, '_, X, Y>,
    curves: &[Curve],
    (x_low, x_high): (f64, f64),
    (y_low, y_high): (f64, f64),
) -> Result<(), DrawError>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    for curve in curves {
        // The drawing library would draw outside of the panel, and has no place for NaN.
        let points: Vec<(f64, f64)> = curve
            .points
            .iter()
            .filter(|(x, y)| x.is_finite() && y.is_finite())
            .map(|(x, y)| (x.clamp(x_low, x_high), y.clamp(y_low, y_high)))
            .collect();
        let colour = curve.colour.unwrap_or(style::INK);
        let stroke = style::line(colour, curve.width);
        if curve.dashed {
            chart.draw_series(DashedLineSeries::new(points.iter().copied(), 6, 4, stroke))?;
        } else {
            chart.draw_series(LineSeries::new(points.iter().copied(), stroke))?;
        }
        for &(x, ends) in curve.whiskers.iter().filter(|(x, _)| x.is_finite()) {
            let [low, high] = ends.map(|y| y.clamp(y_low, y_high));
            whisker(chart, x.clamp(x_low, x_high), (low, high), colour)?;
        }
        // A ring must be wider than the stroke that passes through it, to be seen beside it.
        let radius = curve.width as i32 + 1;
        let (radius, fill) = match curve.dots {
            Dots::None => continue,
            Dots::Filled => (radius, colour.filled()),
            Dots::Rings => (radius + 1, style::line(colour, 1)),
        };
        let dots = points.iter().map(|p| Circle::new(*p, radius, fill));
        chart.draw_series(dots)?;
    }
    Ok(())
}

/// Draws an interval as a line with short ends.
pub(super) fn whisker<X, Y>(
    chart: &mut Chart<'_, '_, X, Y>,
    x: f64,
    (low, high): (f64, f64),
    colour: RGBColor,
) -> Result<(), DrawError>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    let stroke = style::line(colour, 1);
    let line = PathElement::new(vec![(x, low), (x, high)], stroke);
    chart.draw_series(std::iter::once(line))?;
    // In pixels, since an axis may be logarithmic.
    for y in [low, high] {
        let end = PathElement::new(vec![(-4, 0), (4, 0)], stroke);
        chart.draw_series(std::iter::once(EmptyElement::at((x, y)) + end))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_is_a_stair_from_0_to_100_per_cent() {
        let curve = Curve::distribution("times", vec![3.0, 1.0]);
        let stair = [(1.0, 0.0), (1.0, 50.0), (3.0, 50.0), (3.0, 100.0)];
        assert_eq!(curve.points, stair);
        assert_eq!(Curve::distribution("none", Vec::new()).points, []);
    }
}
