//! The allocator is killed (SIGKILL) under load and comes back; then a daemon.
//!
//! flowtune §6: without the allocator, endpoints go on under TCP from their last rate. What is
//! measured: link use throughout, when the sockets stopped being paced, when rates were fair again,
//! and that no connection broke. Pacing is read from the kernel's own report about the sockets, not
//! from a daemon.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ratewright_cli::clock::{NS_PER_MS, now_ns};

use super::figures::{Figures, Outage, round};
use super::outcome::RunOutcome;
use super::phases::{many_to_one, phases};
use crate::lab::context::Lab;
use crate::lab::control::{Control, LEASE_MS};
use crate::lab::testbed::{FIRST_PORT, FlowEnd, PORTS, Testbed, TransferSpec};
use crate::measure::sockdiag::SockDiag;
use crate::measure::stats::{median, minimum};
use crate::measure::windows::{fair_from, settled_jain, utilization_active, utilization_windows};
use crate::options::Backend;
use crate::traffic::protocol::Behaviour;

const DEFAULT_HOSTS: usize = 9;
const SETTLE: Duration = Duration::from_millis(2_000);
/// Time for which the killed process stays away, beyond the lease.
const AWAY: Duration = Duration::from_millis(1_700);
const STAGGER_NS: u64 = 20 * NS_PER_MS;
const LEAD_NS: u64 = 200 * NS_PER_MS;
const USE_WINDOW_NS: u64 = 100 * NS_PER_MS;
/// Jain's index from which rates count as fair again, in [`FAIR_WINDOWS`] windows of 50 ms in a
/// row.
const FAIR: f64 = 0.99;
const FAIR_WINDOWS: usize = 5;
const RECOVERY_PATIENCE: Duration = Duration::from_secs(15);
const DRAIN_PATIENCE: Duration = Duration::from_secs(20);
const POLL_NS: u64 = 2 * NS_PER_MS;
/// Sinks report every 50 ms.
const REPORT_LAG_NS: u64 = 80 * NS_PER_MS;
/// Samples in a row, 10 ms apart, with every rate in force, until pacing counts as there.
const PACED_SAMPLES: usize = 5;
/// Time-out for rates to be in force before a kill.
const PACED_PATIENCE: Duration = Duration::from_secs(5);
/// Number of the newest [`DEPARTURE_SAMPLES`] samples, 2 ms apart, that must be away from the
/// former rate for a socket to count as released.
const DEPARTURE_AWAY: usize = 8;
const DEPARTURE_SAMPLES: usize = 10;

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
}

fn phase(lab: &Lab, testbed: &mut Testbed, control: Option<&mut Control>) -> Result<Figures> {
    let receiver = testbed.network.plan.hosts - 1;
    let begin = now_ns() + LEAD_NS;
    let mut flows = Vec::new();
    for sender in 0..receiver {
        flows.push(testbed.flow(TransferSpec {
            label: format!("h{}", sender + 1),
            from: sender,
            to: receiver,
            port: FIRST_PORT,
            v6: false,
            start_ns: begin + sender as u64 * STAGGER_NS,
            connect_ns: None,
            end: FlowEnd::Told,
            behaviour: Behaviour::default(),
        })?);
    }
    // At least half a second: rates must be in force however short the run.
    let settled = begin + receiver as u64 * STAGGER_NS + lab.scaled(SETTLE).max(500 * NS_PER_MS);
    lab.sleep_until(settled)?;
    testbed.check_alive()?;

    let mut figures = Figures::default();
    if let Some(control) = control {
        let all: Vec<usize> = (0..receiver).collect();
        let allocator = outage(lab, testbed, control, Victim::Allocator, &all)?;
        lab.sleep_until(now_ns() + lab.scaled(SETTLE))?;
        let daemon = outage(lab, testbed, control, Victim::Daemon(0), &[0])?;
        lab.sleep_until(now_ns() + lab.scaled(SETTLE))?;
        let outages = vec![allocator, daemon];
        figures.utilization_outage_min = minimum(
            &outages
                .iter()
                .map(|o| o.utilization_min)
                .collect::<Vec<_>>(),
        );
        figures.fallback_ms = outages
            .iter()
            .map(|o| o.fallback_ms)
            .collect::<Option<Vec<_>>>()
            .and_then(|v| max(&v));
        figures.recovery_ms = outages
            .iter()
            .map(|o| o.recovery_ms)
            .collect::<Option<Vec<_>>>()
            .and_then(|v| max(&v));
        figures.outages = outages;
    } else {
        // About as long as the phase with two outages, so that the least link use is taken over as
        // many windows.
        let same_time = 3 * lab.scaled(SETTLE) + 2 * (lab.scaled(AWAY) + LEASE_MS * NS_PER_MS);
        lab.sleep_until(settled + same_time)?;
        let recording = testbed.recording.lock();
        let windows = utilization_windows(
            &recording.ports[0],
            settled,
            settled + same_time,
            USE_WINDOW_NS,
        );
        figures.utilization_outage_min = minimum(&windows).map(round);
    }
    for flow in flows {
        testbed.stop_flow(flow)?;
    }
    if !testbed.wait_flows(lab, DRAIN_PATIENCE)? {
        bail!("a flow did not end within {} s", DRAIN_PATIENCE.as_secs());
    }
    let recording = testbed.recording.lock();
    figures.connections_lost = Some(recording.connections_lost());
    figures.utilization_active = Some(round(utilization_active(&recording, &recording.ports[0])));
    let indices: Vec<f64> = settled_jain(&recording)
        .into_iter()
        .map(|(_, index)| index)
        .collect();
    figures.jain_settled_median = median(&indices).map(round);
    Ok(figures)
}

#[derive(Debug, Clone, Copy)]
enum Victim {
    Allocator,
    Daemon(usize),
}

impl Victim {
    fn name(self) -> String {
        match self {
            Victim::Allocator => "allocator".to_owned(),
            Victim::Daemon(host) => format!("daemon of h{}", host + 1),
        }
    }
}

/// Kills `victim`, waits for the lease and longer, starts it again and waits for fairness.
/// `concerned`: the hosts whose sockets lose their rates.
fn outage(
    lab: &Lab,
    testbed: &Testbed,
    control: &mut Control,
    victim: Victim,
    concerned: &[usize],
) -> Result<Outage> {
    let name = victim.name();
    let mut pacing = Pacing::open(lab, testbed, concerned)?;
    // A time until the sockets have left their rates means something only if they had them.
    let mut paced = 0;
    let in_force = lab.wait_for(PACED_PATIENCE, || {
        control.check_alive()?;
        paced = if pacing.all_in_force()? { paced + 1 } else { 0 };
        Ok(paced >= PACED_SAMPLES)
    })?;
    if !in_force {
        bail!(
            "before the kill of the {name}, not every socket had its rate within {} s: no fallback can be measured",
            PACED_PATIENCE.as_secs()
        );
    }

    let killed = now_ns();
    match victim {
        Victim::Allocator => control.kill_allocator(),
        Victim::Daemon(host) => control.kill_daemon(host),
    }
    testbed.recording.event(format!("SIGKILL: {name}"));
    // Beyond the lease, or the rates would still be in force at the restart.
    let back = killed + LEASE_MS * NS_PER_MS + lab.scaled(AWAY).max(700 * NS_PER_MS);
    let mut released = None;
    while released.is_none() && now_ns() < back {
        released = pacing.all_left_since(now_ns())?;
        if released.is_some() {
            testbed.recording.event("sockets are on plain Cubic");
        }
        lab.sleep_until(now_ns() + POLL_NS)?;
    }
    lab.sleep_until(back)?;

    let restarted = now_ns();
    match victim {
        Victim::Allocator => control.start_allocator(lab, testbed)?,
        Victim::Daemon(host) => control.start_daemon(lab, testbed, host)?,
    }
    testbed.recording.event(format!("restart: {name}"));
    let mut paced = 0;
    let mut fair_again = None;
    lab.wait_for(RECOVERY_PATIENCE, || {
        control.check_alive()?;
        // Cubic may be fair by chance: fairness counts only once rates are in force.
        if paced < PACED_SAMPLES {
            paced = if pacing.all_in_force()? { paced + 1 } else { 0 };
        } else {
            // Bins that have not arrived would count as zero bytes, and so as unfair.
            let until = now_ns() - REPORT_LAG_NS;
            fair_again = fair_from(
                &testbed.recording.lock(),
                restarted,
                until,
                FAIR,
                FAIR_WINDOWS,
            );
        }
        Ok(fair_again.is_some())
    })?;
    testbed.recording.event(if fair_again.is_some() {
        "rates are fair again"
    } else {
        "rates are not fair again"
    });
    let recording = testbed.recording.lock();
    let until = fair_again.unwrap_or_else(now_ns);
    let least = |from, to| {
        let windows = utilization_windows(&recording.ports[0], from, to, USE_WINDOW_NS);
        minimum(&windows).map(round)
    };
    let since_ms = |at: Option<u64>, from: u64| {
        at.map(|at| round(at.saturating_sub(from) as f64 / NS_PER_MS as f64))
    };
    Ok(Outage {
        killed: name,
        utilization_min: least(killed, restarted).unwrap_or(0.0),
        utilization_recovery_min: least(restarted, until),
        fallback_ms: since_ms(released, killed),
        recovery_ms: since_ms(fair_again, restarted),
    })
}

/// Watches how the kernel paces the flows, without asking a daemon.
///
/// A rate is in force as the socket's maximum pacing rate, which the lab's programs never set
/// themselves; a socket on plain Cubic has none. One that sends nothing, because it waits for a
/// retransmission timeout, shows its last maximum until it sends again, but is not paced by it.
/// Rates that tc enforces do not show: nothing is measured then.
struct Pacing {
    kernels: Vec<SockDiag>,
    /// Segments that each host had sent at the sample before.
    sent: Vec<u32>,
    left: Vec<Departure>,
}

impl Pacing {
    fn open(lab: &Lab, testbed: &Testbed, hosts: &[usize]) -> Result<Pacing> {
        let visible = lab.options.backend != Backend::TcHtb;
        // tc paces outside the sockets: no sample, so no fallback time.
        let hosts = if visible { hosts } else { &[] };
        let kernels = hosts
            .iter()
            .map(|host| SockDiag::open(testbed.network.netns(*host)))
            .collect::<Result<Vec<_>>>()
            .context("looking at the hosts' sockets")?;
        Ok(Pacing {
            left: vec![Departure::default(); kernels.len()],
            sent: vec![0; kernels.len()],
            kernels,
        })
    }

    /// Returns true if a host has sent since the last sample, all of it by its rate.
    fn in_force(&mut self, index: usize) -> Result<bool> {
        let flows = self.kernels[index].connections(FIRST_PORT..=FIRST_PORT + PORTS - 1)?;
        // The kernel's counters wrap, and so does their sum.
        let sent = flows.iter().fold(0, |sum: u32, flow| {
            sum.wrapping_add(flow.data_segments_sent)
        });
        let sends = std::mem::replace(&mut self.sent[index], sent) != sent;
        Ok(sends && flows.iter().all(|flow| flow.maximum_bytes_per_s.is_some()))
    }

    fn all_in_force(&mut self) -> Result<bool> {
        for index in 0..self.kernels.len() {
            if !self.in_force(index)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes a sample at `now`. Returns the time since which no socket has paced by the rate that
    /// it had; `None` while one does, or has done so too recently.
    fn all_left_since(&mut self, now: u64) -> Result<Option<u64>> {
        for index in 0..self.kernels.len() {
            let in_force = self.in_force(index)?;
            self.left[index].sample(now, in_force);
        }
        let since: Option<Vec<u64>> = self.left.iter().map(Departure::since).collect();
        // The last host to leave decides; none while a single one is still paced.
        Ok(since.and_then(|since| since.into_iter().max()))
    }
}

/// Time at which a host's sockets left their rate for good. A single sample beside the rate is no
/// departure, and Cubic may pass the former rate again later.
#[derive(Debug, Clone, Default)]
struct Departure {
    /// Times of the newest samples; `None` for those at the former rate.
    recent: VecDeque<Option<u64>>,
    since: Option<u64>,
}

impl Departure {
    fn sample(&mut self, now: u64, in_force: bool) {
        // A sliding window: DEPARTURE_AWAY of the newest samples decide.
        if self.recent.len() == DEPARTURE_SAMPLES {
            self.recent.pop_front();
        }
        self.recent.push_back((!in_force).then_some(now));
        let mut away = self.recent.iter().flatten();
        let first = away.next().copied();
        // `next` above has taken the first of them from the iterator.
        if self.since.is_none() && 1 + away.count() >= DEPARTURE_AWAY {
            self.since = first;
        }
    }

    fn since(&self) -> Option<u64> {
        self.since
    }
}

fn max(values: &[f64]) -> Option<f64> {
    values.iter().copied().max_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sustained_departure_counts_and_from_its_first_sample() {
        let mut departure = Departure::default();
        for now in 0..100 {
            departure.sample(now, now % 3 != 0);
        }
        assert_eq!(departure.since(), None, "strays while the rate is in force");
        for now in 100..110 {
            departure.sample(now, true);
        }
        for now in 200..220 {
            departure.sample(now, now == 203);
        }
        assert_eq!(
            departure.since(),
            Some(200),
            "Cubic came by the former rate"
        );
        for now in 220..240 {
            departure.sample(now, true);
        }
        assert_eq!(departure.since(), Some(200), "once left, always left");
    }
}
