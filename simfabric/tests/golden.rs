//! Golden tables: results of every scheme with a few flows, to the digit. A change of these numbers
//! is a change of behaviour. One that is meant is written with `RATEWRIGHT_GOLDEN=write cargo
//! nextest run -p ratewright-simfabric --test golden`.

use std::fmt::Write as _;
use std::path::Path;

use ratewright_simfabric::experiment::ExperimentError;
use ratewright_simfabric::experiment::assumptions::Assumptions;
use ratewright_simfabric::experiment::schemes::{Scheme, Visitor};
use ratewright_simfabric::flow::{FlowId, FlowSpec};
use ratewright_simfabric::net::queue::{QueueLimit, RedConfig};
use ratewright_simfabric::net::{FabricConfig, QueueConfig};
use ratewright_simfabric::report::stats::jain;
use ratewright_simfabric::run::{Config, Sim};
use ratewright_simfabric::transport::Transport;
use ratewright_simfabric::transport::tcp::congestion::{Cubic, NewReno};
use ratewright_simfabric::transport::tcp::{Tcp, TcpConfig};
use ratewright_simfabric::{Span, Time};
use ratewright_topology::{HostId, Topology, TwoTierClos};

/// Two racks of eight hosts under two spines, at full bisection.
fn topology() -> Topology {
    TwoTierClos {
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

/// Endless flows from the first rack to one host of the second, which start 100 µs apart. Rates are
/// those over the last 5 of 10 ms.
struct ManyToOne<'a> {
    topology: &'a Topology,
    flows: u32,
}

impl Visitor for ManyToOne<'_> {
    /// A row of the table.
    type Output = String;

    fn visit<T: Transport>(
        self,
        fabric: FabricConfig,
        transport: T,
    ) -> Result<String, ExperimentError> {
        let config = Config {
            seed: 7,
            fabric,
            sample_every: Some(Span::from_ms(5)),
            sampled_flows: self.flows,
            ..Config::default()
        };
        let flows = (0..self.flows).map(|i| {
            let start = Time::from_us(100 * u64::from(i));
            FlowSpec::new(HostId(i), HostId(8), FlowSpec::UNBOUNDED, start)
        });
        let mut sim = Sim::new(config, self.topology.clone(), flows, transport)?;
        sim.run_until(Time::from_ms(10))?;
        let results = sim.results();
        results.conservation?;
        let drops = results.drops();
        let series = results.series.expect("sampled");
        let rates: Vec<f64> = (0..self.flows)
            .map(|flow| series.goodput_bps(FlowId(flow))[1] / 1e9)
            .collect();
        // Six decimals, so that small changes of behaviour show.
        let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let most = rates.iter().copied().fold(0.0, f64::max);
        Ok(format!(
            "{:>5} × {:>9.6} {least:>9.6} {most:>9.6} {:>9.6} {drops:>6} {:>9}",
            self.flows,
            rates.iter().sum::<f64>(),
            jain(&rates),
            results.packet_hops,
        ))
    }
}

/// The whole table.
fn table() -> Result<String, ExperimentError> {
    let topology = topology();
    let mut text =
        String::from("scheme    flows × Gbit/s     least      most      Jain  drops      hops\n");
    // One flow shows a scheme's limit, two its sharing, seven its queue.
    for flows in [1, 2, 7] {
        for scheme in Scheme::ALL.into_iter().chain([Scheme::Ideal]) {
            let row = ManyToOne {
                topology: &topology,
                flows,
            };
            let row = scheme.visit(&topology, &Assumptions::default(), row)?;
            let _ = writeln!(text, "{:<9} {row}", scheme.name());
        }
        // Not drop-tail: with hosts and bottleneck at one rate and nothing random, one flow's
        // packets always come when a place falls free, and the others' never (Floyd and Jacobson,
        // "Traffic phase effects in packet-switched gateways", 1991).
        let red = QueueConfig::Red {
            control: RedConfig::default(),
            limit: QueueLimit::Packets(100),
        };
        let fabric = FabricConfig {
            framing: Assumptions::default().framing,
            ..FabricConfig::with_switch_queues(red)
        };
        let row = || ManyToOne {
            topology: &topology,
            flows,
        };
        let new_reno = row().visit(fabric.clone(), Tcp::<NewReno>::new(TcpConfig::datacenter()))?;
        let _ = writeln!(text, "{:<9} {new_reno}", "NewReno");
        let cubic = row().visit(fabric, Tcp::<Cubic>::new(TcpConfig::datacenter()))?;
        let _ = writeln!(text, "{:<9} {cubic}", "CUBIC");
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

#[test]
fn two_runs_give_the_same_bytes() {
    assert_eq!(table().expect("it runs"), table().expect("it runs"));
}
