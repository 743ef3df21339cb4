//! `ratewright-bench feeds`: the cost of the feeds when every host reports in every interval.
//!
//! The path is the service's: the body of a control frame is decoded, its message taken, and once
//! in an interval the engine's loads are observed and the changes applied. Frames are made outside
//! of the measured time, and an engine takes no part.

use anyhow::{Context, Result};
use clap::Args;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use nix::time::{ClockId, clock_gettime};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use ratewright_allocator::feeds::{FeedChange, Feeds, FeedsConfig, Reporter};
use ratewright_proto::control::{ControlMessage, FrameDecoder};
use ratewright_proto::telemetry::{LinkInt, OWN_DOWNLINK, OWN_UPLINK, ReceiverCount, Telemetry};
use ratewright_simfabric::report::commit::COMMIT;
use ratewright_topology::{HostId, Topology, TwoTierClos};
use serde::Serialize;

use super::sweep::print_json;

/// Hosts of a rack.
const RACK_HOSTS: u32 = 40;
/// Spines.
const SPINES: u32 = 8;
/// Rate of a host's link, in bit/s.
const HOST_BPS: u64 = 25_000_000_000;
/// Intervals before those that count: links have two readings then.
const WARM_UP: u32 = 3;
/// Share of a link that managed flows use.
const MANAGED_SHARE: f64 = 0.3;
/// External load of a link at most, in shares of it.
const EXTERNAL_SHARE: f64 = 0.4;

/// Options.
#[derive(Debug, Clone, Args)]
pub struct FeedsOptions {
    /// Hosts, in racks of 40
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(80..=400_000))]
    pub hosts: u32,
    /// Milliseconds between two reports of a host
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub interval_ms: u64,
    /// Senders that a report names
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(0..=256))]
    pub senders: u32,
    /// Share of the hosts whose external load moves from one report to the next
    #[arg(long, default_value_t = 0.01)]
    pub moving: f64,
    /// Intervals that count
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub intervals: u32,
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

/// The results file.
#[derive(Debug, Clone, Serialize)]
struct FeedsResults {
    commit: &'static str,
    seed: u64,
    hosts: usize,
    links: usize,
    interval_ms: u64,
    moving: f64,
    /// Bytes of a report on the control stream, on average.
    report_bytes: f64,
    /// Engine events of an interval, on average.
    events: f64,
    /// Medians over the intervals.
    cost: Cost,
    /// Processor time of a report, in nanoseconds, its part of the interval's work included.
    report_ns: f64,
    /// Part of one core.
    core_share: f64,
    /// Hosts that a tenth of a core serves at this interval.
    hosts_per_tenth: f64,
}

/// Runs it and prints the results.
///
/// # Errors
/// If the network cannot be made, or a message not be encoded.
pub fn run(options: &FeedsOptions) -> Result<()> {
    let results = measure(options)?;
    if options.json {
        return print_json(&results);
    }
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["part", "an interval", "a report"]);
    let hosts = results.hosts as f64;
    let cost = &results.cost;
    for (part, ms) in [
        ("decode", cost.decode_ms),
        ("take", cost.take_ms),
        ("observe loads", cost.observe_ms),
        ("apply", cost.apply_ms),
        ("all", cost.total_ms()),
    ] {
        table.add_row([
            part.to_owned(),
            format!("{ms:.2} ms"),
            format!("{:.0} ns", ms * 1e6 / hosts),
        ]);
    }
    for column in 1..3 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    println!("{table}");
    println!(
        "{} hosts, a report of {:.0} bytes every {} ms: {:.0} % of a core. A tenth of one serves {:.0} hosts.",
        results.hosts,
        results.report_bytes,
        results.interval_ms,
        100.0 * results.core_share,
        results.hosts_per_tenth
    );
    Ok(())
}

/// Processor time of this thread: what others do on the machine does not count.
fn cpu_ms() -> Result<f64> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).context("reading the clock")?;
    Ok(time.tv_sec() as f64 * 1e3 + time.tv_nsec() as f64 / 1e6)
}

/// State of one host's interface.
#[derive(Debug, Clone, Copy, Default)]
struct Interface {
    external_share: f64,
    tx_bytes: u64,
    managed_bytes: u64,
    rx_bytes: u64,
}

/// Hosts that report.
struct Hosts {
    rng: Pcg64Mcg,
    interfaces: Vec<Interface>,
    senders: u32,
    moving: f64,
}

impl Hosts {
    /// Makes the frames of all hosts at a time.
    fn frames(&mut self, now_ns: u64, seconds: f64) -> Result<Vec<Vec<u8>>> {
        let hosts = self.interfaces.len() as u32;
        let mut frames = Vec::with_capacity(self.interfaces.len());
        for host in 0..hosts {
            let interface = &mut self.interfaces[host as usize];
            if self.rng.random_bool(self.moving) {
                interface.external_share = EXTERNAL_SHARE * self.rng.random::<f64>();
            }
            let bytes = |share: f64| (share * HOST_BPS as f64 / 8.0 * seconds) as u64;
            interface.managed_bytes += bytes(MANAGED_SHARE);
            interface.tx_bytes += bytes(MANAGED_SHARE + interface.external_share);
            interface.rx_bytes += bytes(MANAGED_SHARE + interface.external_share);
            let interface = *interface;
            let senders: Vec<u32> = (0..self.senders)
                .map(|_| self.rng.random_range(0..hosts))
                .collect();
            let uplink = LinkInt {
                link: OWN_UPLINK,
                tx_bytes: interface.tx_bytes,
                managed_bytes: Some(interface.managed_bytes),
                timestamp_ns: now_ns,
                bandwidth_bps: HOST_BPS,
                age_ns: 200_000,
                ..LinkInt::default()
            };
            let telemetry = Telemetry {
                receivers: vec![ReceiverCount {
                    receiver: host,
                    active_senders: self.senders,
                    sender_flows: vec![1; senders.len()],
                    senders,
                    age_ns: 200_000,
                    ..ReceiverCount::default()
                }],
                credits: Vec::new(),
                links: vec![
                    uplink,
                    LinkInt {
                        link: OWN_DOWNLINK,
                        tx_bytes: interface.rx_bytes,
                        managed_bytes: None,
                        ..uplink
                    },
                ],
            };
            frames.push(ControlMessage::Telemetry(telemetry).to_frame()?);
        }
        Ok(frames)
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

fn measure(options: &FeedsOptions) -> Result<FeedsResults> {
    let shape = TwoTierClos {
        racks: options.hosts.div_ceil(RACK_HOSTS),
        hosts_per_rack: RACK_HOSTS,
        spines: SPINES,
        host_capacity_bps: HOST_BPS,
        fabric_capacity_bps: 4 * HOST_BPS,
        ..TwoTierClos::default()
    };
    let topology: Topology = shape.build()?;
    let hosts = topology.hosts().len();
    let interval_ns = options.interval_ms * 1_000_000;
    let mut feeds = Feeds::new(
        FeedsConfig {
            interval_ns,
            fresh_ns: 4 * interval_ns,
            max_age_ns: 10 * interval_ns,
            ..FeedsConfig::default()
        },
        &topology,
    );
    let mut reporters = Hosts {
        rng: Pcg64Mcg::seed_from_u64(options.seed),
        interfaces: vec![Interface::default(); hosts],
        senders: options.senders,
        moving: options.moving.clamp(0.0, 1.0),
    };
    // Half of the hosts run a daemon, as senders see it.
    let sessions: Vec<Option<u32>> = (0..hosts as u32)
        .map(|host| (host % 2 == 0).then_some(host))
        .collect();
    let loads_bps: Vec<f64> = topology
        .links()
        .iter()
        .map(|link| MANAGED_SHARE * topology.effective_capacity_bps(link.id) as f64)
        .collect();
    let mut decoder = FrameDecoder::new();
    let mut costs: Vec<Cost> = Vec::new();
    let (mut bytes, mut events) = (0, 0_u64);
    let mut now_ns = interval_ns;
    feeds.observe(now_ns, &loads_bps);
    for interval in 0..WARM_UP + options.intervals {
        now_ns += interval_ns;
        let frames = reporters.frames(now_ns, interval_ns as f64 / 1e9)?;
        let began_ms = cpu_ms()?;
        let mut messages = Vec::with_capacity(frames.len());
        for frame in &frames {
            messages.push(decode(&mut decoder, frame)?);
        }
        let decoded_ms = cpu_ms()?;
        for (host, telemetry) in messages.iter().enumerate() {
            let reporter = Reporter::Host(HostId(host as u32));
            feeds.take(now_ns, reporter, telemetry, &topology, |sender| {
                sessions.get(sender.index()).is_some_and(Option::is_some)
            });
        }
        let taken_ms = cpu_ms()?;
        if feeds.wants_loads(now_ns) {
            feeds.observe(now_ns, &loads_bps);
        }
        let observed_ms = cpu_ms()?;
        let mut changes = 0;
        feeds.apply(now_ns, &topology, &mut |change| {
            changes += u64::from(matches!(change, FeedChange::Engine(_)));
        });
        let applied_ms = cpu_ms()?;
        if interval < WARM_UP {
            continue;
        }
        bytes += frames.iter().map(Vec::len).sum::<usize>();
        events += changes;
        costs.push(Cost {
            decode_ms: decoded_ms - began_ms,
            take_ms: taken_ms - decoded_ms,
            observe_ms: observed_ms - taken_ms,
            apply_ms: applied_ms - observed_ms,
        });
    }
    let median = |of: fn(&Cost) -> f64| {
        let mut values: Vec<f64> = costs.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let cost = Cost {
        decode_ms: median(|cost| cost.decode_ms),
        take_ms: median(|cost| cost.take_ms),
        observe_ms: median(|cost| cost.observe_ms),
        apply_ms: median(|cost| cost.apply_ms),
    };
    let core_share = cost.total_ms() / options.interval_ms as f64;
    let intervals = f64::from(options.intervals);
    Ok(FeedsResults {
        commit: COMMIT,
        seed: options.seed,
        hosts,
        links: topology.links().len(),
        interval_ms: options.interval_ms,
        moving: reporters.moving,
        report_bytes: bytes as f64 / (hosts as f64 * intervals),
        events: events as f64 / intervals,
        cost,
        report_ns: cost.total_ms() * 1e6 / hosts as f64,
        core_share,
        hosts_per_tenth: hosts as f64 * 0.1 / core_share,
    })
}
