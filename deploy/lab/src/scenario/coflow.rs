//! flowtune §5.1 (B): senders with many parallel transfers each to one receiver; the coflow is
//! complete when the last transfer is.
//!
//! The paper's transfers of 10 Mbyte take 1.6 s at its 10 Gbit/s; here they are scaled so that a
//! run takes about as long at the lab's speed. Both networks stand at the same time and runs
//! alternate, so that whatever else the machine does hits both alike; the idle one costs nothing.

use std::time::Duration;

use anyhow::{Result, bail};
use ratewright_cli::clock::{NS_PER_MS, NS_PER_S, now_ns};

use super::figures::{Completion, Figures, FirstPaced, TimeQuantiles, round};
use super::outcome::{RunOutcome, ScenarioPhase};
use super::phases::many_to_one;
use crate::lab::context::Lab;
use crate::lab::control::Control;
use crate::lab::testbed::{FIRST_PORT, FlowEnd, Testbed, TransferSpec};
use crate::measure::stats::percentile;
use crate::measure::windows::utilization_active;
use crate::traffic::protocol::Behaviour;

const DEFAULT_HOSTS: usize = 9;
const TRANSFERS: usize = 25;
/// Time that the payload of one run takes at the link's full speed.
const RUN: Duration = Duration::from_millis(1_500);
const LEAD_NS: u64 = 100 * NS_PER_MS;
/// Rest between runs: flowlets are over, queues empty.
const REST_NS: u64 = 200 * NS_PER_MS;
const PATIENCE: Duration = Duration::from_secs(60);

/// A testbed and the completion times seen there.
struct CoflowSide {
    testbed: Testbed,
    control: Option<Control>,
    coflows_s: Vec<f64>,
    transfers_s: Vec<f64>,
}

/// Alternates runs on both networks.
///
/// # Errors
/// When a run does not come to its end.
pub fn run(lab: &Lab) -> Result<RunOutcome> {
    let hosts = lab.options.hosts_or(DEFAULT_HOSTS);
    let mut contenders = Vec::new();
    if !lab.options.no_baseline {
        lab.live.say("building the network for the baseline");
        contenders.push(CoflowSide::new(many_to_one(lab, "base", hosts)?, None));
    }
    let mut backend = lab.options.backend.name().to_owned();
    if !lab.options.only_baseline {
        lab.live
            .say("building the network for Ratewright; starting the allocator and the daemons");
        let testbed = many_to_one(lab, "with", hosts)?;
        let control = Control::start(lab, &testbed, "")?;
        backend = control.backend().unwrap_or(backend);
        contenders.push(CoflowSide::new(testbed, Some(control)));
    }
    for run in 0..usize::from(lab.options.runs()) {
        // The order changes from round to round.
        // `min` keeps the first round as built: the baseline goes first there.
        contenders.rotate_left(run.min(1));
        for contender in &mut contenders {
            contender.run_once(lab, run)?;
        }
    }
    let phases = contenders
        .into_iter()
        .map(|contender| (contender.control.is_some(), contender.finish()));
    Ok(RunOutcome::of(backend, phases))
}

impl CoflowSide {
    fn new(testbed: Testbed, control: Option<Control>) -> CoflowSide {
        CoflowSide {
            testbed,
            control,
            coflows_s: Vec::new(),
            transfers_s: Vec::new(),
        }
    }

    fn run_once(&mut self, lab: &Lab, run: usize) -> Result<()> {
        let receiver = self.testbed.network.plan.hosts - 1;
        let bytes_per_s = self.testbed.network.plan.capacities.host_bps / 8;
        let total = bytes_per_s as f64 * lab.scaled(RUN) as f64 / NS_PER_S as f64;
        // Equal transfers that together fill the receiver's link for RUN.
        let bytes = (total / (receiver * TRANSFERS) as f64) as u64;
        let name = if self.control.is_some() {
            "with Ratewright"
        } else {
            "without Ratewright (Cubic)"
        };
        lab.live.phase(
            &format!("run {} of {} {name}", run + 1, lab.options.runs()),
            &self.testbed.recording,
        );

        let start_ns = now_ns() + LEAD_NS;
        let mut flows = Vec::new();
        for sender in 0..receiver {
            for _ in 0..TRANSFERS {
                flows.push(self.testbed.flow(TransferSpec {
                    label: format!("h{}", sender + 1),
                    from: sender,
                    to: receiver,
                    port: FIRST_PORT,
                    v6: false,
                    start_ns,
                    connect_ns: None,
                    end: FlowEnd::Bytes(bytes),
                    behaviour: Behaviour::default(),
                })?);
            }
        }
        if !self.testbed.wait_flows(lab, PATIENCE)? {
            bail!("a transfer did not end within {} s", PATIENCE.as_secs());
        }
        if let Some(control) = &mut self.control {
            control.check_alive()?;
        }
        let mut last = 0.0f64;
        for flow in flows {
            let recording = self.testbed.recording.lock();
            let record = &recording.flows[&flow];
            let Some(ended) = record.ended_ns else {
                bail!(
                    "a transfer of {} broke: {}",
                    record.label,
                    record.failed.as_deref().unwrap_or_default()
                );
            };
            // From the common start, not from each connect: a coflow waits for its slowest
            // hand-shake too.
            let took_s = ended.saturating_sub(start_ns) as f64 / NS_PER_S as f64;
            self.transfers_s.push(took_s);
            last = last.max(took_s);
        }
        self.coflows_s.push(last);
        self.testbed
            .recording
            .event(format!("run {} {name}: {last:.3} s", run + 1));
        // Flowlets of this run must be over in the allocator before the next one starts.
        lab.sleep_until(now_ns() + REST_NS)
    }

    fn finish(self) -> ScenarioPhase {
        // Asked before the daemons stop.
        let first_paced_us = self
            .control
            .as_ref()
            .map(Control::first_paced_us)
            .unwrap_or_default();
        if let Some(control) = self.control {
            control.stop();
        }
        let recording = self.testbed.recording.lock().clone();
        self.testbed.tear_down();
        let at = |p| percentile(&self.coflows_s, p).map_or(0.0, round);
        let figures = Figures {
            utilization_active: recording
                .ports
                .first()
                .map(|port| round(utilization_active(&recording, port))),
            completion_s: TimeQuantiles::of(&self.transfers_s).map(|transfers| Completion {
                p50: at(50.0),
                p90: at(90.0),
                p95: at(95.0),
                runs: self.coflows_s.len(),
                transfers,
                samples: self.coflows_s.iter().copied().map(round).collect(),
            }),
            connections_lost: Some(recording.connections_lost()),
            first_paced_us: FirstPaced::of(&first_paced_us),
            ..Figures::default()
        };
        ScenarioPhase {
            figures,
            recording,
            first_paced_us,
        }
    }
}
