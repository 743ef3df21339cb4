//! `ratewright explain`: says why the flows from one host to another have their rates.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use clap::Args;
use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use serde_json::Value;

use crate::admin;
use crate::units::{percent_of, rate_of, text_of};

/// `ratewright explain`
#[derive(Debug, Args)]
pub struct ExplainCommand {
    /// Host that sends
    from: String,
    /// Host that receives
    to: String,
    /// Admin interface of the allocator: address:port or unix:PATH
    #[arg(default_value = admin::DEFAULT_ADDRESS)]
    admin: String,
    /// The answer as it is
    #[arg(long)]
    json: bool,
}

impl ExplainCommand {
    /// Runs the command.
    ///
    /// # Errors
    /// When no allocator answers, or it does not have one of the hosts.
    pub fn run(&self) -> Result<()> {
        let (from, to) = (admin::query_value(&self.from), admin::query_value(&self.to));
        let path = format!("/explain?from={from}&to={to}");
        let body =
            admin::get(&self.admin, &path).with_context(|| admin::whom_to_ask(&self.admin))?;
        if self.json {
            println!("{}", body.trim_end());
            return Ok(());
        }
        let answer: Value = serde_json::from_str(&body).context("the answer is not JSON")?;
        println!("{}", render(&answer));
        Ok(())
    }
}

/// Says an answer in sentences and tables.
fn render(answer: &Value) -> String {
    let mut out = String::new();
    for end in ["from", "to"] {
        let host = &answer[end];
        let _ = writeln!(
            out,
            "{}: {}, {} ({}){}",
            text_of(&host["host"]),
            if host["connected"] == true {
                format!("heard {} ms ago", text_of(&host["heard_ms_ago"]))
            } else {
                "no session".to_owned()
            },
            text_of(&host["pacing"]),
            text_of(&host["why"]),
            match host["release"].as_str() {
                None | Some("no") => String::new(),
                Some(state) => format!("; on plain TCP: {state}"),
            },
        );
    }
    let flows = answer["flows"].as_array().map_or(&[][..], Vec::as_slice);
    let total = answer["flows_total"].as_u64().unwrap_or(0);
    let _ = writeln!(out, "{total} flows, {} of them shown", flows.len());
    for flow in flows {
        let _ = write!(out, "\n{}", flow_text(flow));
    }
    out.trim_end().to_owned()
}

fn flow_text(flow: &Value) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "flow {}: {}, limited by {}",
        text_of(&flow["flow"]),
        rate_of(&flow["rate_bps"]),
        text_of(&flow["limit"]),
    );
    let _ = writeln!(
        out,
        "  class {} (weight {}, most {}), own weight {}",
        text_of(&flow["class"]),
        text_of(&flow["class_weight"]),
        rate_of(&flow["class_cap_bps"]),
        text_of(&flow["weight"]),
    );
    let _ = writeln!(
        out,
        "  demand {}: {}",
        rate_of(&flow["demand_bps"]),
        text_of(&flow["demand"])
    );
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header([
        "link", "load", "capacity", "full", "price", "external", "up",
    ]);
    for link in flow["links"].as_array().map_or(&[][..], Vec::as_slice) {
        table.add_row([
            text_of(&link["name"]),
            rate_of(&link["load_bps"]),
            rate_of(&link["capacity_bps"]),
            percent_of(&link["utilization"]),
            link["price"]
                .as_f64()
                .map_or_else(String::new, |price| format!("{price:.3}")),
            rate_of(&link["external_load_bps"]),
            text_of(&link["up"]),
        ]);
    }
    let _ = writeln!(out, "{table}");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explanation_names_the_bound_and_the_links() {
        let text = render(&serde_json::json!({
            "from": {"host": "h1", "connected": true, "pacing": "observe", "release": "acknowledged",
                     "why": "rollout.percent does not include it", "heard_ms_ago": 3, "lease_ms": 300},
            "to": {"host": "h7", "connected": false, "pacing": "pace", "release": "no", "why": "x"},
            "flows_total": 1,
            "flows": [{
                "flow": 7, "class": "gold", "weight": 1.0, "class_weight": 2.0, "class_cap_bps": null,
                "demand_bps": null, "demand": "unbounded: its rate holds it back",
                "rate_bps": 4_950_000_000_u64, "limit": "link leaf2->h7",
                "links": [{"name": "leaf2->h7", "load_bps": 9.9e9, "capacity_bps": 9.9e9,
                           "utilization": 1.0, "price": 0.404, "external_load_bps": 0, "up": true}],
            }],
        }));
        for part in [
            "h1: heard 3 ms ago, observe (rollout.percent does not include it); on plain TCP: acknowledged",
            "h7: no session, pace",
            "flow 7: 4.95 Gbit/s, limited by link leaf2->h7",
            "demand –: unbounded",
            "100.0 %",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
