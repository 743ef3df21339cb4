//! Phases with and without Ratewright, and the networks that several scenarios build for them.

use std::time::Duration;

use anyhow::Result;
use ratewright_cli::clock;

use super::figures::{Figures, FirstPaced};
use super::outcome::{RunOutcome, ScenarioPhase};
use crate::lab::context::Lab;
use crate::lab::control::Control;
use crate::lab::testbed::Testbed;
use crate::net::plan::{Capacities, NetworkPlan, Offload};
use crate::options::Backend;

/// Capacities as the command line has them.
pub(super) fn capacities(lab: &Lab) -> Capacities {
    Capacities {
        host_bps: lab.options.link_bps(),
        // Twice a host's link: the fabric is no bottleneck of these networks.
        fabric_bps: lab.options.link_bps() * 2,
        buffer_bytes: u64::from(lab.options.buffer_kib) * 1024,
        // tc_htb owns the root queueing discipline of the host's device.
        shape_hosts: lab.options.backend != Backend::TcHtb,
        shape_links: true,
        control_dscp: lab.options.control_dscp,
        burst_bytes: None,
        offload: Offload::Never,
    }
}

/// As [`capacities`], of links with bursts of 16 KiB and of devices with segmentation offload: what
/// the hosts send is the size that TCP chooses.
pub(super) fn with_offload(lab: &Lab, backend: Backend) -> Capacities {
    Capacities {
        shape_hosts: backend != Backend::TcHtb,
        burst_bytes: Some(16 * 1024),
        offload: Offload::Everywhere,
        ..capacities(lab)
    }
}

/// One switch; all hosts but the last send to the last.
pub(super) fn many_to_one(lab: &Lab, name: &'static str, hosts: usize) -> Result<Testbed> {
    let senders: Vec<usize> = (0..hosts - 1).collect();
    let mut testbed = Testbed::build(
        lab,
        name,
        NetworkPlan::big_switch(hosts, capacities(lab)),
        &senders,
        &[hosts - 1],
    )?;
    testbed.watch_ports(&[hosts - 1])?;
    Ok(testbed)
}

/// Runs the phases that the command line asks for, the baseline first. `work` is given the phase's
/// testbed and, in the phase with Ratewright, its control plane.
pub(super) fn phases(
    lab: &Lab,
    build: impl Fn(&'static str) -> Result<Testbed>,
    policy: &str,
    mut work: impl FnMut(&mut Testbed, Option<&mut Control>) -> Result<Figures>,
) -> Result<RunOutcome> {
    let mut outcome = RunOutcome::empty(lab.options.backend.name().to_owned());
    if !lab.options.no_baseline {
        lab.live.say("building the network for the baseline");
        let mut testbed = build("base")?;
        lab.live
            .phase("without Ratewright (Cubic)", &testbed.recording);
        let figures = work(&mut testbed, None)?;
        outcome.without = Some(finish(testbed, figures, Vec::new()));
    }
    if !lab.options.only_baseline {
        lab.live.say("building the network for Ratewright");
        let mut testbed = build("with")?;
        lab.live.say("starting the allocator and the daemons");
        let mut control = Control::start(lab, &testbed, policy)?;
        outcome.backend = control.backend().unwrap_or(outcome.backend);
        lab.live.phase(
            &format!("with Ratewright ({})", outcome.backend),
            &testbed.recording,
        );
        let mut figures = work(&mut testbed, Some(&mut control))?;
        figures.not_as_told = Some(control.names_given()?);
        // Daemons report in batches: what they measured last must have arrived.
        lab.sleep_until(clock::now_ns() + Duration::from_millis(200).as_nanos() as u64)?;
        // Asked before the daemons end.
        let samples = control.first_paced_us();
        control.stop();
        outcome.with = Some(finish(testbed, figures, samples));
    }
    Ok(outcome)
}

pub(super) fn finish(
    testbed: Testbed,
    mut figures: Figures,
    first_paced_us: Vec<f64>,
) -> ScenarioPhase {
    let recording = testbed.recording.lock().clone();
    testbed.tear_down();
    figures.first_paced_us = FirstPaced::of(&first_paced_us);
    ScenarioPhase {
        figures,
        recording,
        first_paced_us,
    }
}
