//! `ratewright status`: prints an allocator's status as tables.

use anyhow::{Context, Result};
use clap::Args;
use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use serde_json::Value;

use crate::admin;

/// `ratewright status`
#[derive(Debug, Args)]
pub struct StatusCommand {
    /// Admin interface of the allocator: address:port or unix:PATH
    #[arg(default_value = admin::DEFAULT_ADDRESS)]
    admin: String,
    /// The answer as it is
    #[arg(long)]
    json: bool,
}

impl StatusCommand {
    /// Runs the command.
    ///
    /// # Errors
    /// When no allocator answers.
    pub fn run(&self) -> Result<()> {
        let body =
            admin::get(&self.admin, "/status").with_context(|| admin::whom_to_ask(&self.admin))?;
        if self.json {
            println!("{}", body.trim_end());
            return Ok(());
        }
        let status: Value = serde_json::from_str(&body).context("the answer is not JSON")?;
        println!("{}", render(&status));
        Ok(())
    }
}

/// Lists a status: single values first, then a table per list.
fn render(status: &Value) -> String {
    let mut scalars = Table::new();
    scalars.load_style(UTF8_FULL_CONDENSED);
    let mut lists = Vec::new();
    collect("", status, &mut scalars, &mut lists);
    let mut out = scalars.to_string();
    for (name, rows) in lists {
        out.push_str(&format!("\n\n{name}\n{}", table_of(&rows)));
    }
    out
}

fn collect(name: &str, value: &Value, scalars: &mut Table, lists: &mut Vec<(String, Vec<Value>)>) {
    match value {
        Value::Object(fields) => {
            for (key, child) in fields {
                let name = if name.is_empty() {
                    key.clone()
                } else {
                    format!("{name}.{key}")
                };
                collect(&name, child, scalars, lists);
            }
        }
        // Lists of plain values fit into a cell; lists of objects become tables.
        Value::Array(rows) if rows.iter().any(Value::is_object) => {
            lists.push((name.to_owned(), rows.clone()));
        }
        other => {
            scalars.add_row([name.to_owned(), text(other)]);
        }
    }
}

fn table_of(rows: &[Value]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    // All rows of a list have the fields of its first.
    let columns: Vec<String> = rows
        .first()
        .and_then(Value::as_object)
        .map(|row| row.keys().cloned().collect())
        .unwrap_or_default();
    table.set_header(&columns);
    for row in rows {
        table.add_row(columns.iter().map(|column| text(&row[column.as_str()])));
    }
    table
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "–".to_owned(),
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_becomes_tables() {
        let status = serde_json::json!({
            "flows": 8, "iteration": {"p50_us": 1.5}, "links_down": [],
            "sessions": [{"host": "h1", "flows": 1}, {"host": "h2", "flows": 7}],
        });
        let text = render(&status);
        for part in ["iteration.p50_us", "1.5", "sessions", "h2", "host"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
