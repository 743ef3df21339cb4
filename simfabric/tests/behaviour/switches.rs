//! Packets that switches originate, and flows that they deflect.

use std::sync::{Arc, Mutex, PoisonError};

use ratewright_simfabric::host::{Endpoint, Pull, Side};
use ratewright_simfabric::net::deflection::{Deflection, DeflectionCounts};
use ratewright_simfabric::net::mmu::{Lossless, SharedBuffer, USUAL_WATCHDOG, Xoff};
use ratewright_simfabric::net::queue::{ClassConfig, ClassMask, rocc};
use ratewright_simfabric::net::{FabricError, Notice};
use ratewright_simfabric::packet::{Packet, PacketKind};
use ratewright_simfabric::transport::{Context, Transport};
use ratewright_simfabric::{
    Config, FabricConfig, FlowId, FlowSpec, HostId, QueueConfig, RunResults, Sim, Span, Time,
};
use ratewright_topology::{Topology, TwoTierClos};

const RATE_BPS: u64 = 10_000_000_000;
/// Time of a notice on a link, and a link's delay.
const NOTICE: Span = Span::from_ps(67_200);
const DELAY: Span = Span::from_ns(1_000);

/// Packets that reached hosts, with their times.
type Log = Arc<Mutex<Vec<(Time, HostId, Packet)>>>;

/// Sends flows as fast as links take them, one after another, and notes all that arrives.
struct Blast(Log);

struct BlastHost {
    log: Log,
    flows: Vec<(FlowId, u64)>,
}

impl Transport for Blast {
    type Shared = ();
    type Endpoint = BlastHost;

    fn start(self, nodes: u32) -> ((), Vec<BlastHost>) {
        let host = |_| BlastHost {
            log: self.0.clone(),
            flows: Vec::new(),
        };
        ((), (0..nodes).map(host).collect())
    }
}

impl Endpoint for BlastHost {
    type Shared = ();

    fn on_start(&mut self, cx: &mut Context<'_>, flow: FlowId) {
        cx.set_slot(flow, Side::Sender, flow.0);
        self.flows.push((flow, 0));
        cx.wake();
    }

    fn on_packet(&mut self, cx: &mut Context<'_>, packet: &mut Packet) {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.push((cx.now(), cx.me(), *packet));
        match Notice::of(packet) {
            Some(notice) => {
                let slot = cx.find_slot(notice.flow, Side::Sender);
                assert_eq!(slot, Some(notice.flow.0), "the flow is this host's");
            }
            None => cx.count_arrival(packet),
        }
    }

    fn pull(&mut self, cx: &mut Context<'_>) -> Pull {
        let Some((flow, sent)) = self.flows.first_mut() else {
            return Pull::Nothing;
        };
        let packet = cx.next_data(*flow, *sent);
        *sent = packet.end();
        if *sent == cx.flow(*flow).bytes {
            self.flows.remove(0);
        }
        Pull::Packet(packet)
    }
}

fn racks(racks: u32, hosts_per_rack: u32, spines: u32) -> Topology {
    TwoTierClos {
        racks,
        hosts_per_rack,
        spines,
        host_capacity_bps: RATE_BPS,
        fabric_capacity_bps: RATE_BPS,
        host_delay_ns: DELAY.as_ps() / 1_000,
        fabric_delay_ns: DELAY.as_ps() / 1_000,
        ..TwoTierClos::default()
    }
    .build()
    .expect("racks")
}

/// Runs flows to the end; returns the results, and all that arrived in order of time and place.
fn run(
    topology: &Topology,
    fabric: &FabricConfig,
    flows: &[FlowSpec],
    regions: usize,
    threads: usize,
) -> (RunResults, Vec<(Time, HostId, Packet)>) {
    let log = Log::default();
    let config = Config {
        seed: 4,
        fabric: fabric.clone(),
        regions: Some(regions),
        threads,
        ..Config::default()
    };
    let flows = flows.iter().copied();
    let mut sim = Sim::new(config, topology.clone(), flows, Blast(log.clone()))
        .expect("a good configuration");
    sim.run_until(Time::from_ms(100)).expect("good flows");
    let results = sim.results();
    assert_eq!(results.conservation, Ok(()));
    let mut log = std::mem::take(&mut *log.lock().unwrap_or_else(PoisonError::into_inner));
    log.sort_by_key(|(at, host, _)| (*at, *host));
    (results, log)
}

/// Outcome that must not depend on the number of regions or threads.
fn outcome((results, log): &(RunResults, Vec<(Time, HostId, Packet)>)) -> String {
    let packet = |(at, host, packet): &(Time, HostId, Packet)| {
        let Packet {
            flow, seq, kind, ..
        } = packet;
        format!(
            "{at:?} {host:?} {flow:?} {seq} {kind:?} {}\n",
            packet.hops()
        )
    };
    let log: String = log.iter().map(packet).collect();
    format!("{:?}\n{:?}\n{log}", results.ports, results.switches)
}

/// Hosts 1 and 2 of rack 0, and host 3 of rack 1, send to host 0. RoCC's clock ticks every 40 µs at
/// the leaf's port to host 0, whose queue then holds packets of all three.
#[test]
fn notices_leave_at_the_tick_and_are_packets_of_no_flow() {
    let topology = racks(2, 3, 1);
    let queue = QueueConfig::Rocc(rocc::Config::default());
    let mut fabric = FabricConfig::with_switch_queues(queue);
    let flow = |src| FlowSpec::new(HostId(src), HostId(0), 1_460 * 100, Time::ZERO);
    let flows = [flow(1), flow(2), flow(3)];
    for buffer in [None, Some(SharedBuffer::UNLIMITED)] {
        fabric.shared_buffer = buffer;
        let (results, log) = run(&topology, &fabric, &flows, 1, 1);
        let notices = log.iter().filter(|(.., p)| p.kind == PacketKind::Notice);
        let notices: Vec<_> = notices.collect();
        // 300 packets in 369 µs: ticks at 40, 80, … 360 µs tell those that have packets waiting.
        assert!(
            notices.len() >= 3 * 8 && notices.len() <= 3 * 9,
            "{}",
            notices.len()
        );
        let count = notices.len() as u64;
        assert_eq!(results.control.sent.packets, count);
        assert_eq!(results.control.arrived.packets, count);
        let tick = Time::from_us(40);
        let ways = [(1, 1), (2, 1), (3, 3)];
        for ((host, links), (at, to, packet)) in ways.into_iter().zip(&notices) {
            assert_eq!((*to, packet.dst), (HostId(host), HostId(host)));
            assert_eq!(*at, tick + (NOTICE + DELAY) * links);
            assert_eq!(packet.flow, FlowId::NONE);
            // The switch's own address follows those of the hosts.
            assert!(packet.src.0 >= 6);
        }
    }
    let whole = outcome(&run(&topology, &fabric, &flows, 1, 1));
    for (regions, threads) in [(2, 1), (3, 1), (3, 2)] {
        let parts = run(&topology, &fabric, &flows, regions, threads);
        assert_eq!(
            outcome(&parts),
            whole,
            "{regions} regions, {threads} threads"
        );
    }
}

/// A lossless network in which the receiver of an incast pauses its senders: notices are dropped or
/// arrive, and pause no one.
#[test]
fn notices_are_no_packets_of_a_lossless_class() {
    let topology = racks(1, 9, 1);
    let queue = QueueConfig::Rocc(rocc::Config::default());
    let mut fabric = FabricConfig::with_switch_queues(queue);
    fabric.shared_buffer = Some(lossless(ClassMask::of(0), 20_000));
    let flow = |src| FlowSpec::new(HostId(src), HostId(0), 1_460 * 100, Time::ZERO);
    let flows: Vec<_> = (1..9).map(flow).collect();
    let (results, log) = run(&topology, &fabric, &flows, 1, 1);
    assert!(results.switches.iter().any(|switch| switch.pauses > 0));
    assert!(log.iter().any(|(.., p)| p.kind == PacketKind::Notice));
    assert!(results.flows.iter().all(|flow| flow.finished.is_some()));
}

fn lossless(classes: ClassMask, xoff_bytes: u64) -> SharedBuffer {
    SharedBuffer {
        bytes: 10_000_000,
        alpha: 1.0,
        lossless: Some(Lossless {
            classes,
            xoff: Xoff::Bytes(xoff_bytes),
            hysteresis_bytes: 3_000,
            headroom_bytes: 20_000,
            watchdog: USUAL_WATCHDOG,
        }),
    }
}

/// Long flows from rack 0 that fill the spines' links to racks 1 and 2, and short ones among all.
fn mixed() -> (Topology, Vec<FlowSpec>) {
    let topology = racks(4, 4, 4);
    let mut flows = Vec::new();
    for src in 0..8 {
        let dst = HostId(8 + src % 4);
        flows.push(FlowSpec::new(HostId(src), dst, 1_000_000, Time::ZERO));
    }
    for n in 0..600_u32 {
        let (src, dst) = (n * 7 % 16, (n * 11 + 3) % 16);
        let start = Time::from_ns(20_000 + u64::from(n) * 400);
        if src != dst {
            let bytes = 700 + u64::from(n % 6) * 1_460;
            flows.push(FlowSpec::new(HostId(src), HostId(dst), bytes, start));
        }
    }
    (topology, flows)
}

fn deflecting(table_entries: usize) -> FabricConfig {
    FabricConfig {
        deflection: Some(Deflection {
            table_entries,
            ..Deflection::default()
        }),
        ..FabricConfig::default()
    }
}

fn deflections(results: &RunResults) -> DeflectionCounts {
    let mut sum = DeflectionCounts::default();
    for of_switch in results.switches.iter().map(|switch| switch.deflections) {
        sum.packets += of_switch.packets;
        sum.messages += of_switch.messages;
        sum.most_entries = sum.most_entries.max(of_switch.most_entries);
    }
    sum
}

#[test]
fn a_deflected_flow_arrives_in_order_and_a_long_one_is_never_deflected() {
    let (topology, flows) = mixed();
    for table_entries in [1, 2, 8] {
        let (results, log) = run(&topology, &deflecting(table_entries), &flows, 1, 1);
        let counts = deflections(&results);
        assert!(counts.messages > 20, "{counts:?}");
        assert!(counts.packets > counts.messages, "{counts:?}");
        assert!((1..=table_entries as u64).contains(&counts.most_entries));
        let mut expected = vec![0; flows.len()];
        let mut longest = 0;
        for (.., packet) in &log {
            let flow = packet.flow.index();
            assert_eq!(packet.seq, expected[flow], "flow {flow} in order");
            expected[flow] = packet.end();
            // Two links within a rack, four from rack to rack; each deflection adds two at most.
            let spec = &flows[flow];
            let usual = if spec.src.0 / 4 == spec.dst.0 / 4 {
                2
            } else {
                4
            };
            if spec.bytes > 8_192 {
                assert_eq!((packet.hops(), packet.tokens()), (usual, 0));
            } else {
                let used = 4 - packet.tokens();
                assert!(packet.hops() <= usual + 2 * used, "{packet:?}");
                longest = longest.max(used);
            }
        }
        assert!(longest >= 1);
        let bytes = flows.iter().map(|flow| flow.bytes);
        assert!(expected.into_iter().eq(bytes));
    }
}

#[test]
fn deflection_is_alike_with_any_number_of_regions_and_threads() {
    let (topology, flows) = mixed();
    let fabric = FabricConfig {
        histograms: true,
        ..deflecting(8)
    };
    let whole = outcome(&run(&topology, &fabric, &flows, 1, 1));
    for (regions, threads) in [(2, 1), (5, 1), (8, 2), (8, 3)] {
        let parts = run(&topology, &fabric, &flows, regions, threads);
        assert_eq!(
            outcome(&parts),
            whole,
            "{regions} regions, {threads} threads"
        );
    }
}

/// A threshold that no queue reaches: the same packets at the same times as without deflection.
#[test]
fn below_the_threshold_nothing_changes() {
    let (topology, flows) = mixed();
    let mut fabric = deflecting(8);
    if let Some(deflection) = &mut fabric.deflection {
        deflection.threshold_bytes = u64::MAX;
    }
    let high = run(&topology, &fabric, &flows, 1, 1);
    assert_eq!(deflections(&high.0), DeflectionCounts::default());
    fabric.deflection = None;
    fabric.shared_buffer = Some(SharedBuffer::UNLIMITED);
    assert_eq!(
        outcome(&run(&topology, &fabric, &flows, 1, 1)),
        outcome(&high)
    );
}

/// With pauses and escape lanes nothing is lost and all arrives: no cycle of full buffers. A packet
/// is in the lane of its valleys: a leaf that it came down to sent it up again.
#[test]
fn a_lossless_network_deflects_into_escape_lanes() {
    let (topology, flows) = mixed();
    let classes = QueueConfig::Classes(vec![ClassConfig::default(); 3]);
    let mut fabric = FabricConfig {
        nic: classes.clone(),
        shared_buffer: Some(lossless(ClassMask::ALL, 40_000)),
        ..FabricConfig::with_switch_queues(classes)
    };
    fabric.deflection = Some(Deflection {
        tokens: 2,
        escape_lanes: Some([0, 2]),
        ..Deflection::default()
    });
    let (results, log) = run(&topology, &fabric, &flows, 1, 1);
    assert!(results.switches.iter().any(|switch| switch.pauses > 0));
    assert_eq!(results.drops(), 0);
    assert!(results.flows.iter().all(|flow| flow.finished.is_some()));
    let (mut escaped, mut expected) = (0, vec![0; flows.len()]);
    for (.., packet) in &log {
        // Two links within a rack, and two for each valley.
        let hops = 2 + 2 * packet.class;
        assert!(packet.class <= 2 && packet.hops() >= hops, "{packet:?}");
        escaped += u32::from(packet.class > 0);
        assert_eq!(packet.seq, expected[packet.flow.index()]);
        expected[packet.flow.index()] = packet.end();
    }
    assert!(escaped > 0);
}

#[test]
fn settings_that_no_switch_can_have_are_refused() {
    let topology = racks(2, 1, 1);
    let good = Deflection::default();
    for deflection in [
        Deflection {
            table_entries: 0,
            ..good
        },
        Deflection {
            table_entries: 65,
            ..good
        },
        Deflection { tokens: 16, ..good },
        Deflection { tokens: 0, ..good },
        Deflection {
            escape_lanes: Some([1, 8]),
            ..good
        },
        Deflection {
            escape_lanes: Some([2, 1]),
            ..good
        },
    ] {
        let mut config = Config::default();
        config.fabric.deflection = Some(deflection);
        let flows = std::iter::empty::<FlowSpec>();
        let refused = Sim::new(config, topology.clone(), flows, Blast(Log::default()));
        assert_eq!(refused.err(), Some(FabricError::Deflection));
    }
}
