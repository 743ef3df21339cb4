//! Colours and fonts, common to all pictures.

pub use plotters::style::RGBColor;
use plotters::style::{Color, IntoFont, ShapeStyle, TextStyle};

/// Colour of text.
pub const INK: RGBColor = RGBColor(45, 52, 64);
/// Colour of axes and of less important text.
pub const MUTED: RGBColor = RGBColor(120, 128, 140);
/// Colour of the grid.
pub const GRID: RGBColor = RGBColor(230, 233, 238);
/// Colour of references: a capacity, a fair share, a paper's values.
pub const REFERENCE: RGBColor = RGBColor(150, 156, 166);
/// Colour of Ratewright, and the first of all.
pub const OURS: RGBColor = RGBColor(0, 114, 178);

/// Colours that stay distinct for the colour-blind (Okabe and Ito, with a darker yellow).
const PALETTE: [RGBColor; 9] = [
    OURS,
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(196, 158, 0),
    RGBColor(120, 94, 170),
    RGBColor(110, 70, 40),
    RGBColor(90, 90, 90),
];

/// The `index`-th colour.
#[must_use]
pub const fn colour(index: usize) -> RGBColor {
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
