//! `ratewright release` and `ratewright resume`: turn an allocator's kill switch, for all hosts or
//! for one.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::admin;

/// Longest wait for an answer: an allocator waits for the hosts' acknowledgements a lease long.
const PATIENCE: Duration = Duration::from_secs(60);

/// `ratewright release` and `ratewright resume`
#[derive(Debug, Args)]
pub struct SwitchCommand {
    /// Admin interface of the allocator: address:port or unix:PATH
    #[arg(default_value = admin::DEFAULT_ADDRESS)]
    admin: String,
    /// This host only, instead of all
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// The answer as it is
    #[arg(long)]
    json: bool,
}

impl SwitchCommand {
    /// Returns every host to plain TCP, and says which hosts may still act on a rate.
    ///
    /// # Errors
    /// When no allocator answers, or a host may still act on a rate.
    pub fn release(&self) -> Result<()> {
        let report = self.turn("/release")?;
        let waiting: Vec<&str> = report["waiting"]
            .as_array()
            .context("the answer has no list `waiting`")?
            .iter()
            .filter_map(Value::as_str)
            .collect();
        if !waiting.is_empty() {
            bail!(
                "released, but {} may still act on a rate: ask again, or stop the daemon there",
                waiting.join(", ")
            );
        }
        Ok(())
    }

    /// Hands out rates again.
    ///
    /// # Errors
    /// When no allocator answers.
    pub fn resume(&self) -> Result<()> {
        self.turn("/resume").map(drop)
    }

    /// Asks, prints the answer and returns it.
    fn turn(&self, path: &str) -> Result<Value> {
        let path = match &self.host {
            None => path.to_owned(),
            Some(host) => format!("{path}?host={}", admin::query_value(host)),
        };
        let body = admin::post_within(PATIENCE, &self.admin, &path)
            .with_context(|| admin::whom_to_ask(&self.admin))?;
        let report: Value = serde_json::from_str(&body).context("the answer is not JSON")?;
        if self.json {
            println!("{}", body.trim_end());
        } else {
            println!("{}", summary(&report, self.host.as_deref())?);
        }
        Ok(report)
    }
}

/// Says a report in one line.
fn summary(report: &Value, host: Option<&str>) -> Result<String> {
    let released = report["released"]
        .as_bool()
        .context("the answer does not say `released`")?;
    let count = |field: &str| {
        report[field]
            .as_u64()
            .with_context(|| format!("the answer has no number `{field}`"))
    };
    if let Some(host) = host {
        return Ok(if !released {
            format!("resumed: {host} follows the rollout")
        } else if count("hosts")? == 0 {
            format!("released: {host} has no session, and gets no rate when it has one")
        } else {
            format!("released: {host} paces nothing")
        });
    }
    Ok(if released {
        format!(
            "released: of {} hosts {} acknowledged it, and the rates of {} expired",
            count("hosts")?,
            count("acknowledged")?,
            count("expired")?
        )
    } else {
        "resumed: the allocator hands out rates".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_hosts_release_is_told_by_its_name() {
        let report =
            |released: bool, hosts: u64| serde_json::json!({"released": released, "hosts": hosts});
        for (released, hosts, text) in [
            (true, 1, "released: h3 paces nothing"),
            (
                true,
                0,
                "released: h3 has no session, and gets no rate when it has one",
            ),
            (false, 1, "resumed: h3 follows the rollout"),
        ] {
            assert_eq!(
                summary(&report(released, hosts), Some("h3")).expect("a line"),
                text
            );
        }
    }
}
