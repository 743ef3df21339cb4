//! Golden tables: results of every scheme with a few flows, to the digit. A change of these numbers
//! is a change of behaviour. One that is meant is written with `RATEWRIGHT_GOLDEN=write cargo
//! nextest run -p ratewright-simfabric --test behaviour golden`.
//!
//! Unit tests have it, too, with ports that are two cache lines longer: results do not depend on
//! sizes of structures.

pub(crate) mod schemes;

use std::fmt::Write as _;
use std::path::Path;

use ratewright_simfabric::experiment::contenders::contenders;
use ratewright_simfabric::experiment::{ExperimentError, Settings};
use ratewright_simfabric::flow::{FlowId, FlowSpec};
use ratewright_simfabric::net::FabricConfig;
use ratewright_simfabric::plan::{PlannedTransport, read_transports};
use ratewright_simfabric::report::stats::jain;
use ratewright_simfabric::run::Config;
use ratewright_simfabric::{Span, Time};
use ratewright_topology::{EcmpConfig, HostId, Topology, TwoTierClos};

use self::schemes::{OTHERS, RDMA, SYMMETRIC};

/// Packets as ns-2 counts them.
const NS2_PACKETS: &str = "packet = { mss_bytes = 1460, header_bytes = 40, min_wire_bytes = 40 }";

/// Two racks of eight hosts under two spines, at full bisection.
fn topology(symmetric: bool) -> Topology {
    TwoTierClos {
        ecmp: EcmpConfig { seed: 0, symmetric },
        racks: 2,
        hosts_per_rack: 8,
        spines: 2,
        host_capacity_bps: 10_000_000_000,
        fabric_capacity_bps: 40_000_000_000,
        host_delay_ns: 1_500,
        fabric_delay_ns: 1_500,
        ..TwoTierClos::default()
    }
    .build()
    .expect("a topology")
}

/// A row of the table: endless flows from the first rack to one host of the second, which start 100
/// µs apart. Rates are those over the last 5 of 10 ms.
fn many_to_one(
    topology: &Topology,
    transport: &PlannedTransport,
    count: u32,
) -> Result<String, ExperimentError> {
    let config = Config {
        seed: 7,
        sample_every: Some(Span::from_ms(5)),
        sampled_flows: count,
        ..Config::default()
    };
    let flows = (0..count).map(|i| {
        let start = Time::from_us(100 * u64::from(i));
        FlowSpec::new(HostId(i), HostId(8), FlowSpec::UNBOUNDED, start)
    });
    let mut run = transport.start(config, topology, Box::new(flows))?;
    run.run_until(Time::from_ms(10))?;
    let results = run.results();
    results.conservation?;
    let drops = results.drops();
    let series = results.series.expect("sampled");
    let rates: Vec<f64> = (0..count)
        .map(|flow| series.goodput_bps(FlowId(flow))[1] / 1e9)
        .collect();
    // Six decimals, so that small changes of behaviour show.
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let most = rates.iter().copied().fold(0.0, f64::max);
    Ok(format!(
        "{:>5} × {:>9.6} {least:>9.6} {most:>9.6} {:>9.6} {drops:>6} {:>9}",
        count,
        rates.iter().sum::<f64>(),
        jain(&rates),
        results.packet_hops,
    ))
}

/// The whole table.
fn table() -> Result<String, ExperimentError> {
    let topology = topology(false);
    let mut text = String::from(
        "scheme         flows × Gbit/s     least      most      Jain  drops      hops\n",
    );
    let settings = Settings {
        first_seed: 7,
        seed_count: 1,
        quick: true,
        set: Vec::new(),
        store: None,
    };
    let mut transports = contenders(&topology, &settings)?;
    let others = read_transports(
        &format!("{NS2_PACKETS}{OTHERS}"),
        "others",
        &topology,
        FabricConfig::default(),
        &[],
    )?;
    transports.extend(others);
    // Some need acknowledgements that come back by the switches of their data.
    let symmetric = self::topology(true);
    let others = format!("{RDMA}{SYMMETRIC}");
    let others = read_transports(&others, "others", &symmetric, FabricConfig::default(), &[])?;
    // One flow shows a scheme's limit, two its sharing, seven its queue.
    for (topology, transports) in [(&topology, &transports), (&symmetric, &others)] {
        for flows in [1, 2, 7] {
            for transport in transports {
                let row = many_to_one(topology, transport, flows)?;
                let _ = writeln!(text, "{:<14} {row}", transport.label);
            }
        }
    }
    Ok(text)
}

#[test]
fn every_scheme_does_what_it_did() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden.txt");
    let ours = table().expect("it runs");
    if std::env::var_os("RATEWRIGHT_GOLDEN").is_some_and(|value| value == "write") {
        std::fs::write(&path, &ours).expect("the table can be written");
    }
    // Read even after it was written: a table that cannot be read back fails at once.
    let golden = std::fs::read_to_string(&path).expect("the golden table is there");
    assert_eq!(golden, ours, "the golden table differs; ours:\n{ours}");
}
