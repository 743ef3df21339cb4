//! `ratewright-bench feeds`: the cost of the feeds when every host measures in every interval.
//!
//! The path is the service's: the body of a control frame is decoded, its message taken, and once
//! in an interval the engine's loads are observed and the changes applied. Hosts make their frames
//! outside of the measured time, with production's sender; an engine takes no part. Frames come in
//! a random order.

use std::collections::VecDeque;

use anyhow::{Context, Result};
use clap::Args;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use nix::time::{ClockId, clock_gettime};
use rand::seq::SliceRandom as _;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use ratewright_allocator::engine::{EngineEvent, RateUpdate};
use ratewright_allocator::feeds::{FeedChange, Feeds, FeedsConfig, Reporter};
use ratewright_plot::commit::commit;
use ratewright_proto::control::{ControlMessage, FrameDecoder};
use ratewright_proto::telemetry::{
    LinkInt, OWN_DOWNLINK, OWN_UPLINK, ReceiverCount, SyncTerms, Telemetry, TelemetrySender,
};
use ratewright_topology::{HostId, LinkId, Topology, TwoTierClos};
use serde::Serialize;

use super::sweep::print_json;

/// Hosts of a rack.
const RACK_HOSTS: u32 = 40;
/// Spines.
const SPINES: u32 = 8;
/// Rate of a host's link, in bit/s.
const HOST_BPS: u64 = 25_000_000_000;
/// Sessions begin one after another within this many intervals, as hosts are no two alike in time.
const BEGIN_WITHIN: u32 = 12;
/// Intervals before those that count: each host has told all, and all links were evaluated, of
/// which an interval has room for 4,096.
const WARM_UP: u32 = BEGIN_WITHIN + 68;
/// Intervals that hosts measure at a time, before the allocator's part of them.
const BLOCK: u32 = 10;
/// Share of a link that managed flows use.
const MANAGED_SHARE: f64 = 0.3;
/// External load of a link at most, in shares of it.
const EXTERNAL_SHARE: f64 = 0.4;
/// Largest difference of a measured load from the load that stands, in shares of a link.
const NOISE_SHARE: f64 = 0.002;

/// Options.
#[derive(Debug, Clone, Args)]
pub struct FeedsOptions {
    /// Hosts, in racks of 40
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(80..=400_000))]
    pub hosts: u32,
    /// Milliseconds between two measurements of a host
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub interval_ms: u64,
    /// Senders that a host counts
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(0..=256))]
    pub senders: u32,
    /// Shares of the hosts whose load and senders change from one measurement to the next
    #[arg(long, value_delimiter = ',', default_values_t = [0.01, 0.1, 1.0])]
    pub moving: Vec<f64>,
    /// Share of a link by which a load moves before it is told; 0: hosts repeat everything
    #[arg(long, value_delimiter = ',', default_values_t = [0.01, 0.0])]
    pub hysteresis: Vec<f64>,
    /// Intervals that count
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub intervals: u32,
    /// Rounds; in each, all cases take turns
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Seed of senders and loads
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Processor time of one interval, in milliseconds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Cost {
    decode_ms: f64,
    take_ms: f64,
    observe_ms: f64,
    apply_ms: f64,
}

impl Cost {
    fn total_ms(&self) -> f64 {
        self.decode_ms + self.take_ms + self.observe_ms + self.apply_ms
    }
}

/// Results of one case.
#[derive(Debug, Clone, Serialize)]
struct FeedsCase {
    /// Share by which a load moves before it is told; 0: everything is repeated.
    hysteresis: f64,
    moving: f64,
    /// Messages of an interval, on average, and those among them that only say that all stands.
    messages: f64,
    keep_alives: f64,
    /// Bytes of a message on the control stream, on average.
    message_bytes: f64,
    /// Engine events of an interval, on average.
    events: f64,
    /// Medians over the intervals of all rounds.
    cost: Cost,
    /// Median of the sum, in milliseconds.
    total_ms: f64,
    /// Processor time of a host and interval, in nanoseconds.
    host_ns: f64,
    /// Part of one core.
    core_share: f64,
    /// Hosts that a tenth of a core serves at this interval.
    hosts_per_tenth: f64,
}

/// The results file.
#[derive(Debug, Clone, Serialize)]
struct FeedsResults {
    commit: &'static str,
    seed: u64,
    hosts: u32,
    interval_ms: u64,
    rounds: u32,
    cases: Vec<FeedsCase>,
}

/// Runs it and prints the results.
///
/// # Errors
/// If the network cannot be made, or a message not be encoded.
pub fn run(options: &FeedsOptions) -> Result<()> {
    let mut runs: Vec<Run> = Vec::new();
    for &moving in &options.moving {
        for &hysteresis in &options.hysteresis {
            runs.push(Run {
                moving: moving.clamp(0.0, 1.0),
                hysteresis,
                ..Run::default()
            });
        }
    }
    for round in 0..options.rounds {
        for run in &mut runs {
            run.measure(options, options.seed + u64::from(round))?;
        }
    }
    let results = FeedsResults {
        commit: commit(),
        seed: options.seed,
        hosts: options.hosts,
        interval_ms: options.interval_ms,
        rounds: options.rounds,
        cases: runs.iter().map(|run| run.case(options)).collect(),
    };
    if options.json {
        return print_json(&results);
    }
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header([
        "hosts tell",
        "moving",
        "messages",
        "decode",
        "take",
        "observe",
        "apply",
        "a host",
        "a core",
    ]);
    for case in &results.cases {
        let ms = |ms: f64| format!("{ms:.2} ms");
        let cost = &case.cost;
        let tells = if case.hysteresis > 0.0 {
            format!("what moved by {}", case.hysteresis)
        } else {
            "everything".to_owned()
        };
        table.add_row([
            tells,
            case.moving.to_string(),
            format!("{:.0}", case.messages),
            ms(cost.decode_ms),
            ms(cost.take_ms),
            ms(cost.observe_ms),
            ms(cost.apply_ms),
            format!("{:.1} ns", case.host_ns),
            format!("{:.1} %", 100.0 * case.core_share),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{table}");
    println!(
        "{} hosts measure every {} ms; processor time of an interval, medians.",
        results.hosts, results.interval_ms
    );
    Ok(())
}

/// Processor time of this thread: what others do on the machine does not count.
fn cpu_ms() -> Result<f64> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).context("reading the clock")?;
    Ok(time.tv_sec() as f64 * 1e3 + time.tv_nsec() as f64 / 1e6)
}

/// State of one host.
#[derive(Debug, Clone)]
struct Host {
    sender: TelemetrySender,
    external_share: f64,
    tx_bytes: u64,
    managed_bytes: u64,
    rx_bytes: u64,
    senders: Vec<u32>,
}
/// Frames of one interval as they come out of a receive buffer: one after another.
#[derive(Debug, Default)]
struct Received {
    /// Sender and length in bytes of each.
    frames: Vec<(HostId, usize)>,
    bytes: Vec<u8>,
}

/// Hosts that measure.
struct Hosts {
    rng: Pcg64Mcg,
    hosts: Vec<Host>,
    /// Order in which their messages come.
    order: Vec<u32>,
    moving: f64,
}

impl Hosts {
    fn new(seed: u64, hosts: u32, senders: u32, moving: f64, terms: Option<SyncTerms>) -> Self {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let made = (0..hosts).map(|host| Host {
            sender: TelemetrySender::new(terms, host),
            external_share: EXTERNAL_SHARE * rng.random::<f64>(),
            tx_bytes: 0,
            managed_bytes: 0,
            rx_bytes: 0,
            senders: (0..senders).map(|_| rng.random_range(0..hosts)).collect(),
        });
        let made = made.collect();
        let mut order: Vec<u32> = (0..hosts).collect();
        order.shuffle(&mut rng);
        Self {
            rng,
            hosts: made,
            order,
            moving,
        }
    }

    /// Lets all hosts measure. Returns the frames of those that tell something.
    fn frames(&mut self, interval: u32, now_ns: u64, seconds: f64) -> Result<Received> {
        let count = self.hosts.len() as u32;
        let mut received = Received::default();
        for at in 0..self.order.len() {
            let number = self.order[at];
            if interval < number % BEGIN_WITHIN {
                continue;
            }
            let moves = self.rng.random_bool(self.moving);
            let noise = NOISE_SHARE * (2.0 * self.rng.random::<f64>() - 1.0);
            let host = &mut self.hosts[number as usize];
            if moves {
                host.external_share = EXTERNAL_SHARE * self.rng.random::<f64>();
                for sender in &mut host.senders {
                    *sender = self.rng.random_range(0..count);
                }
            }
            let external = (host.external_share + noise).max(0.0);
            let bytes = |share: f64| (share * HOST_BPS as f64 / 8.0 * seconds) as u64;
            host.managed_bytes += bytes(MANAGED_SHARE);
            host.tx_bytes += bytes(MANAGED_SHARE + external);
            host.rx_bytes += bytes(MANAGED_SHARE + external);
            let uplink = LinkInt {
                link: OWN_UPLINK,
                tx_bytes: host.tx_bytes,
                managed_bytes: Some(host.managed_bytes),
                timestamp_ns: now_ns,
                bandwidth_bps: HOST_BPS,
                age_ns: 200_000,
                ..LinkInt::default()
            };
            let measured = Telemetry {
                receivers: vec![ReceiverCount {
                    receiver: number,
                    active_senders: host.senders.len() as u32,
                    sender_flows: vec![1; host.senders.len()],
                    senders: host.senders.clone(),
                    age_ns: 200_000,
                    ..ReceiverCount::default()
                }],
                links: vec![
                    uplink,
                    LinkInt {
                        link: OWN_DOWNLINK,
                        tx_bytes: host.rx_bytes,
                        managed_bytes: None,
                        ..uplink
                    },
                ],
                ..Telemetry::default()
            };
            if let Some(message) = host.sender.measure(now_ns, measured) {
                let frame = ControlMessage::Telemetry(message).to_frame()?;
                received.frames.push((HostId(number), frame.len()));
                received.bytes.extend(frame);
            }
        }
        Ok(received)
    }
}

/// Decodes a frame of a control stream, as a session does.
fn decode(frames: &mut FrameDecoder, frame: &[u8]) -> Result<Telemetry> {
    frames.push(frame);
    let body = frames.next_frame()?.context("a whole frame")?;
    match ControlMessage::decode(body)? {
        ControlMessage::Telemetry(telemetry) => Ok(telemetry),
        _ => anyhow::bail!("a frame of another kind"),
    }
}

/// Sums of one case over all its rounds.
#[derive(Debug, Default)]
struct Run {
    moving: f64,
    hysteresis: f64,
    costs: Vec<Cost>,
    messages: u64,
    keep_alives: u64,
    bytes: u64,
    events: u64,
}

impl Run {
    fn measure(&mut self, options: &FeedsOptions, seed: u64) -> Result<()> {
        let shape = TwoTierClos {
            racks: options.hosts.div_ceil(RACK_HOSTS),
            hosts_per_rack: RACK_HOSTS,
            spines: SPINES,
            host_capacity_bps: HOST_BPS,
            fabric_capacity_bps: 4 * HOST_BPS,
            ..TwoTierClos::default()
        };
        let topology: Topology = shape.build()?;
        let hosts = topology.hosts().len() as u32;
        let interval_ns = options.interval_ms * 1_000_000;
        let config = FeedsConfig {
            interval_ns,
            fresh_ns: 4 * interval_ns,
            max_age_ns: 10 * interval_ns,
            state_hysteresis: self.hysteresis,
            ..FeedsConfig::default()
        };
        let terms = config.sync_terms();
        let mut reporters = Hosts::new(seed, hosts, options.senders, self.moving, terms);
        let mut feeds = Feeds::new(config, &topology);
        // Half of the hosts run a daemon, as senders see it.
        let sessions: Vec<Option<u32>> = (0..hosts)
            .map(|host| (host % 2 == 0).then_some(host))
            .collect();
        let managed_bps: Vec<f64> = topology
            .links()
            .iter()
            .map(|link| MANAGED_SHARE * topology.effective_capacity_bps(link.id) as f64)
            .collect();
        let mut granted_bps = vec![0.0; managed_bps.len()];
        let mut loads_bps = managed_bps.clone();
        let seconds = interval_ns as f64 / 1e9;
        let mut measured: VecDeque<Received> = VecDeque::new();
        let mut decoder = FrameDecoder::new();
        let mut now_ns = interval_ns;
        let mut changes = Vec::with_capacity(2 * hosts as usize);
        feeds.observe(now_ns, &mut loads_bps);
        for interval in 0..WARM_UP + options.intervals {
            now_ns += interval_ns;
            if measured.is_empty() {
                // Hosts have processors and caches of their own: they measure in blocks.
                for ahead in 0..BLOCK {
                    let at_ns = now_ns + u64::from(ahead) * interval_ns;
                    measured.push_back(reporters.frames(interval + ahead, at_ns, seconds)?);
                }
            }
            let Received {
                frames,
                bytes: received,
            } = measured.pop_front().unwrap_or_default();
            // The engine writes what it allocated, dummy flows included.
            loads_bps.clear();
            loads_bps.extend(managed_bps.iter().zip(&granted_bps).map(|(m, g)| m + g));
            let first_ms = cpu_ms()?;
            let (mut keep_alives, mut at) = (0, 0);
            for &(_, length) in &frames {
                let bytes = &received[at..at + length];
                at += length;
                let telemetry = decode(&mut decoder, bytes)?;
                keep_alives += u64::from(telemetry.is_empty() && !telemetry.whole);
            }
            let began_ms = cpu_ms()?;
            at = 0;
            for &(host, length) in &frames {
                let bytes = &received[at..at + length];
                at += length;
                let telemetry = decode(&mut decoder, bytes)?;
                feeds.take(
                    now_ns,
                    Reporter::Host(host),
                    &telemetry,
                    &topology,
                    |sender| sessions.get(sender.index()).is_some_and(Option::is_some),
                );
            }
            let taken_ms = cpu_ms()?;
            if feeds.wants_loads(now_ns) {
                feeds.observe(now_ns, &mut loads_bps);
            }
            let observed_ms = cpu_ms()?;
            feeds.apply(now_ns, &topology, &mut |change| {
                if let FeedChange::Engine(event) = change {
                    changes.push(event);
                }
            });
            let applied_ms = cpu_ms()?;
            let events = changes.len() as u64;
            for event in changes.drain(..) {
                if let EngineEvent::Start(spec) = event {
                    let link = LinkId(spec.number.index());
                    let rate_bps = spec.demand_bps / 2.0;
                    granted_bps[link.index()] = rate_bps;
                    let update = RateUpdate {
                        number: spec.number,
                        rate_bps,
                    };
                    feeds.external_mut().on_rate(&update);
                }
            }
            if interval < WARM_UP {
                continue;
            }
            self.messages += frames.len() as u64;
            self.keep_alives += keep_alives;
            self.bytes += received.len() as u64;
            self.events += events;
            let decode_ms = began_ms - first_ms;
            self.costs.push(Cost {
                decode_ms,
                take_ms: taken_ms - began_ms - decode_ms,
                observe_ms: observed_ms - taken_ms,
                apply_ms: applied_ms - observed_ms,
            });
        }
        Ok(())
    }

    fn case(&self, options: &FeedsOptions) -> FeedsCase {
        let median = |of: fn(&Cost) -> f64| {
            let mut values: Vec<f64> = self.costs.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let total_ms = median(Cost::total_ms);
        let core_share = total_ms / options.interval_ms as f64;
        let intervals = self.costs.len() as f64;
        let hosts = f64::from(options.hosts);
        FeedsCase {
            hysteresis: self.hysteresis,
            moving: self.moving,
            messages: self.messages as f64 / intervals,
            keep_alives: self.keep_alives as f64 / intervals,
            message_bytes: self.bytes as f64 / self.messages.max(1) as f64,
            events: self.events as f64 / intervals,
            cost: Cost {
                decode_ms: median(|cost| cost.decode_ms),
                take_ms: median(|cost| cost.take_ms),
                observe_ms: median(|cost| cost.observe_ms),
                apply_ms: median(|cost| cost.apply_ms),
            },
            total_ms,
            host_ns: total_ms * 1e6 / hosts,
            core_share,
            hosts_per_tenth: hosts * 0.1 / core_share,
        }
    }
}
