//! `ratewright-bench engine`: how long an iteration of the parallel engine takes on this machine.

use anyhow::{Context, Result, ensure};
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use ratewright_allocator::engine::parallel::{
    Layout, MOST_WORKERS, ParallelEngine, ParallelOptions, Simd,
};
use ratewright_allocator::engine::{
    EngineConfig, EngineEvent, FlowSpec, RateEngine, ReferenceEngine, pin_current_thread,
};
use ratewright_allocator::num::utility::{Class, ClassTable};
use ratewright_cli::clock::now_ns;
use ratewright_cli::process::resident_bytes;
use ratewright_plot::commit::commit;
use ratewright_topology::{ThreeTierClos, Topology, TwoTierClos};
use serde::Serialize;

use super::bytes::BytesPerFlow;
use super::engine_options::EngineOptions;
use super::engine_traffic::EngineTraffic;
use super::iterations::{
    IterationCounts, IterationQuantiles, IterationRun, OfEvents, Phases, iterate, per_second,
};
use super::sweep::print_json;

/// Iterations before measuring: rows are put in order meanwhile.
const WARM_UP: usize = 300;
/// Turns of two cases that are compared.
const TURNS: usize = 20;
/// Never at rest: rests are not to be measured.
const NEVER_SETTLED: f64 = 1e-12;
/// Core links of an aggregation switch.
const CORES_PER_AGG: u32 = 4;
/// Flows of a network that is not cut, and of a FlowBlock in others, at most, if the number of
/// blocks is not given; as `default_blocks` has them.
const FLOWS_UNCUT: usize = 20_000;
const FLOWS_PER_BLOCK: usize = 70_000;
/// Iterations of the comparison with the reference.
const REFERENCE_ITERATIONS: usize = 4_000;
/// Flows and iterations that are taken, at most: all of them are kept in memory.
pub(super) const MOST_FLOWS: usize = 10_000_000;
const MOST_ITERATIONS: usize = 10_000_000;

/// The results.
#[derive(Debug, Clone, Serialize)]
pub(super) struct EngineResults {
    commit: &'static str,
    hosts: usize,
    flows: usize,
    pub(super) links: usize,
    tiers: u8,
    blocks: u32,
    workers: usize,
    pub(super) simd: &'static str,
    iterations: usize,
    /// Events, rates, prices, F-NORM and output.
    pub(super) iteration_us: IterationQuantiles,
    /// Durations of the iterations during which no thread had to leave its core.
    #[serde(skip_serializing_if = "Option::is_none")]
    uninterrupted_us: Option<IterationQuantiles>,
    /// Iterations during which one had to.
    interrupted: usize,
    /// Means of all iterations, of a tenth of them around the median, and of the slowest fiftieth.
    phases_us: Phases,
    phases_p50_us: Phases,
    phases_p99_us: Phases,
    /// Flows that the rows of FlowBlocks hold.
    flows_in_rows: usize,
    pub(super) bytes_per_flow: f64,
    /// Bytes per flow, the state of links included.
    bytes_per_flow_with_links: f64,
    bytes_by_part: BytesPerFlow,
    /// Growth of the process's resident memory per flow, from before the engine was built to after
    /// the first iterations, by the kernel's count: pages and the allocator's reserves are
    /// included.
    #[serde(skip_serializing_if = "Option::is_none")]
    resident_bytes_per_flow: Option<f64>,
    /// Events that were applied in a second of the measurement, if there were any; else what one
    /// core applies in a second.
    events_per_s: f64,
    /// Starts and ends, of which there are equally many.
    events_per_iteration: IterationCounts,
    updates_per_iteration: IterationCounts,
    iterations_by_events: Vec<OfEvents>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_relative_error: Option<f64>,
    /// Flows with a demand.
    flows_capped: usize,
    classes: u8,
    /// The plain case in turns with this one, if this one is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    plain: Option<PlainCase>,
}

/// Measurement of the same flows, all of one class and without demands.
#[derive(Debug, Clone, Copy, Serialize)]
struct PlainCase {
    iteration_us: IterationQuantiles,
    /// The median over turns: how many times as long the median iteration took with demands and
    /// classes.
    ratio_p50: f64,
}

/// Racks of at most `--rack-hosts`, the hosts spread evenly over them. Three tiers have a power of
/// two of pods, so that they can be cut into any number of blocks. That power is near the number of
/// racks in a pod.
pub(super) fn network(options: &EngineOptions) -> Result<Topology> {
    ensure!(options.rack_hosts > 0, "--rack-hosts must be above 0");
    let least = options.hosts.div_ceil(options.rack_hosts);
    ensure!(least > 1, "--hosts must fill at least two racks");
    let pods = if options.tiers == 2 {
        1
    } else {
        // A power of two near the square root of the racks.
        1 << (least.ilog2() / 2)
    };
    // All pods have the same number of racks.
    let racks = least.next_multiple_of(pods);
    // The first `rest` racks take one host more.
    let (share, rest) = (options.hosts / racks, options.hosts % racks);
    let rack_sizes: Vec<u32> = (0..racks).map(|r| share + u32::from(r < rest)).collect();
    let built = if options.tiers == 2 {
        TwoTierClos {
            racks,
            hosts_per_rack: share,
            rack_sizes,
            spines: options.spines,
            ..TwoTierClos::default()
        }
        .build()
    } else {
        ThreeTierClos {
            pods,
            racks_per_pod: racks / pods,
            hosts_per_rack: share,
            rack_sizes,
            aggs_per_pod: options.spines,
            cores: options.spines * CORES_PER_AGG,
            ..ThreeTierClos::default()
        }
        .build()
    };
    built.context("no such network can be built")
}

/// As `default_blocks` would, for this number of flows.
fn blocks_for(topology: &Topology, options: &EngineOptions) -> u32 {
    let racks = topology.racks().len() as u32;
    (1..=racks.ilog2())
        .map(|exponent| 1 << exponent)
        // The fewest blocks that hold the flows and give each worker a FlowBlock.
        .find(|blocks: &u32| {
            let flow_blocks = (*blocks as usize).pow(2);
            let most = if *blocks == 1 {
                FLOWS_UNCUT
            } else {
                FLOWS_PER_BLOCK
            };
            // Flows spread evenly over the blocks² FlowBlocks.
            options.flows / flow_blocks <= most && options.workers <= flow_blocks
        })
        .unwrap_or(1 << racks.ilog2())
}

/// Returns the effective capacity of every link, in bit/s.
pub(super) fn capacities_bps(topology: &Topology) -> Vec<f64> {
    topology
        .links()
        .iter()
        .map(|link| topology.effective_capacity_bps(link.id) as f64)
        .collect()
}

fn config(options: &EngineOptions) -> EngineConfig {
    let classes = (0..options.classes).map(|id| {
        let class = Class {
            weight: f64::from(1u32 << id),
            ..Class::default()
        };
        (id, class)
    });
    EngineConfig {
        classes: ClassTable::new(classes).unwrap_or_default(),
        // An engine at rest skips its iterations, and there would be nothing to time.
        settle_tolerance: NEVER_SETTLED,
        max_flows: options.flows + 1,
        ..EngineConfig::default()
    }
}

/// Refuses workers that an engine for this network, cut as suits it and them, would have no work
/// for.
pub(super) fn check_workers(topology: &Topology, workers: usize) -> Result<()> {
    let blocks = Layout::fitting(topology, None, workers.min(MOST_WORKERS))?.blocks();
    // Each worker needs a FlowBlock of its own.
    let most = MOST_WORKERS.min((blocks as usize).pow(2));
    ensure!(
        (1..=most).contains(&workers),
        "--workers {workers}: this network is cut into {blocks} blocks at most, for 1 to {most} workers"
    );
    Ok(())
}

/// The engine, without flows, and its blocks.
pub(super) fn build(
    options: &EngineOptions,
    topology: &Topology,
    capacities: &[f64],
) -> Result<(ParallelEngine, u32)> {
    let simd = match &options.simd {
        None => Simd::best(),
        Some(name) => Simd::available()
            .into_iter()
            .find(|simd| simd.name() == name)
            .with_context(|| format!("this machine has no {name}"))?,
    };
    let blocks = options
        .blocks
        .unwrap_or_else(|| blocks_for(topology, options));
    let parallel = ParallelOptions {
        workers: options.workers,
        blocks: Some(blocks),
        // Worker n on core n: threads that move between cores lose their caches.
        cores: (0..options.workers).collect(),
        simd,
    };
    let layout = Layout::of(topology, blocks)?;
    let engine = ParallelEngine::new(config(options), parallel, layout, capacities)?;
    Ok((engine, blocks))
}

/// Runs it.
///
/// # Errors
/// If options make no sense, or the network cannot be built or cut.
pub fn run(options: &EngineOptions) -> Result<()> {
    let results = measure(options)?;
    if options.json {
        return print_json(&results);
    }
    println!("{}", figures_table(&results));
    println!("{}", phases_table(&results));
    Ok(())
}

fn us(value: f64) -> String {
    format!("{value:.2} µs")
}

/// A table whose first column is names.
fn table_of<const N: usize>(header: [&str; N], rows: Vec<[String; N]>) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(header);
    table.add_rows(rows);
    for column in 1..N {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn figures_table(results: &EngineResults) -> Table {
    let times = results.iteration_us;
    let mut rows = vec![
        ["hosts".to_owned(), results.hosts.to_string()],
        ["flows".to_owned(), results.flows.to_string()],
        ["links".to_owned(), results.links.to_string()],
        ["blocks".to_owned(), results.blocks.to_string()],
        ["workers".to_owned(), results.workers.to_string()],
        ["instruction set".to_owned(), results.simd.to_owned()],
        ["iteration, minimum".to_owned(), us(times.min)],
        ["iteration, mean".to_owned(), us(times.mean)],
        ["iteration, median".to_owned(), us(times.p50)],
        ["iteration, p99".to_owned(), us(times.p99)],
        [
            "events/s".to_owned(),
            format!("{:.0}", results.events_per_s),
        ],
        [
            "bytes per flow".to_owned(),
            format!("{:.1}", results.bytes_per_flow),
        ],
        [
            "bytes per flow, with links".to_owned(),
            format!("{:.1}", results.bytes_per_flow_with_links),
        ],
    ];
    if let Some(error) = results.max_relative_error {
        rows.push(["largest relative error".to_owned(), format!("{error:.1e}")]);
    }
    if let Some(plain) = results.plain {
        rows.push(["plain, median".to_owned(), us(plain.iteration_us.p50)]);
        rows.push([
            "times as long, median of turns".to_owned(),
            format!("{:.3}", plain.ratio_p50),
        ]);
    }
    table_of(["figure", "value"], rows)
}

/// Lists the parts of iterations: of all, of those around the median, and of the slowest.
fn phases_table(results: &EngineResults) -> Table {
    type Part = (&'static str, fn(&Phases) -> f64);
    const PARTS: [Part; 10] = [
        ("events", |of| of.events),
        ("packing", |of| of.packing),
        ("prices that answer events", |of| of.answers),
        ("extra pass after events", |of| of.extra_pass),
        ("rates, F-NORM, sums", |of| of.rate_update),
        ("aggregation", |of| of.aggregation),
        ("prices", |of| of.price_update),
        ("distribution", |of| of.distribution),
        ("F-NORM after events", |of| of.normalization),
        ("output", |of| of.output),
    ];
    let of = [
        results.phases_us,
        results.phases_p50_us,
        results.phases_p99_us,
    ];
    let row = |(name, part): Part| {
        let [mean, middle, slowest] = of.map(|phases| us(part(&phases)));
        [name.to_owned(), mean, middle, slowest]
    };
    table_of(
        [
            "part of an iteration",
            "mean",
            "around the median",
            "slowest 2 %",
        ],
        PARTS.map(row).to_vec(),
    )
}

pub(super) fn measure(options: &EngineOptions) -> Result<EngineResults> {
    ensure!(
        (1..=MOST_FLOWS).contains(&options.flows),
        "--flows is 1 to {MOST_FLOWS}"
    );
    ensure!(
        (1..=MOST_ITERATIONS).contains(&options.iterations),
        "--iterations is 1 to {MOST_ITERATIONS}"
    );
    ensure!(
        (0.0..=1.0).contains(&options.capped),
        "--capped is a share of the flows, 0 to 1"
    );
    ensure!(
        options.churn >= 0.0 && options.churn.is_finite(),
        "--churn is a number of flowlets in a second, 0 or more"
    );
    let topology = network(options)?;
    let capacities = capacities_bps(&topology);
    let config = config(options);
    let mut traffic = EngineTraffic::new(&topology, options.seed).over_classes(options.classes);
    // Made before memory and time are taken, so that neither counts the paths' search.
    let starts: Vec<EngineEvent> = (0..options.flows)
        .map(|_| traffic.start())
        .collect::<Result<_>>()?;
    let resident_before = resident_bytes(std::process::id());
    let (mut engine, blocks) = build(options, &topology, &capacities)?;
    if options.workers > 1 {
        // Where this process may not have that core, the scheduler's choice will do.
        let _ = pin_current_thread(0);
    }
    let began_ns = now_ns();
    for event in &starts {
        engine.apply(event.clone())?;
    }
    let bulk_events_per_s = per_second(options.flows, now_ns() - began_ns);
    warm_up(&mut engine);
    // After the warm-up: the first iterations touch all pages.
    let resident = resident_bytes(std::process::id()).zip(resident_before);
    let resident = resident.map(|(now, before)| now as f64 - before as f64);
    let max_relative_error = if options.against_reference {
        Some(compare(&mut engine, &starts, config, &capacities)?)
    } else {
        None
    };
    let flows_capped = cap(options, &mut engine, &starts)?;
    let (run, plain) = if options.capped > 0.0 || options.classes > 1 {
        let (run, plain) =
            measure_in_turns(options, &topology, &capacities, (&mut engine, &mut traffic))?;
        (run, Some(plain))
    } else {
        (iterate(options, &mut engine, &mut traffic)?, None)
    };
    let iteration_us = run.quantiles(false).context("no iterations")?;
    let bytes = engine.bytes();
    Ok(EngineResults {
        commit: commit(),
        hosts: topology.hosts().len(),
        flows: engine.flow_count(),
        links: topology.links().len(),
        tiers: options.tiers,
        blocks,
        workers: options.workers,
        simd: engine.simd().name(),
        iterations: options.iterations,
        iteration_us,
        uninterrupted_us: run.quantiles(true),
        interrupted: run.interrupted(),
        phases_us: run.phases(),
        phases_p50_us: run.middle_phases(),
        phases_p99_us: run.slowest_phases(),
        flows_in_rows: engine.flows_in_rows(),
        bytes_per_flow: bytes.of_flows() as f64 / engine.flow_count() as f64,
        bytes_per_flow_with_links: (bytes.of_flows() + bytes.of_links()) as f64
            / engine.flow_count() as f64,
        bytes_by_part: BytesPerFlow::of(&bytes, engine.flow_count()),
        resident_bytes_per_flow: resident.map(|bytes| bytes / options.flows as f64),
        events_per_s: if options.churn > 0.0 {
            run.events_per_s()
        } else {
            bulk_events_per_s
        },
        events_per_iteration: run.events(),
        updates_per_iteration: run.updates(),
        iterations_by_events: run.by_events(),
        max_relative_error,
        flows_capped,
        classes: options.classes,
        plain,
    })
}

/// Gives the flows that are to have one a demand: half of what they have. Returns how many these
/// are.
fn cap(
    options: &EngineOptions,
    engine: &mut ParallelEngine,
    starts: &[EngineEvent],
) -> Result<usize> {
    // Evenly spread.
    let number = |flow: usize| (flow as f64 * options.capped).floor() as usize;
    let mut capped = 0;
    for (number_of, rate_bps) in engine.rates_bps() {
        let flow = number_of.index() as usize;
        // The rounded share grows at flows that get a demand, and nowhere else.
        if number(flow) == number(flow + 1) {
            continue;
        }
        if let Some(EngineEvent::Start(spec)) = starts.get(flow) {
            engine.apply(EngineEvent::Start(FlowSpec {
                // Half of what the flow has: the demand binds, whatever the others do.
                demand_bps: rate_bps / 2.0,
                ..spec.clone()
            }))?;
            capped += 1;
        }
    }
    if capped > 0 {
        warm_up(engine);
    }
    Ok(capped)
}

fn warm_up(engine: &mut ParallelEngine) {
    for _ in 0..WARM_UP {
        engine.iterate();
        engine.drain_updates(&mut |_| {});
    }
}

/// Iterates an engine and one with the same flows, plain, by turns.
fn measure_in_turns(
    options: &EngineOptions,
    topology: &Topology,
    capacities: &[f64],
    (engine, traffic): (&mut ParallelEngine, &mut EngineTraffic<'_>),
) -> Result<(IterationRun, PlainCase)> {
    let turns = TURNS.min(options.iterations);
    let of_turn = EngineOptions {
        // Rounded up, so that the turns together have at least the iterations asked for.
        iterations: options.iterations.div_ceil(turns),
        ..options.clone()
    };
    let of_plain = EngineOptions {
        capped: 0.0,
        classes: 1,
        ..of_turn.clone()
    };
    let mut plain_traffic = EngineTraffic::new(topology, options.seed);
    let (mut plain, _) = build(&of_plain, topology, capacities)?;
    for _ in 0..options.flows {
        plain.apply(plain_traffic.start()?)?;
    }
    warm_up(&mut plain);
    let (mut all, mut all_plain, mut ratios) =
        (IterationRun::empty(), IterationRun::empty(), Vec::new());
    for _ in 0..turns {
        // In turns: the machine's speed drifts, and both must meet the same.
        let of_plain = iterate(&of_plain, &mut plain, &mut plain_traffic)?;
        let run = iterate(&of_turn, engine, traffic)?;
        let p50 = |run: &IterationRun| run.quantiles(false).map(|times| times.p50);
        if let (Some(ours), Some(plain)) = (p50(&run), p50(&of_plain)) {
            ratios.push(ours / plain);
        }
        all.add(run);
        all_plain.add(of_plain);
    }
    ratios.sort_by(f64::total_cmp);
    let plain = PlainCase {
        iteration_us: all_plain.quantiles(false).context("no iterations")?,
        ratio_p50: *ratios.get(ratios.len() / 2).context("no turns")?,
    };
    Ok((all, plain))
}

/// Returns the largest relative difference of a rate from the f64 reference's, after enough
/// iterations for both to rest.
fn compare(
    engine: &mut ParallelEngine,
    starts: &[EngineEvent],
    config: EngineConfig,
    capacities: &[f64],
) -> Result<f64> {
    let mut exact = ReferenceEngine::new(config, capacities)?;
    for event in starts {
        exact.apply(event.clone())?;
    }
    for _ in 0..REFERENCE_ITERATIONS {
        engine.iterate();
        engine.drain_updates(&mut |_| {});
        exact.iterate();
        exact.drain_updates(&mut |_| {});
    }
    let rates = engine.rates_bps();
    let worst = rates.into_iter().fold(0.0, |worst: f64, (key, ours)| {
        let rate = exact.rate_bps(key).unwrap_or(0.0);
        // At least 1 bit/s in the denominator: a rate of 0 is no division by 0.
        worst.max((ours - rate).abs() / rate.max(1.0))
    });
    Ok(worst)
}
