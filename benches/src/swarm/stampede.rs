//! `ratewright-bench swarm --stampede`: all hosts connect at once, as after a restart of the
//! allocator: they know the topology's hosts from the session before, unless `--cold` says that
//! they come for the first time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use anyhow::{Context, Result, bail};
use indexmap::IndexMap;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use ratewright_cli::clock::{self, NS_PER_MS, NS_PER_S};
use ratewright_plot::commit::commit;
use serde::Serialize;

use super::net::{Attempts, Inbox, Manner, Net};
use super::options::{SwarmOptions, SwarmPlan};
use super::sessions::SwarmSessions;
use super::target::{self, Target};

/// Time-out for all sessions.
const PATIENCE_NS: u64 = 120 * NS_PER_S;
/// Interval between two counts of the sessions.
const LOOK_EVERY_NS: u64 = 5 * NS_PER_MS;

/// Times at which shares of the hosts had their sessions, in seconds from the beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct ConnectTimes {
    /// Half of them.
    pub p50: f64,
    /// Nine of ten.
    pub p90: f64,
    /// 99 of a hundred.
    pub p99: f64,
    /// All.
    pub max: f64,
}

/// Results of a stampede.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StampedeResults {
    /// From the beginning until hosts had sessions, in seconds.
    pub with_session_s: ConnectTimes,
    /// Hosts.
    pub sessions: u32,
    /// Attempts to connect, of all hosts.
    pub attempts: u64,
    /// Those that the allocator turned away.
    pub busy: u64,
    /// Those that had no answer in time.
    pub unanswered: u64,
    /// Those that failed otherwise, by reason.
    pub failed: IndexMap<String, u64>,
    /// Sessions that were lost meanwhile.
    pub sessions_lost: u64,
    /// Reason of the last lost session or failed attempt.
    pub last_loss: String,
    /// Processor time of the allocator, in seconds.
    pub allocator_cpu_s: Option<f64>,
    /// Processor time of all hosts together, which run on the same cores, in seconds.
    pub hosts_cpu_s: f64,
    /// Hosts knew the topology from an earlier session.
    pub known_topology: bool,
    /// Transport of datagrams.
    pub transport: &'static str,
    /// Commit that this program was built from.
    pub commit: &'static str,
}

/// Connects the first host, and gives all others the topology that it receives.
fn learn_topology(
    target: &mut Target,
    inbox: &Arc<Inbox>,
    sessions: &mut SwarmSessions,
) -> Result<()> {
    let net = Net::start(
        target.address,
        &target.authority,
        &target.identities[..1],
        inbox,
        Manner::InTurn,
    )?;
    let until_ns = clock::now_ns() + PATIENCE_NS;
    while sessions.ready() == 0 {
        target.check_alive()?;
        if clock::now_ns() >= until_ns {
            bail!("the first host has no session");
        }
        sessions.run_until(clock::now_ns() + LOOK_EVERY_NS, |_| false)?;
    }
    // The connection must be gone before the stampede: its host takes part as well.
    drop(net);
    while sessions.ready() > 0 {
        sessions.run_until(clock::now_ns() + LOOK_EVERY_NS, |_| false)?;
    }
    sessions.share_topology();
    // That end was ours.
    sessions.sessions_lost = 0;
    Ok(())
}

/// Processor time of this process, in seconds.
fn own_cpu_s() -> Result<f64> {
    let used = getrusage(UsageWho::RUSAGE_SELF).context("asking for this process's time")?;
    let s = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(s(used.user_time()) + s(used.system_time()))
}

/// Runs a stampede and prints what it has come to.
///
/// # Errors
/// When the allocator ends, or sessions do not come about.
pub fn run(
    options: &SwarmOptions,
    plan: &SwarmPlan,
    target: &mut Target,
    interrupted: &Arc<AtomicBool>,
) -> Result<()> {
    let inbox = Arc::new(Inbox::new()?);
    let mut sessions = SwarmSessions::new(
        options,
        plan,
        target::names(options.sessions),
        target.address,
        Arc::clone(&inbox),
        Arc::clone(interrupted),
    )?;
    // Thousands of handshakes on this machine need the cores more than prompt sessions do.
    sessions.take_rests();
    if !options.cold {
        learn_topology(target, &inbox, &mut sessions)?;
    }
    let attempts = Arc::new(Attempts::default());
    let cpu_s = |target: &Target| {
        let threads = target.cpu_s()?;
        Some(threads.iter().map(|(_, cpu_s)| cpu_s).sum::<f64>())
    };
    let cpu_before_s = cpu_s(target);
    let own_before_s = own_cpu_s()?;
    let _net = Net::start(
        target.address,
        &target.authority,
        &target.identities,
        &inbox,
        Manner::Stampede(Arc::clone(&attempts)),
    )?;
    let began_ns = clock::now_ns();
    let all = options.sessions as usize;
    let mut times = ConnectTimes::default();
    let mut told = 0;
    while told < all {
        let now_ns = clock::now_ns();
        if now_ns >= began_ns + PATIENCE_NS {
            bail!(
                "{told} of {all} hosts have a session after {} s",
                PATIENCE_NS / NS_PER_S
            );
        }
        target.check_alive()?;
        sessions.run_until(now_ns + LOOK_EVERY_NS, |_| false)?;
        // Sessions may come and go: the first time at which this number was there counts.
        told = told.max(sessions.ready());
        let at_s = (clock::now_ns() - began_ns) as f64 / 1e9;
        for (time, percent) in [
            (&mut times.p50, 50),
            (&mut times.p90, 90),
            (&mut times.p99, 99),
            (&mut times.max, 100),
        ] {
            if *time == 0.0 && told * 100 >= all * percent {
                *time = at_s;
            }
        }
    }
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let results = StampedeResults {
        with_session_s: times,
        sessions: options.sessions,
        attempts: count(&attempts.made),
        busy: count(&attempts.busy),
        unanswered: count(&attempts.unanswered),
        failed: std::mem::take(
            &mut *attempts
                .failed
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        ),
        sessions_lost: sessions.sessions_lost,
        last_loss: sessions.last_loss.clone(),
        allocator_cpu_s: cpu_s(target)
            .zip(cpu_before_s)
            .map(|(after, before)| after - before),
        hosts_cpu_s: own_cpu_s()? - own_before_s,
        known_topology: !options.cold,
        transport: options.transport.name(),
        commit: commit(),
    };
    if options.json {
        println!(
            "{}",
            serde_json::to_string(&results).context("writing the results")?
        );
    } else {
        let ConnectTimes { p50, p90, p99, max } = results.with_session_s;
        println!(
            "{all} hosts at once: half have a session after {p50:.2} s, 90 % after {p90:.2} s, 99 % after {p99:.2} s, all after {max:.2} s; {:.2} attempts each, {} turned away, {} without an answer",
            results.attempts as f64 / all as f64,
            results.busy,
            results.unanswered,
        );
    }
    Ok(())
}
