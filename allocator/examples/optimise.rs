//! Shares a two-tier Clos network among flows, starts one more, and ends it.
//!
//! Run it with `cargo run -p ratewright-allocator --example optimise`.
//!
//! The parallel engine is what the allocator's service runs. It is sans-IO: events go in with
//! `apply`, `iterate` does one round of rate update, price update and normalisation, and
//! `drain_updates` reports each rate that changed by more than the notification threshold.

use std::error::Error;

use ratewright_allocator::engine::parallel::{Layout, ParallelEngine, ParallelOptions};
use ratewright_allocator::engine::{EngineConfig, EngineEvent, FlowNumber, FlowSpec, RateEngine};
use ratewright_topology::{HostId, PathChoice, Topology, TwoTierClos};

fn main() -> Result<(), Box<dyn Error>> {
    let topology = TwoTierClos {
        racks: 2,
        hosts_per_rack: 4,
        spines: 2,
        ..TwoTierClos::default()
    }
    .build()?;
    let capacities_bps: Vec<f64> = topology
        .links()
        .iter()
        .map(|link| link.capacity_bps as f64)
        .collect();
    let mut engine = ParallelEngine::new(
        EngineConfig::default(),
        ParallelOptions::default(),
        Layout::unknown(capacities_bps.len()),
        &capacities_bps,
    )?;

    // Three senders share the link to host 7. The third has the weight of two.
    let mut rates_gbps = [0.0; 4];
    for (flow, (source, weight)) in [(0, 1.0), (1, 1.0), (4, 2.0)].into_iter().enumerate() {
        engine.apply(start(&topology, flow as u32, source, 7, weight)?)?;
    }
    iterate_until_settled(&mut engine, &mut rates_gbps);
    println!(
        "three flows to host 7, Gbit/s:      {:.3?}",
        &rates_gbps[..3]
    );

    // A fourth flow takes its share at once.
    engine.apply(start(&topology, 3, 5, 7, 1.0)?)?;
    let iterations = iterate_until_settled(&mut engine, &mut rates_gbps);
    println!("after a fourth one has started:     {rates_gbps:.3?} ({iterations} iterations)");

    // Its share goes back to the others when it ends.
    engine.apply(EngineEvent::End(FlowNumber::first(3)))?;
    rates_gbps[3] = 0.0;
    iterate_until_settled(&mut engine, &mut rates_gbps);
    println!("after it has ended:                 {rates_gbps:.3?}");
    Ok(())
}

/// Builds the event that starts a flow of unlimited demand on the path that its number hashes to.
fn start(
    topology: &Topology,
    flow: u32,
    source: u32,
    destination: u32,
    weight: f64,
) -> Result<EngineEvent, Box<dyn Error>> {
    let choice = PathChoice::Hash(flow);
    let path = topology.path(HostId(source), HostId(destination), choice)?;
    Ok(EngineEvent::Start(FlowSpec {
        number: FlowNumber::first(flow),
        links: path.iter().map(|link| link.0).collect(),
        class: 0,
        weight,
        demand_bps: f64::INFINITY,
    }))
}

/// Iterates until no rate changes any more, and returns how many iterations it took.
fn iterate_until_settled(engine: &mut ParallelEngine, rates_gbps: &mut [f64]) -> u32 {
    let mut iterations = 0;
    loop {
        let settled = engine.iterate().settled;
        iterations += 1;
        engine.drain_updates(&mut |update| {
            rates_gbps[update.number.index() as usize] = update.rate_bps / 1e9;
        });
        if settled {
            return iterations;
        }
    }
}
