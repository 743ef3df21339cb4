//! flowtune §5.1 (A): many senders to one receiver start one after another and end likewise.
//!
//! Steps are ten times the paper's 50 ms: the lab's links are slower than the paper's 10 Gbit/s, and
//! fairness is judged in windows of 50 ms from 100 ms after a change.

use std::time::Duration;

use anyhow::{Result, bail};

use super::figures::{Figures, round};
use super::{Outcome, many_to_one, phases};
use crate::clock::{NS_PER_MS, now_ns};
use crate::lab::Lab;
use crate::lab::control::Control;
use crate::lab::site::{End, FIRST_PORT, FlowSpec, Site};
use crate::measure::stats::{median, minimum};
use crate::measure::windows::{settled_jain, utilization_active};

const STEP: Duration = Duration::from_millis(500);
const DEFAULT_HOSTS: usize = 9;
/// From the commands to the first start.
const LEAD_NS: u64 = 200 * NS_PER_MS;
const DRAIN_PATIENCE: Duration = Duration::from_secs(20);

/// Runs both phases.
///
/// # Errors
/// When a phase does not run to its end.
pub fn run(lab: &Lab) -> Result<Outcome> {
    let hosts = lab.options.hosts_or(DEFAULT_HOSTS);
    phases(
        lab,
        |name| many_to_one(lab, name, hosts),
        "",
        |site, control| phase(lab, site, control),
    )
}

fn phase(lab: &Lab, site: &mut Site, control: Option<&mut Control>) -> Result<Figures> {
    let receiver = site.network.plan.hosts - 1;
    let step = lab.scaled(STEP);
    let begin = now_ns() + LEAD_NS;
    for sender in 0..receiver {
        let start_ns = begin + sender as u64 * step;
        site.flow(FlowSpec {
            label: format!("h{}", sender + 1),
            from: sender,
            to: receiver,
            port: FIRST_PORT,
            v6: false,
            start_ns,
            end: End::At(start_ns + receiver as u64 * step),
        })?;
    }
    let end = begin + (2 * receiver as u64 - 1) * step;
    for change in 0..2 * receiver as u64 {
        lab.sleep_until(begin + change * step)?;
        site.check_alive()?;
        let n = change as usize % receiver + 1;
        let verb = if (change as usize) < receiver {
            "starts"
        } else {
            "stops"
        };
        site.recording.event(format!("h{n} {verb}"));
    }
    lab.sleep_until(end)?;
    if !site.wait_flows(lab, DRAIN_PATIENCE)? {
        bail!("a flow did not end within {} s", DRAIN_PATIENCE.as_secs());
    }
    if let Some(control) = control {
        control.check_alive()?;
    }
    lab.sleep_until(now_ns() + 100 * NS_PER_MS)?;
    let recording = site.recording.lock();
    if let Some((_, flow)) = recording
        .flows
        .iter()
        .find(|(_, flow)| flow.failed.is_some())
    {
        bail!(
            "the connection of {} broke: {}",
            flow.label,
            flow.failed.as_deref().unwrap_or_default()
        );
    }
    let indices: Vec<f64> = settled_jain(&recording)
        .into_iter()
        .map(|(_, index)| index)
        .collect();
    Ok(Figures {
        jain_settled_min: minimum(&indices).map(round),
        jain_settled_median: median(&indices).map(round),
        jain_settled_windows: Some(indices.len()),
        utilization_active: Some(round(utilization_active(&recording, &recording.ports[0]))),
        connections_lost: Some(recording.connections_lost()),
        ..Figures::default()
    })
}
