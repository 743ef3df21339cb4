//! Lines over an axis: one or two panels, a legend beside each.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use ratewright_simfabric::report::commit::COMMIT;
use ratewright_simfabric::report::plot::style::{self, GRID, INK, MUTED, REFERENCE};

/// A line of a panel.
#[derive(Debug, Clone)]
pub struct ChartLine {
    /// In the legend.
    pub name: String,
    /// Colour, by index; lines that belong together share one.
    pub colour: usize,
    /// Drawn dashed.
    pub dashed: bool,
    /// Drawn wider, to stand out.
    pub strong: bool,
    /// x and y.
    pub points: Vec<(f64, f64)>,
}

/// A panel.
#[derive(Debug, Clone)]
pub struct Panel {
    /// Above it.
    pub title: String,
    /// Name of the x axis.
    pub x_name: &'static str,
    /// Name of the y axis.
    pub y_name: &'static str,
    /// Ends of the x axis.
    pub x: (f64, f64),
    /// Texts at 1, 2, … on the x axis in place of numbers; empty for numbers.
    pub x_names: Vec<String>,
    /// Ends of the y axis; values outside are drawn at its ends.
    pub y: (f64, f64),
    /// True if the y axis is logarithmic.
    pub log: bool,
    /// Horizontal reference lines, with what they stand for.
    pub references: Vec<(f64, String)>,
    /// Start of the references' texts, as a share of the x axis.
    pub label_at: f64,
    /// A vertical reference line.
    pub at_x: Option<(f64, String)>,
    /// The lines.
    pub lines: Vec<ChartLine>,
}

/// A chart.
#[derive(Debug, Clone)]
pub struct Chart {
    /// At the top.
    pub title: String,
    /// Under the title; the program's commit is added.
    pub subtitle: String,
    /// Side by side.
    pub panels: Vec<Panel>,
}

const PANEL_WIDTH: u32 = 760;
const HEIGHT: u32 = 600;
const HEAD: u32 = 68;
const LEGEND_ROW: i32 = 20;
const LEGEND_COLUMNS: i32 = 3;
/// Room above the legend.
const LEGEND_GAP: i32 = 18;

type ChartArea<'a> = DrawingArea<SVGBackend<'a>, Shift>;

impl Chart {
    /// Draws the chart into `file`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn draw(&self, file: &Path) -> Result<()> {
        self.render(file)
            .map_err(|error| anyhow!("drawing {}: {error}", file.display()))
    }

    fn render(&self, file: &Path) -> Result<(), Box<dyn std::error::Error>> {
        let count = self.panels.len().max(1);
        let size = (PANEL_WIDTH * count as u32, HEIGHT);
        let root = SVGBackend::new(file, size).into_drawing_area();
        root.fill(&WHITE)?;
        let (head, body) = root.split_vertically(HEAD);
        head.draw(&Text::new(
            self.title.clone(),
            (24, 16),
            style::font(21, INK),
        ))?;
        let subtitle = format!("{} · {COMMIT}", self.subtitle);
        head.draw(&Text::new(subtitle, (24, 45), style::font(13, MUTED)))?;
        for (area, panel) in body.split_evenly((1, count)).iter().zip(&self.panels) {
            panel.render(area)?;
        }
        root.present()?;
        Ok(())
    }
}

impl Panel {
    fn render(&self, area: &ChartArea<'_>) -> Result<(), Box<dyn std::error::Error>> {
        // Rounded up. The legend takes its height from the plot, so that all panels end together.
        let rows = (self.lines.len() as i32 + LEGEND_COLUMNS - 1) / LEGEND_COLUMNS;
        let legend_height = rows * LEGEND_ROW + LEGEND_GAP;
        let (plot, legend) = area.split_vertically(HEIGHT - HEAD - legend_height as u32);
        // Two types of axis: the scale is part of the chart's type.
        if self.log {
            let range = (self.y.0..self.y.1).log_scale();
            self.lines_on(&plot, range)?;
        } else {
            self.lines_on(&plot, self.y.0..self.y.1)?;
        }
        self.legend(&legend)
    }

    fn lines_on<Y>(
        &self,
        area: &ChartArea<'_>,
        y_range: Y,
    ) -> Result<(), Box<dyn std::error::Error>>
    where
        Y: plotters::coord::ranged1d::AsRangedCoord<Value = f64>,
        Y::CoordDescType: plotters::coord::ranged1d::ValueFormatter<f64>,
    {
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, style::font(16, INK))
            .margin_left(12)
            .margin_right(22)
            .x_label_area_size(44)
            .y_label_area_size(66)
            .build_cartesian_2d(self.x.0..self.x.1, y_range)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(MUTED)
            .label_style(style::font(12, INK))
            .axis_desc_style(style::font(13, INK))
            .x_desc(self.x_name)
            .y_desc(self.y_name)
            .x_labels(9)
            .y_labels(9)
            .y_label_formatter(&|v| short(*v))
            .x_label_formatter(&|x| self.x_label(*x))
            .draw()?;
        let ink = style::line(REFERENCE, 1);
        for (y, name) in &self.references {
            let ends = [(self.x.0, *y), (self.x.1, *y)];
            chart.draw_series(DashedLineSeries::new(ends, 4, 4, ink))?;
            let at = (
                self.x.0 + (self.x.1 - self.x.0) * (self.label_at + 0.01),
                *y,
            );
            let text =
                EmptyElement::at(at) + Text::new(name.clone(), (0, 5), style::font(11, MUTED));
            chart.draw_series(std::iter::once(text))?;
        }
        if let Some((x, name)) = &self.at_x {
            let ends = [(*x, self.y.0), (*x, self.y.1)];
            chart.draw_series(DashedLineSeries::new(ends, 4, 4, ink))?;
            let text = EmptyElement::at((*x, self.y.1))
                + Text::new(name.clone(), (5, 4), style::font(11, MUTED));
            chart.draw_series(std::iter::once(text))?;
        }
        for line in &self.lines {
            let ink = line.ink();
            let points: Vec<(f64, f64)> = line
                .points
                .iter()
                // A point beyond the axis is drawn at its end.
                .map(|&(x, y)| (x, y.clamp(self.y.0, self.y.1)))
                .collect();
            // Plotters has no dashed stroke: a dashed line is a series of its own kind.
            if line.dashed {
                chart.draw_series(DashedLineSeries::new(points.clone(), 6, 4, ink))?;
            } else {
                chart.draw_series(LineSeries::new(points.clone(), ink))?;
            }
            let (radius, dot) = line.dot();
            chart.draw_series(points.into_iter().map(|at| Circle::new(at, radius, dot)))?;
        }
        Ok(())
    }

    fn x_label(&self, x: f64) -> String {
        if self.x_names.is_empty() {
            return short(x);
        }
        // Places count from 1; the axis also asks for labels between and beyond them.
        let place = (x.round() - 1.0).max(0.0) as usize;
        let is_place = (x - x.round()).abs() < 1e-6 && x >= 1.0;
        let name = self.x_names.get(place).filter(|_| is_place);
        name.cloned().unwrap_or_default()
    }

    fn legend(&self, area: &ChartArea<'_>) -> Result<(), Box<dyn std::error::Error>> {
        let column = (PANEL_WIDTH as i32 - 80) / LEGEND_COLUMNS;
        let rows = (self.lines.len() as i32 + LEGEND_COLUMNS - 1) / LEGEND_COLUMNS;
        for (i, line) in self.lines.iter().enumerate() {
            let (x, y) = (
                // Down first, then across: lines that belong together stay in a column.
                78 + i as i32 / rows * column,
                i as i32 % rows * LEGEND_ROW + LEGEND_GAP,
            );
            let (dash, gap) = if line.dashed { (6, 4) } else { (26, 0) };
            for from in (0..26).step_by(dash as usize + gap as usize) {
                let ends = [(x + from, y), (x + from + dash, y)];
                area.draw(&PathElement::new(ends, line.ink()))?;
            }
            let (radius, dot) = line.dot();
            area.draw(&Circle::new((x + 13, y), radius, dot))?;
            area.draw(&Text::new(
                line.name.clone(),
                (x + 33, y - 7),
                style::font(12, INK),
            ))?;
        }
        Ok(())
    }
}

impl ChartLine {
    /// Dashed lines often lie on or near a plain one of their colour: rings around its dots.
    fn dot(&self) -> (i32, ShapeStyle) {
        let colour = style::colour(self.colour);
        if self.dashed {
            (4, colour.stroke_width(1))
        } else {
            (if self.strong { 4 } else { 3 }, colour.filled())
        }
    }

    fn ink(&self) -> ShapeStyle {
        style::line(style::colour(self.colour), if self.strong { 3 } else { 2 })
    }
}

/// Formats a number with the decimals that it needs, up to four.
fn short(value: f64) -> String {
    if value.abs() >= 1_000.0 {
        return format!("{value:.0}");
    }
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text.is_empty() || text == "-" {
        "0".to_owned()
    } else {
        text.to_owned()
    }
}
