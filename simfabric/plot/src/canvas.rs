//! Types of the drawing library that all drawing functions share.

use plotters::coord::Shift;
use plotters::prelude::*;

/// Any error of the drawing library.
pub(super) type DrawError = Box<dyn std::error::Error>;
/// Part of a picture that is drawn into.
pub(super) type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// Coordinate plane of a panel.
pub(super) type Chart<'a, 'b, X, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>;
