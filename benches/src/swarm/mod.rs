//! `ratewright-bench swarm`: plays thousands of hosts with one allocator and measures it.
//!
//! | module | what |
//! |---|---|
//! | [`options`] | the command line, and what is offered |
//! | [`guests`] | hosts that join spare places and leave, beside others |
//! | [`stampede`] | all hosts connect at once, and nothing else |
//! | [`target`] | the allocator: a child with throw-away certificates, or one that runs |
//! | [`cores`] | a core of its own for a thread that spins on a port |
//! | [`bypass`] | the pair of interfaces for an allocator on DPDK |
//! | [`net`] | the QUIC connections, on a thread of their own |
//! | [`topology_cache`] | the topology, which thousands of Welcomes repeat |
//! | [`time_dilation`] | how much slower than usual sessions are |
//! | [`sessions`] | every host's production session, on one thread |
//! | [`traffic`] | which flowlets start and end, and when |
//! | [`own_links`] | what hosts tell of their own links, as daemons do |
//! | [`network_faults`] | loss and reordering |
//! | [`views`] | whether both ends know the same at the end |
//! | [`results`] | what is printed |
//!
//! A run: all hosts connect; the flows start; once each has its rate and the warm-up is over, the
//! measurement; then traffic stands still, and the views of both ends are compared.

pub mod bypass;
pub mod cores;
pub mod guests;
pub mod net;
pub mod network_faults;
pub mod options;
pub mod own_links;
pub mod results;
pub mod sessions;
pub mod stampede;
pub mod target;
pub mod time_dilation;
pub mod topology_cache;
pub mod traffic;
pub mod views;

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use indexmap::IndexMap;
use ratewright_cli::clock::{self, NS_PER_MS, NS_PER_S};
use ratewright_io::sched;
use ratewright_plot::commit::commit;
use ratewright_proto::Counters;

pub use options::SwarmOptions;

use net::{Inbox, Manner, Net};
use options::{Offer, SwarmPlan};
use results::{LatencyQuantiles, SwarmResults};
use sessions::SwarmSessions;
use target::Target;
use time_dilation::TimeDilation;
use views::FlowSnapshot;

/// Time-out for all first sessions; each handshake takes a few milliseconds of both sides.
const CONNECT_PATIENCE_NS: u64 = 120 * NS_PER_S;
/// Time-out for all flows' first rates.
const FILL_PATIENCE_NS: u64 = 60 * NS_PER_S;
/// Comparisons of a differing view before it counts: an engine that has not settled changes rates
/// between the two reads.
const LOOKS: u32 = 10;
/// Pause between two comparisons.
const LOOK_AGAIN_NS: u64 = 100 * NS_PER_MS;
/// Interval of progress messages and memory samples.
const REPORT_EVERY_NS: u64 = 10 * NS_PER_S;

/// Runs `ratewright-bench swarm`.
///
/// # Errors
/// When options make no sense, the allocator does not start, or sessions do not come about.
pub fn run(options: &SwarmOptions) -> Result<()> {
    let plan = options.check()?;
    if options.print_settings {
        println!("[allocation]");
        for (key, value) in plan.dilation.settings() {
            println!("{key} = {value}");
        }
        return Ok(());
    }
    // Created before anything runs: a path that cannot be written shows at once.
    let mut memory_log = match &options.memory_log {
        Some(path) => {
            Some(File::create(path).with_context(|| format!("creating {}", path.display()))?)
        }
        None => None,
    };
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed))
        .context("listening for signals")?;
    // Behind the handler, so that Ctrl-C ends the run and drops the child.
    let mut target = Target::prepare(options, &plan)?;
    if options.stampede {
        return stampede::run(options, &plan, &mut target, &interrupted);
    }
    if options.guests > 0 {
        return guests::run(options, &plan, &mut target, &interrupted);
    }
    let results = measure(
        options,
        &plan,
        &mut target,
        &interrupted,
        memory_log.as_mut(),
    )?;
    if options.json {
        println!(
            "{}",
            serde_json::to_string(&results).context("writing the results")?
        );
    } else {
        println!("{}", results.table());
    }
    Ok(())
}

struct Progress(bool);

impl Progress {
    fn say(&self, text: &str) {
        if self.0 {
            eprintln!("{text}");
        }
    }
}

fn measure(
    options: &SwarmOptions,
    plan: &SwarmPlan,
    target: &mut Target,
    interrupted: &Arc<AtomicBool>,
    mut memory_log: Option<&mut File>,
) -> Result<SwarmResults> {
    // As a daemon's thread that reports flowlets would; one that may not is measured all the same.
    let _ = sched::ask_for_slices(sched::HOT_SLICE_NS);
    // Scripts that read the object get nothing else, on standard error either.
    let progress = Progress(!options.json);
    let names = target::names(options.sessions);
    let inbox = Arc::new(Inbox::new()?);
    let mut sessions = SwarmSessions::new(
        options,
        plan,
        names.clone(),
        target.address,
        Arc::clone(&inbox),
        Arc::clone(interrupted),
    )?;
    let began_ns = clock::now_ns();
    let _net = Net::start(
        target.address,
        &target.authority,
        &target.identities,
        &inbox,
        Manner::InTurn,
    )?;
    connect(options, target, &mut sessions)?;
    let took_s = (clock::now_ns() - began_ns) as f64 / 1e9;
    let sessions_lost_connecting = sessions.sessions_lost;
    progress.say(&format!(
        "{} sessions after {took_s:.1} s; {sessions_lost_connecting} lost on the way",
        names.len()
    ));
    fill(plan, target, &mut sessions)?;
    let warm_ns = clock::now_ns() + (options.warm_up * 1e9) as u64;
    sessions.run_until(warm_ns, |_| false)?;

    progress.say(&format!(
        "measuring with {} flows; {} sessions lost, longest turn {} ms so far",
        sessions.traffic.active(),
        sessions.sessions_lost,
        sessions.longest_turn_ns / NS_PER_MS,
    ));
    // Times of the fill and the warm-up are not those of steady traffic.
    sessions.waits.reset();
    sessions.late.reset();
    sessions.longest_turn_ns = 0;
    let lost_before = (sessions.sessions_lost, sessions.fallbacks());
    // Differences of counters: only what the measurement adds counts.
    let (before, cpu_before) = (sessions.totals(), target.cpu_s());
    let start_ns = clock::now_ns();
    let end_ns = start_ns + (options.seconds * 1e9) as u64;
    loop {
        let now_ns = clock::now_ns();
        if let (Some(log), Some(bytes)) = (&mut memory_log, target.memory_bytes()) {
            let at_s = (now_ns - start_ns) as f64 / 1e9;
            writeln!(log, "{at_s:.1} {bytes}").context("writing the memory log")?;
        }
        if now_ns >= end_ns {
            break;
        }
        target.check_alive()?;
        sessions.run_until(end_ns.min(now_ns + REPORT_EVERY_NS), |_| false)?;
        progress.say(&format!(
            "{:.0} s: {} flows, {} updates, {} sessions lost, {} fallbacks, longest turn {} ms",
            (clock::now_ns() - start_ns) as f64 / 1e9,
            sessions.traffic.active(),
            sessions.updates - before.updates,
            sessions.sessions_lost,
            sessions.fallbacks(),
            sessions.longest_turn_ns / NS_PER_MS,
        ));
    }
    let (after, cpu_after) = (sessions.totals(), target.cpu_s());
    // Measured, since the last turn may end late.
    let seconds = (clock::now_ns() - start_ns) as f64 / 1e9;
    let start_to_rate_us = LatencyQuantiles::of(&sessions.waits);
    let start_lateness_us = LatencyQuantiles::of(&sessions.late);
    let first_rates = sessions.waits.len();
    let longest_turn_ms = sessions.longest_turn_ns as f64 / 1e6;

    let lost_views = settle(&plan.dilation, target, &names, &mut sessions)?;
    let updates = after.updates - before.updates;
    let threads = spent(cpu_before, cpu_after);
    let cpu_s = threads
        .as_ref()
        .map(|threads| threads.values().sum::<f64>());
    // A connection that was replaced meanwhile has taken its share with it.
    let bytes_up = after.bytes_up.saturating_sub(before.bytes_up);
    let bytes_down = after.bytes_down.saturating_sub(before.bytes_down);
    let capacity_bits = plan.host_bps as f64 * f64::from(options.sessions) * seconds;
    Ok(SwarmResults {
        start_to_rate_us,
        updates_per_s: updates as f64 / seconds,
        updates_per_s_per_core: cpu_s.map(|cpu_s| updates as f64 / cpu_s),
        control_share_of_capacity: 8.0 * (bytes_up + bytes_down) as f64 / capacity_bits,
        lost_views,
        allocator_cpu_s: cpu_s,
        allocator_threads_cpu_s: threads.unwrap_or_default(),
        allocator_memory_bytes: target.memory_bytes(),
        transport: sessions.transport().name(),
        sessions: options.sessions,
        flows: sessions.traffic.active(),
        seconds,
        seed: options.seed,
        workload: options.workload.clone(),
        load: options.workload.as_ref().map(|_| options.load),
        host_bps: plan.host_bps,
        slow_motion: plan.dilation.slow_motion,
        starts_per_s: (after.starts - before.starts) as f64 / seconds,
        first_rates,
        ended_unanswered: sessions.traffic.unanswered,
        blocked: sessions.traffic.blocked,
        start_lateness_us,
        bytes_up,
        bytes_down,
        packets_up: after.packets_up.saturating_sub(before.packets_up),
        packets_down: after.packets_down.saturating_sub(before.packets_down),
        session_counters: counted(&after.sessions.since(&before.sessions)),
        longest_turn_ms,
        fallbacks: sessions.fallbacks(),
        fallbacks_before: lost_before.1,
        sessions_lost: sessions.sessions_lost,
        sessions_lost_before: lost_before.0,
        sessions_lost_connecting,
        connect_s: took_s,
        last_loss: sessions.last_loss.clone(),
        datagrams_lost_on_purpose: sessions.datagrams_lost(),
        commit: commit(),
    })
}

/// Waits until every host has its session, on the path that it is to use.
fn connect(
    options: &SwarmOptions,
    target: &mut Target,
    sessions: &mut SwarmSessions,
) -> Result<()> {
    let until_ns = clock::now_ns() + CONNECT_PATIENCE_NS;
    let all = options.sessions as usize;
    while sessions.ready() < all {
        let now_ns = clock::now_ns();
        if now_ns >= until_ns {
            bail!(
                "{} of {all} hosts have a session over {} after {} s; the last failure: {}",
                sessions.ready(),
                options.transport.name(),
                CONNECT_PATIENCE_NS / NS_PER_S,
                if sessions.last_loss.is_empty() {
                    "none"
                } else {
                    &sessions.last_loss
                }
            );
        }
        target.check_alive()?;
        sessions.run_until(now_ns + 20 * NS_PER_MS, |_| false)?;
    }
    let known = sessions.hosts().len();
    if known < all {
        bail!("the allocator's topology has {known} of the hosts h1 to h{all}");
    }
    Ok(())
}

/// Starts the flows that are to be there from the beginning, and waits until they have rates.
fn fill(plan: &SwarmPlan, target: &mut Target, sessions: &mut SwarmSessions) -> Result<()> {
    let hosts = sessions.hosts();
    sessions.traffic.begin(clock::now_ns(), hosts);
    if !matches!(plan.offer, Offer::Fixed { .. }) {
        return Ok(());
    }
    let until_ns = clock::now_ns() + FILL_PATIENCE_NS;
    // One percent: with churn some flow always waits.
    let allowed = sessions.traffic.active() / 100;
    loop {
        let now_ns = clock::now_ns();
        sessions.run_until(now_ns + 20 * NS_PER_MS, |_| false)?;
        // Flows that were replaced meanwhile may wait at any time.
        let waiting = sessions.traffic.waiting();
        if sessions.traffic.is_filled() && waiting <= allowed.max(sessions.traffic.active() / 100) {
            return Ok(());
        }
        if now_ns >= until_ns {
            bail!(
                "{waiting} of {} flows have no rate after {} s",
                sessions.traffic.active(),
                FILL_PATIENCE_NS / NS_PER_S
            );
        }
        target.check_alive()?;
    }
}

/// Stops traffic and compares both ends' views once no rate has come for a while, or at a time-out.
/// Returns the number of flows on which they disagree.
fn settle(
    dilation: &TimeDilation,
    target: &Target,
    names: &[String],
    sessions: &mut SwarmSessions,
) -> Result<u64> {
    // Views can only be compared while nothing changes.
    sessions.traffic.freeze();
    let until_ns = clock::now_ns() + dilation.quiet_patience_ns();
    loop {
        let updates = sessions.updates;
        sessions.run_until(clock::now_ns() + dilation.quiet_ns(), |_| false)?;
        if sessions.updates == updates || clock::now_ns() >= until_ns {
            break;
        }
    }
    let mut open: Vec<usize> = (0..names.len()).collect();
    let mut lost = 0;
    for look in 0..LOOKS {
        if look > 0 {
            sessions.run_until(clock::now_ns() + LOOK_AGAIN_NS, |_| false)?;
        }
        let (admin, asked) = (target.admin.clone(), names_of(names, &open));
        let asking = std::thread::spawn(move || views::of_allocator(&admin, &asked));
        // Sessions live on meanwhile.
        sessions.run_until(u64::MAX, |_| asking.is_finished())?;
        let theirs: Vec<FlowSnapshot> = match asking.join() {
            Ok(views) => views.context("asking the allocator for its view")?,
            Err(_) => bail!("the thread that asks the allocator died"),
        };
        lost = 0;
        let mut differ = Vec::new();
        for (&at, theirs) in open.iter().zip(&theirs) {
            let differences = views::differences(&sessions.view(at), theirs);
            if differences > 0 {
                lost += differences;
                differ.push(at);
            }
        }
        if differ.is_empty() {
            break;
        }
        // Hosts whose views agree stay settled: only the others are asked again.
        open = differ;
    }
    Ok(lost)
}

fn counted(counters: &Counters) -> IndexMap<&'static str, u64> {
    let mut named = IndexMap::new();
    counters.for_each(|name, count| {
        if count > 0 {
            named.insert(name, count);
        }
    });
    named
}

fn names_of(names: &[String], at: &[usize]) -> Vec<String> {
    at.iter().map(|&at| names[at].clone()).collect()
}

/// Processor time between two samples, by thread.
fn spent(
    before: Option<Vec<(String, f64)>>,
    after: Option<Vec<(String, f64)>>,
) -> Option<IndexMap<String, f64>> {
    let (before, after) = (before?, after?);
    let earlier = |name: &str| before.iter().find(|t| t.0 == name).map_or(0.0, |t| t.1);
    Some(
        after
            .into_iter()
            .map(|(name, cpu_s)| {
                let spent = cpu_s - earlier(&name);
                (name, spent)
            })
            .collect(),
    )
}
