//! The scenarios. Each builds its network anew for either phase, so that the baseline never sees
//! anything of Ratewright.

pub mod coflow;
pub mod failover;
pub mod fairness;
pub mod figures;
pub mod links;
pub mod mixed;
pub mod safety;
pub mod starts;
pub mod usage;

use std::time::Duration;

use anyhow::Result;

use crate::lab::Lab;
use crate::lab::control::Control;
use crate::lab::options::{Backend, ScenarioKind};
use crate::lab::site::Site;
use crate::measure::recording::Recording;
use crate::net::plan::{Capacities, Plan};
use figures::{Figures, FirstPaced};

/// What one phase left.
#[derive(Debug, Clone)]
pub struct Phase {
    /// The scenario's figures.
    pub figures: Figures,
    /// Everything measured, for the plot.
    pub recording: Recording,
    /// Microseconds from a flowlet's first byte to its first paced transmission.
    pub first_paced_us: Vec<f64>,
}

/// What a run left.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The back end that the daemons used.
    pub backend: String,
    /// With what the scenario shows: Ratewright, or its control datagrams ahead of data.
    pub with: Option<Phase>,
    /// Without it: the kernel's Cubic alone, or control datagrams that wait with data.
    pub without: Option<Phase>,
}

impl Outcome {
    /// Sorts phases by whether they were run with Ratewright.
    fn of(backend: String, phases: impl Iterator<Item = (bool, Phase)>) -> Self {
        let mut outcome = Self {
            backend,
            with: None,
            without: None,
        };
        for (with, phase) in phases {
            if with {
                outcome.with = Some(phase);
            } else {
                outcome.without = Some(phase);
            }
        }
        outcome
    }
}

/// Runs the scenario that the command line names.
///
/// # Errors
/// When it does not run to its end.
pub fn run(lab: &Lab) -> Result<Outcome> {
    match lab.options.scenario {
        ScenarioKind::Fairness => fairness::run(lab),
        ScenarioKind::Coflow => coflow::run(lab),
        ScenarioKind::Failover => failover::run(lab),
        ScenarioKind::Mixed => mixed::run(lab),
        ScenarioKind::Use => usage::run(lab),
        ScenarioKind::Links => links::run(lab),
        ScenarioKind::Safety => safety::run(lab),
        ScenarioKind::Starts => starts::run(lab),
    }
}

/// Capacities as the command line has them.
fn capacities(lab: &Lab) -> Capacities {
    Capacities {
        host_bps: lab.options.link_bps(),
        fabric_bps: lab.options.link_bps() * 2,
        buffer_bytes: u64::from(lab.options.buffer_kib) * 1024,
        shape_hosts: lab.options.backend != Backend::TcHtb,
        shape_links: true,
        control_dscp: lab.options.control_dscp,
        burst_bytes: None,
        offload: false,
    }
}

/// As [`capacities`], of links with bursts of 16 KiB and of devices with segmentation offload: what
/// the hosts send is the size that TCP chooses.
fn with_offload(lab: &Lab, backend: Backend) -> Capacities {
    Capacities {
        shape_hosts: backend != Backend::TcHtb,
        burst_bytes: Some(16 * 1024),
        offload: true,
        ..capacities(lab)
    }
}

/// One switch; all hosts but the last send to the last.
fn many_to_one(lab: &Lab, name: &'static str, hosts: usize) -> Result<Site> {
    let senders: Vec<usize> = (0..hosts - 1).collect();
    let mut site = Site::build(
        lab,
        name,
        Plan::big_switch(hosts, capacities(lab)),
        &senders,
        &[hosts - 1],
    )?;
    site.watch_ports(&[hosts - 1])?;
    Ok(site)
}

/// Runs the phases that the command line asks for, the baseline first. `work` is given the phase's
/// site and, in the phase with Ratewright, its control plane.
fn phases(
    lab: &Lab,
    build: impl Fn(&'static str) -> Result<Site>,
    policy: &str,
    mut work: impl FnMut(&mut Site, Option<&mut Control>) -> Result<Figures>,
) -> Result<Outcome> {
    let mut outcome = Outcome {
        backend: lab.options.backend.name().to_owned(),
        with: None,
        without: None,
    };
    if !lab.options.no_baseline {
        lab.live.say("building the network for the baseline");
        let mut site = build("base")?;
        lab.live
            .phase("without Ratewright (Cubic)", &site.recording);
        let figures = work(&mut site, None)?;
        outcome.without = Some(finish(site, figures, Vec::new()));
    }
    if !lab.options.only_baseline {
        lab.live.say("building the network for Ratewright");
        let mut site = build("with")?;
        lab.live.say("starting the allocator and the daemons");
        let mut control = Control::start(lab, &site, policy)?;
        outcome.backend = control.backend().unwrap_or(outcome.backend);
        lab.live.phase(
            &format!("with Ratewright ({})", outcome.backend),
            &site.recording,
        );
        let figures = work(&mut site, Some(&mut control))?;
        // Daemons report in batches: what they measured last must have arrived.
        lab.sleep_until(
            ratewright_cli::clock::now_ns() + Duration::from_millis(200).as_nanos() as u64,
        )?;
        let samples = control.first_paced_us();
        control.stop();
        outcome.with = Some(finish(site, figures, samples));
    }
    Ok(outcome)
}

fn finish(site: Site, mut figures: Figures, first_paced_us: Vec<f64>) -> Phase {
    let recording = site.recording.lock().clone();
    site.tear_down();
    figures.first_paced_us = FirstPaced::of(&first_paced_us);
    Phase {
        figures,
        recording,
        first_paced_us,
    }
}
