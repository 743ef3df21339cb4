//! RDMA: closed forms of pacing and windows, losses and pauses, and refused networks; figures of
//! public simulators are in `public.rs`, their logs in `replay.rs`.

mod public;
mod replay;

use ratewright_simfabric::net::mmu::{Lossless, SharedBuffer, USUAL_WATCHDOG, Xoff};
use ratewright_simfabric::net::queue::{ClassMask, Limit, drop_tail};
use ratewright_simfabric::plan::{PlannedTransport, read_transports};
use ratewright_simfabric::results::RunResults;
use ratewright_simfabric::transport::rdma::control::{Acked, Control, PathFacts};
use ratewright_simfabric::transport::rdma::{Rdma, RdmaConfig, Recovery};
use ratewright_simfabric::{
    Config, FabricConfig, FlowSpec, Framing, HostId, QueueConfig, Sim, Span, Time,
};
use ratewright_topology::{BigSwitch, EcmpConfig, Topology, TwoTierClos};

use crate::golden::schemes::RDMA;

const RATE_BPS: u64 = 100_000_000_000;
const DELAY_NS: u64 = 1_500;

/// Packets of HPCC's public simulator.
const FRAMING: Framing = Framing {
    mss_bytes: 1_000,
    header_bytes: 48,
    min_wire_bytes: 60,
};

/// A fixed rate and window: a sender without a control, honest or not.
#[derive(Debug)]
struct Fixed {
    rate_bps: f64,
    window_bytes: u64,
}

impl Control for Fixed {
    /// Share of the line's rate, and window.
    type Config = (f64, u64);

    fn new(&(share, window_bytes): &(f64, u64), path: PathFacts) -> Self {
        let rate_bps = share * path.line_bps;
        Self {
            rate_bps,
            window_bytes,
        }
    }

    fn on_ack(&mut self, _acked: &Acked<'_>) {}

    fn rate_bps(&self) -> f64 {
        self.rate_bps
    }

    fn window_bytes(&self) -> u64 {
        self.window_bytes
    }
}

fn config<C>(control: C) -> RdmaConfig<C> {
    RdmaConfig {
        recovery: Recovery::GoBackN,
        rto: Span::from_us(500),
        rto_low: None,
        nack_interval: Span::from_us(500),
        ack_every: 1,
        ack_wire_bytes: None,
        int_bytes: 0,
        stamp_bytes: 0,
        cnp_interval: None,
        dasr: None,
        source_mark_bytes: None,
        short_bytes: 8_192,
        data_class: 0,
        long_class: 0,
        ack_class: None,
        arbiter: ratewright_simfabric::host::Policy::RoundRobin,
        base_rtt: Span::from_ns(12_320),
        control,
    }
}

fn star(hosts: u32) -> Topology {
    BigSwitch {
        racks: 1,
        hosts_per_rack: hosts,
        host_capacity_bps: RATE_BPS,
        host_delay_ns: DELAY_NS,
        ..BigSwitch::default()
    }
    .build()
    .expect("a switch")
}

fn flow(src: u32, dst: u32, bytes: u64) -> FlowSpec {
    FlowSpec::new(HostId(src), HostId(dst), bytes, Time::ZERO)
}

fn fabric() -> FabricConfig {
    FabricConfig {
        framing: FRAMING,
        ..FabricConfig::default()
    }
}

fn run<C: Control>(
    topology: Topology,
    fabric: FabricConfig,
    rdma: RdmaConfig<C::Config>,
    flows: Vec<FlowSpec>,
    end: Time,
) -> RunResults {
    let config = Config {
        fabric,
        ..Config::default()
    };
    let transport = Rdma::<C>::new(rdma);
    let mut sim = Sim::new(config, topology, flows.into_iter(), transport).expect("a good run");
    sim.run_until(end).expect("good flows");
    sim.results()
}

/// Time of wire bytes on a link.
fn on_link(wire_bytes: u64) -> Span {
    Span(wire_bytes * 80)
}

#[test]
fn a_paced_flow_leaves_one_packet_per_packets_time_at_its_rate() {
    for (share, packets) in [(1.0, 1), (1.0, 10), (0.5, 10), (0.25, 200), (0.01, 3)] {
        let flows = vec![flow(0, 1, packets * 1_000)];
        let rdma = config((share, u64::MAX));
        let results = run::<Fixed>(star(2), fabric(), rdma, flows, Time::from_ms(10));
        results.conservation.expect("nothing is lost");
        let packet = on_link(1_048);
        let gap = Span((packet.0 as f64 / share).round() as u64);
        let crossing = packet * 2 + Span::from_ns(2 * DELAY_NS);
        let expected = gap * (packets - 1) + crossing;
        assert_eq!(results.flows[0].fct(), Some(expected), "{share} {packets}");
        // The last acknowledgement is of the last packet, by the way back.
        let known = results.flows[0].acknowledged.expect("acknowledged");
        let back = on_link(60) * 2 + Span::from_ns(2 * DELAY_NS);
        assert_eq!(known, Time::ZERO + expected + back);
    }
}

/// A window of one packet is a packet per round trip.
#[test]
fn a_window_of_a_packet_waits_for_each_acknowledgement() {
    for ack_every in [1, 4] {
        let flows = vec![flow(0, 1, 20_000)];
        let rdma = RdmaConfig {
            // A closed window asks for an acknowledgement, whatever is coalesced.
            ack_every,
            ..config((1.0, 1_000))
        };
        let results = run::<Fixed>(star(2), fabric(), rdma, flows, Time::from_ms(10));
        let round_trip = (on_link(1_048) + on_link(60)) * 2 + Span::from_ns(4 * DELAY_NS);
        let known = results.flows[0].acknowledged;
        assert_eq!(known, Some(Time::ZERO + round_trip * 20), "{ack_every}");
    }
}

/// One acknowledgement for four packets, and one for the last.
#[test]
fn coalesced_acknowledgements_are_fewer() {
    let flows = vec![flow(0, 1, 1_001_000)];
    let rdma = RdmaConfig {
        ack_every: 4,
        ..config((1.0, u64::MAX))
    };
    let results = run::<Fixed>(star(2), fabric(), rdma, flows, Time::from_ms(10));
    assert_eq!(results.flows[0].sent.packets, 1_001 + 250 + 1);
    assert!(results.flows[0].acknowledged.is_some());
}

/// Eight senders overrun a short queue: what is lost is sent again, and every byte arrives once, in
/// order, whatever the recovery.
#[test]
fn losses_are_repaired_by_either_recovery() {
    for recovery in [Recovery::GoBackN, Recovery::SelectiveRepeat] {
        for ack_every in [1, 8] {
            let queue = QueueConfig::DropTail(drop_tail::Config {
                limit: Limit::packets(20),
            });
            let fabric = FabricConfig {
                framing: FRAMING,
                ..FabricConfig::with_switch_queues(queue)
            };
            let rdma = RdmaConfig {
                recovery,
                ack_every,
                rto_low: Some((3, Span::from_us(100))),
                ..config((0.2, 40_000))
            };
            let flows = (1..9).map(|src| flow(src, 0, 300_500)).collect();
            let results = run::<Fixed>(star(9), fabric, rdma, flows, Time::from_ms(200));
            let name = format!("{recovery:?} {ack_every}");
            let again: u64 = results.flows.iter().map(|flow| flow.retransmits).sum();
            assert!(results.drops() > 0 && again > 0, "{name}");
            results.conservation.expect("the books are right");
            for flow in &results.flows {
                assert_eq!(flow.delivered_bytes, 300_500, "{name}");
                assert!(flow.acknowledged.is_some(), "{name}");
            }
        }
    }
}

/// A sender that heeds neither rate nor window is stopped by pauses, and hurts by no loss.
#[test]
fn senders_that_ignore_everything_lose_nothing_under_pauses() {
    let fabric = FabricConfig {
        shared_buffer: Some(SharedBuffer {
            bytes: 400_000,
            alpha: 1.0,
            lossless: Some(Lossless {
                classes: ClassMask::of(0),
                xoff: Xoff::Bytes(20_000),
                hysteresis_bytes: 3_072,
                headroom_bytes: 60_000,
                watchdog: USUAL_WATCHDOG,
            }),
        }),
        ..fabric()
    };
    let flows: Vec<FlowSpec> = (1..9).map(|src| flow(src, 0, 1_000_000)).collect();
    let rdma = config((1.0, u64::MAX));
    let results = run::<Fixed>(star(9), fabric, rdma, flows, Time::from_ms(20));
    results.conservation.as_ref().expect("the books are right");
    assert_eq!(results.drops(), 0);
    assert!(results.flows.iter().all(|flow| flow.acknowledged.is_some()));
    let pauses: u64 = results.ports.iter().map(|p| p.stats.pauses().count).sum();
    assert!(pauses >= 8, "{pauses}");
}

/// The RDMA schemes with these parameters for all.
fn schemes(topology: &Topology, more: &str) -> Vec<PlannedTransport> {
    let text = RDMA.replace("[[transport]]", &format!("[[transport]]\n{more}"));
    read_transports(&text, "rdma", topology, fabric(), &[]).expect("transports")
}

fn incast(transport: &PlannedTransport, topology: &Topology) -> RunResults {
    let senders = topology.hosts().len() as u32;
    let flows = (1..senders).map(|src| flow(src, 0, 200_000));
    let config = Config {
        seed: 3,
        ..Config::default()
    };
    let mut run = transport
        .start(config, topology, Box::new(flows))
        .expect("a run");
    run.run_until(Time::from_ms(100)).expect("good flows");
    run.results()
}

/// Small buffers, so that every scheme is paused.
#[test]
fn no_scheme_loses_a_packet_under_pauses() {
    let topology = star(17);
    for transport in schemes(&topology, "buffer_bytes = 1000000\nxoff_bytes = 20000") {
        let results = incast(&transport, &topology);
        let name = &transport.label;
        results.conservation.as_ref().expect("the books are right");
        assert_eq!(results.drops(), 0, "{name}");
        let pauses: u64 = results.ports.iter().map(|p| p.stats.pauses().count).sum();
        // One packet asks for RCP's rate, and the switch gives 1/20 of the line's to begin with.
        assert!(pauses > 0 || name == "rcp", "{name}");
        assert!(
            results.flows.iter().all(|f| f.acknowledged.is_some()),
            "{name}"
        );
    }
}

#[test]
fn every_scheme_completes_its_flows_over_lossy_fabrics() {
    let topology = star(17);
    for recovery in ["go-back-n", "selective-repeat"] {
        let more = format!(
            "lossless = false\nbuffer_bytes = 150000\nrecovery = {recovery:?}\nrto = \"500us\""
        );
        for transport in schemes(&topology, &more) {
            let results = incast(&transport, &topology);
            let name = &transport.label;
            results.conservation.as_ref().expect("the books are right");
            assert!(results.drops() > 0, "{name} {recovery}");
            let flows = results.flows.iter();
            assert!(
                flows
                    .clone()
                    .all(|f| f.acknowledged.is_some() && f.delivered_bytes == 200_000),
                "{name} {recovery}"
            );
        }
    }
}

/// Acknowledgements of a class of their own pass the queue of data that goes their way.
#[test]
fn acknowledgements_may_go_first() {
    let rtt_of = |more: &str| {
        let topology = star(3);
        let transports = schemes(&topology, more);
        let timely = transports.iter().find(|t| t.label == "timely");
        let flows = [
            flow(0, 1, 500_000),
            flow(2, 0, 500_000),
            flow(1, 0, 500_000),
        ];
        let mut run = timely
            .expect("it is there")
            .start(Config::default(), &topology, Box::new(flows.into_iter()))
            .expect("a run");
        run.run_until(Time::from_ms(10)).expect("good flows");
        let results = run.results();
        results.conservation.as_ref().expect("the books are right");
        let known = results.flows.iter().find(|f| f.number == 0);
        let known = known.and_then(|f| f.acknowledged).expect("acknowledged");
        known.since(Time::ZERO)
    };
    // Two senders overrun host 0's link, by which the acknowledgements of its own flow come.
    let (with, without) = (rtt_of("ack_priority = true"), rtt_of(""));
    assert!(with + Span::from_us(10) < without, "{with} {without}");
}

/// FNCC §3.1, observation 2: the switch from which the two ways may part is named.
#[test]
fn telemetry_on_acknowledgements_needs_symmetric_paths() {
    let clos = TwoTierClos {
        racks: 2,
        hosts_per_rack: 2,
        spines: 2,
        ..TwoTierClos::default()
    };
    let read = |topology: &Topology| {
        let text = "[[transport]]\nname = \"fncc\"";
        read_transports(text, "fncc", topology, FabricConfig::default(), &[])
    };
    let refused = read(&clos.build().expect("a topology")).expect_err("paths may part");
    let text = refused.to_string();
    assert!(
        text.contains("leaf1") && text.contains("symmetric"),
        "{text}"
    );
    let symmetric = TwoTierClos {
        ecmp: EcmpConfig {
            symmetric: true,
            ..EcmpConfig::default()
        },
        ..clos
    };
    read(&symmetric.build().expect("a topology")).expect("one way");
    // One way needs no symmetry.
    read(&star(4)).expect("one way");
    let spraying = FabricConfig {
        spraying: true,
        ..FabricConfig::default()
    };
    let text = "[[transport]]\nname = \"fncc\"";
    let symmetric = symmetric.build().expect("a topology");
    read_transports(text, "fncc", &symmetric, spraying, &[]).expect_err("packets part");
}

/// Links whose rates telemetry has no code for, by their switch; other schemes need none.
#[test]
fn telemetry_has_the_rates_of_all_links_of_switches() {
    let read = |name: &str, host_bps, fabric_bps| {
        let topology = TwoTierClos {
            racks: 2,
            hosts_per_rack: 2,
            host_capacity_bps: host_bps,
            fabric_capacity_bps: fabric_bps,
            ..parts()
        };
        let topology = topology.build().expect("a topology");
        let text = format!("[[transport]]\nname = {name:?}");
        read_transports(&text, name, &topology, FabricConfig::default(), &[])
    };
    for name in ["hpcc", "fncc", "powertcp"] {
        for (host_bps, fabric_bps, says) in [
            (10_000_000_000, 30_000_000_000, "leaf1->spine1"),
            (500_000_000, 1_000_000_000, "leaf1->h1"),
            (25_500_000_000, 100_000_000_000, "leaf1->h1"),
        ] {
            let refused = read(name, host_bps, fabric_bps).expect_err("it has no code");
            let text = refused.to_string();
            assert!(text.contains(says) && text.contains(name), "{text}");
            read("theta-powertcp", host_bps, fabric_bps).expect("it reads no telemetry");
        }
        for gbps in [1, 25, 400] {
            read(name, gbps * 1_000_000_000, 40_000_000_000).expect("these have codes");
        }
    }
}

/// One region and as many as there are racks give the same bytes, with telemetry and pauses.
#[test]
fn regions_change_nothing() {
    let topology = TwoTierClos {
        racks: 4,
        hosts_per_rack: 4,
        ..parts()
    }
    .build()
    .expect("a topology");
    for transport in schemes(&topology, "buffer_bytes = 300000\nxoff_bytes = 15000") {
        let results = [1, usize::MAX].map(|regions| {
            let config = Config {
                seed: 5,
                regions: Some(regions),
                ..Config::default()
            };
            let flows = (0..64_u32).map(|i| {
                let start = Time::from_us(u64::from(i) * 3);
                let dst = (i * 7 + 4) % 16;
                let dst = if dst == i % 16 { (dst + 1) % 16 } else { dst };
                FlowSpec::new(HostId(i % 16), HostId(dst), 150_000, start)
            });
            let mut run = transport
                .start(config, &topology, Box::new(flows))
                .expect("a run");
            run.run_until(Time::from_ms(3)).expect("good flows");
            let results = run.results();
            results.conservation.as_ref().expect("the books are right");
            let flows = results
                .flows
                .iter()
                .map(|f| (f.finished, f.acknowledged, f.sent));
            (flows.collect::<Vec<_>>(), results.packet_hops)
        });
        let [one, many] = results;
        assert_eq!(one, many, "{}", transport.label);
    }
}

fn parts() -> TwoTierClos {
    TwoTierClos {
        spines: 2,
        host_capacity_bps: RATE_BPS,
        fabric_capacity_bps: RATE_BPS,
        host_delay_ns: DELAY_NS,
        fabric_delay_ns: DELAY_NS,
        ecmp: EcmpConfig {
            symmetric: true,
            ..EcmpConfig::default()
        },
        ..TwoTierClos::default()
    }
}
