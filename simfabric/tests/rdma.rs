//! RDMA: closed forms of pacing and windows, losses and pauses, and figures of public simulators.
//!
//! HPCC's public simulator is alibaba-edu/High-Precision-Congestion-Control at 9f4be2a, PowerTCP's
//! is inet-tub/ns3-datacenter at 6ddb4a4; their figures are of runs on 22 November 2026.

mod common;

use ratewright_simfabric::net::Telemetry;
use ratewright_simfabric::net::mmu::{Lossless, SharedBuffer, USUAL_WATCHDOG, Xoff};
use ratewright_simfabric::net::queue::{ClassMask, Limit, drop_tail, ecn_ramp};
use ratewright_simfabric::plan::{PlannedTransport, read_transports};
use ratewright_simfabric::results::RunResults;
use ratewright_simfabric::transport::rdma::control::{
    Acked, Control, Dcqcn, DcqcnConfig, Hpcc, HpccConfig, PathFacts, PowerTcp, PowerTcpConfig,
    Reaction, ThetaPowerTcp, Timely, TimelyConfig,
};
use ratewright_simfabric::transport::rdma::{Rdma, RdmaConfig, Recovery};
use ratewright_simfabric::{
    Config, FabricConfig, FlowId, FlowSpec, Framing, HostId, QueueConfig, Sim, Span, Time,
};
use ratewright_topology::{BigSwitch, EcmpConfig, Topology, TwoTierClos};

use common::RDMA;

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

/// Parameters of a scheme with HPCC's header and this T in nanoseconds.
fn telemetric<C>(base_rtt_ns: u64, control: C) -> RdmaConfig<C> {
    RdmaConfig {
        int_bytes: 42,
        ack_wire_bytes: Some(46),
        base_rtt: Span::from_ns(base_rtt_ns),
        ..config(control)
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

/// Hosts 0 and 1 behind three switches from hosts 2 and 3.
fn dumbbell(rate_bps: u64) -> Topology {
    TwoTierClos {
        racks: 2,
        hosts_per_rack: 2,
        spines: 1,
        host_capacity_bps: rate_bps,
        fabric_capacity_bps: rate_bps,
        host_delay_ns: DELAY_NS,
        fabric_delay_ns: DELAY_NS,
        ecmp: EcmpConfig {
            symmetric: true,
            ..EcmpConfig::default()
        },
        ..TwoTierClos::default()
    }
    .build()
    .expect("a dumbbell")
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

/// Completion times of lone flows at their senders, in nanoseconds: HPCC's public simulator with
/// DCQCN's packets, which never leave the line's rate, over one switch and over three.
#[test]
fn lone_flows_complete_in_the_public_simulators_nanoseconds() {
    let fabric = FabricConfig {
        whole_ns: true,
        ..fabric()
    };
    for (topology, to, expected) in [
        (star(2), 1, [6_174, 6_921, 11_403, 89_091, 836_091]),
        (
            dumbbell(RATE_BPS),
            2,
            [12_348, 13_095, 17_577, 95_265, 842_265],
        ),
    ] {
        let sizes = [1_000, 10_000, 64_000, 1_000_000, 10_000_000];
        for (bytes, ns) in sizes.into_iter().zip(expected) {
            let flows = vec![flow(0, to, bytes)];
            let rdma = config((1.0, u64::MAX));
            let results = run::<Fixed>(
                topology.clone(),
                fabric.clone(),
                rdma,
                flows,
                Time::from_ms(10),
            );
            let known = results.flows[0].acknowledged;
            assert_eq!(known, Some(Time::from_ns(ns)), "{bytes} bytes to {to}");
        }
    }
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
        let mut drops = 0;
        for transport in schemes(&topology, &more) {
            let results = incast(&transport, &topology);
            let name = &transport.label;
            results.conservation.as_ref().expect("the books are right");
            drops += results.drops();
            let flows = results.flows.iter();
            assert!(
                flows
                    .clone()
                    .all(|f| f.acknowledged.is_some() && f.delivered_bytes == 200_000),
                "{name} {recovery}"
            );
        }
        assert!(drops > 0, "{recovery}");
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

/// Two flows on the dumbbell, the second 300 µs after the first.
#[derive(Clone, Copy, Debug)]
struct Joined {
    /// Time from the join until the first sender's rate is below a threshold, in µs.
    slows_after_us: f64,
    /// Largest queue, in kB.
    queue_kb: f64,
}

/// Dumbbell in which two flows meet.
struct Meeting {
    rate_bps: u64,
    telemetry: Telemetry,
    framing: Framing,
    queue: QueueConfig,
    /// Rate below which the first sender has slowed down, in bit/s.
    slow_bps: f64,
    seed: u64,
}

fn join<C: Control>(meeting: &Meeting, rdma: RdmaConfig<C::Config>) -> Joined {
    let config = Config {
        fabric: FabricConfig {
            framing: meeting.framing,
            telemetry: meeting.telemetry,
            whole_ns: true,
            ..FabricConfig::with_switch_queues(meeting.queue.clone())
        },
        seed: meeting.seed,
        ..Config::default()
    };
    let (topology, long) = (dumbbell(meeting.rate_bps), FlowSpec::UNBOUNDED);
    let mut flows = [flow(0, 2, long), flow(1, 3, long)];
    let joins = Time::from_us(300);
    flows[1].start = joins;
    let transport = Rdma::<C>::new(rdma);
    let mut sim = Sim::new(config, topology, flows.into_iter(), transport).expect("a good run");
    let mut slows_at = None;
    for step in 3_000..13_000_u64 {
        let now = Time::from_ns(step * 100);
        sim.run_until(now).expect("good flows");
        let sender = sim.sender_of(FlowId(0));
        let control = sender.and_then(|(host, slot)| host.control(slot));
        if control.expect("it sends").rate_bps() < meeting.slow_bps {
            slows_at = slows_at.or(Some(now));
        }
    }
    let results = sim.results();
    results.conservation.expect("the books are right");
    let queues = results.ports.iter().map(|port| port.stats.max_bytes);
    Joined {
        slows_after_us: slows_at.map_or(f64::INFINITY, |at| at.since(joins).as_us_f64()),
        queue_kb: queues.max().unwrap_or(0) as f64 / 1e3,
    }
}

/// Slow-down within 1 µs of the public simulators', whose link times are whole nanoseconds, and
/// largest queue within 3 %. A sender has slowed down when its rate is 2 % below the least that it
/// had there before the second flow joined. DCQCN's marks are drawn: the median of five seeds is
/// within the range of ten seeds there.
#[test]
fn two_flows_meet_as_in_the_public_simulators() {
    let hpcc = |max_stage, ns| {
        telemetric(
            ns,
            HpccConfig {
                eta: 0.95,
                max_stage,
                increase_share: 0.0004,
                min_rate_bps: 1e9,
                per_ack: true,
            },
        )
    };
    let power = |gamma, eta, ns| {
        telemetric(
            ns,
            PowerTcpConfig {
                gamma,
                increase_bps: 150e6,
                eta,
                tolerance: 1.05,
                min_rate_bps: 100e6,
            },
        )
    };
    let timely = config(TimelyConfig {
        low: Span::from_us(50),
        high: Span::from_us(500),
        least_rtt: Span::from_us(20),
        weight: 0.875,
        beta: 0.8,
        increase_share: 0.001,
        hyper_share: 0.005,
        min_rate_bps: 1e9,
        patched: false,
        window: false,
    });
    let dcqcn = |alpha, decrease, increase| {
        config(DcqcnConfig {
            reaction: Reaction::Periodic,
            gain: 1.0 / 256.0,
            alpha_interval: Span::from_us(alpha),
            decrease_interval: Span::from_us(decrease),
            increase_interval: Span::from_us(increase),
            byte_counter: u64::MAX,
            fast_recovery: 1,
            additive_bps: 20e6,
            hyper_bps: 200e6,
            min_rate_bps: 1e9,
            window: false,
        })
    };
    let marking = QueueConfig::EcnRamp(ecn_ramp::Config {
        limit: Limit::default(),
        mark_min_bytes: 400_000,
        mark_max_bytes: 1_600_000,
        mark_probability: 0.2,
    });
    let meeting = |gbps: u64, least_gbps: f64| Meeting {
        rate_bps: gbps * 1_000_000_000,
        telemetry: Telemetry::Asked,
        framing: FRAMING,
        queue: QueueConfig::default(),
        slow_bps: 0.98e9 * least_gbps,
        seed: 1,
    };
    let header = |header_bytes| Meeting {
        telemetry: Telemetry::None,
        framing: Framing {
            header_bytes,
            ..FRAMING
        },
        ..meeting(100, 100.0)
    };
    let drawn = |rdma: RdmaConfig<DcqcnConfig>| {
        let mut all: Vec<Joined> = (1..6)
            .map(|seed| {
                let meeting = Meeting {
                    queue: marking.clone(),
                    seed,
                    ..header(48)
                };
                join::<Dcqcn>(&meeting, rdma.clone())
            })
            .collect();
        all.sort_by(|a, b| a.slows_after_us.total_cmp(&b.slows_after_us));
        let slows_after_us = all[2].slows_after_us;
        all.sort_by(|a, b| a.queue_kb.total_cmp(&b.queue_kb));
        Joined {
            slows_after_us,
            queue_kb: all[2].queue_kb,
        }
    };
    let three_percent = |kb: f64| [0.97 * kb, 1.03 * kb];
    let one_us = |us: f64| [us - 1.0, us + 1.0];
    let cases = [
        (
            "HPCC, no additive steps",
            one_us(15.0),
            three_percent(160.2),
            join::<Hpcc>(&meeting(100, 93.9), hpcc(0, 12_320)),
        ),
        (
            "HPCC",
            one_us(15.5),
            three_percent(160.2),
            join::<Hpcc>(&meeting(100, 93.7), hpcc(5, 12_320)),
        ),
        (
            "HPCC, 400 Gbit/s, no additive steps",
            one_us(16.0),
            three_percent(597.3),
            join::<Hpcc>(&meeting(400, 363.7), hpcc(0, 12_080)),
        ),
        (
            "PowerTCP",
            one_us(13.0),
            three_percent(157.0),
            join::<PowerTcp>(&meeting(100, 94.0), power(0.9, 0.95, 12_320)),
        ),
        (
            // The public simulator's first acknowledgement of a flow has telemetry since time 0,
            // which makes its second flow fall later, and the queue 5 % longer.
            "PowerTCP, 400 Gbit/s",
            one_us(13.0),
            [0.94 * 607.1, 607.1],
            join::<PowerTcp>(&meeting(400, 370.4), power(0.9, 0.95, 12_080)),
        ),
        (
            // Its packets have PowerTCP's header, too.
            "θ-PowerTCP",
            one_us(14.5),
            three_percent(174.4),
            join::<ThetaPowerTcp>(&header(90), power(0.7, 1.0, 12_320)),
        ),
        (
            "TIMELY",
            one_us(174.0),
            three_percent(2_185.9),
            join::<Timely>(&header(56), timely),
        ),
        (
            "DCQCN, short intervals",
            [50.0, 69.5],
            [746.0, 824.0],
            drawn(dcqcn(1, 4, 300)),
        ),
        (
            "DCQCN, long intervals",
            [96.0, 115.5],
            [1_217.0, 1_419.0],
            drawn(dcqcn(50, 50, 55)),
        ),
    ];
    let mut wrong = Vec::new();
    for (name, slows_after_us, queue_kb, ours) in cases {
        println!("{name}: {} µs, {} kB", ours.slows_after_us, ours.queue_kb);
        let within = |[least, most]: [f64; 2], value: f64| (least..=most).contains(&value);
        if !within(slows_after_us, ours.slows_after_us) || !within(queue_kb, ours.queue_kb) {
            wrong.push((name, ours.slows_after_us, ours.queue_kb));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
