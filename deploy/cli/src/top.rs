//! `ratewright top`: the fastest flows, the fullest links and the hosts, again and again.

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use comfy_table::Table as PlainTable;
use comfy_table::presets::NOTHING;
use crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::Stylize;
use ratatui::widgets::{Block, Row, Table};
use serde_json::Value;

use crate::admin::{self, AdminClient};
use crate::units::{percent_of, rate_of, text_of};

/// `ratewright top`
#[derive(Debug, Args)]
pub struct TopCommand {
    /// Admin interface of the allocator: address:port or unix:PATH
    #[arg(default_value = admin::DEFAULT_ADDRESS)]
    admin: String,
    /// Print the tables once, for pipes and scripts
    #[arg(long)]
    once: bool,
    /// Rows of each table
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rows: u16,
    /// Seconds between two looks
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: u64,
}

/// A table: its title, its columns with their widths, and its rows.
struct View {
    title: String,
    columns: &'static [(&'static str, u16)],
    rows: Vec<Vec<String>>,
}

impl TopCommand {
    /// Runs the command, until a key ends it.
    ///
    /// # Errors
    /// When no allocator answers.
    pub fn run(&self) -> Result<()> {
        let first = self.look()?;
        if self.once || !std::io::stdout().is_terminal() {
            for view in first {
                println!("{}\n{}\n", view.title, plain(&view));
            }
            return Ok(());
        }
        let mut terminal =
            ratatui::try_init().context("the terminal cannot be used; try --once")?;
        let result = self.show(&mut terminal, first);
        ratatui::restore();
        result
    }

    fn show(&self, terminal: &mut ratatui::DefaultTerminal, mut views: Vec<View>) -> Result<()> {
        loop {
            terminal.draw(|frame| {
                let areas = Layout::vertical([Constraint::Fill(1); 3]).split(frame.area());
                for (view, area) in views.iter().zip(areas.iter()) {
                    frame.render_widget(drawn(view), *area);
                }
            })?;
            if event::poll(Duration::from_secs(self.every))?
                && let Event::Key(key) = event::read()?
            {
                let interrupt =
                    key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                if interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                    return Ok(());
                }
            }
            views = self.look()?;
        }
    }

    /// Asks for everything that is shown.
    fn look(&self) -> Result<Vec<View>> {
        let mut client =
            AdminClient::connect(&self.admin).with_context(|| admin::whom_to_ask(&self.admin))?;
        let mut ask = |path: &str| -> Result<Value> {
            let (status, body) = client.get(path)?;
            if status != 200 {
                bail!("{path}: the allocator answers {status}: {}", body.trim());
            }
            serde_json::from_str(&body).context("the answer is not JSON")
        };
        let rows = usize::from(self.rows);
        Ok(vec![
            flows(&ask(&format!("/flows?top={rows}"))?),
            links(&ask(&format!("/links?top={rows}"))?),
            hosts(&ask("/status")?, rows),
        ])
    }
}

fn list<'a>(answer: &'a Value, name: &str) -> &'a [Value] {
    answer[name].as_array().map_or(&[], Vec::as_slice)
}

fn flows(answer: &Value) -> View {
    View {
        title: format!("fastest of {} flows", text_of(&answer["flows_total"])),
        columns: &[
            ("from", 16),
            ("to", 16),
            ("flow", 11),
            ("rate", 14),
            ("demand", 14),
            ("class", 12),
            ("weight", 7),
            ("pacing", 8),
        ],
        rows: list(answer, "flows")
            .iter()
            .map(|flow| {
                vec![
                    text_of(&flow["from"]),
                    text_of(&flow["to"]),
                    text_of(&flow["flow"]),
                    rate_of(&flow["rate_bps"]),
                    rate_of(&flow["demand_bps"]),
                    text_of(&flow["class"]),
                    text_of(&flow["weight"]),
                    text_of(&flow["pacing"]),
                ]
            })
            .collect(),
    }
}

fn links(answer: &Value) -> View {
    View {
        title: format!("fullest of {} links", text_of(&answer["links_total"])),
        columns: &[
            ("link", 32),
            ("load", 14),
            ("capacity", 14),
            ("full", 8),
            ("external", 14),
        ],
        rows: list(answer, "links")
            .iter()
            .map(|link| {
                vec![
                    text_of(&link["name"]),
                    rate_of(&link["load_bps"]),
                    rate_of(&link["capacity_bps"]),
                    percent_of(&link["utilization"]),
                    rate_of(&link["external_load_bps"]),
                ]
            })
            .collect(),
    }
}

fn hosts(status: &Value, rows: usize) -> View {
    let mut sessions: Vec<&Value> = list(status, "sessions").iter().collect();
    sessions.sort_by_key(|session| std::cmp::Reverse(session["flows"].as_u64()));
    View {
        title: format!("busiest of {} hosts with a session", sessions.len()),
        columns: &[
            ("host", 20),
            ("flows", 8),
            ("pacing", 8),
            ("released", 13),
            ("rtt µs", 8),
            ("software", 28),
        ],
        rows: sessions
            .iter()
            .take(rows)
            .map(|session| {
                ["host", "flows", "pacing", "released", "rtt_us", "software"]
                    .map(|field| text_of(&session[field]))
                    .to_vec()
            })
            .collect(),
    }
}

fn plain(view: &View) -> PlainTable {
    let mut table = PlainTable::new();
    table.load_style(NOTHING);
    table.set_header(view.columns.iter().map(|(name, _)| *name));
    for row in &view.rows {
        table.add_row(row);
    }
    table
}

fn drawn(view: &View) -> Table<'_> {
    let widths = view
        .columns
        .iter()
        .map(|(_, width)| Constraint::Length(*width));
    let header = Row::new(view.columns.iter().map(|(name, _)| *name)).bold();
    Table::new(
        view.rows
            .iter()
            .map(|row| Row::new(row.iter().map(String::as_str))),
        widths,
    )
    .header(header)
    .block(Block::bordered().title(view.title.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_a_cell_for_each_column() {
        let flow =
            serde_json::json!({"flows_total": 2, "flows": [{"from": "h1", "rate_bps": 1e9}]});
        let link = serde_json::json!({"links_total": 9, "links": [{"name": "h1->leaf1"}]});
        let status = serde_json::json!({"sessions": [
            {"host": "idle", "flows": 0}, {"host": "busy", "flows": 9}, {"host": "third", "flows": 1},
        ]});
        for view in [flows(&flow), links(&link), hosts(&status, 2)] {
            for row in &view.rows {
                assert_eq!(row.len(), view.columns.len(), "{}", view.title);
            }
            assert!(plain(&view).to_string().contains(view.columns[0].0));
        }
        let busiest: Vec<_> = hosts(&status, 2)
            .rows
            .iter()
            .map(|row| row[0].clone())
            .collect();
        assert_eq!(busiest, ["busy", "third"]);
    }
}
