//! Picture as SVG, without script or style sheet, readable in a browser and in a document.

use std::fmt::{self, Write};

use super::layout::{DOT_PITCH, Detail, Layout, MAX_DOTS, Rect, layout};
use super::{Cable, CableState, cables, counted, level_name, levels, usual};
use crate::ids::RackId;
use crate::model::{Node, TopologyKind};
use crate::topology::Topology;
use crate::units::{format_capacity_bps, format_delay_ns};

const LEVEL_COLOURS: [&str; 3] = ["#64748b", "#2563eb", "#7c3aed"];
const FAILED: &str = "#dc2626";

/// Maximum number of cables that differ from their level and are labelled in the picture.
const MAX_LABELS: usize = 16;

/// The network as a picture: tiers as rows, racks and pods grouped, cables coloured by level,
/// failed ones dashed and red, a legend. Large networks show racks as grids of dots, very large
/// ones only their first and last racks.
///
/// Attributes let a page colour it anew: `data-up` and `data-down` are the ids of a cable's or a
/// dot's two links, `data-rack` is the rack of a trunk, classes name the kinds of elements.
#[must_use]
pub fn to_svg(net: &Topology) -> String {
    let layout = layout(net);
    let mut out = String::new();
    Drawing {
        net,
        layout: &layout,
        out: &mut out,
    }
    .draw()
    .expect("writing to a string does not fail");
    out
}

struct Drawing<'a> {
    net: &'a Topology,
    layout: &'a Layout,
    out: &'a mut String,
}

impl Drawing<'_> {
    fn draw(&mut self) -> fmt::Result {
        let (w, h) = (self.layout.width, self.layout.height);
        writeln!(
            self.out,
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w:.0} {h:.0}" width="{w:.0}" height="{h:.0}" font-family="system-ui, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif" font-size="11">"#
        )?;
        writeln!(self.out, "<title>{}</title>", self.headline())?;
        writeln!(
            self.out,
            r#"<defs><marker id="lost" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="{FAILED}"/></marker></defs>"#
        )?;
        writeln!(
            self.out,
            r##"<rect class="paper" width="100%" height="100%" fill="#ffffff"/>"##
        )?;
        self.heading()?;
        self.groups()?;
        self.links()?;
        self.racks_as_dots()?;
        self.nodes()?;
        self.legend()?;
        writeln!(self.out, "</svg>")
    }

    fn headline(&self) -> String {
        let kind = match self.net.kind() {
            TopologyKind::BigSwitch => "Big switch".into(),
            TopologyKind::TwoTierClos => "Two-tier Clos".into(),
            TopologyKind::FatTree => format!("Fat tree, k = {}", self.net.pods()),
            TopologyKind::ThreeTierClos => "Three-tier Clos".to_owned(),
        };
        format!(
            "{kind}: {} in {}",
            counted(self.net.hosts().len(), "host"),
            counted(self.net.racks().len(), "rack")
        )
    }

    fn heading(&mut self) -> fmt::Result {
        writeln!(
            self.out,
            r##"<text x="24" y="30" font-size="17" font-weight="600" fill="#0f172a">{}</text>"##,
            self.headline()
        )?;
        let ecmp = self.net.ecmp();
        let way = if ecmp.symmetric {
            "symmetric ECMP"
        } else {
            "ECMP"
        };
        let paths = if self.net.kind() == TopologyKind::BigSwitch {
            "only edge links are modelled".into()
        } else {
            format!("{way}, seed {}", ecmp.seed)
        };
        writeln!(
            self.out,
            r##"<text x="24" y="48" font-size="12" fill="#64748b">{paths} · epoch {}</text>"##,
            self.net.epoch()
        )
    }

    /// Draws pods, racks, and the marks between them.
    fn groups(&mut self) -> fmt::Result {
        for (pod, r) in &self.layout.pods {
            self.rect("pod", r, 12.0, "#f8fafc", "#e2e8f0")?;
            let (x, y) = (r.centre_x(), r.bottom() - 9.0);
            writeln!(
                self.out,
                r##"<text x="{x:.1}" y="{y:.1}" text-anchor="middle" fill="#64748b" font-weight="600">pod {}</text>"##,
                pod + 1
            )?;
        }
        for (id, r) in &self.layout.racks {
            self.rect("rack", r, 8.0, "#f1f5f9", "#cbd5e1")?;
            let (x, y) = (r.centre_x(), r.bottom() - 8.0);
            let name = &self.net.racks()[id.index()].name;
            writeln!(
                self.out,
                r##"<text x="{x:.1}" y="{y:.1}" text-anchor="middle" font-size="10" fill="#64748b">{name}</text>"##
            )?;
        }
        for (name, y) in &self.layout.rows {
            writeln!(
                self.out,
                r##"<text transform="translate(17 {y:.1}) rotate(-90)" text-anchor="middle" font-size="10" fill="#94a3b8">{name}</text>"##
            )?;
        }
        for gap in &self.layout.gaps {
            writeln!(
                self.out,
                r##"<text x="{:.1}" y="{:.1}" text-anchor="middle" fill="#64748b" font-style="italic">{}</text>"##,
                gap.x, gap.y, gap.text
            )?;
        }
        Ok(())
    }

    fn rect(
        &mut self,
        class: &str,
        r: &Rect,
        radius: f64,
        fill: &str,
        stroke: &str,
    ) -> fmt::Result {
        writeln!(
            self.out,
            r#"<rect class="{class}" x="{:.1}" y="{:.1}" width="{:.1}" height="{:.1}" rx="{radius}" fill="{fill}" stroke="{stroke}"/>"#,
            r.x, r.y, r.w, r.h
        )
    }

    /// Draws the cables, working ones first so that failed ones lie on top.
    fn links(&mut self) -> fmt::Result {
        let net = self.net;
        for level in levels(net) {
            // Only cables whose ends are both in the picture.
            let of_level: Vec<Cable<'_>> = cables(net)
                .filter(|c| c.up.level == level && self.ends(c).is_some())
                .collect();
            // Thousands of overlapping curves would be one solid area.
            let opacity = (8.0 / (of_level.len() as f64).sqrt().max(1.0)).clamp(0.25, 0.9);
            writeln!(
                self.out,
                r#"<g fill="none" stroke="{}" stroke-width="{}" stroke-opacity="{opacity:.2}">"#,
                LEVEL_COLOURS[usize::from(level) - 1],
                if of_level.len() > 200 { 1.0 } else { 1.6 }
            )?;
            for cable in of_level.iter().filter(|c| c.state(net) == CableState::Up) {
                self.cable(cable, "")?;
            }
            writeln!(self.out, "</g>")?;
        }
        writeln!(
            self.out,
            r#"<g fill="none" stroke="{FAILED}" stroke-width="1.8" stroke-dasharray="6 4">"#
        )?;
        for cable in cables(net) {
            match cable.state(net) {
                CableState::Up => {}
                CableState::Failed => self.cable(&cable, "")?,
                CableState::HalfFailed(link) if link == cable.up.id => {
                    self.cable(&cable, r#" marker-end="url(#lost)""#)?;
                }
                CableState::HalfFailed(_) => self.cable(&cable, r#" marker-start="url(#lost)""#)?,
            }
        }
        writeln!(self.out, "</g>")?;
        self.labels()
    }

    /// Ends of a cable: from the upper edge of the lower node to the lower edge of the upper node.
    fn ends(&self, cable: &Cable<'_>) -> Option<(f64, f64, f64, f64)> {
        let (low, high) = (
            self.layout.nodes.get(&cable.up.from)?,
            self.layout.nodes.get(&cable.up.to)?,
        );
        // All hosts of a big switch hang off one wide box.
        let inside = (high.x..high.x + high.w).contains(&low.centre_x());
        let x = if cable.up.level == 1 && inside && high.w > 150.0 {
            low.centre_x()
        } else {
            high.centre_x()
        };
        Some((low.centre_x(), low.y, x, high.bottom()))
    }

    fn cable(&mut self, cable: &Cable<'_>, extra: &str) -> fmt::Result {
        let Some((x1, y1, x2, y2)) = self.ends(cable) else {
            return Ok(());
        };
        let class = match cable.state(self.net) {
            CableState::Up => "cable",
            CableState::Failed | CableState::HalfFailed(_) => "cable failed",
        };
        // Vertical at both ends, so that cables leave the boxes upright.
        let bend = (y1 - y2) * 0.45;
        let (low, high) = (
            self.net.node_name(cable.up.from),
            self.net.node_name(cable.up.to),
        );
        writeln!(
            self.out,
            r#"<path class="{class}" data-up="{}" data-down="{}" d="M{x1:.1} {y1:.1}C{x1:.1} {:.1} {x2:.1} {:.1} {x2:.1} {y2:.1}"{extra}><title>{low} – {high}: {}</title></path>"#,
            cable.up.id.0,
            cable.down.id.0,
            y1 - bend,
            y2 + bend,
            cable.capacity()
        )
    }

    /// Capacities that differ from those of their level, written on their cables.
    fn labels(&mut self) -> fmt::Result {
        let net = self.net;
        let mut left = MAX_LABELS;
        for level in levels(net) {
            let common = usual(
                net.links()
                    .iter()
                    .filter(|l| l.level == level)
                    .map(|l| l.line_rate_bps),
            );
            let differs =
                |c: &Cable<'_>| (c.up.line_rate_bps, c.down.line_rate_bps) != (common, common);
            for cable in cables(net).filter(|c| c.up.level == level).filter(differs) {
                let Some((x1, y1, x2, y2)) = self.ends(&cable).filter(|_| left > 0) else {
                    continue;
                };
                left -= 1;
                // A third of the way up, where cables of one leaf have parted. On the curve
                // above, that is at 26 % of the width and 32 % of the height.
                let (x, y) = (x1 + (x2 - x1) * 0.26, y1 + (y2 - y1) * 0.32);
                writeln!(
                    self.out,
                    r##"<text x="{x:.1}" y="{y:.1}" text-anchor="middle" font-size="9.5" fill="#0f172a" stroke="#ffffff" stroke-width="3" paint-order="stroke">{}</text>"##,
                    cable.capacity()
                )?;
            }
        }
        Ok(())
    }

    /// Draws a dot for each host, red if it is cut off, and the number of hosts.
    fn racks_as_dots(&mut self) -> fmt::Result {
        if self.layout.detail != Detail::Dots {
            return Ok(());
        }
        for (id, r) in &self.layout.racks {
            let hosts = &self.net.racks()[id.index()].hosts;
            let rows = hosts.len().min(MAX_DOTS).div_ceil(self.layout.dots_per_row) as f64;
            let top = r.bottom() - 40.0 - (rows - 1.0) * DOT_PITCH;
            // Dots have no cables of their own: one line stands for all.
            self.trunk(*id, r, top - 8.0)?;
            for (i, host) in hosts.clone().take(MAX_DOTS).enumerate() {
                let in_row = (hosts.len().min(MAX_DOTS)).min(self.layout.dots_per_row) as f64;
                let x = r.centre_x()
                    + ((i % self.layout.dots_per_row) as f64 - (in_row - 1.0) / 2.0) * DOT_PITCH;
                let y = top + (i / self.layout.dots_per_row) as f64 * DOT_PITCH;
                let host = &self.net.hosts()[host as usize];
                let (up, down) = (
                    self.net.host_uplink(host.id),
                    self.net.host_downlink(host.id),
                );
                let whole = self.net.is_usable(up) && self.net.is_usable(down);
                let (fill, class) = if whole {
                    ("#475569", "dot")
                } else {
                    (FAILED, "dot failed")
                };
                writeln!(
                    self.out,
                    r#"<circle class="{class}" data-up="{}" data-down="{}" cx="{x:.1}" cy="{y:.1}" r="3" fill="{fill}"><title>{}</title></circle>"#,
                    up.0, down.0, host.name
                )?;
            }
            writeln!(
                self.out,
                r##"<text x="{:.1}" y="{:.1}" text-anchor="middle" font-size="10" fill="#334155">{}</text>"##,
                r.centre_x(),
                r.bottom() - 21.0,
                counted(hosts.len(), "host")
            )?;
        }
        Ok(())
    }

    /// Draws one thick line for all host links of a rack.
    fn trunk(&mut self, rack: RackId, r: &Rect, to_y: f64) -> fmt::Result {
        let leaf = self.net.racks()[rack.index()].leaf;
        let Some(leaf) = self.layout.nodes.get(&Node::Switch(leaf)) else {
            return Ok(());
        };
        writeln!(
            self.out,
            r#"<path class="trunk" data-rack="{3}" d="M{0:.1} {to_y:.1}V{1:.1}" fill="none" stroke="{2}" stroke-width="4"/>"#,
            r.centre_x(),
            leaf.bottom(),
            LEVEL_COLOURS[0],
            rack.0
        )
    }

    fn nodes(&mut self) -> fmt::Result {
        for (node, r) in &self.layout.nodes {
            match *node {
                Node::Switch(id) => {
                    let switch = &self.net.switches()[id.index()];
                    let (fill, stroke, text) = match (switch.up, switch.tier) {
                        (false, _) => ("#fee2e2", FAILED, FAILED),
                        (true, 1) => ("#e2e8f0", "#64748b", "#0f172a"),
                        (true, 2) => ("#dbeafe", "#2563eb", "#1e3a8a"),
                        (true, _) => ("#ede9fe", "#7c3aed", "#4c1d95"),
                    };
                    let class = if switch.up { "switch" } else { "switch failed" };
                    self.rect(class, r, 5.0, fill, stroke)?;
                    self.name(
                        &switch.name,
                        r,
                        r.y + 17.0,
                        text,
                        if switch.up {
                            ""
                        } else {
                            r#" text-decoration="line-through""#
                        },
                    )?;
                }
                Node::Host(id) => {
                    let host = &self.net.hosts()[id.index()];
                    let whole = self.net.is_usable(self.net.host_uplink(id))
                        && self.net.is_usable(self.net.host_downlink(id));
                    let (stroke, text) = if whole {
                        ("#94a3b8", "#0f172a")
                    } else {
                        (FAILED, FAILED)
                    };
                    let class = if whole { "host" } else { "host failed" };
                    self.rect(class, r, 4.0, "#ffffff", stroke)?;
                    self.name(&host.name, r, r.y + 16.0, text, "")?;
                    if let (Detail::Addresses, Some(prefix)) =
                        (self.layout.detail, host.prefixes.first())
                    {
                        let address = if prefix.prefix_len() == prefix.max_prefix_len() {
                            prefix.addr().to_string()
                        } else {
                            prefix.to_string()
                        };
                        let room = r.w / 4.9;
                        writeln!(
                            self.out,
                            r##"<text x="{:.1}" y="{:.1}" text-anchor="middle" font-size="9" fill="#64748b">{}</text>"##,
                            r.centre_x(),
                            r.y + 31.0,
                            shortened(&address, room as usize)
                        )?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes as much of a name as fits, with all of it as a tooltip.
    fn name(&mut self, name: &str, r: &Rect, y: f64, fill: &str, extra: &str) -> fmt::Result {
        let room = ((r.w - 4.0) / 6.4).max(0.0) as usize;
        let shown = shortened(name, room);
        let x = r.centre_x();
        writeln!(
            self.out,
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="middle" fill="{fill}"{extra}>{shown}<title>{name}</title></text>"#
        )
    }

    fn legend(&mut self) -> fmt::Result {
        let net = self.net;
        let y = self.layout.legend_y;
        writeln!(self.out, r#"<g class="legend">"#)?;
        let mut entries = Vec::new();
        for level in levels(net) {
            let of_level = || net.links().iter().filter(|l| l.level == level);
            let capacity = usual(of_level().map(|l| l.line_rate_bps));
            let delay = usual(of_level().map(|l| l.delay_ns));
            let differing = of_level().filter(|l| l.line_rate_bps != capacity).count();
            let but = if differing == 0 {
                String::new()
            } else {
                format!(", {differing} of {} differ", of_level().count())
            };
            let title = level_name(net, level);
            let detail = format!(
                "{} each way, {}{but}",
                format_capacity_bps(capacity),
                format_delay_ns(delay)
            );
            let look = format!(
                r#"stroke="{}" stroke-width="2.5""#,
                LEVEL_COLOURS[usize::from(level) - 1]
            );
            entries.push((look, title.to_owned(), detail));
        }
        if !net.is_whole() {
            let lost = net.links().iter().filter(|l| !net.is_usable(l.id)).count();
            let switches = net.switches().iter().filter(|s| !s.up).count();
            let detail = match switches {
                0 => counted(lost, "directed link"),
                n => format!(
                    "{}, {} with them",
                    counted(n, "switch"),
                    counted(lost, "directed link")
                ),
            };
            let look = format!(r#"stroke="{FAILED}" stroke-width="2" stroke-dasharray="6 4""#);
            entries.push((look, "failed; an arrow if one way only".into(), detail));
        }
        writeln!(
            self.out,
            r##"<path d="M24 {0:.1}H{1:.1}" stroke="#e2e8f0"/>"##,
            y,
            self.layout.width - 24.0
        )?;
        let step = ((self.layout.width - 48.0) / entries.len() as f64).min(270.0);
        for (i, (look, title, detail)) in entries.into_iter().enumerate() {
            let x = 24.0 + i as f64 * step;
            let line_y = y + 24.0;
            writeln!(self.out, r#"<path d="M{x:.1} {line_y:.1}h26" {look}/>"#)?;
            writeln!(
                self.out,
                r##"<text x="{:.1}" y="{:.1}" fill="#0f172a" font-weight="600">{title}</text>"##,
                x + 34.0,
                line_y + 4.0
            )?;
            writeln!(
                self.out,
                r##"<text x="{:.1}" y="{:.1}" fill="#64748b">{detail}</text>"##,
                x + 34.0,
                line_y + 19.0
            )?;
        }
        writeln!(self.out, "</g>")
    }
}

fn shortened(text: &str, room: usize) -> String {
    let count = text.chars().count();
    match room {
        _ if count <= room => text.to_owned(),
        0..=2 => String::new(),
        _ => text.chars().take(room - 1).chain(['…']).collect(),
    }
}
