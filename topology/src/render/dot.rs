//! Complete graph in Graphviz DOT: every host, switch and cable.

use std::fmt::{self, Write};

use super::{CableState, cables};
use crate::model::Switch;
use crate::topology::Topology;

const LEVEL_COLOURS: [&str; 3] = ["#64748b", "#2563eb", "#7c3aed"];

/// The network as a graph for `dot -Tsvg`: tiers as ranks, racks as clusters, failed cables
/// dashed and red.
#[must_use]
pub fn to_dot(net: &Topology) -> String {
    let mut out = String::new();
    write(net, &mut out).expect("writing to a string does not fail");
    out
}

fn write(net: &Topology, out: &mut String) -> fmt::Result {
    writeln!(out, "graph \"{}\" {{", net.kind())?;
    writeln!(out, "  rankdir=BT; ranksep=1.2; nodesep=0.15;")?;
    writeln!(
        out,
        "  node [fontname=\"sans-serif\", fontsize=10, shape=box, style=\"rounded,filled\", fillcolor=\"#f1f5f9\", color=\"#94a3b8\", height=0.3, width=0.3];"
    )?;
    writeln!(out, "  edge [fontname=\"sans-serif\", fontsize=8];")?;
    for rack in net.racks() {
        writeln!(out, "  subgraph \"cluster_{}\" {{", rack.name)?;
        writeln!(
            out,
            "    label=\"{}\"; style=rounded; color=\"#cbd5e1\"; fontname=\"sans-serif\"; fontsize=9;",
            rack.name
        )?;
        for host in rack.host_ids() {
            let host = &net.hosts()[host.index()];
            let prefixes: Vec<String> = host.prefixes.iter().map(ToString::to_string).collect();
            writeln!(
                out,
                "    \"{}\" [fillcolor=\"#ffffff\", tooltip=\"{}\"];",
                host.name,
                prefixes.join(" ")
            )?;
        }
        for leaf in net.switches().iter().filter(|s| s.rack == Some(rack.id)) {
            switch(out, "    ", leaf)?;
        }
        writeln!(out, "  }}")?;
    }
    // A big switch is the only leaf without a rack, so tier 1 is not left out.
    for tier in 1..=3 {
        let above: Vec<&Switch> = net
            .switches()
            .iter()
            .filter(|s| s.tier == tier && s.rack.is_none())
            .collect();
        for s in &above {
            switch(out, "  ", s)?;
        }
        if above.len() > 1 {
            let names: Vec<String> = above.iter().map(|s| format!("\"{}\"", s.name)).collect();
            writeln!(out, "  {{ rank=same; {} }}", names.join("; "))?;
        }
    }
    for cable in cables(net) {
        let (low, high) = (net.node_name(cable.up.from), net.node_name(cable.up.to));
        let style = match cable.state(net) {
            CableState::Up => format!(
                "color=\"{}\"",
                LEVEL_COLOURS[usize::from(cable.up.level) - 1]
            ),
            CableState::Failed => "color=\"#dc2626\", style=dashed".into(),
            // The arrow points in the failed direction; DOT edges run from the lower end.
            CableState::HalfFailed(link) if link == cable.up.id => {
                "color=\"#dc2626\", style=dashed, dir=forward".into()
            }
            CableState::HalfFailed(_) => "color=\"#dc2626\", style=dashed, dir=back".into(),
        };
        writeln!(
            out,
            "  \"{low}\" -- \"{high}\" [{style}, tooltip=\"{}\"];",
            cable.capacity()
        )?;
    }
    writeln!(out, "}}")
}

fn switch(out: &mut String, indent: &str, switch: &Switch) -> fmt::Result {
    let look = if switch.up {
        "fillcolor=\"#e0e7ff\", color=\"#6366f1\""
    } else {
        "fillcolor=\"#fee2e2\", color=\"#dc2626\", fontcolor=\"#dc2626\""
    };
    writeln!(out, "{indent}\"{}\" [{look}];", switch.name)
}
