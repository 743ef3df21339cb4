//! Runs a plan from code: three transports on one leaf-spine network, with the same flows, and the
//! completion times of these.
//!
//! Run it with `cargo run --release -p ratewright-simfabric --example plan`.
//!
//! Plans are TOML (docs/simfabric/plans.md). The seed decides everything random, so two runs
//! print the same figures.

use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;

use ratewright_simfabric::plan::{Overrides, RunPlan};

const PLAN: &str = r#"
[run]
seed = 7
duration = "20ms"

[topology]
kind = "leaf-spine"
racks = 2
hosts_per_rack = 8
spines = 2
host_rate = "10Gbit/s"
oversubscription = 1.0
link_delay = "1500ns"
host_delay = "2us"

[queue]
discipline = "ecn-threshold"
mark_packets = 65
limit_packets = 250

[[transport]]
name = "dctcp"

[[transport]]
name = "pfabric"
queue = { discipline = "pfabric" }

[[transport]]
name = "flowtune"

[[workload]]
kind = "poisson"
load = 0.5
sizes = "web"
"#;

fn main() -> Result<(), Box<dyn Error>> {
    let plan = RunPlan::parse(
        PLAN,
        "the example's plan",
        Path::new("."),
        &Overrides::default(),
    )?;
    println!("transport    flow size    flows    mean    p99 (us)");
    for transport in &plan.transports {
        // The callback may stop a run that takes too long.
        let result = plan.run(transport, |_| ControlFlow::Continue(()))?;
        for (size, times) in &result.summary.fct_us {
            println!(
                "{:<12} {size:<10} {:>7} {:>7.0} {:>7.0}",
                transport.label, times.count, times.mean, times.p99
            );
        }
    }
    Ok(())
}
