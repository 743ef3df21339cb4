//! `ratewright-bench swarm --guests N`: hosts that the topology does not name join on spare places
//! and leave again, in turns, beside hosts with flows. Measures what these notice.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use ratewright_cli::clock::{self, NS_PER_MS, NS_PER_S};
use ratewright_plot::commit::commit;
use serde::Serialize;
use tokio::sync::Notify;

use super::net::{Inbox, Manner, Net};
use super::options::{SwarmOptions, SwarmPlan};
use super::results::LatencyQuantiles;
use super::sessions::SwarmSessions;
use super::target::{self, HOSTS_PER_RACK, Target};
use super::{connect, fill};

/// Time after which the allocator gives a place of an absent guest up, in seconds: its least.
const GRACE_S: u32 = 1;
/// Time for which a place rests, and some more, in seconds.
const REST_S: f64 = 6.0;
/// Turns of this length join and leave what is due.
const TURN_NS: u64 = 20 * NS_PER_MS;

/// Results of a run with guests.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GuestResults {
    /// Joins that were begun, those that led to a session, and departures.
    pub joins: u64,
    /// Guests that had their session when their time to leave came.
    pub joined: u64,
    /// Departures.
    pub left: u64,
    /// Guests with a session at the end.
    pub present: u64,
    /// Changes that the first host was told of, of joins and departures.
    pub changes_heard: u64,
    /// Sessions that other hosts lost.
    pub sessions_lost: u64,
    /// Leases of other hosts that ran out.
    pub leases_lapsed: u64,
    /// From a start to its first rate, at other hosts.
    pub start_to_rate_us: Option<LatencyQuantiles>,
    /// Longest time between two turns of this program, which also delays what hosts hear.
    pub longest_turn_ms: f64,
    /// Resident memory of the allocator after the first round of guests, in bytes.
    pub memory_first_round_bytes: Option<u64>,
    /// Resident memory at the end.
    pub memory_bytes: Option<u64>,
    /// Processor time of the allocator, in seconds.
    pub allocator_cpu_s: Option<f64>,
    /// Guests.
    pub guests: u32,
    /// Joins, and departures, in a second.
    pub guest_rate: f64,
    /// Other hosts.
    pub sessions: u32,
    /// Duration.
    pub seconds: f64,
    /// Commit that this program was built from.
    pub commit: &'static str,
}

/// Name of a guest.
#[must_use]
pub fn name(guest: u32) -> String {
    format!("guest{}", guest + 1)
}

/// Racks of the topology.
#[must_use]
pub fn racks(sessions: u32) -> u32 {
    sessions.div_ceil(HOSTS_PER_RACK)
}

/// First address of a rack's guests, of a network of 256.
fn network(rack: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(172, 16, 0, 0).to_bits() + (rack << 8))
}

/// Address of a guest: racks take them in turns.
#[must_use]
pub fn address(sessions: u32, guest: u32) -> Ipv4Addr {
    let racks = racks(sessions);
    let first = network(guest % racks).to_bits();
    Ipv4Addr::from_bits(first + 1 + guest / racks)
}

/// Spare places of each rack: for all its guests, those that have just left included.
#[must_use]
pub fn places_per_rack(options: &SwarmOptions) -> u32 {
    if options.guests == 0 {
        return 0;
    }
    let absent = options.guest_rate * (f64::from(GRACE_S) + REST_S);
    let places = f64::from(options.guests) + absent;
    // Room for racks that get more than their part of those.
    (places / f64::from(racks(options.sessions)) * 1.25).ceil() as u32 + 4
}

/// The allocator's table `[membership]`.
#[must_use]
pub fn membership(sessions: u32) -> String {
    let racks = (0..racks(sessions))
        .map(|rack| format!("\"{}/24\" = \"rack{}\"\n", network(rack), rack + 1));
    format!(
        "[membership]\njoin = true\ngrace_s = {GRACE_S}\n[membership.racks]\n{}",
        racks.collect::<String>()
    )
}

/// Runs a swarm with guests and prints what came of it.
///
/// # Errors
/// When the allocator ends, or the other hosts' sessions do not come about.
pub fn run(
    options: &SwarmOptions,
    plan: &SwarmPlan,
    target: &mut Target,
    interrupted: &Arc<AtomicBool>,
) -> Result<()> {
    let inbox = Arc::new(Inbox::new()?);
    let mut names = target::names(options.sessions);
    names.extend((0..options.guests).map(name));
    let mut sessions = SwarmSessions::new(
        options,
        plan,
        names,
        target.address,
        Arc::clone(&inbox),
        Arc::clone(interrupted),
    )?;
    let calls: Arc<[Notify]> = (0..options.guests).map(|_| Notify::new()).collect();
    let _net = Net::start(
        target.address,
        &target.authority,
        &target.identities,
        &inbox,
        Manner::OnCall(Arc::clone(&calls)),
    )?;
    connect(options, target, &mut sessions)?;
    fill(plan, target, &mut sessions)?;
    sessions.waits.reset();
    sessions.longest_turn_ns = 0;
    sessions.sessions_lost = 0;
    sessions.leases_lapsed = 0;
    let cpu = |target: &Target| -> Option<f64> {
        Some(target.cpu_s()?.iter().map(|(_, cpu_s)| cpu_s).sum())
    };
    let cpu_before = cpu(target);
    let start_ns = clock::now_ns();
    // A guest stays for half a round: half of them are there at any time.
    let round_s = f64::from(options.guests) / options.guest_rate;
    let first = options.sessions as usize;
    let (mut joins, mut joined, mut left) = (0_u64, 0_u64, 0_u64);
    let mut guests_lost = 0;
    let mut memory_first_round_bytes = None;
    loop {
        let now_ns = clock::now_ns();
        let at_s = (now_ns - start_ns) as f64 / NS_PER_S as f64;
        if at_s >= options.seconds {
            break;
        }
        if at_s >= round_s && memory_first_round_bytes.is_none() {
            memory_first_round_bytes = target.memory_bytes();
        }
        target.check_alive()?;
        while joins < (at_s * options.guest_rate) as u64 {
            calls[(joins % u64::from(options.guests)) as usize].notify_one();
            joins += 1;
        }
        while left < ((at_s - round_s / 2.0).max(0.0) * options.guest_rate) as u64 {
            let at = first + (left % u64::from(options.guests)) as usize;
            if sessions.is_established(at) {
                joined += 1;
                // Its end is ours.
                guests_lost += 1;
            }
            sessions.leave(at);
            left += 1;
        }
        sessions.run_until(now_ns + TURN_NS, |_| false)?;
    }
    let present = (first..first + options.guests as usize)
        .filter(|at| sessions.is_established(*at))
        .count() as u64;
    let results = GuestResults {
        joins,
        joined,
        left,
        present,
        changes_heard: sessions.members_heard,
        sessions_lost: sessions.sessions_lost.saturating_sub(guests_lost),
        leases_lapsed: sessions.leases_lapsed,
        start_to_rate_us: LatencyQuantiles::of(&sessions.waits),
        longest_turn_ms: sessions.longest_turn_ns as f64 / 1e6,
        memory_first_round_bytes,
        memory_bytes: target.memory_bytes(),
        allocator_cpu_s: cpu(target)
            .zip(cpu_before)
            .map(|(after, before)| after - before),
        guests: options.guests,
        guest_rate: options.guest_rate,
        sessions: options.sessions,
        seconds: (clock::now_ns() - start_ns) as f64 / 1e9,
        commit: commit(),
    };
    if options.json {
        let json = serde_json::to_string(&results).context("writing the results")?;
        println!("{json}");
    } else {
        println!(
            "{} joins, {} with a session at their end, {} departures; others lost {} sessions and {} leases; \
             the allocator's memory went from {:?} to {:?} bytes",
            results.joins,
            results.joined,
            results.left,
            results.sessions_lost,
            results.leases_lapsed,
            results.memory_first_round_bytes,
            results.memory_bytes,
        );
    }
    Ok(())
}
