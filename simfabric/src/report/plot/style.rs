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
/// Colour of Flowtune and of Ratewright.
pub const OURS: RGBColor = RGBColor(0, 114, 178);

/// Colours that stay distinct for the colour-blind (Okabe and Ito, with a darker yellow). The
/// second is the baseline's.
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

/// Schemes with their index into [`PALETTE`], so that each has one colour in every picture.
const NAMED: [(&str, usize); 10] = [
    ("ratewright", 0),
    ("flowtune", 0),
    ("dctcp", 1),
    ("pfabric", 2),
    ("sfqcodel", 3),
    ("xcp", 5),
    ("newreno", 7),
    ("cubic", 6),
    ("fastpass", 4),
    ("paper", 8),
];

/// The `index`-th colour.
#[must_use]
pub const fn colour(index: usize) -> RGBColor {
    PALETTE[index % PALETTE.len()]
}

/// The colour of a scheme whose name is part of `name`, in any case (`Cubic + sfqCoDel`). Another
/// name gets a colour that depends on its letters alone.
#[must_use]
pub fn colour_of(name: &str) -> RGBColor {
    let lower = name.to_lowercase();
    let named = NAMED.iter().find(|(scheme, _)| lower.contains(scheme));
    let index = named.map_or_else(
        || {
            // A polynomial hash: the same in every run, whatever else is in the picture.
            lower
                .bytes()
                .fold(0, |sum, b| (sum * 31 + usize::from(b)) % 8_191)
        },
        |(_, index)| *index,
    );
    colour(index)
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
