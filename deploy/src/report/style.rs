//! Colours and fonts of the plots.

use plotters::style::{Color, IntoFont, RGBColor, ShapeStyle, TextStyle};

/// Text, axes.
pub const INK: RGBColor = RGBColor(45, 52, 64);
/// Less important text.
pub const MUTED: RGBColor = RGBColor(120, 128, 140);
/// Grid.
pub const GRID: RGBColor = RGBColor(230, 233, 238);
/// Capacity, fair share.
pub const REFERENCE: RGBColor = RGBColor(160, 166, 176);
/// Ratewright.
pub const OURS: RGBColor = RGBColor(0, 114, 178);
/// The baseline.
pub const BASELINE: RGBColor = RGBColor(213, 94, 0);

/// Distinguishable colours, also for the colour-blind (Okabe–Ito, yellow darkened).
const PALETTE: [RGBColor; 9] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(196, 158, 0),
    RGBColor(120, 94, 170),
    RGBColor(110, 70, 40),
    RGBColor(90, 90, 90),
];

/// Colour of the `index`-th line.
#[must_use]
pub fn colour(index: usize) -> RGBColor {
    PALETTE[index % PALETTE.len()]
}

/// A text style.
#[must_use]
pub fn font(size: u32, colour: RGBColor) -> TextStyle<'static> {
    ("DejaVu Sans, Helvetica, Arial, sans-serif", size)
        .into_font()
        .color(&colour)
}

/// A line style.
#[must_use]
pub fn line(colour: RGBColor, width: u32) -> ShapeStyle {
    colour.stroke_width(width)
}
