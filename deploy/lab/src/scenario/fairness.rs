//! flowtune §5.1 (A): many senders to one receiver start one after another and end likewise.
//!
//! Steps are ten times the paper's 50 ms: the lab's links are slower than the paper's 10 Gbit/s,
//! and fairness is judged in windows of 50 ms from 100 ms after a change.

use std::time::Duration;

use anyhow::{Result, bail};
use ratewright_cli::clock::{NS_PER_MS, now_ns};

use super::figures::{Figures, round};
use super::outcome::RunOutcome;
use super::phases::{many_to_one, phases};
use crate::lab::context::Lab;
use crate::lab::control::Control;
use crate::lab::testbed::{FIRST_PORT, FlowEnd, Testbed, TransferSpec};
use crate::measure::recording::Recording;
use crate::measure::segments::retransmitted;
use crate::measure::stats::{median, minimum};
use crate::measure::windows::{settled_jain, settled_shares, utilization_active};
use crate::net::plan::payload_share;
use crate::traffic::protocol::Behaviour;

const STEP: Duration = Duration::from_millis(500);
const DEFAULT_HOSTS: usize = 9;
/// From the commands to the first start.
const LEAD_NS: u64 = 200 * NS_PER_MS;
const DRAIN_PATIENCE: Duration = Duration::from_secs(20);

/// Flowlets per sender that follow the steps, with Ratewright, so that the wait for a first rate is
/// known from more than one flowlet of each host.
const PROBES_PER_SENDER: f64 = 25.0;
/// Long enough to be in flight still when a late rate comes.
const PROBE_BYTES: u64 = 250_000;
/// At the least this far apart, so that few overlap.
const PROBE_SPACING: Duration = Duration::from_millis(12);

/// Runs both phases.
///
/// # Errors
/// When a phase does not run to its end.
pub fn run(lab: &Lab) -> Result<RunOutcome> {
    let hosts = lab.options.hosts_or(DEFAULT_HOSTS);
    phases(
        lab,
        |name| many_to_one(lab, name, hosts),
        "",
        |testbed, control| phase(lab, testbed, control),
    )
    .map(RunOutcome::in_right_network)
}

fn phase(lab: &Lab, testbed: &mut Testbed, control: Option<&mut Control>) -> Result<Figures> {
    let receiver = testbed.network.plan.hosts - 1;
    let step = lab.scaled(STEP);
    let begin = now_ns() + LEAD_NS;
    for sender in 0..receiver {
        let start_ns = begin + sender as u64 * step;
        testbed.flow(TransferSpec {
            label: format!("h{}", sender + 1),
            from: sender,
            to: receiver,
            port: FIRST_PORT,
            v6: false,
            start_ns,
            connect_ns: None,
            // The same number of steps for every flow: they end in the order of their starts.
            end: FlowEnd::At(start_ns + receiver as u64 * step),
            behaviour: Behaviour::default(),
        })?;
    }
    // The last of `receiver` flows starts at step receiver - 1 and lasts `receiver` steps.
    let end = begin + (2 * receiver as u64 - 1) * step;
    for change in 0..2 * receiver as u64 {
        lab.sleep_until(begin + change * step)?;
        testbed.check_alive()?;
        let n = change as usize % receiver + 1;
        let verb = if (change as usize) < receiver {
            "starts"
        } else {
            "stops"
        };
        testbed.recording.event(format!("h{n} {verb}"));
    }
    lab.sleep_until(end)?;
    if !testbed.wait_flows(lab, DRAIN_PATIENCE)? {
        bail!("a flow did not end within {} s", DRAIN_PATIENCE.as_secs());
    }
    let with_ratewright = control.is_some();
    if let Some(control) = control {
        control.check_alive()?;
    }
    // Sinks report every 50 ms: the last bins must have arrived.
    lab.sleep_until(now_ns() + 100 * NS_PER_MS)?;
    let recording = testbed.recording.lock();
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
    let capacity_bps = testbed.network.plan.capacities.host_bps as f64 * payload_share(false);
    let mut figures = Figures {
        share_min: minimum(&settled_shares(&recording, capacity_bps)).map(round),
        ..figures(&recording)
    };
    // The probes below add flows to the recording, which the plot must not show.
    let steps = recording.clone();
    // The reader threads need the lock while the probes run.
    drop(recording);
    let sent_again = (0..receiver).map(|host| retransmitted(testbed.network.netns(host)));
    figures.retransmitted = Some(sent_again.sum::<Result<u64>>()?);
    if with_ratewright {
        probe(lab, testbed)?;
        // The plot and the figures are of the steps.
        *testbed.recording.lock() = steps;
    }
    Ok(figures)
}

/// Short flows from the senders in turn.
fn probe(lab: &Lab, testbed: &mut Testbed) -> Result<()> {
    let receiver = testbed.network.plan.hosts - 1;
    let rounds = (PROBES_PER_SENDER * lab.options.duration_scale).ceil() as usize;
    testbed
        .recording
        .event(format!("{} short flows, one by one", rounds * receiver));
    let begin = now_ns() + LEAD_NS;
    for i in 0..rounds * receiver {
        let from = i % receiver;
        testbed.flow(TransferSpec {
            label: format!("probe {i}"),
            from,
            to: receiver,
            port: FIRST_PORT,
            v6: false,
            start_ns: begin + i as u64 * PROBE_SPACING.as_nanos() as u64,
            connect_ns: None,
            end: FlowEnd::Bytes(PROBE_BYTES),
            behaviour: Behaviour::default(),
        })?;
    }
    // All probes are commanded at once, so the wait covers their whole schedule.
    let patience = PROBE_SPACING * (rounds * receiver) as u32 + DRAIN_PATIENCE;
    if !testbed.wait_flows(lab, patience)? {
        bail!("a short flow did not end within {} s", patience.as_secs());
    }
    Ok(())
}

fn figures(recording: &Recording) -> Figures {
    let indices: Vec<f64> = settled_jain(recording)
        .into_iter()
        .map(|(_, index)| index)
        .collect();
    Figures {
        jain_settled_min: minimum(&indices).map(round),
        jain_settled_median: median(&indices).map(round),
        jain_settled_windows: Some(indices.len()),
        utilization_active: Some(round(utilization_active(recording, &recording.ports[0]))),
        connections_lost: Some(recording.connections_lost()),
        ..Figures::default()
    }
}
