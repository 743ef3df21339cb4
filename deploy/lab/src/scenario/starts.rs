//! Hundreds of flows of one host start at once while its uplink is full: how long until each has
//! its first rate, with control datagrams ahead of data and with the two in one queue.
//!
//! The connections stand before; all send at the same moment. A few unmanaged connections, which
//! are plain TCP, keep the uplink's queue full, so that what a datagram waits there is seen.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use ratewright_cli::clock::{NS_PER_MS, now_ns};

use super::figures::{Figures, FirstPaced, round};
use super::outcome::{RunOutcome, ScenarioPhase};
use super::phases::{capacities, finish};
use crate::lab::context::Lab;
use crate::lab::control::Control;
use crate::lab::testbed::{FIRST_PORT, FlowEnd, PORTS, Testbed, TransferSpec};
use crate::net::plan::NetworkPlan;
use crate::traffic::protocol::Behaviour;

const DEFAULT_HOSTS: usize = 4;
/// Connections that start at once.
const STARTS: usize = 300;
/// Bytes of each: more than a round trip's worth, so that the flow is there when its rate comes.
const START_BYTES: u64 = 60_000;
/// Rounds of [`STARTS`] starts each.
const ROUNDS: f64 = 5.0;
/// Connections that keep the uplink's queue full, to a port that the policy leaves alone.
const BULK: usize = 8;
const BULK_PORT: u16 = FIRST_PORT + PORTS - 1;
/// From the commands until the connections are made, and from there until they send.
const LEAD_NS: u64 = 200 * NS_PER_MS;
const HANDSHAKES_NS: u64 = 1_000 * NS_PER_MS;
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs both phases: first with control datagrams that wait with data, then with the mark that the
/// command line names.
///
/// # Errors
/// When a phase does not run to its end.
pub fn run(lab: &Lab) -> Result<RunOutcome> {
    let mut outcome = RunOutcome::empty(lab.options.backend.name().to_owned());
    if !lab.options.no_baseline {
        outcome.without = Some(phase(lab, "base", 0, &mut outcome.backend)?);
    }
    if !lab.options.only_baseline {
        let dscp = lab.options.control_dscp;
        outcome.with = Some(phase(lab, "with", dscp, &mut outcome.backend)?);
    }
    Ok(outcome)
}

fn phase(lab: &Lab, name: &'static str, dscp: u8, backend: &mut String) -> Result<ScenarioPhase> {
    let hosts = lab.options.hosts_or(DEFAULT_HOSTS);
    let receivers: Vec<usize> = (1..hosts).collect();
    let mut capacities = capacities(lab);
    // Both the links' queues and the daemons' sockets take the mark from here.
    capacities.control_dscp = dscp;
    lab.live.say("building the network");
    let plan = NetworkPlan::big_switch(hosts, capacities);
    let mut testbed = Testbed::build(lab, name, plan, &[0], &receivers)?;
    testbed.watch_ports(&receivers)?;
    lab.live.say("starting the allocator and the daemons");
    // Bulk flows without rates fill the queue that marked datagrams must pass.
    let policy = format!("[[policy]]\ndst_port = {BULK_PORT}\nbypass = true\n");
    let mut control = Control::start(lab, &testbed, &policy)?;
    if let Some(chosen) = control.backend() {
        *backend = chosen;
    }
    lab.live.phase(
        &format!("control datagrams of DSCP {dscp}"),
        &testbed.recording,
    );
    let figures = rounds(lab, &mut testbed, &mut control)?;
    let samples = control.first_paced_us();
    control.stop();
    Ok(finish(testbed, figures, samples))
}

fn rounds(lab: &Lab, testbed: &mut Testbed, control: &mut Control) -> Result<Figures> {
    let receivers = testbed.network.plan.hosts - 1;
    let begin = now_ns() + LEAD_NS;
    let mut bulk = Vec::new();
    for index in 0..BULK {
        bulk.push(testbed.flow(TransferSpec {
            label: format!("bulk {}", index + 1),
            from: 0,
            to: 1 + index % receivers,
            port: BULK_PORT,
            v6: false,
            start_ns: begin,
            connect_ns: None,
            end: FlowEnd::Told,
            behaviour: Behaviour::default(),
        })?);
    }
    let rounds = (ROUNDS * lab.options.duration_scale).ceil() as usize;
    for round in 0..rounds {
        let connect_ns = now_ns() + LEAD_NS;
        // A second for 300 hand-shakes through a full queue, so that all can send at the same
        // moment.
        let start_ns = connect_ns + HANDSHAKES_NS;
        testbed
            .recording
            .event(format!("round {} of {STARTS} starts", round + 1));
        for index in 0..STARTS {
            testbed.flow(TransferSpec {
                label: format!("start {index}"),
                from: 0,
                to: 1 + index % receivers,
                port: FIRST_PORT,
                // Half of the starts over either family: both have a filter of their own.
                v6: index % 2 == 1,
                start_ns,
                connect_ns: Some(connect_ns),
                end: FlowEnd::Bytes(START_BYTES),
                behaviour: Behaviour::default(),
            })?;
        }
        let done = lab.wait_for(PATIENCE, || {
            testbed.check_alive()?;
            control.check_alive()?;
            let recording = testbed.recording.lock();
            Ok(recording.flows.iter().all(|(flow, state)| {
                bulk.contains(flow) || state.ended_ns.is_some() || state.failed.is_some()
            }))
        })?;
        if !done {
            bail!("a flow did not end within {} s", PATIENCE.as_secs());
        }
    }
    for flow in bulk {
        testbed.stop_flow(flow)?;
    }
    if !testbed.wait_flows(lab, PATIENCE)? {
        bail!("a bulk flow did not end within {} s", PATIENCE.as_secs());
    }
    // Read while the daemon still runs; the caller stops it.
    let status = control
        .daemon_status(0)
        .context("the daemon of h1 does not tell its status")?;
    let recording = testbed.recording.lock();
    Ok(Figures {
        first_rate_us: first_rate(&status),
        connections_lost: Some(recording.connections_lost()),
        ..Figures::default()
    })
}

/// Reads a daemon's report of the time from the kernel's seeing a flowlet begin to its first rate.
fn first_rate(status: &serde_json::Value) -> Option<FirstPaced> {
    let summary = find(status, "first_rate_us")?;
    let number = |key: &str| summary.get(key)?.as_f64();
    Some(FirstPaced {
        p50: round(number("p50")?),
        p99: round(number("p99")?),
        count: number("count")? as usize,
    })
}

/// The first object under `key`, at any depth.
fn find<'v>(value: &'v serde_json::Value, key: &str) -> Option<&'v serde_json::Value> {
    let object = value.as_object()?;
    match object.get(key) {
        Some(found) if found.is_object() => Some(found),
        _ => object.values().find_map(|child| find(child, key)),
    }
}
