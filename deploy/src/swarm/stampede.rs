//! `ratewright swarm --stampede`: all hosts connect at once, as after a restart of the allocator.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use anyhow::{Context, Result, bail};
use indexmap::IndexMap;
use serde::Serialize;

use super::net::{Attempts, Inbox, Manner, Net};
use super::options::{Plan, SwarmOptions};
use super::players::Players;
use super::target::{self, Target};
use crate::clock::{self, NS_PER_MS, NS_PER_S};
use crate::report::json::COMMIT;

/// How long all sessions may take to come about.
const PATIENCE_NS: u64 = 120 * NS_PER_S;
/// How often sessions are counted.
const LOOK_EVERY_NS: u64 = 5 * NS_PER_MS;

/// When so many of the hosts had their sessions, in seconds from the beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Times {
    /// Half of them.
    pub p50: f64,
    /// Nine of ten.
    pub p90: f64,
    /// 99 of a hundred.
    pub p99: f64,
    /// All.
    pub max: f64,
}

/// What a stampede has come to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Results {
    /// From the beginning until hosts had sessions, in seconds.
    pub with_session_s: Times,
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
    /// Processor time of the allocator, in seconds.
    pub allocator_cpu_s: Option<f64>,
    /// How datagrams travel.
    pub transport: &'static str,
    /// What this was built from.
    pub commit: &'static str,
}

/// Runs a stampede and prints what it has come to.
///
/// # Errors
/// When the allocator ends, or sessions do not come about.
pub fn run(
    options: &SwarmOptions,
    plan: &Plan,
    target: &mut Target,
    interrupted: &Arc<AtomicBool>,
) -> Result<()> {
    let inbox = Arc::new(Inbox::new()?);
    let mut players = Players::new(
        options,
        plan,
        target::names(options.sessions),
        target.address,
        Arc::clone(&inbox),
        Arc::clone(interrupted),
    )?;
    players.take_rests();
    let attempts = Arc::new(Attempts::default());
    let cpu_s = |target: &Target| {
        let threads = target.cpu_s()?;
        Some(threads.iter().map(|(_, cpu_s)| cpu_s).sum::<f64>())
    };
    let cpu_before_s = cpu_s(target);
    let _net = Net::start(
        target.address,
        &target.authority,
        &target.identities,
        &inbox,
        Manner::Stampede(Arc::clone(&attempts)),
    )?;
    let began_ns = clock::now_ns();
    let all = options.sessions as usize;
    let mut times = Times::default();
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
        players.play(now_ns + LOOK_EVERY_NS, |_| false)?;
        told = told.max(players.ready());
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
    let results = Results {
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
        sessions_lost: players.sessions_lost,
        allocator_cpu_s: cpu_s(target)
            .zip(cpu_before_s)
            .map(|(after, before)| after - before),
        transport: options.transport.name(),
        commit: COMMIT,
    };
    if options.json {
        println!(
            "{}",
            serde_json::to_string(&results).context("writing the results")?
        );
    } else {
        let Times { p50, p90, p99, max } = results.with_session_s;
        println!(
            "{all} hosts at once: half have a session after {p50:.2} s, 90 % after {p90:.2} s, 99 % after {p99:.2} s, all after {max:.2} s; {:.2} attempts each, {} turned away, {} without an answer",
            results.attempts as f64 / all as f64,
            results.busy,
            results.unanswered,
        );
    }
    Ok(())
}
