//! The frame of a picture: titles, legend, and the grid of panels; a panel's axes and references.

use indexmap::IndexMap;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::canvas::{Canvas, Chart, DrawError};
use super::style::{self, GRID, INK, MUTED, REFERENCE};
use super::{Content, Mark, Panel, Picture, bars, curves};
use crate::commit::commit;

/// Distance of titles and legend from the sides, in pixels.
const MARGIN: i32 = 24;
/// Height of title and subtitle, in pixels.
const TITLES: u32 = 66;
/// Height of a row of the legend, in pixels.
const LEGEND_ROW: u32 = 22;
/// Most events that are named in a panel. With more, names would hide the curves.
const MOST_NAMED_EVENTS: usize = 8;
/// Average width of a letter of the legend, in pixels. SVG leaves the font to the viewer, so that
/// texts cannot be measured here.
const LETTER: i32 = 7;

/// An entry of the legend.
#[derive(Clone, Copy, PartialEq)]
enum Key {
    Solid(RGBColor),
    Dashed(RGBColor),
    Block(RGBColor),
    Hollow(RGBColor),
}

impl Picture {
    /// The picture as SVG.
    pub(super) fn svg(&self) -> Result<String, DrawError> {
        let columns = self.columns.max(1);
        let rows = self.panels.len().div_ceil(columns).max(1);
        let width = self.panel_size.0 * columns as u32;
        let keys = self.keys();
        let legend_rows = layout(&keys, width).last().map_or(0, |at| at.1 + 1);
        let head = TITLES + legend_rows * LEGEND_ROW;
        let heights: Vec<u32> = (0..rows).map(|row| self.row_height(row)).collect();
        let height = head + heights.iter().sum::<u32>();
        // Into a string: a failure half-way leaves no half a file. The root borrows it until its
        // block ends.
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
            root.fill(&WHITE)?;
            let (top, body) = root.split_vertically(head);
            self.titles(&top)?;
            legend(&top, &keys, width)?;
            let mut rest = body;
            for (panels, height) in self.panels.chunks(columns).zip(heights) {
                let (row, below) = rest.split_vertically(height);
                for (area, panel) in row.split_evenly((1, columns)).iter().zip(panels) {
                    panel.draw(area)?;
                }
                rest = below;
            }
            root.present()?;
        }
        Ok(svg)
    }

    /// Height of a row of panels in pixels.
    fn row_height(&self, row: usize) -> u32 {
        self.row_heights
            .get(row)
            .copied()
            .unwrap_or(self.panel_size.1)
    }

    /// Draws title and subtitle.
    fn titles(&self, top: &Canvas<'_>) -> Result<(), DrawError> {
        top.draw(&Text::new(
            self.title.clone(),
            (MARGIN, 14),
            style::font(20, INK),
        ))?;
        // A picture that is passed on without its data still says where it comes from.
        let subtitle = if self.subtitle.is_empty() {
            commit().to_owned()
        } else {
            format!("{} · {}", self.subtitle, commit())
        };
        top.draw(&Text::new(subtitle, (MARGIN, 42), style::font(12, MUTED)))?;
        Ok(())
    }

    /// Legend entries by name, in the order of first appearance.
    fn keys(&self) -> IndexMap<String, Key> {
        let mut keys = IndexMap::new();
        for panel in &self.panels {
            match &panel.content {
                Content::Curves(curves) => {
                    for curve in curves.iter().filter(|c| !c.name.is_empty()) {
                        let key = if curve.dashed {
                            Key::Dashed
                        } else {
                            Key::Solid
                        };
                        keys.entry(curve.name.clone())
                            .or_insert(key(curve.colour.unwrap_or(INK)));
                    }
                }
                Content::Bars { series, .. } => {
                    for bars in series {
                        let key = if bars.hollow { Key::Hollow } else { Key::Block };
                        keys.entry(bars.name.clone())
                            .or_insert(key(bars.colour.unwrap_or(INK)));
                    }
                }
            }
        }
        keys
    }
}

/// Places of the legend's entries: x in pixels, and the row.
fn layout(keys: &IndexMap<String, Key>, width: u32) -> Vec<(i32, u32)> {
    let (mut x, mut row) = (MARGIN, 0);
    let mut places = Vec::with_capacity(keys.len());
    for name in keys.keys() {
        let wide = 50 + name.chars().count() as i32 * LETTER;
        // The first name of a row stays there, however long it is.
        if x > MARGIN && x + wide > width as i32 - MARGIN {
            (x, row) = (MARGIN, row + 1);
        }
        places.push((x, row));
        x += wide;
    }
    places
}

/// Draws the legend below the titles.
fn legend(top: &Canvas<'_>, keys: &IndexMap<String, Key>, width: u32) -> Result<(), DrawError> {
    for ((name, key), (x, row)) in keys.iter().zip(layout(keys, width)) {
        let y = (TITLES + row * LEGEND_ROW) as i32;
        let block = [(x, y + 1), (x + 22, y + 11)];
        let stroke = |from: i32, to: i32, colour: RGBColor| {
            top.draw(&PathElement::new(
                vec![(x + from, y + 6), (x + to, y + 6)],
                style::line(colour, 3),
            ))
        };
        // Strokes are 3 pixels wide, wider than most curves, so that their colours can be
        // distinguished.
        match *key {
            Key::Solid(colour) => stroke(0, 22, colour)?,
            Key::Dashed(colour) => {
                stroke(0, 6, colour)?;
                stroke(8, 14, colour)?;
                stroke(16, 22, colour)?;
            }
            Key::Block(colour) => top.draw(&Rectangle::new(block, colour.filled()))?,
            Key::Hollow(colour) => top.draw(&Rectangle::new(block, style::line(colour, 2)))?,
        }
        top.draw(&Text::new(name.clone(), (x + 28, y), style::font(12, INK)))?;
    }
    Ok(())
}

impl Panel {
    /// Draws the panel. The drawing library has a type for each kind of axis, hence the four cases.
    fn draw(&self, area: &Canvas<'_>) -> Result<(), DrawError> {
        let (low, high) = self.y_range();
        let linear_x = self.x_range();
        match (
            // Groups of bars stand side by side, whatever their axis.
            self.x.log && matches!(self.content, Content::Curves(_)),
            self.y.log,
        ) {
            (false, false) => self.on(area, linear_x.0..linear_x.1, low..high),
            (false, true) => self.on(area, linear_x.0..linear_x.1, (low..high).log_scale()),
            (true, false) => self.on(area, (linear_x.0..linear_x.1).log_scale(), low..high),
            (true, true) => self.on(
                area,
                (linear_x.0..linear_x.1).log_scale(),
                (low..high).log_scale(),
            ),
        }
    }

    /// Draws the panel on these axes.
    fn on<X, Y>(&self, area: &Canvas<'_>, x: X, y: Y) -> Result<(), DrawError>
    where
        X: AsRangedCoord<Value = f64>,
        Y: AsRangedCoord<Value = f64>,
        X::CoordDescType: ValueFormatter<f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let mut builder = ChartBuilder::on(area);
        // An empty caption would still take its height.
        if !self.title.is_empty() {
            builder.caption(&self.title, style::font(15, INK));
        }
        let mut chart = builder
            .margin_left(12)
            .margin_right(22)
            .margin_bottom(8)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(x, y)?;
        let x_text = |value: &f64| self.x.text(*value);
        let y_text = |value: &f64| self.y.text(*value);
        let mut mesh = chart.configure_mesh();
        mesh.light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(MUTED)
            .label_style(style::font(12, INK))
            .axis_desc_style(style::font(13, INK))
            .x_desc(self.x.label.clone())
            .y_desc(self.y.label.clone())
            .x_labels(8)
            .y_labels(7)
            .x_label_formatter(&x_text)
            .y_label_formatter(&y_text);
        if !self.x.names.is_empty() {
            // The library chooses a step that gives at most this number of grid lines: one per
            // name.
            mesh.x_labels(self.x.names.len() + 1);
        }
        if matches!(self.content, Content::Bars { .. }) {
            mesh.disable_x_mesh().x_labels(0);
        }
        mesh.draw()?;
        let (x_range, y_range) = (self.x_range(), self.y_range());
        // References before the data, which SVG then paints over them.
        for mark in &self.marks {
            let left = self.crosses_label(mark, false) && !self.crosses_label(mark, true);
            draw_mark(&mut chart, mark, left, x_range, y_range)?;
        }
        for (number, event) in self.events.iter().enumerate() {
            let named = self.events.len() <= MOST_NAMED_EVENTS;
            draw_event(&mut chart, event, named.then_some(number), x_range, y_range)?;
        }
        match &self.content {
            Content::Curves(curves) => curves::draw(&mut chart, curves, x_range, y_range),
            Content::Bars { groups, series } => {
                let (marks, log) = (&self.marks, self.y.log);
                bars::draw(&mut chart, area, groups, series, marks, y_range, log)
            }
        }
    }

    /// True if a curve passes the place of a mark's text: above the mark, in the left or right
    /// third of the panel.
    fn crosses_label(&self, mark: &Mark, left: bool) -> bool {
        let Content::Curves(curves) = &self.content else {
            return false;
        };
        let share = |value: f64, (low, high): (f64, f64), log: bool| {
            let of = |v: f64| {
                // Values that a logarithmic axis does not have lie far below it.
                if log {
                    v.max(f64::MIN_POSITIVE).ln()
                } else {
                    v
                }
            };
            (of(value) - of(low)) / (of(high) - of(low))
        };
        let (x_range, y_range) = (self.x_range(), self.y_range());
        let at = share(mark.to, y_range, self.y.log);
        let inside = |(x, y): (f64, f64)| {
            let beside = if left { x < 1.0 / 3.0 } else { x > 2.0 / 3.0 };
            beside && (at - 0.01..at + 0.08).contains(&y)
        };
        // 32 points of each segment will do: a text is longer than the distance between them.
        curves.iter().any(|curve| {
            curve.points.windows(2).any(|ends| {
                let [from, to] = [ends[0], ends[1]].map(|(x, y)| {
                    let x = share(x, x_range, self.x.log);
                    (x, share(y, y_range, self.y.log))
                });
                (0_u32..=32).map(|step| f64::from(step) / 32.0).any(|part| {
                    inside((
                        from.0 + part * (to.0 - from.0),
                        from.1 + part * (to.1 - from.1),
                    ))
                })
            })
        })
    }
}

/// Draws a horizontal reference with its text, at the left or right end.
fn draw_mark<X, Y>(
    chart: &mut Chart<'_, '_, X, Y>,
    mark: &Mark,
    left: bool,
    (x_low, x_high): (f64, f64),
    (low, high): (f64, f64),
) -> Result<(), DrawError>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    let (from, to) = (mark.from.clamp(low, high), mark.to.clamp(low, high));
    if mark.from < mark.to {
        chart.draw_series(std::iter::once(Rectangle::new(
            [(x_low, from), (x_high, to)],
            REFERENCE.mix(0.22).filled(),
        )))?;
    } else {
        chart.draw_series(std::iter::once(PathElement::new(
            vec![(x_low, from), (x_high, from)],
            style::line(REFERENCE, 1),
        )))?;
    }
    let (end, inward, side) = if left {
        (x_low, 6, HPos::Left)
    } else {
        (x_high, -3, HPos::Right)
    };
    // By pixels: texts have a distance from lines that no unit of the axes gives.
    let (px, py) = chart.backend_coord(&(end, to));
    chart.plotting_area().strip_coord_spec().draw(&Text::new(
        mark.text.clone(),
        {
            let (ax, ay) = chart.plotting_area().get_base_pixel();
            (px - ax + inward, py - ay - 3)
        },
        style::font(11, MUTED).pos(Pos::new(side, VPos::Bottom)),
    ))?;
    Ok(())
}

/// Draws a vertical reference. `number` is that of an event with a name: names stand at four
/// heights in turn, so that those of close events do not overlap.
fn draw_event<X, Y>(
    chart: &mut Chart<'_, '_, X, Y>,
    (x, text): &(f64, String),
    number: Option<usize>,
    (x_low, x_high): (f64, f64),
    (low, high): (f64, f64),
) -> Result<(), DrawError>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    let x = x.clamp(x_low, x_high);
    let stroke = style::line(REFERENCE, 1);
    chart.draw_series(DashedLineSeries::new([(x, low), (x, high)], 3, 4, stroke))?;
    if let Some(number) = number {
        let down = 4 + 14 * (number % 4) as i32;
        let text = Text::new(text.clone(), (5, down), style::font(11, MUTED));
        chart.draw_series(std::iter::once(EmptyElement::at((x, high)) + text))?;
    }
    Ok(())
}
