//! Colours and fonts of the pictures, the lab's too.

use plotters::style::{Color, IntoFont, RGBColor, ShapeStyle, TextStyle};

/// Text, axes.
pub const INK: RGBColor = RGBColor(45, 52, 64);
/// Less important text.
pub const MUTED: RGBColor = RGBColor(120, 128, 140);
/// Grid.
pub const GRID: RGBColor = RGBColor(230, 233, 238);
/// References: a capacity, a fair share, a paper's values.
pub const REFERENCE: RGBColor = RGBColor(150, 156, 166);
/// Flowtune or Ratewright.
pub const OURS: RGBColor = RGBColor(0, 114, 178);

/// Distinguishable colours, the baseline's second, also for the colour-blind (Okabe–Ito, yellow
/// darkened).
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

/// The schemes whose colour is the same in every picture.
const NAMED: [(&str, usize); 9] = [
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

/// The colour of a scheme, by its name in any case and whatever surrounds it (`Cubic + sfqCoDel`);
/// another name gets a colour that depends on its letters alone.
#[must_use]
pub fn colour_of(name: &str) -> RGBColor {
    let lower = name.to_lowercase();
    let named = NAMED.iter().find(|(scheme, _)| lower.contains(scheme));
    let index = named.map_or_else(
        || {
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
