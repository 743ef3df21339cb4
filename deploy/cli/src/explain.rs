//! `ratewright explain`: says why the flows from one host to another have their rates.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use clap::Args;
use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use serde_json::Value;

use crate::admin;
use crate::units::{percent_of, rate, rate_of, text_of};

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
    let mut own_links = Vec::new();
    for end in ["from", "to"] {
        let host = &answer[end];
        for fault in elements(&host["faults"]) {
            let _ = writeln!(out, "{}", fault_text(fault));
        }
        for link in elements(&host["links"]) {
            if let Some(text) = check_text(&link["name"], link) {
                let _ = writeln!(out, "{text}");
            }
            own_links.push(&link["name"]);
        }
    }
    let flows = elements(&answer["flows"]);
    let total = answer["flows_total"].as_u64().unwrap_or(0);
    let _ = writeln!(out, "{total} flows, {} of them shown", flows.len());
    for flow in flows {
        let _ = write!(out, "\n{}", flow_text(flow, &own_links));
    }
    out.trim_end().to_owned()
}

/// Returns the elements of a list; none of anything else.
fn elements(value: &Value) -> &[Value] {
    value.as_array().map_or(&[][..], Vec::as_slice)
}

/// Says a fault of a host, and who sees it.
fn fault_text(fault: &Value) -> String {
    let (host, what) = (text_of(&fault["host"]), text_of(&fault["fault"]));
    let seen_at = if fault["seen_at"].is_string() {
        format!("; seen at {}", text_of(&fault["seen_at"]))
    } else {
        String::new()
    };
    format!("{host}: {}{seen_at}", what.replace('_', " "))
}

/// Says a flow with its links. The evidence of the hosts' own links, `own_links`, stands with them.
fn flow_text(flow: &Value, own_links: &[&Value]) -> String {
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
        "link", "load", "capacity", "full", "price", "external", "up", "state",
    ]);
    for link in elements(&flow["links"]) {
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
            text_of(&link["check"]["state"]).replace('_', " "),
        ]);
    }
    let _ = writeln!(out, "{table}");
    for link in elements(&flow["links"]) {
        if let Some(cause) = link["shared"]["cause"].as_str() {
            let _ = writeln!(
                out,
                "  {}: shared with {cause}; maxima over it fill {} times its capacity",
                text_of(&link["name"]),
                text_of(&link["shared"]["headroom"]),
            );
        }
        let name = &link["name"];
        let check = check_text(name, &link["check"]).filter(|_| !own_links.contains(&name));
        for text in [check, feeds_text(link)].into_iter().flatten() {
            let _ = writeln!(out, "  {text}");
        }
    }
    out
}

/// Says that a link is not as the allocator was told, with the evidence in `check`; `None` if
/// nothing contradicts that.
fn check_text(name: &Value, check: &Value) -> Option<String> {
    let state = check["state"].as_str()?;
    if matches!(state, "unknown" | "as_told") {
        return None;
    }
    let number = |name: &str| check[name].as_f64();
    let mut parts = vec![format!(
        "told {}, handed out {}",
        rate_of(&check["told_bps"]),
        rate_of(&check["handed_out_bps"])
    )];
    for (name, text) in [
        ("carried_bps", "carries"),
        ("speed_bps", "interface of"),
        ("lowered_bps", "lowered to"),
    ] {
        parts.extend(number(name).map(|bps| format!("{text} {}", rate(bps))));
    }
    if check["by_allowance"] == true {
        parts.push("an allowance holds packets up".to_owned());
    }
    if check["cause"].is_string() {
        parts.push(text_of(&check["cause"]));
    }
    if let Some(ms) = number("for_ms") {
        parts.push(format!("for {:.0} s", ms / 1e3));
    }
    Some(format!(
        "{} {}: {}",
        text_of(name),
        state.replace('_', " "),
        parts.join(", ")
    ))
}

/// Says what feeds take of a link, and by which readings; `None` where they take nothing.
fn feeds_text(link: &Value) -> Option<String> {
    let effect = link.get("feeds").filter(|effect| effect.is_object())?;
    let number = |name: &str| effect[name].as_f64().filter(|&number| number > 0.0);
    let mut parts = Vec::new();
    if let Some(load_bps) = number("load_bps") {
        parts.push(format!("{} withheld (feeds.int)", rate(load_bps)));
    }
    if let Some(flows) = number("flows") {
        parts.push(format!(
            "a dummy flow that weighs as {flows:.1} flows and takes {} at most (feeds.{})",
            rate_of(&effect["demand_bps"]),
            text_of(&effect["weighed_by"]),
        ));
    }
    if let Some(external_bps) = number("external_bps") {
        parts.push(format!("{} of others measured", rate(external_bps)));
    }
    let name = text_of(&link["name"]);
    (!parts.is_empty()).then(|| format!("feeds on {name}: {}", parts.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explanation_names_the_bound_and_the_links() {
        let text = render(&serde_json::json!({
            "from": {"host": "h1", "connected": true, "pacing": "observe", "release": "acknowledged",
                     "why": "rollout.percent does not include it", "heard_ms_ago": 3, "lease_ms": 300},
            "to": {"host": "h7", "connected": false, "pacing": "pace", "release": "no", "why": "x",
                   "faults": [{"host": "h7", "fault": "address_not_in_prefix", "seen_at": null},
                              {"host": "h7", "fault": "prefix_of_several_hosts", "seen_at": "h9"}]},
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
            "h7: address not in prefix\n",
            "h7: prefix of several hosts; seen at h9\n",
            "flow 7: 4.95 Gbit/s, limited by link leaf2->h7",
            "demand –: unbounded",
            "100.0 %",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(!text.contains("feeds"), "{text}");
    }

    /// The evidence of a host's own link stands with the host, and not once more with each flow.
    #[test]
    fn an_explanation_has_the_evidence_of_the_hosts_own_links_without_a_flow_between_them() {
        let check = |state: &str| {
            serde_json::json!({
                "name": "h1->leaf1", "state": state, "told_bps": 1e10, "handed_out_bps": 0.0,
                "carried_bps": 2e9, "speed_bps": 1e9, "lowered_bps": null, "for_ms": 2_000,
                "by_allowance": false, "cause": "UDP",
            })
        };
        let host = |links: Value| {
            serde_json::json!({
                "host": "h1", "connected": true, "pacing": "pace", "why": "x", "release": "no",
                "heard_ms_ago": 3, "faults": [], "links": links,
            })
        };
        let mut answer = serde_json::json!({
            "from": host(serde_json::json!([check("carries_less")])),
            "to": host(serde_json::json!([check("as_told")])),
            "flows_total": 0, "flows": [],
        });
        let line = "h1->leaf1 carries less: told 10.00 Gbit/s, handed out 0 bit/s, \
                    carries 2.00 Gbit/s, interface of 1.00 Gbit/s, UDP, for 2 s";
        let text = render(&answer);
        assert_eq!(
            text.lines().filter(|told| *told == line).count(),
            1,
            "{text}"
        );
        assert_eq!(text.matches("h1->leaf1").count(), 1, "{text}");
        answer["flows"] = serde_json::json!([
            {"links": [{"name": "h1->leaf1", "check": check("carries_less")}]},
        ]);
        let text = render(&answer);
        assert_eq!(text.matches("carries less: ").count(), 1, "{text}");
    }

    #[test]
    fn an_explanation_says_what_feeds_do() {
        let link = |name: &str, feeds: Value| {
            serde_json::json!({
                "name": name, "load_bps": 4e9, "capacity_bps": 9.9e9, "utilization": 0.4,
                "price": 0.0, "external_load_bps": 0, "up": true, "feeds": feeds,
            })
        };
        let links = [
            serde_json::json!({
                "load_bps": 0.0, "flows": 3.0, "demand_bps": 5e9, "weighed_by": "receivers",
                "external_bps": 4.2e9, "newest_ns": 7, "oldest_ns": 7,
            }),
            serde_json::json!({
                "load_bps": 1.5e9, "flows": 0.5, "demand_bps": 1e9, "weighed_by": "credit",
                "external_bps": 0.0, "newest_ns": 7, "oldest_ns": 7,
            }),
            serde_json::json!({
                "load_bps": 2e9, "flows": 0.0, "demand_bps": 0.0, "weighed_by": null,
                "external_bps": 1.9e9, "newest_ns": 7, "oldest_ns": 7,
            }),
            Value::Null,
        ];
        let names = ["leaf4->h16", "leaf2->h7", "h1->leaf1", "leaf1->spine1"];
        let mut links: Vec<Value> = (names.into_iter().zip(links))
            .map(|(name, feeds)| link(name, feeds))
            .collect();
        links[0]["check"] = serde_json::json!({
            "state": "carries_less", "told_bps": 1e10, "handed_out_bps": 7.6e9,
            "carried_bps": 8e9, "speed_bps": null, "lowered_bps": 7.68e9, "for_ms": 12_400,
            "by_allowance": true,
        });
        links[1]["check"] = serde_json::json!({"state": "as_told", "told_bps": 1e10});
        links[3]["shared"] = serde_json::json!({"cause": "observing host h2", "headroom": 2.0});
        let text = render(&serde_json::json!({
            "flows_total": 1,
            "flows": [{
                "flow": 7, "class": "gold", "weight": 1.0, "class_weight": 2.0,
                "demand_bps": 1_250_000_000_u64, "rate_bps": 1_240_000_000_u64,
                "demand": "limited: by its receiver's credit (feeds.credit)",
                "limit": "its receiver's credit (feeds.credit)", "links": links,
            }],
        }));
        for line in [
            "flow 7: 1.24 Gbit/s, limited by its receiver's credit (feeds.credit)",
            "  demand 1.25 Gbit/s: limited: by its receiver's credit (feeds.credit)",
            "  feeds on leaf4->h16: a dummy flow that weighs as 3.0 flows and takes 5.00 Gbit/s \
             at most (feeds.receivers), 4.20 Gbit/s of others measured",
            "  feeds on leaf2->h7: 1.50 Gbit/s withheld (feeds.int), a dummy flow that weighs as \
             0.5 flows and takes 1.00 Gbit/s at most (feeds.credit)",
            "  feeds on h1->leaf1: 2.00 Gbit/s withheld (feeds.int), 1.90 Gbit/s of others measured",
            "  leaf4->h16 carries less: told 10.00 Gbit/s, handed out 7.60 Gbit/s, \
             carries 8.00 Gbit/s, lowered to 7.68 Gbit/s, an allowance holds packets up, for 12 s",
            "  leaf1->spine1: shared with observing host h2; maxima over it fill 2.0 times its \
             capacity",
        ] {
            assert!(
                text.lines().any(|told| told == line),
                "{line} is missing in\n{text}"
            );
        }
        assert_eq!(text.matches("feeds on").count(), 3, "{text}");
    }
}
