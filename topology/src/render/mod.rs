//! Topologies for people: a text [`summary()`], a picture as [SVG](to_svg), a graph as
//! [DOT](to_dot).

mod dot;
mod layout;
mod summary;
mod svg;

pub use dot::to_dot;
pub use summary::summary;
pub use svg::to_svg;

use crate::ids::LinkId;
use crate::model::{Direction, Link};
use crate::topology::Topology;

/// Cable: the two directed links between two nodes.
struct Cable<'a> {
    up: &'a Link,
    down: &'a Link,
}

/// All cables, the edge first.
fn cables(net: &Topology) -> impl Iterator<Item = Cable<'_>> {
    let pair = |up: &Link| net.reverse_link(up.id);
    net.links()
        .iter()
        .filter(|l| l.direction == Direction::Up)
        .map(move |up| Cable {
            up,
            down: &net.links()[pair(up).index()],
        })
}

/// State of a cable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CableState {
    Up,
    /// Neither direction is usable.
    Failed,
    /// Only this direction is not usable.
    HalfFailed(LinkId),
}

impl Cable<'_> {
    fn state(&self, net: &Topology) -> CableState {
        match (net.is_usable(self.up.id), net.is_usable(self.down.id)) {
            (true, true) => CableState::Up,
            (false, false) => CableState::Failed,
            (false, true) => CableState::HalfFailed(self.up.id),
            (true, false) => CableState::HalfFailed(self.down.id),
        }
    }

    /// "10Gbit/s", or both directions where they differ.
    fn capacity(&self) -> String {
        let text = crate::units::format_capacity_bps;
        if self.up.line_rate_bps == self.down.line_rate_bps {
            text(self.up.line_rate_bps)
        } else {
            format!(
                "{} up, {} down",
                text(self.up.line_rate_bps),
                text(self.down.line_rate_bps)
            )
        }
    }
}

/// Names the ends of a level's links, for headings: "host – leaf".
fn level_name(net: &Topology, level: u8) -> &'static str {
    use crate::model::TopologyKind::{BigSwitch, TwoTierClos};
    match (net.kind(), level) {
        (BigSwitch, _) => "host – fabric",
        (_, 1) => "host – leaf",
        (TwoTierClos, _) => "leaf – spine",
        (_, 2) => "leaf – aggregation",
        _ => "aggregation – core",
    }
}

/// The levels that this network has.
fn levels(net: &Topology) -> impl Iterator<Item = u8> {
    let top = net.links().last().map_or(0, |l| l.level);
    1..=top
}

/// Returns the most common value, the smallest of several.
fn usual(values: impl Iterator<Item = u64>) -> u64 {
    let mut counts = std::collections::BTreeMap::<u64, usize>::new();
    for value in values {
        *counts.entry(value).or_default() += 1;
    }
    counts
        .into_iter()
        // `max_by_key` returns the last maximum, so the reversed order yields the smallest value.
        .rev()
        .max_by_key(|(_, n)| *n)
        .map_or(0, |(value, _)| value)
}

/// Writes a count with its noun: "1 rack", "3 racks".
fn counted(count: usize, what: &str) -> String {
    match (count, what) {
        (1, _) => format!("1 {what}"),
        (_, "leaf") => format!("{count} leaves"),
        _ if what.ends_with("ch") => format!("{count} {what}es"),
        _ => format!("{count} {what}s"),
    }
}
