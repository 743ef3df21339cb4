//! Traffic that the allocator does not schedule, and an allocator that is lost: with feeds and
//! shares, and without either.
//!
//! | part | what |
//! |---|---|
//! | outside | three managed flows fill a link; a host without a daemon sends TCP into it for a while |
//! | alone | the allocator is killed; eight senders start one after another |
//!
//! Both phases run the same allocator and daemons. Only the keys of feeds and second line differ.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use ratewright_cli::clock::{NS_PER_MS, now_ns};

use super::figures::{FeedsFigures, Figures, round};
use super::outcome::{RunOutcome, ScenarioPhase};
use super::phases::{finish, many_to_one};
use crate::lab::context::Lab;
use crate::lab::control::{Control, ControlKeys, FEEDS_ON, LEASE_MS};
use crate::lab::testbed::{FIRST_PORT, FlowEnd, Testbed, TransferSpec};
use crate::measure::recording::Recording;
use crate::measure::stats::{jain, mean};
use crate::measure::windows::{active_rates, utilization_windows};
use crate::traffic::protocol::{BIN_NS, Behaviour};

/// Eight senders and the receiver.
const HOSTS: usize = 9;
const SENDERS: usize = HOSTS - 1;
/// Managed flows beside the outside one.
const MANAGED: usize = 3;
/// Host whose daemon is killed.
const OUTSIDE: usize = SENDERS - 1;
const LEAD_NS: u64 = 100 * NS_PER_MS;
const SETTLING: Duration = Duration::from_millis(1_500);
const MEASURED: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(150);
const PATIENCE: Duration = Duration::from_secs(20);
/// Sinks report every 50 ms, ports are read every 10 ms.
const REPORT_LAG_NS: u64 = 120 * NS_PER_MS;
/// Width of the windows in which managed flows give way.
const WINDOW_NS: u64 = 2 * BIN_NS;
/// Width of the windows in which eight senders are fair: a rate of an eighth is some hundred
/// packets in one.
const FAIR_WINDOW_NS: u64 = 5 * BIN_NS;
const QUEUE_EVERY: Duration = Duration::from_millis(20);
/// Payload of a full frame of TCP over IPv4.
const PAYLOAD: f64 = 1_448.0 / 1_514.0;

/// Runs both phases.
///
/// # Errors
/// When a phase does not run to its end.
pub fn run(lab: &Lab) -> Result<RunOutcome> {
    let mut outcome = RunOutcome::empty(lab.options.backend.name().to_owned());
    if !lab.options.no_baseline {
        outcome.without = Some(phase(lab, "base", false, &mut outcome.backend)?);
    }
    if !lab.options.only_baseline {
        outcome.with = Some(phase(lab, "with", true, &mut outcome.backend)?);
    }
    Ok(outcome)
}

fn phase(lab: &Lab, name: &'static str, on: bool, backend: &mut String) -> Result<ScenarioPhase> {
    lab.live.say("building the network");
    let mut testbed = many_to_one(lab, name, HOSTS)?;
    lab.live.say("starting the allocator and the daemons");
    let (allocator, daemons) = if on {
        (FEEDS_ON, "[second_line]\nenabled = true\n")
    } else {
        ("", "[telemetry]\nperiod_ms = 0\n")
    };
    let keys = ControlKeys {
        allocator,
        daemons,
        ..ControlKeys::of(lab)
    };
    let mut control = Control::start_with(lab, &testbed, &keys)?;
    if let Some(chosen) = control.backend() {
        *backend = chosen;
    }
    let what = if on { "feeds and shares" } else { "neither" };
    lab.live.phase(what, &testbed.recording);
    let mut figures = FeedsFigures::default();
    // The order matters: the outside host has no daemon from here on, but for the other part.
    alone(lab, &mut testbed, &mut control, &mut figures)?;
    control.revive_allocator(lab, &testbed)?;
    outside(lab, &mut testbed, &mut control, &mut figures)?;
    let samples = control.first_paced_us();
    control.stop();
    let figures = Figures {
        feeds: Some(figures),
        connections_lost: Some(testbed.recording.lock().connections_lost()),
        ..Figures::default()
    };
    Ok(finish(testbed, figures, samples))
}

fn flow(testbed: &mut Testbed, label: String, from: usize, start_ns: u64) -> Result<u32> {
    testbed.flow(TransferSpec {
        label,
        from,
        to: HOSTS - 1,
        port: FIRST_PORT,
        v6: false,
        start_ns,
        connect_ns: None,
        end: FlowEnd::Told,
        behaviour: Behaviour::default(),
    })
}

/// Queue and drops of the switch's port towards the receiver, sampled from outside.
struct Queue {
    netns: String,
    device: String,
}

impl Queue {
    fn of(testbed: &Testbed) -> Self {
        let upper = &testbed.network.plan.links[HOSTS - 1].upper;
        Self {
            netns: testbed.network.netns(upper.node).name().to_owned(),
            device: upper.device.clone(),
        }
    }

    /// Reads bytes that wait, and packets dropped so far.
    fn read(&self) -> Result<(u64, u64)> {
        let output = Command::new("ip")
            .args(["netns", "exec", &self.netns])
            .args(["tc", "-s", "-j", "qdisc", "show", "dev", &self.device])
            .output()
            .context("tc is needed (package iproute2)")?;
        let qdiscs: serde_json::Value =
            serde_json::from_slice(&output.stdout).context("reading tc's answer")?;
        let number = |key: &str| {
            let all = qdiscs.as_array().into_iter().flatten();
            // The root counts for its classes; a device may have clsact beside it.
            all.filter(|qdisc| qdisc["root"] == true)
                .find_map(|qdisc| qdisc[key].as_u64())
                .unwrap_or(0)
        };
        Ok((number("backlog"), number("drops")))
    }

    /// Samples the queue until `until_ns`; returns its mean and maximum and the packets dropped.
    fn watch(&self, lab: &Lab, until_ns: u64) -> Result<(f64, u64, u64)> {
        let (_, dropped_before) = self.read()?;
        let mut samples = Vec::new();
        let mut dropped = dropped_before;
        while now_ns() < until_ns {
            let (bytes, drops) = self.read()?;
            samples.push(bytes as f64);
            dropped = drops;
            lab.sleep_until((now_ns() + QUEUE_EVERY.as_nanos() as u64).min(until_ns))?;
        }
        let largest = samples.iter().copied().fold(0.0, f64::max);
        let mean = mean(&samples).unwrap_or(0.0);
        Ok((mean, largest as u64, dropped.saturating_sub(dropped_before)))
    }
}

fn payload_bps(lab: &Lab) -> f64 {
    lab.options.link_bps() as f64 * PAYLOAD
}

/// A host without a daemon sends into a link that managed flows fill.
fn outside(
    lab: &Lab,
    testbed: &mut Testbed,
    control: &mut Control,
    figures: &mut FeedsFigures,
) -> Result<()> {
    let queue = Queue::of(testbed);
    control.kill_daemon(OUTSIDE);
    // Its session has ended by then, so that the allocator does not count it as managed.
    lab.sleep_until(now_ns() + 4 * LEASE_MS * NS_PER_MS)?;
    let mut flows = Vec::new();
    for host in 0..MANAGED {
        let label = format!("managed {}", host + 1);
        flows.push(flow(testbed, label, host, now_ns() + LEAD_NS)?);
    }
    lab.sleep_until(now_ns() + LEAD_NS + lab.scaled(SETTLING))?;
    let start_ns = now_ns() + LEAD_NS;
    testbed.recording.event("the outside host sends".to_owned());
    let outside = flow(testbed, "outside".to_owned(), OUTSIDE, start_ns)?;
    lab.sleep_until(start_ns)?;
    let end_ns = start_ns + lab.scaled(MEASURED);
    let (mean_bytes, max_bytes, lost) = queue.watch(lab, end_ns)?;
    testbed.stop_flow(outside)?;
    testbed.recording.event("the outside host ends".to_owned());
    lab.sleep_until(end_ns + lab.scaled(SETTLING) + REPORT_LAG_NS)?;
    {
        let recording = testbed.recording.lock();
        let managed = |from_ns: u64| -> f64 {
            let rates = flows
                .iter()
                .map(|flow| recording.flows[flow].rate_bps(from_ns, from_ns + WINDOW_NS));
            rates.sum()
        };
        let whole_bps = payload_bps(lab);
        let fair_bps = whole_bps / (MANAGED + 1) as f64;
        let began_ns = recording.flows[&outside].started_ns.unwrap_or(start_ns);
        let gave_way = |from_ns: u64| managed(from_ns) <= 1.1 * MANAGED as f64 * fair_bps;
        figures.give_way_ms = first_window(began_ns, end_ns, 2, gave_way);
        let took_back = |from_ns: u64| managed(from_ns) >= 0.95 * whole_bps;
        let last_ns = end_ns + lab.scaled(SETTLING);
        figures.take_back_ms = first_window(end_ns, last_ns, 2, took_back);
        let from_ns = (began_ns + 300 * NS_PER_MS).next_multiple_of(BIN_NS);
        let to_ns = end_ns / BIN_NS * BIN_NS;
        let rate_bps = recording.flows[&outside].rate_bps(from_ns, to_ns);
        figures.outside_of_fair = Some(round(rate_bps / fair_bps));
    }
    figures.queue_mean_kb = Some(round(mean_bytes / 1e3));
    figures.queue_max_kb = Some(round(max_bytes as f64 / 1e3));
    figures.packets_lost = Some(lost);
    end_flows(lab, testbed, &flows)
}

/// Finds the first of `sustained` windows in a row that are good; in milliseconds after `from_ns`
/// until its end.
fn first_window(
    from_ns: u64,
    to_ns: u64,
    sustained: u64,
    good: impl Fn(u64) -> bool,
) -> Option<f64> {
    let mut at_ns = from_ns.next_multiple_of(BIN_NS);
    while at_ns + sustained * WINDOW_NS <= to_ns {
        if (0..sustained).all(|index| good(at_ns + index * WINDOW_NS)) {
            return Some(round(
                (at_ns + WINDOW_NS - from_ns) as f64 / NS_PER_MS as f64,
            ));
        }
        at_ns += BIN_NS;
    }
    None
}

/// The allocator is killed under the first senders, and eight divide the link among themselves.
fn alone(
    lab: &Lab,
    testbed: &mut Testbed,
    control: &mut Control,
    figures: &mut FeedsFigures,
) -> Result<()> {
    let queue = Queue::of(testbed);
    let mut flows = vec![flow(testbed, "sender 1".to_owned(), 0, now_ns() + LEAD_NS)?];
    lab.sleep_until(now_ns() + LEAD_NS + lab.scaled(SETTLING) / 2)?;
    testbed
        .recording
        .event("the allocator is killed".to_owned());
    control.kill_allocator();
    // Two leases: nothing of the allocator's holds any more, and its session is given up.
    lab.sleep_until(now_ns() + 3 * LEASE_MS * NS_PER_MS)?;
    let mut last_ns = 0;
    for host in 1..SENDERS {
        last_ns = now_ns() + LEAD_NS;
        flows.push(flow(
            testbed,
            format!("sender {}", host + 1),
            host,
            last_ns,
        )?);
        lab.sleep_until(last_ns + lab.scaled(STEP))?;
    }
    let end_ns = last_ns + lab.scaled(MEASURED);
    let (_, _, lost) = queue.watch(lab, end_ns)?;
    lab.sleep_until(end_ns + REPORT_LAG_NS)?;
    figures.packets_lost_alone = Some(lost);
    {
        let recording = testbed.recording.lock();
        let began_ns = flows
            .last()
            .and_then(|flow| recording.flows[flow].started_ns)
            .unwrap_or(last_ns);
        judge_alone(&recording, began_ns, end_ns, figures);
    }
    let summaries: Vec<serde_json::Value> = (0..SENDERS)
        .filter_map(|host| control.daemon_status(host))
        .map(|status| status["second_line"]["share_us"].clone())
        .filter(|summary| summary["count"].as_u64().is_some_and(|count| count > 0))
        .collect();
    let largest = |key: &str| {
        let values = summaries.iter().filter_map(|summary| summary[key].as_f64());
        values.fold(None, |most: Option<f64>, value| {
            Some(most.map_or(value, |most| most.max(value)))
        })
    };
    (figures.share_us_p50, figures.share_us_p99) = (largest("p50"), largest("p99"));
    end_flows(lab, testbed, &flows)
}

fn judge_alone(recording: &Recording, began_ns: u64, end_ns: u64, figures: &mut FeedsFigures) {
    let window = |from_ns: u64| active_rates(recording, from_ns, from_ns + FAIR_WINDOW_NS);
    let is_fair = |from_ns: u64| {
        let rates = window(from_ns);
        let fair_bps = mean(&rates).unwrap_or(0.0);
        let near = |rate: &f64| (rate / fair_bps - 1.0).abs() <= 0.1;
        rates.len() == SENDERS && rates.iter().all(near)
    };
    // Rates are exact on the borders of bins only.
    let starts: Vec<u64> = (began_ns.next_multiple_of(BIN_NS)..)
        .step_by(BIN_NS as usize)
        .take_while(|from_ns| from_ns + FAIR_WINDOW_NS <= end_ns)
        .collect();
    let first = starts.iter().find(|&&from_ns| is_fair(from_ns));
    // The window's own width is no part of the wait.
    figures.fair_ms = first.map(|from_ns| round((from_ns - began_ns) as f64 / NS_PER_MS as f64));
    let settled_ns = began_ns + 100 * NS_PER_MS;
    let settled = starts.iter().filter(|&&from_ns| from_ns >= settled_ns);
    let least = settled.map(|&from_ns| jain(&window(from_ns)));
    figures.jain_min = least.reduce(f64::min).map(round);
    let uses = recording
        .ports
        .first()
        .map(|port| utilization_windows(port, settled_ns, end_ns, 100 * NS_PER_MS));
    let least_use = uses.into_iter().flatten().reduce(f64::min);
    figures.utilization_min = least_use.map(round);
}

fn end_flows(lab: &Lab, testbed: &mut Testbed, flows: &[u32]) -> Result<()> {
    for flow in flows {
        testbed.stop_flow(*flow)?;
    }
    testbed
        .wait_flows(lab, PATIENCE)?
        .then_some(())
        .context("a flow did not end")
}
