//! Runs behind figures 9 to 11: flowlets arrive as a Poisson process, and all control traffic is
//! counted.
//!
//! Counted are IPv4 packets, as ns-2 counts: records, the session's header of 32 bytes, TCP's and
//! IPv4's of 40, and TCP's acknowledgements. The paper counts records "plus the standard TCP/IP
//! overheads". Both directions are reported; the *update* traffic of the figures is their sum, as a
//! share of the servers' links, which is what makes the paper's "each allocator NIC can update 89
//! servers" (§6) out of 1.12 %.
//!
//! Every data packet runs too. Figures 9 and 10 share most of their runs.

use ratewright_topology::Topology;

use super::contenders::{FLOWTUNE, contender};
use super::monitor::MONITOR;
use super::scene::{Counting, SceneConfig};
use super::sweep::{CasePlan, Replicas, sweep};
use super::{ExperimentError, Settings, scene};
use crate::FlowSpec;
use crate::control::ControlTraffic;
use crate::control::allocator::AllocatorCounts;
use crate::parameters::Setting;
use crate::plan::PlannedTransport;
use crate::report::stationarity::mser5;
use crate::report::stats::mean;
use crate::run::Config;
use crate::scheme::Run;
use crate::time::{Span, Time};
use crate::workload::Poisson;

/// Number of parts that the warm-up is counted in.
const WARM_UP_PARTS: u32 = 5;
/// Number of samples of the active flowlets in the warm-up.
const SAMPLES: u64 = 320;

/// Parameters of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct TrafficCase {
    /// Racks of 16 servers.
    pub racks: u32,
    /// The name of the size distribution.
    pub workload: &'static str,
    /// Offered load, as a share of the servers' links.
    pub load: f64,
    /// The notification threshold.
    pub threshold: f64,
    /// Length of the warm-up, which [MSER-5](crate::report::stationarity) judges.
    pub warm_up: Span,
    /// Time in which traffic is counted.
    pub counted: Span,
}

impl TrafficCase {
    /// The end of the run.
    fn end(&self) -> Time {
        Time::ZERO + self.warm_up + self.counted
    }
}

/// Measurements of a run. Its fields are the figures' JSON.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct TrafficSample {
    /// Servers.
    pub hosts: u32,
    /// The size distribution.
    pub workload: String,
    /// Offered load.
    pub load: f64,
    /// The threshold.
    pub threshold: f64,
    /// IPv4 packets to the allocator over the servers' capacity, in per cent.
    pub to_allocator_percent: f64,
    /// IPv4 packets from the allocator over the servers' capacity, in per cent.
    pub from_allocator_percent: f64,
    /// Part of `to_allocator_percent` that is bare acknowledgements.
    pub bare_to_percent: f64,
    /// Part of `from_allocator_percent` that is bare acknowledgements.
    pub bare_from_percent: f64,
    /// Both directions with Ethernet, preamble and gap, in per cent of the capacity.
    pub wire_percent: f64,
    /// Packets with updates to one server in one second.
    pub update_datagrams_per_host_s: f64,
    /// Both directions as [`Counting::Paper`] counts, in per cent of the capacity.
    pub paper_percent: f64,
    /// Both directions as [`Counting::Alone`] counts, in per cent of the capacity.
    pub alone_percent: f64,
    /// Rate updates to one server in one second.
    pub updates_per_host_s: f64,
    /// Rate updates per flowlet that started.
    pub updates_per_flowlet: f64,
    /// Flowlets that started at one server in one second.
    pub starts_per_host_s: f64,
    /// Flowlets active at once, on average, per server.
    pub active_per_host: f64,
    /// The largest load over capacity that any iteration handed out.
    pub max_link_load: f64,
    /// True if the number of active flowlets was stationary from the warm-up's end on.
    pub stationary: bool,
    /// Course of the run: the warm-up in parts, each ending at twice the time of the one before,
    /// and the counted time after it.
    pub growth: Vec<RunPart>,
}

/// Part of a run.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct RunPart {
    /// Begin of the part.
    pub from_ms: f64,
    /// End of the part.
    pub to_ms: f64,
    /// Flowlets active at once, on average, per server.
    pub active_per_host: f64,
    /// Rate updates per flowlet that started.
    pub updates_per_flowlet: f64,
    /// Both directions as [`Counting::Ip`] counts, in per cent of the capacity.
    pub ip_percent: f64,
}

impl TrafficSample {
    /// Both directions under a counting, in per cent of the servers' capacity.
    #[must_use]
    pub fn percent(&self, counting: Counting) -> f64 {
        match counting {
            Counting::Wire => self.wire_percent,
            Counting::Ip => self.to_allocator_percent + self.from_allocator_percent,
            Counting::Paper => self.paper_percent,
            Counting::Alone => self.alone_percent,
            // 40 bytes of TCP and IP headers and 6 of the rate update each; 800 is bits per cent.
            Counting::Updates => self.updates_per_host_s * 46.0 * 800.0 / scene::HOST_BPS as f64,
        }
    }
}

/// Says which cases are not stationary, for the figures' remarks.
#[must_use]
pub fn remarks(cases: &[TrafficCase], samples: &[Replicas<TrafficSample>]) -> Vec<String> {
    let remark = |(case, samples): (&TrafficCase, &Replicas<TrafficSample>)| {
        let moving = samples.total(|sample| usize::from(!sample.stationary));
        (moving > 0).then(|| {
            format!(
                "{}, load {}, threshold {}, {} servers: active flowlets are not stationary after the warm-up with {moving} of {} seeds",
                case.workload,
                case.load,
                case.threshold,
                case.racks * scene::HOSTS_PER_RACK,
                samples.0.len()
            )
        })
    };
    cases.iter().zip(samples).filter_map(remark).collect()
}

/// The flowlets of a case.
///
/// # Errors
/// An unknown workload or an impossible load.
pub fn flows(
    case: &TrafficCase,
    scene: &SceneConfig,
    seed: u64,
) -> Result<impl Iterator<Item = FlowSpec> + use<>, ExperimentError> {
    let hosts = case.racks * scene::HOSTS_PER_RACK;
    let sizes = scene.sizes_of(case.workload)?;
    let span = (Time::ZERO, case.end());
    Ok(Poisson::new(
        hosts,
        scene::HOST_BPS,
        case.load,
        sizes,
        span,
        seed,
    )?)
}

/// Differences of counters over a part of a run.
#[derive(Clone, Copy)]
struct PartCounts {
    to: ControlTraffic,
    from: ControlTraffic,
    counts: AllocatorCounts,
    started: u64,
    active: f64,
    max_link_load: f64,
}

/// Bytes as per cent of the capacity that the servers' links have in this time.
fn percent(hosts: u32, span: Span, bytes: u64) -> f64 {
    let host_seconds = f64::from(hosts) * span.as_secs_f64();
    bytes as f64 * 800.0 / (host_seconds * scene::HOST_BPS as f64)
}

/// The part of a run from its counts.
fn part(hosts: u32, (from, to): (Time, Time), counted: &PartCounts) -> RunPart {
    let total = counted.to.plus(&counted.from);
    let ms = |time: Time| time.since(Time::ZERO).as_secs_f64() * 1e3;
    RunPart {
        from_ms: ms(from),
        to_ms: ms(to),
        active_per_host: counted.active / f64::from(hosts),
        updates_per_flowlet: counted.counts.updates as f64 / counted.started.max(1) as f64,
        ip_percent: percent(hosts, to.since(from), total.ip_bytes),
    }
}

/// The sample of a run from its counts and its course.
fn sample(
    case: &TrafficCase,
    counted: &PartCounts,
    growth: Vec<RunPart>,
    stationary: bool,
) -> TrafficSample {
    let hosts = case.racks * scene::HOSTS_PER_RACK;
    let span = case.counted;
    let host_seconds = f64::from(hosts) * span.as_secs_f64();
    let percent = |bytes: u64| percent(hosts, span, bytes);
    let total = counted.to.plus(&counted.from);
    // IPv4 and TCP without options, and the paper's encoding (flowtune §5.3).
    let AllocatorCounts {
        starts,
        ends,
        updates,
        ..
    } = counted.counts;
    let said = 16 * starts + 4 * ends + 6 * updates;
    // A bare acknowledgement carries no record; the paper's encoding has no packet for it.
    let packets = total.datagrams - total.bare_datagrams;
    let with_updates = counted.from.datagrams - counted.from.bare_datagrams;
    TrafficSample {
        hosts,
        workload: case.workload.to_owned(),
        load: case.load,
        threshold: case.threshold,
        to_allocator_percent: percent(counted.to.ip_bytes),
        from_allocator_percent: percent(counted.from.ip_bytes),
        bare_to_percent: percent(counted.to.bare_ip_bytes),
        bare_from_percent: percent(counted.from.bare_ip_bytes),
        wire_percent: percent(total.wire_bytes),
        paper_percent: percent(said + 40 * packets),
        alone_percent: percent(said + 40 * (starts + ends + updates)),
        update_datagrams_per_host_s: with_updates as f64 / host_seconds,
        updates_per_host_s: updates as f64 / host_seconds,
        updates_per_flowlet: updates as f64 / counted.started.max(1) as f64,
        starts_per_host_s: counted.started as f64 / host_seconds,
        active_per_host: counted.active / f64::from(hosts),
        max_link_load: counted.max_link_load,
        stationary,
        growth,
    }
}

/// A case that is ready to run.
struct TrafficRun<'a> {
    case: &'a TrafficCase,
    topology: Topology,
    transport: PlannedTransport,
    scene: SceneConfig,
}

impl<'a> TrafficRun<'a> {
    /// Takes the paper's transport with the case's threshold, and links that fit the network.
    fn new(settings: &Settings, case: &'a TrafficCase) -> Result<Self, ExperimentError> {
        let topology = scene::topology(case.racks)?;
        let mut settings = settings.clone();
        let scheme = contender(FLOWTUNE, &topology, &settings)?.scheme.name();
        let rate_bps = scene::allocator_bps(topology.hosts().len() as u32);
        // First in the list: what the user sets comes later, and replaces it.
        let of_case = [
            ("threshold", case.threshold.to_string()),
            ("allocator_rate", format!("\"{rate_bps}bit/s\"")),
        ];
        let of_case = of_case.map(|(key, value)| Setting {
            name: scheme.to_owned(),
            key: key.to_owned(),
            value,
        });
        settings.set.splice(0..0, of_case);
        Ok(Self {
            case,
            transport: contender(FLOWTUNE, &topology, &settings)?,
            topology,
            scene: SceneConfig {
                // The counting is applied to a run's samples, not to the run.
                count: Counting::Ip,
                ..settings.scene()?
            },
        })
    }

    /// Runs the case packet by packet.
    fn run(&self, seed: u64) -> Result<TrafficSample, ExperimentError> {
        let case = self.case;
        let hosts = self.topology.hosts().len() as u32;
        let config = Config {
            seed,
            ..Config::default()
        };
        let flows = flows(case, &self.scene, seed)?;
        let mut run = self
            .transport
            .start(config, &self.topology, Box::new(flows))?;
        // Parts double in length, because the number of active flowlets grows ever more slowly.
        let mut growth = Vec::new();
        let mut active = Vec::new();
        let mut from = Time::ZERO;
        for halvings in (0..WARM_UP_PARTS).rev() {
            let to = Time::from_ps(case.warm_up.as_ps() >> halvings);
            let counted = count(&mut *run, (from, to), case.warm_up, &mut active)?;
            growth.push(part(hosts, (from, to), &counted));
            from = to;
        }
        let warm_up = active.len();
        let counted = count(&mut *run, (from, case.end()), case.warm_up, &mut active)?;
        growth.push(part(hosts, (from, case.end()), &counted));
        let stationary = mser5(&active).is_some_and(|cut| cut <= warm_up);
        run.results().conservation?;
        Ok(sample(case, &counted, growth, stationary))
    }
}

/// Runs cases under all seeds. Results are in the order of the cases.
///
/// # Errors
/// The first run that fails.
pub fn all(
    settings: &Settings,
    cases: &[TrafficCase],
) -> Result<Vec<Replicas<TrafficSample>>, ExperimentError> {
    let runs: Result<Vec<TrafficRun<'_>>, _> = cases
        .iter()
        .map(|case| TrafficRun::new(settings, case))
        .collect();
    let plan = |run: &TrafficRun<'_>| {
        let (case, scene) = (run.case, &run.scene);
        Ok(CasePlan {
            name: format!("traffic-{}-{}-{}", case.workload, case.load, case.racks),
            key: format!("{case:?} {scene:?}\n{}", run.transport.key()),
            time: case.end().since(Time::ZERO),
        })
    };
    sweep(settings, &runs?, plan, TrafficRun::run)
}

/// Traffic and records so far, from the scheme's counters.
fn control(run: &dyn Run) -> ([ControlTraffic; 2], AllocatorCounts) {
    let counters = run.counters();
    let count = |name: &str| {
        let found = counters.iter().find(|(known, _)| *known == name);
        found.map_or(0, |(_, value)| *value as u64)
    };
    let traffic = ["to", "from"].map(|way| ControlTraffic {
        datagrams: count(&format!("control_datagrams_{way}_allocator")),
        ip_bytes: count(&format!("control_ip_bytes_{way}_allocator")),
        wire_bytes: count(&format!("control_wire_bytes_{way}_allocator")),
        bare_datagrams: count(&format!("control_bare_datagrams_{way}_allocator")),
        bare_ip_bytes: count(&format!("control_bare_ip_bytes_{way}_allocator")),
    });
    let counts = AllocatorCounts {
        starts: count("flowlet_starts"),
        ends: count("flowlet_ends"),
        updates: count("rate_updates"),
        ..AllocatorCounts::default()
    };
    (traffic, counts)
}

/// A gauge of the scheme.
fn gauge(run: &dyn Run, name: &str) -> f64 {
    let counters = run.counters();
    let found = counters.iter().find(|(known, _)| *known == name);
    found.map_or(0.0, |(_, value)| *value)
}

/// Runs to the end of a part, and counts over it. Adds samples of the active flowlets, at the same
/// interval in all parts of a run.
fn count(
    run: &mut dyn Run,
    (from, to): (Time, Time),
    warm_up: Span,
    samples: &mut Vec<f64>,
) -> Result<PartCounts, ExperimentError> {
    let ([to_before, from_before], before) = control(run);
    let started_before = run.progress().started;
    let step = Span::from_ps(warm_up.as_ps() / SAMPLES);
    let first = samples.len();
    let mut at = from + step;
    while at <= to {
        MONITOR.run_until(run, at)?;
        let progress = run.progress();
        samples.push((progress.started - progress.completed) as f64);
        at += step;
    }
    MONITOR.run_until(run, to)?;
    let ([to_allocator, from_allocator], counts) = control(run);
    Ok(PartCounts {
        to: to_allocator.since(&to_before),
        from: from_allocator.since(&from_before),
        counts: counts.since(&before),
        started: run.progress().started - started_before,
        active: mean(&samples[first..]).unwrap_or(0.0),
        // The last iteration's loads: the allocator must never hand out more than a link has.
        max_link_load: gauge(run, "largest_link_load"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_take_the_bytes_of_the_papers_encoding() {
        let case = TrafficCase {
            racks: 8,
            workload: "web",
            load: 0.6,
            threshold: 0.01,
            warm_up: Span::from_ms(2),
            counted: Span::from_ms(3),
        };
        let settings = Settings {
            first_seed: 4,
            seed_count: 1,
            quick: true,
            set: Vec::new(),
            store: None,
        };
        let packets = TrafficRun::new(&settings, &case).unwrap().run(4).unwrap();
        // The closed form: starts per second times the bytes that a start, its end and its updates
        // take.
        let alone =
            packets.starts_per_host_s * (56.0 + 44.0 + 46.0 * packets.updates_per_flowlet) * 800.0
                / scene::HOST_BPS as f64;
        // Some flowlets have started and not ended yet.
        let share = packets.alone_percent / alone;
        assert!((0.97..=1.01).contains(&share), "{packets:?} {alone}");
        assert!(packets.paper_percent < packets.alone_percent, "{packets:?}");
        assert!(packets.max_link_load <= 1.0 + 1e-9, "{packets:?}");
        assert!(
            packets.from_allocator_percent > packets.to_allocator_percent,
            "{packets:?}"
        );
    }
}
