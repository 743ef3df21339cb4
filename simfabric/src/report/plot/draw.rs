//! The frame of a picture: titles, legend, the grid of panels, axes and references of a panel.

use indexmap::IndexMap;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::style::{self, GRID, INK, MUTED, REFERENCE};
use super::{Content, Mark, Panel, Picture, bars, lines};
use crate::report::commit::COMMIT;
use crate::report::figure::short;

/// Whatever the drawing library may report.
pub(super) type Failure = Box<dyn std::error::Error>;
/// A part of the picture.
pub(super) type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// A panel's plane.
pub(super) type Chart<'a, 'b, X, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>;

const MARGIN: i32 = 24;
const TITLES: u32 = 66;
const LEGEND_ROW: u32 = 22;
/// Average width of a letter of the legend, in pixels.
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
    pub(super) fn svg(&self) -> Result<String, Failure> {
        let columns = self.columns.max(1);
        let rows = self.panels.len().div_ceil(columns).max(1);
        let width = self.panel_size.0 * columns as u32;
        let keys = self.keys();
        let legend_rows = layout(&keys, width).last().map_or(0, |at| at.1 + 1);
        let head = TITLES + legend_rows * LEGEND_ROW;
        let height = head + self.panel_size.1 * rows as u32;
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
            root.fill(&WHITE)?;
            let (top, body) = root.split_vertically(head);
            self.titles(&top)?;
            legend(&top, &keys, width)?;
            for (area, panel) in body.split_evenly((rows, columns)).iter().zip(&self.panels) {
                panel.draw(area)?;
            }
            root.present()?;
        }
        Ok(svg)
    }

    fn titles(&self, top: &Canvas<'_>) -> Result<(), Failure> {
        top.draw(&Text::new(
            self.title.clone(),
            (MARGIN, 14),
            style::font(20, INK),
        ))?;
        let subtitle = if self.subtitle.is_empty() {
            COMMIT.to_owned()
        } else {
            format!("{} · {}", self.subtitle, COMMIT)
        };
        top.draw(&Text::new(subtitle, (MARGIN, 42), style::font(12, MUTED)))?;
        Ok(())
    }

    /// One entry for each name, in the order of first appearance.
    fn keys(&self) -> IndexMap<String, Key> {
        let mut keys = IndexMap::new();
        for panel in &self.panels {
            match &panel.content {
                Content::Lines(lines) => {
                    for line in lines {
                        let key = if line.dashed { Key::Dashed } else { Key::Solid };
                        keys.entry(line.name.clone()).or_insert(key(line.colour));
                    }
                }
                Content::Bars { series, .. } => {
                    for bars in series {
                        let key = if bars.hollow { Key::Hollow } else { Key::Block };
                        keys.entry(bars.name.clone()).or_insert(key(bars.colour));
                    }
                }
            }
        }
        keys
    }
}

/// Where each entry of the legend goes: x in pixels, and the row.
fn layout(keys: &IndexMap<String, Key>, width: u32) -> Vec<(i32, u32)> {
    let (mut x, mut row) = (MARGIN, 0);
    let mut places = Vec::with_capacity(keys.len());
    for name in keys.keys() {
        let wide = 50 + name.chars().count() as i32 * LETTER;
        if x > MARGIN && x + wide > width as i32 - MARGIN {
            (x, row) = (MARGIN, row + 1);
        }
        places.push((x, row));
        x += wide;
    }
    places
}

fn legend(top: &Canvas<'_>, keys: &IndexMap<String, Key>, width: u32) -> Result<(), Failure> {
    for ((name, key), (x, row)) in keys.iter().zip(layout(keys, width)) {
        let y = (TITLES + row * LEGEND_ROW) as i32;
        let block = [(x, y + 1), (x + 22, y + 11)];
        let stroke = |from: i32, to: i32, colour: RGBColor| {
            top.draw(&PathElement::new(
                vec![(x + from, y + 6), (x + to, y + 6)],
                style::line(colour, 3),
            ))
        };
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
    fn draw(&self, area: &Canvas<'_>) -> Result<(), Failure> {
        let (low, high) = self.y_range();
        let linear_x = self.x_range();
        match (
            self.x.log && matches!(self.content, Content::Lines(_)),
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

    fn x_range(&self) -> (f64, f64) {
        if let Content::Bars { groups, .. } = &self.content {
            return (0.0, groups.len().max(1) as f64);
        }
        lines::x_range(self)
    }

    fn on<X, Y>(&self, area: &Canvas<'_>, x: X, y: Y) -> Result<(), Failure>
    where
        X: AsRangedCoord<Value = f64>,
        Y: AsRangedCoord<Value = f64>,
        X::CoordDescType: ValueFormatter<f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, style::font(15, INK))
            .margin_left(12)
            .margin_right(22)
            .margin_bottom(8)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(x, y)?;
        let label = |value: &f64| axis_label(*value);
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
            .x_label_formatter(&label)
            .y_label_formatter(&label);
        if matches!(self.content, Content::Bars { .. }) {
            mesh.disable_x_mesh().x_labels(0);
        }
        mesh.draw()?;
        let (x_low, x_high) = self.x_range();
        for mark in &self.marks {
            let left = self.crosses_label(mark, false) && !self.crosses_label(mark, true);
            draw_mark(&mut chart, mark, left, (x_low, x_high), self.y_range())?;
        }
        match &self.content {
            Content::Lines(lines) => {
                lines::draw(&mut chart, lines, (x_low, x_high), self.y_range())
            }
            Content::Bars { groups, series } => {
                let (range, log) = (self.y_range(), self.y.log);
                bars::draw(&mut chart, area, groups, series, &self.marks, range, log)
            }
        }
    }
}

impl Panel {
    /// Whether a line goes through where a mark's text would stand: above the mark, by a third of
    /// the panel at the left or right end.
    fn crosses_label(&self, mark: &Mark, left: bool) -> bool {
        let Content::Lines(lines) = &self.content else {
            return false;
        };
        let share = |value: f64, (low, high): (f64, f64), log: bool| {
            let of = |v: f64| {
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
        lines.iter().any(|line| {
            line.points.windows(2).any(|ends| {
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

/// A value beside an axis: no more digits than it needs, thousands as `k`, millions as `M`.
fn axis_label(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{}M", short(value / 1e6)),
        v if v >= 1e4 => format!("{}k", short(value / 1e3)),
        v if v < 1e-9 => "0".to_owned(),
        _ => short(value),
    }
}

fn draw_mark<X, Y>(
    chart: &mut Chart<'_, '_, X, Y>,
    mark: &Mark,
    left: bool,
    (x_low, x_high): (f64, f64),
    (low, high): (f64, f64),
) -> Result<(), Failure>
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
    // At the right end, where most curves have ended, unless one goes through there.
    let (end, inward, side) = if left {
        (x_low, 6, HPos::Left)
    } else {
        (x_high, -3, HPos::Right)
    };
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
