//! Cross traffic over a two-tier Clos: long flows of weights 1, 2 and 4 between the racks, and
//! short flows between random hosts. The long flows go in both directions, one of them over IPv6.
//!
//! Weights come from the daemons' policy, by destination port. Each group of three long flows
//! shares one bottleneck, the receiver's link; the short flows take what they need, so the long
//! ones' rates stand in the ratio of their weights, not at fixed values.

use std::time::Duration;

use anyhow::{Result, bail};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use ratewright_cli::clock::{NS_PER_MS, NS_PER_S, now_ns};

use super::figures::{Figures, TimeQuantiles, WeightRate, round};
use super::outcome::RunOutcome;
use super::phases::{capacities, phases};
use crate::lab::context::Lab;
use crate::lab::control::Control;
use crate::lab::testbed::{FIRST_PORT, FlowEnd, Testbed, TransferSpec};
use crate::measure::recording::Recording;
use crate::measure::stats::mean;
use crate::measure::windows::utilization_active;
use crate::net::plan::NetworkPlan;
use crate::traffic::protocol::{BIN_NS, Behaviour};

const DEFAULT_HOSTS: usize = 8;
const SPINES: usize = 2;
/// Weights and the ports that stand for them.
const WEIGHTS: [(f64, u16); 3] = [
    (1.0, FIRST_PORT),
    (2.0, FIRST_PORT + 1),
    (4.0, FIRST_PORT + 3),
];
const SHORT_PORT: u16 = FIRST_PORT + 4;
const DURATION: Duration = Duration::from_secs(6);
const LEAD_NS: u64 = 300 * NS_PER_MS;
/// Rates are taken from this long after the start.
const SETTLING: Duration = Duration::from_millis(500);
/// Short flows fill this share of all hosts' links.
const SHORT_LOAD: f64 = 0.05;
/// Their sizes: log-uniform between these.
const SHORT_BYTES: (f64, f64) = (10e3, 300e3);
const DRAIN_PATIENCE: Duration = Duration::from_secs(20);

/// Runs both phases, with the same cross traffic.
///
/// # Errors
/// When a phase does not run to its end.
pub fn run(lab: &Lab) -> Result<RunOutcome> {
    let hosts = lab.options.hosts_or(DEFAULT_HOSTS);
    let plan = NetworkPlan::two_tier(2, hosts / 2, SPINES, capacities(lab));
    let all: Vec<usize> = (0..hosts).collect();
    let build = |name| {
        let mut testbed = Testbed::build(lab, name, plan.clone(), &all, &all)?;
        // The two receivers' ports are the bottlenecks of the two groups.
        testbed.watch_ports(&[hosts - 1, hosts / 2 - 1])?;
        Ok(testbed)
    };
    let policy: String = WEIGHTS
        .iter()
        .map(|(weight, port)| format!("[[policy]]\ndst_port = {port}\nweight = {weight:.1}\n\n"))
        .collect();
    phases(lab, build, &policy, |testbed, control| {
        phase(lab, testbed, control)
    })
    .map(RunOutcome::in_right_network)
}

fn phase(lab: &Lab, testbed: &mut Testbed, control: Option<&mut Control>) -> Result<Figures> {
    let hosts = testbed.network.plan.hosts;
    let begin = now_ns() + LEAD_NS;
    let end = begin + lab.scaled(DURATION);
    let mut long = Vec::new();
    // Both groups cross the spines: the receiver is the last host of the other rack.
    for (group, (first_sender, receiver)) in [(0, hosts - 1), (hosts / 2, hosts / 2 - 1)]
        .into_iter()
        .enumerate()
    {
        for (i, (weight, port)) in WEIGHTS.into_iter().enumerate() {
            let from = first_sender + i;
            let label = format!("h{}→h{} weight {weight}", from + 1, receiver + 1);
            // The second group sends over IPv6, the first over IPv4.
            let v6 = group == 1;
            let spec = TransferSpec {
                label,
                from,
                to: receiver,
                port,
                v6,
                start_ns: begin,
                connect_ns: None,
                end: FlowEnd::At(end),
                behaviour: Behaviour::default(),
            };
            long.push((weight, testbed.flow(spec)?));
        }
    }
    let short = short_flows(lab, testbed, begin, end)?;
    testbed.recording.event(format!(
        "{} long flows and {} short ones begin",
        long.len(),
        short.len()
    ));
    lab.sleep_until(end)?;
    if !testbed.wait_flows(lab, DRAIN_PATIENCE)? {
        bail!("a flow did not end within {} s", DRAIN_PATIENCE.as_secs());
    }
    if let Some(control) = control {
        control.check_alive()?;
    }
    let recording = testbed.recording.lock();
    // Rates are exact on bin borders only.
    let from = (begin + lab.scaled(SETTLING)).next_multiple_of(BIN_NS);
    Ok(Figures {
        weights: Some(rates_by_weight(
            &recording,
            &long,
            from,
            end / BIN_NS * BIN_NS,
        )),
        utilization_active: Some(round(utilization_active(&recording, &recording.ports[0]))),
        connections_lost: Some(recording.connections_lost()),
        short_flow_ms: TimeQuantiles::of(&completion_ms(&recording, &short)),
        ..Figures::default()
    })
}

fn rates_by_weight(
    recording: &Recording,
    long: &[(f64, u32)],
    from: u64,
    to: u64,
) -> Vec<WeightRate> {
    WEIGHTS
        .iter()
        .map(|(weight, _)| {
            let rates: Vec<f64> = long
                .iter()
                .filter(|(w, _)| w == weight)
                .map(|(_, flow)| recording.flows[flow].rate_bps(from, to) / 1e6)
                .collect();
            WeightRate {
                weight: *weight,
                rate_mbps: round(mean(&rates).unwrap_or(0.0)),
            }
        })
        .collect()
}

fn completion_ms(recording: &Recording, flows: &[u32]) -> Vec<f64> {
    flows
        .iter()
        .filter_map(|flow| {
            let record = &recording.flows[flow];
            Some(record.ended_ns?.saturating_sub(record.started_ns?) as f64 / NS_PER_MS as f64)
        })
        .collect()
}

/// Poisson arrivals between random hosts, the same for the same seed.
fn short_flows(lab: &Lab, testbed: &mut Testbed, begin: u64, end: u64) -> Result<Vec<u32>> {
    let hosts = testbed.network.plan.hosts;
    let mut random = Pcg64Mcg::seed_from_u64(lab.options.seed);
    let (low, high) = SHORT_BYTES;
    // Mean of the log-uniform distribution.
    let mean_bytes = (high - low) / (high / low).ln();
    // The load is a share of all hosts' links taken together.
    let bytes_per_s =
        SHORT_LOAD * hosts as f64 * testbed.network.plan.capacities.host_bps as f64 / 8.0;
    let mean_gap_ns = mean_bytes / bytes_per_s * NS_PER_S as f64;
    let mut flows = Vec::new();
    let mut at = begin as f64;
    loop {
        // Exponential gaps; 1 - x is never 0, whose logarithm would be infinite.
        at += -(1.0 - random.random::<f64>()).ln() * mean_gap_ns;
        if at >= end as f64 {
            return Ok(flows);
        }
        let from = random.random_range(0..hosts);
        // An offset of at least 1: never the host itself.
        let to = (from + random.random_range(1..hosts)) % hosts;
        let bytes = (low * (high / low).powf(random.random::<f64>())) as u64;
        flows.push(testbed.flow(TransferSpec {
            label: "short flows".to_owned(),
            from,
            to,
            port: SHORT_PORT,
            v6: random.random(),
            start_ns: at as u64,
            connect_ns: None,
            end: FlowEnd::Bytes(bytes),
            behaviour: Behaviour::default(),
        })?);
    }
}
