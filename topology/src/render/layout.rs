//! Layout of the picture: tiers as rows, racks as boxes, pods as bands.

use std::collections::BTreeMap;

use crate::ids::RackId;
use crate::model::{Node, TopologyKind};
use crate::topology::Topology;

/// Maximum number of hosts that are drawn with their addresses.
const WITH_ADDRESSES: usize = 24;
/// Maximum number of hosts that are drawn by name. Above it, a rack is a grid of dots and a count.
const WITH_NAMES: usize = 64;
/// Maximum number of racks in the picture; of more, the first and the last are shown.
const MAX_RACKS: usize = 32;
/// Maximum number of switches of one tier in the picture.
const MAX_SWITCHES: usize = 32;

/// Width of one character of the 11-pixel font, with room to spare.
const CHAR_W: f64 = 6.6;
const MARGIN: f64 = 36.0;
const RACK_PAD: f64 = 10.0;
pub(super) const SWITCH_H: f64 = 26.0;
const TITLE_H: f64 = 74.0;
const LEGEND_H: f64 = 62.0;
/// Maximum number of hosts of a rack that are drawn as dots.
pub(super) const MAX_DOTS: usize = 64;
pub(super) const DOT_PITCH: f64 = 9.0;

/// Detail in which each host is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Detail {
    Addresses,
    Names,
    Dots,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Rect {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) w: f64,
    pub(super) h: f64,
}

impl Rect {
    pub(super) fn centre_x(&self) -> f64 {
        self.x + self.w / 2.0
    }

    pub(super) fn bottom(&self) -> f64 {
        self.y + self.h
    }
}

/// Mark for objects that are left out between two shown ones.
pub(super) struct Gap {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) text: String,
}

pub(super) struct Layout {
    pub(super) detail: Detail,
    /// Dots in a row; fewer if there are many racks, which keeps the picture small.
    pub(super) dots_per_row: usize,
    pub(super) width: f64,
    pub(super) height: f64,
    /// Top of the legend.
    pub(super) legend_y: f64,
    /// Hosts (unless shown as dots) and switches.
    pub(super) nodes: BTreeMap<Node, Rect>,
    pub(super) racks: Vec<(RackId, Rect)>,
    pub(super) pods: Vec<(u32, Rect)>,
    pub(super) gaps: Vec<Gap>,
    /// Names of the rows and where they stand.
    pub(super) rows: Vec<(&'static str, f64)>,
}

/// Splits `max` of `n` things into a number from the front and a number from the back.
fn ends(n: usize, max: usize) -> (usize, usize) {
    if n <= max {
        (n, 0)
    } else {
        (max.div_ceil(2), max / 2)
    }
}

pub(super) fn layout(net: &Topology) -> Layout {
    let hosts = net.hosts().len();
    let detail = if hosts <= WITH_ADDRESSES {
        Detail::Addresses
    } else if hosts <= WITH_NAMES {
        Detail::Names
    } else {
        Detail::Dots
    };
    let three = matches!(
        net.kind(),
        TopologyKind::FatTree | TopologyKind::ThreeTierClos
    );
    let big = net.kind() == TopologyKind::BigSwitch;
    let mut l = Layout {
        detail,
        dots_per_row: if net.racks().len() > 12 { 6 } else { 8 },
        width: 0.0,
        height: 0.0,
        legend_y: 0.0,
        nodes: BTreeMap::new(),
        racks: Vec::new(),
        pods: Vec::new(),
        gaps: Vec::new(),
        rows: Vec::new(),
    };
    // From left to right first: the widths of all rows follow from the racks.
    let spans = l.place_racks(net, three);
    // A wide row of switches may need more room than the racks.
    let widest_tier = (2..=3)
        .map(|t| tier(net, t, None).0.len())
        .max()
        .unwrap_or(0);
    let racks_w = l.racks.last().map_or(0.0, |(_, r)| r.x + r.w) - MARGIN;
    let inner = racks_w.max(widest_tier as f64 * 34.0).max(720.0);
    // Narrow networks are centred in the least width of the picture.
    let shift = (inner - racks_w) / 2.0;
    l.width = inner + 2.0 * MARGIN;
    let fabric_gap = (inner * 0.12).clamp(96.0, 280.0);

    let mut y = TITLE_H;
    if three {
        let (shown, hidden) = tier(net, 3, None);
        l.row("cores", y);
        l.place_switches(
            net,
            &shown,
            hidden,
            Rect {
                x: MARGIN,
                y,
                w: inner,
                h: SWITCH_H,
            },
        );
        y += SWITCH_H + fabric_gap;
    }
    let pod_top = y;
    if !big {
        l.row(if three { "aggregation" } else { "spines" }, y);
        for (pod, from, to) in &spans {
            let (shown, hidden) = tier(net, 2, three.then_some(*pod));
            let row = if three {
                Rect {
                    x: from + shift,
                    y,
                    w: to - from,
                    h: SWITCH_H,
                }
            } else {
                Rect {
                    x: MARGIN,
                    y,
                    w: inner,
                    h: SWITCH_H,
                }
            };
            l.place_switches(net, &shown, hidden, row);
        }
        y += SWITCH_H
            + if three {
                (fabric_gap * 0.6).max(90.0)
            } else {
                fabric_gap
            };
    }
    let bottom = l.settle_racks(net, shift, y, big);
    if three {
        for (pod, from, to) in &spans {
            let rect = Rect {
                x: from + shift - 10.0,
                y: pod_top - 14.0,
                w: to - from + 20.0,
                h: bottom - pod_top + 40.0,
            };
            l.pods.push((*pod, rect));
        }
    }
    l.legend_y = bottom + if three { 56.0 } else { 32.0 };
    l.height = l.legend_y + LEGEND_H;
    l
}

/// Returns the shown switches of a tier (of a pod), and how many are hidden after which.
fn tier(net: &Topology, tier: u8, pod: Option<u32>) -> (Vec<Node>, Option<(usize, usize)>) {
    let all: Vec<Node> = net
        .switches()
        .iter()
        .filter(|s| s.tier == tier && s.rack.is_none() && (pod.is_none() || s.pod == pod))
        .map(|s| Node::Switch(s.id))
        .collect();
    let max = if pod.is_some() {
        MAX_SWITCHES / 2
    } else {
        MAX_SWITCHES
    };
    let (front, back) = ends(all.len(), max);
    let hidden = (back > 0).then(|| (front, all.len() - front - back));
    let shown = all[..front]
        .iter()
        .chain(&all[all.len() - back..])
        .copied()
        .collect();
    (shown, hidden)
}

impl Layout {
    fn row(&mut self, name: &'static str, y: f64) {
        self.rows.push((name, y + SWITCH_H / 2.0));
    }

    /// Lays the racks out from left to right; returns the span of each pod that is shown.
    fn place_racks(&mut self, net: &Topology, three: bool) -> Vec<(u32, f64, f64)> {
        let pods = net.pods() as usize;
        let per_pod = net.racks().len() / pods;
        // With pods, half of the racks of each: several pods share the width.
        let racks_shown = ends(per_pod, if three { MAX_RACKS / 2 } else { MAX_RACKS });
        let pods_shown = ends(pods, (MAX_RACKS / per_pod.min(MAX_RACKS)).max(2));
        let cell = self.cell_width(net);
        let mut x = MARGIN;
        let mut spans = Vec::new();
        for (i, pod) in (0..pods_shown.0)
            .chain(pods - pods_shown.1..pods)
            .enumerate()
        {
            if i > 0 {
                x += 30.0;
            }
            if i == pods_shown.0 {
                let hidden = pods - pods_shown.0 - pods_shown.1;
                self.gaps.push(Gap {
                    x: x + 50.0,
                    y: 0.0,
                    text: format!("… {hidden} more pods …"),
                });
                x += 136.0;
            }
            let start = x;
            for (j, rack) in (0..racks_shown.0)
                .chain(per_pod - racks_shown.1..per_pod)
                .enumerate()
            {
                if j > 0 {
                    x += 10.0;
                }
                if j == racks_shown.0 {
                    let hidden = per_pod - racks_shown.0 - racks_shown.1;
                    self.gaps.push(Gap {
                        x: x + 50.0,
                        y: 0.0,
                        text: format!("… {hidden} more racks …"),
                    });
                    x += 114.0;
                }
                let id = RackId((pod * per_pod + rack) as u32);
                let hosts = net.racks()[id.index()].hosts.len();
                let w = match self.detail {
                    Detail::Dots => (self.dots_per_row as f64 * DOT_PITCH + 10.0).max(66.0),
                    _ => (hosts as f64 * cell + 2.0 * RACK_PAD).max(76.0),
                };
                self.racks.push((
                    id,
                    Rect {
                        x,
                        y: 0.0,
                        w,
                        h: 0.0,
                    },
                ));
                x += w;
            }
            spans.push((pod as u32, start, x));
        }
        spans
    }

    /// Width of a host: enough for the longest name, within bounds.
    fn cell_width(&self, net: &Topology) -> f64 {
        let longest = net.hosts().iter().map(|h| h.name.len()).max().unwrap_or(0) as f64;
        let least = if self.detail == Detail::Addresses {
            66.0
        } else {
            36.0
        };
        (longest * CHAR_W + 14.0).clamp(least, 110.0)
    }

    /// Shares a row out evenly to its switches.
    fn place_switches(
        &mut self,
        net: &Topology,
        shown: &[Node],
        hidden: Option<(usize, usize)>,
        row: Rect,
    ) {
        // The mark for hidden switches is as wide as two of them.
        let slots = shown.len() + usize::from(hidden.is_some()) * 2;
        let slot = row.w / slots.max(1) as f64;
        for (i, node) in shown.iter().enumerate() {
            let mut place = i as f64;
            if let Some((after, count)) = hidden {
                if i == after {
                    let text = format!("… {count} more …");
                    self.gaps.push(Gap {
                        x: row.x + (place + 1.0) * slot,
                        y: row.y + SWITCH_H / 2.0 + 4.0,
                        text,
                    });
                }
                // The mark for hidden switches takes two places.
                place += if i >= after { 2.0 } else { 0.0 };
            }
            let w = (net.node_name(*node).len() as f64 * CHAR_W + 20.0)
                .max(48.0)
                .min(slot - 4.0);
            let centre = row.x + (place + 0.5) * slot;
            self.nodes.insert(
                *node,
                Rect {
                    x: centre - w / 2.0,
                    y: row.y,
                    w,
                    h: SWITCH_H,
                },
            );
        }
    }

    /// Moves the racks to their final place and fills them; returns the lower edge.
    fn settle_racks(&mut self, net: &Topology, shift: f64, y: f64, big: bool) -> f64 {
        let mut racks = std::mem::take(&mut self.racks);
        let first = racks.first().map_or(0.0, |(_, r)| r.x) + shift;
        let last = racks.last().map_or(0.0, |(_, r)| r.x + r.w) + shift;
        let mut leaf_y = y + 12.0;
        let mut top = y;
        if big {
            self.row("fabric", y);
            let width = (last - first).max(200.0);
            let x = f64::midpoint(first, last) - width / 2.0;
            self.nodes.insert(
                Node::Switch(net.racks()[0].leaf),
                Rect {
                    x,
                    y,
                    w: width,
                    h: SWITCH_H,
                },
            );
            top = y + SWITCH_H + 60.0;
            leaf_y = top - 44.0;
        } else {
            self.row("leaves", leaf_y);
        }
        let hosts_y = leaf_y
            + SWITCH_H
            + if self.detail == Detail::Dots {
                30.0
            } else {
                46.0
            };
        self.row("hosts", hosts_y);
        let rack_hosts = |id: RackId| net.racks()[id.index()].hosts.len();
        let dot_rows = racks
            .iter()
            .map(|(id, _)| rack_hosts(*id).min(MAX_DOTS).div_ceil(self.dots_per_row))
            .max()
            .unwrap_or(1);
        let hosts_h = match self.detail {
            Detail::Addresses => 40.0,
            Detail::Names => 24.0,
            Detail::Dots => dot_rows as f64 * DOT_PITCH + 18.0,
        };
        let bottom = hosts_y + hosts_h + 24.0;
        for (id, rect) in &mut racks {
            *rect = Rect {
                x: rect.x + shift,
                y: top,
                w: rect.w,
                h: bottom - top,
            };
            let rack = &net.racks()[id.index()];
            if !big {
                let w = (net.node_name(Node::Switch(rack.leaf)).len() as f64 * CHAR_W + 20.0)
                    .min(rect.w - 8.0);
                let leaf = Rect {
                    x: rect.centre_x() - w / 2.0,
                    y: leaf_y,
                    w,
                    h: SWITCH_H,
                };
                self.nodes.insert(Node::Switch(rack.leaf), leaf);
            }
            if self.detail == Detail::Dots {
                continue;
            }
            let cell = (rect.w - 2.0 * RACK_PAD) / rack.hosts.len() as f64;
            let w = (cell - 4.0).min(106.0);
            for (i, host) in (0..).zip(rack.host_ids()) {
                let x = rect.x + RACK_PAD + (f64::from(i) + 0.5) * cell - w / 2.0;
                self.nodes.insert(
                    Node::Host(host),
                    Rect {
                        x,
                        y: hosts_y,
                        w,
                        h: hosts_h,
                    },
                );
            }
        }
        // Gaps between racks and pods have no height yet; those between switches have.
        for gap in self.gaps.iter_mut().filter(|g| g.y == 0.0) {
            gap.x += shift;
            gap.y = f64::midpoint(top, bottom);
        }
        self.racks = racks;
        bottom
    }
}
