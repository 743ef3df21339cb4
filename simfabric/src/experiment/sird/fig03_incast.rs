//! SIRD fig. 3: latency of 8-byte and 500 kB messages to a receiver that six senders of 10 MB
//! messages saturate, and to an idle one; credit shortest first (SRPT) or by senders in turn (SRR).
//!
//! Latency is that of the message and of a reply of 8 bytes on an empty network, as the paper's
//! client measures round trips.

use rand::RngExt as _;
use ratewright_topology::{HostId, LinkId, Node, Topology};

use super::scene::{HOST_BPS, testbed};
use super::testbed_transport;
use crate::FlowSpec;
use crate::experiment::monitor::MONITOR;
use crate::experiment::sweep::{CasePlan, Replicas, sweep};
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::report::figure::{Claim, Row};
use crate::report::ideal::completion_time;
use crate::report::plot::{Axis, Curve, Panel, Picture};
use crate::report::stats::quantile_sorted;
use crate::rng::{Purpose, Stream};
use crate::run::Config;
use crate::time::{Span, Time};
use crate::workload::{FlowStream, Merge};

/// Bytes of the incast's messages (§6.1.1).
const LONG_BYTES: u64 = 10_000_000;
/// Rate of each of its senders (§6.1.1), in bit/s.
const SENDER_BPS: u64 = 17_000_000_000;
/// Senders (§6.1.1); the next host is the seventh, the last the receiver.
const SENDERS: u32 = 6;
/// Receiver.
const RECEIVER: HostId = HostId(testbed::HOSTS - 1);
/// Time after which probes count: messages of 10 MB wait at all senders by then.
const WARM_UP: Time = Time::from_ms(20);
/// Bytes of probes, and the time from one to the next.
const PROBES: [(u64, Span); 2] = [(8, Span::from_us(100)), (500_000, Span::from_ms(1))];

/// Order of credit, or none of the incast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
enum Load {
    Unloaded,
    Srpt,
    Srr,
}

impl Load {
    const ALL: [Self; 3] = [Self::Unloaded, Self::Srpt, Self::Srr];

    const fn name(self) -> &'static str {
        match self {
            Self::Unloaded => "unloaded",
            Self::Srpt => "SRPT",
            Self::Srr => "SRR",
        }
    }

    /// Setting of the receiver's order of credit.
    const fn order(self) -> &'static str {
        match self {
            Self::Srr => "sird.order=round-robin",
            Self::Unloaded | Self::Srpt => "sird.order=srpt",
        }
    }
}

/// Measurements of one run.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct IncastSample {
    /// Latencies of probes in µs, ascending.
    latency_us: Vec<f64>,
    /// Payload that the receiver got, in Gbit/s.
    goodput_gbps: f64,
    /// Largest and mean queue before the receiver's link, in kB.
    queue_kb: [f64; 2],
}

impl IncastSample {
    fn latency_us(&self, share: f64) -> Option<f64> {
        quantile_sorted(&self.latency_us, share)
    }
}

/// Ends of the runs.
fn end(quick: bool) -> Time {
    Time::from_ms(if quick { 60 } else { 220 })
}

/// The switch's link to the receiver.
fn downlink(topology: &Topology) -> LinkId {
    let to_receiver = |link: &&ratewright_topology::Link| link.to == Node::Host(RECEIVER);
    let link = topology.links().iter().find(to_receiver);
    link.map_or(LinkId(0), |link| link.id)
}

fn flows((load, probe): (Load, usize), end: Time, seed: u64) -> FlowStream {
    let mut rng = Stream::new(seed, Purpose::Arrivals, 0);
    let mut every = |src: u32, bytes: u64, period: Span| -> FlowStream {
        let phase = rng.random_range(0..period.0);
        let start = move |number: u64| Time::ZERO + Span(phase + number * period.0);
        let flows =
            (0..).map(move |number| FlowSpec::new(HostId(src), RECEIVER, bytes, start(number)));
        Box::new(flows.take_while(move |flow| flow.start < end))
    };
    let (bytes, period) = PROBES[probe];
    let mut sources = vec![every(SENDERS, bytes, period)];
    if load != Load::Unloaded {
        let period = Span(LONG_BYTES * 8_000_000_000 / (SENDER_BPS / 1_000));
        sources.extend((0..SENDERS).map(|src| every(src, LONG_BYTES, period)));
    }
    Box::new(Merge::new(sources))
}

fn sample(
    settings: &Settings,
    topology: &Topology,
    case: (Load, usize),
    seed: u64,
) -> Result<IncastSample, ExperimentError> {
    let transport = testbed_transport(settings, topology, case.0.order())?;
    let end = end(settings.quick);
    let config = Config {
        seed,
        ..Config::default()
    };
    let mut run = transport.start(config, topology, flows(case, end, seed))?;
    MONITOR.run_until(&mut *run, WARM_UP)?;
    run.end_warm_up();
    let before = run.results();
    MONITOR.run_until(&mut *run, end)?;
    let results = run.results();
    results.conservation?;
    let ends = (RECEIVER, HostId(SENDERS));
    let reply = completion_time(topology, testbed::FRAMING, testbed::HOST_DELAY, ends, 8)?;
    let probes = results.flows.iter();
    let probes = probes.filter(|flow| flow.spec.label == 0 && flow.spec.start >= WARM_UP);
    let mut latency_us: Vec<f64> = probes
        .filter_map(|flow| Some((flow.fct()? + reply).as_us_f64()))
        .collect();
    latency_us.sort_unstable_by(f64::total_cmp);
    let delivered = |flows: &[crate::results::FlowResult]| {
        flows.iter().map(|flow| flow.delivered_bytes).sum::<u64>()
    };
    let bytes = delivered(&results.flows) - delivered(&before.flows);
    let stats = &results.ports[downlink(topology).index()].stats;
    Ok(IncastSample {
        latency_us,
        goodput_gbps: bytes as f64 * 8.0 / end.since(WARM_UP).as_secs_f64() / 1e9,
        queue_kb: [stats.max_bytes as f64, stats.mean_bytes()].map(|bytes| bytes / 1e3),
    })
}

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let topology = testbed::topology()?;
    let cases: Vec<(Load, usize)> = (0..PROBES.len())
        .flat_map(|probe| Load::ALL.map(|load| (load, probe)))
        .collect();
    let end = end(settings.quick);
    let plan = |case: &(Load, usize)| {
        let transport = testbed_transport(settings, &topology, case.0.order())?;
        Ok(CasePlan {
            name: format!("incast-{}-{}B", case.0.name(), PROBES[case.1].0),
            key: format!("{end:?}\n{}", transport.key()),
            time: end.since(Time::ZERO),
        })
    };
    let samples = sweep(settings, &cases, plan, |case, seed| {
        sample(settings, &topology, *case, seed)
    })?;
    let mut figure = settings.figure("sird-fig3", "Latency beside an incast (SIRD fig. 3)");
    figure.scenario = vec![
        format!(
            "six senders of 10 MB messages at {} Gbit/s each and a seventh with probes, one \
             receiver, {} Gbit/s, frames of 9 kB",
            SENDER_BPS / 1_000_000_000,
            HOST_BPS / 1_000_000_000
        ),
        format!(
            "probes of 8 bytes every 100 µs, of 500 kB every ms, from {} to {} ms",
            WARM_UP.as_us_f64() / 1e3,
            end.as_us_f64() / 1e3
        ),
        "latency with a reply of 8 bytes on an empty network".to_owned(),
    ];
    let [idle, srpt, srr, idle_long, srpt_long, srr_long] = samples.as_slice() else {
        return Ok(reproduction(figure, &samples));
    };
    type Pair<'a> = &'a Replicas<IncastSample>;
    let added = |name: &str, claim: Claim, loaded: Pair<'_>, share: f64| {
        let added = loaded.paired(idle, |loaded, idle| {
            Some(loaded.latency_us(share)? - idle.latency_us(share)?)
        });
        Row::judge(format!("8 B, {name}"), claim, added, "µs")
    };
    let ratio = |name: &str, claim: Claim, (over, of): (Pair<'_>, Pair<'_>), share: f64| {
        let ratio = over.paired(of, |over, of| {
            Some(over.latency_us(share)? / of.latency_us(share)?)
        });
        Row::judge(format!("500 kB, {name}"), claim, ratio, "ratio")
    };
    let few = || Claim::words("a few µs").at_most(A_FEW_US);
    let near = || Claim::words("near-unloaded").at_most(NEAR);
    figure.rows = vec![
        added("SRPT: median less that without load", few(), srpt, 0.5),
        added("SRPT: 99 % less that without load", few(), srpt, 0.99),
        added("SRR: median less that without load", few(), srr, 0.5),
        ratio(
            "SRPT: median over that without load",
            near(),
            (srpt_long, idle_long),
            0.5,
        ),
        ratio(
            "SRPT: 99 % over that without load",
            Claim::nothing(),
            (srpt_long, idle_long),
            0.99,
        ),
        ratio(
            "SRR over SRPT: median",
            Claim::words("fairer, and so later").at_least(1.0),
            (srr_long, srpt_long),
            0.5,
        ),
        Row::judge(
            "8 B, SRPT: goodput of the receiver",
            Claim::number(96.0, 0.05),
            srpt.estimate(|sample| Some(sample.goodput_gbps)),
            "Gbit/s",
        ),
        Row::judge(
            "8 B, SRPT: largest queue before the receiver",
            // 1.5 less 1 products, and the packet of a probe.
            Claim::words("B − BDP").at_most(0.5 * testbed::BDP_BYTES / 1e3 + 9.0),
            srpt.estimate(|sample| Some(sample.queue_kb[0])),
            "kB",
        ),
        Row::judge(
            "8 B, SRPT: mean queue before the receiver",
            Claim::words("effectively none; a couple of packets").at_most(18.0),
            srpt.estimate(|sample| Some(sample.queue_kb[1])),
            "kB",
        )
        .undecided_because(
            "credit leaves at the rate of the link, so that a queue which probes and the phases of \
             senders have left does not drain; the paper's software paces it slightly below (§5)",
        ),
    ];
    Ok(reproduction(figure, &samples))
}

/// Reading of "only a few microseconds".
const A_FEW_US: f64 = 5.0;
/// Reading of "near-unloaded".
const NEAR: f64 = 1.25;

fn reproduction(
    mut figure: crate::report::figure::Figure,
    samples: &[Replicas<IncastSample>],
) -> Reproduction {
    let panels = PROBES.iter().enumerate().map(|(probe, (bytes, _))| {
        let of_probe = samples
            .chunks(Load::ALL.len())
            .nth(probe)
            .unwrap_or_default();
        let curves = Load::ALL.iter().zip(of_probe).map(|(load, runs)| {
            let all = runs
                .samples()
                .flat_map(|run| run.latency_us.iter().copied());
            Curve::distribution(load.name(), all.collect())
        });
        let title = match bytes {
            8 => "8 B".to_owned(),
            bytes => format!("{} kB", bytes / 1_000),
        };
        Panel::curves(
            format!("Messages of {title}"),
            Axis::linear("Latency (µs)").starting_at(0.0),
            Axis::linear("Share of messages (%)").over(0.0, 100.0),
            curves.collect(),
        )
    });
    let picture = Picture::new(
        "Messages beside an incast of 10 MB",
        "SIRD fig. 3",
        panels.collect(),
    );
    figure.data = serde_json::json!({
        "probes": PROBES.map(|(bytes, _)| bytes),
        "loads": Load::ALL.map(Load::name),
        "queue_kb": samples.iter().map(|runs| runs.samples().map(|s| s.queue_kb).collect()).collect::<Vec<Vec<_>>>(),
    });
    Reproduction { figure, picture }
}
