//! Links without a shaper, as fast as this machine moves packets: the topology says how fast they
//! are meant to be. One flow and eight, by turns with plain TCP, which nothing limits, and with
//! plain TCP whose applications set maxima of the same rate: what the kernel's pacing takes by
//! itself.
//!
//! Processor time is that of the whole machine, softirqs included; what else the machine does
//! counts for both.

use std::time::Duration;

use anyhow::Result;
use ratewright_cli::clock::{NS_PER_MS, NS_PER_S, now_ns};

use super::figures::{Figures, LinkRow, round};
use super::outcome::{RunOutcome, ScenarioPhase};
use super::phases::capacities;
use crate::lab::context::Lab;
use crate::lab::control::Control;
use crate::lab::testbed::{FIRST_PORT, FlowEnd, Testbed, TransferSpec};
use crate::measure::processor::busy_s;
use crate::measure::recording::Recording;
use crate::measure::stats::median;
use crate::net::plan::{Capacities, NetworkPlan, Offload, payload_share};
use crate::traffic::protocol::{BIN_NS, Behaviour};

const SENDER: usize = 0;
const RECEIVER: usize = 1;
const HOSTS: usize = 2;
const SPEEDS_MBPS: [u32; 5] = [1_000, 5_000, 10_000, 25_000, 40_000];
const FLOWS: [usize; 2] = [1, 8];
/// Rate of the applications' own maxima over the link's, which is what the allocator hands out.
const MAXIMUM: f64 = 0.99;
const LEAD_NS: u64 = 100 * NS_PER_MS;
const SETTLING: Duration = Duration::from_millis(1_000);
const MEASURED: Duration = Duration::from_secs(4);
const REST_NS: u64 = 300 * NS_PER_MS;
const REPORT_LAG_NS: u64 = 120 * NS_PER_MS;
const ABORT_PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contender {
    Managed,
    Plain,
    OwnMaxima,
}

impl Contender {
    fn name(self) -> &'static str {
        match self {
            Contender::Managed => "with Ratewright",
            Contender::Plain => "plain TCP",
            Contender::OwnMaxima => "maxima of their own",
        }
    }
}

#[derive(Default)]
struct Samples {
    gbps: Vec<f64>,
    ps_per_bit: Vec<f64>,
}

/// Runs every speed.
///
/// # Errors
/// When the lab itself fails.
pub fn run(lab: &Lab) -> Result<RunOutcome> {
    let speeds = match lab.options.link_mbps {
        Some(one) => vec![one],
        None => SPEEDS_MBPS.to_vec(),
    };
    let mut outcome = RunOutcome::empty(lab.options.backend.name().to_owned());
    let (mut with, mut without) = (Vec::new(), Vec::new());
    let mut recording = Recording::new();
    for mbps in speeds {
        recording = run_speed(lab, mbps, &mut outcome.backend, &mut with, &mut without)?;
    }
    let phase = |rows: Vec<LinkRow>| {
        (!rows.is_empty()).then(|| ScenarioPhase {
            figures: Figures {
                links: Some(rows),
                ..Figures::default()
            },
            recording: recording.clone(),
            first_paced_us: Vec::new(),
        })
    };
    outcome.with = phase(with);
    outcome.without = phase(without);
    Ok(outcome)
}

fn run_speed(
    lab: &Lab,
    mbps: u32,
    backend: &mut String,
    with: &mut Vec<LinkRow>,
    without: &mut Vec<LinkRow>,
) -> Result<Recording> {
    let rate_bps = u64::from(mbps) * 1_000_000;
    let plan = NetworkPlan::big_switch(
        HOSTS,
        Capacities {
            host_bps: rate_bps,
            fabric_bps: rate_bps,
            // The speed is that of the topology file only; no queue enforces it.
            shape_links: false,
            offload: Offload::Everywhere,
            ..capacities(lab)
        },
    );
    let build = |name: String| Testbed::build(lab, &name, plan.clone(), &[SENDER], &[RECEIVER]);
    lab.live.say(format!(
        "building networks of {} Gbit/s",
        f64::from(mbps) / 1e3
    ));
    let mut base = match lab.options.no_baseline {
        false => Some(build(format!("base{mbps}"))?),
        true => None,
    };
    let mut managed = None;
    if !lab.options.only_baseline {
        let testbed = build(format!("with{mbps}"))?;
        let control = Control::start(lab, &testbed, "")?;
        *backend = control.backend().unwrap_or_else(|| backend.clone());
        managed = Some((testbed, control));
    }
    let mut contenders = Vec::new();
    if base.is_some() {
        contenders.extend([Contender::Plain, Contender::OwnMaxima]);
    }
    if managed.is_some() {
        contenders.push(Contender::Managed);
    }
    let v6 = lab.options.family().each()[0];
    let payload_bps = rate_bps as f64 * payload_share(v6);
    for flows in FLOWS {
        let mut samples = [(); 3].map(|()| Samples::default());
        for run in 0..lab.options.runs() {
            // The order changes from turn to turn.
            contenders.rotate_left(1);
            for contender in &contenders {
                let testbed = match (contender, &mut base, &mut managed) {
                    (Contender::Managed, _, Some((testbed, _))) | (_, Some(testbed), _) => testbed,
                    _ => continue,
                };
                lab.live.phase(
                    &format!(
                        "{} Gbit/s, run {} of {}: {flows} flow(s), {}",
                        f64::from(mbps) / 1e3,
                        run + 1,
                        lab.options.runs(),
                        contender.name()
                    ),
                    &testbed.recording,
                );
                let maximum = (*contender == Contender::OwnMaxima)
                    .then(|| (MAXIMUM * payload_bps / flows as f64) as u64);
                let (gbps, ps_per_bit) = run_once(lab, testbed, flows, maximum)?;
                samples[*contender as usize].gbps.push(gbps);
                samples[*contender as usize].ps_per_bit.push(ps_per_bit);
                if let Some((_, control)) = &mut managed {
                    control.check_alive()?;
                }
            }
        }
        let [_, _, own_maxima] = &samples;
        let own_maxima_ps_per_bit = median(&own_maxima.ps_per_bit).map(round);
        for (contender, rows) in [
            (Contender::Managed, &mut *with),
            (Contender::Plain, &mut *without),
        ] {
            let is_managed = contender == Contender::Managed;
            let of = &samples[contender as usize];
            let Some((gbps, ps_per_bit)) = median(&of.gbps).zip(median(&of.ps_per_bit)) else {
                continue;
            };
            rows.push(LinkRow {
                link_mbps: mbps,
                flows,
                payload_gbps: round(gbps),
                of_rate: is_managed.then(|| round(gbps * 1e9 / payload_bps)),
                processor_ps_per_bit: round(ps_per_bit),
                own_maxima_ps_per_bit: own_maxima_ps_per_bit.filter(|_| !is_managed),
                runs: of.gbps.len(),
            });
        }
    }
    // One recording is enough for the picture, which is of the rows.
    let mut last = Recording::new();
    if let Some(testbed) = base {
        last = testbed.recording.lock().clone();
        testbed.tear_down();
    }
    if let Some((testbed, control)) = managed {
        control.stop();
        last = testbed.recording.lock().clone();
        testbed.tear_down();
    }
    Ok(last)
}

/// Gbit/s of payload and picoseconds of processor time per bit of it.
///
/// `maximum`: each flow's own, in bit/s of payload.
fn run_once(
    lab: &Lab,
    testbed: &mut Testbed,
    flows: usize,
    maximum: Option<u64>,
) -> Result<(f64, f64)> {
    let v6 = lab.options.family().each()[0];
    testbed.forget_flows();
    let begin = now_ns() + LEAD_NS;
    let mut all = Vec::new();
    for _ in 0..flows {
        all.push(testbed.flow(TransferSpec {
            label: format!("h{}", SENDER + 1),
            from: SENDER,
            to: RECEIVER,
            port: FIRST_PORT,
            v6,
            start_ns: begin,
            connect_ns: None,
            // Never reached: the flow is aborted after the measurement.
            end: FlowEnd::Bytes(1 << 50),
            behaviour: Behaviour {
                max_rate_bps: maximum,
                ..Behaviour::default()
            },
        })?);
    }
    let from = (begin + lab.scaled(SETTLING)).next_multiple_of(BIN_NS);
    lab.sleep_until(from)?;
    let busy = busy_s()?;
    let to = (from + lab.scaled(MEASURED)).next_multiple_of(BIN_NS);
    lab.sleep_until(to)?;
    // The whole machine's: softirqs run on whichever core has the packet.
    let busy = busy_s()? - busy;
    lab.sleep_until(to + REPORT_LAG_NS)?;
    let bytes: u64 = {
        let recording = testbed.recording.lock();
        all.iter()
            .map(|flow| recording.flows[flow].bytes(from, to))
            .sum()
    };
    for flow in all {
        testbed.abort_flow(flow)?;
    }
    testbed.wait_flows(lab, ABORT_PATIENCE)?;
    testbed.check_alive()?;
    lab.sleep_until(now_ns() + REST_NS)?;
    // At least 1: a run without payload must not divide by 0.
    let bits = (bytes * 8).max(1) as f64;
    let seconds = (to - from) as f64 / NS_PER_S as f64;
    Ok((bits / seconds / 1e9, busy * 1e12 / bits))
}
