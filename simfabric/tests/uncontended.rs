//! Completion times of a lone flow, to the picosecond, under every transport, against values worked
//! out by hand.
//!
//! The oracle [`TandemLinks`] is independent of the simulator. It has Lindley's recursion for
//! queues in a row (*The theory of queues with a single server*, 1952). The moments at which a
//! sender hands its packets over follow from the scheme:
//!
//! | scheme | packets leave | derived for |
//! |---|---|---|
//! | fixed window, NewReno, CUBIC, DCTCP, CUBIC over sfqCoDel | in rounds: the first window at once, then two packets for each acknowledgement (a fixed window: one), a round trip later | any size: Kurose and Ross, *Computer Networking*, on dynamic congestion windows |
//! | pFabric | in rounds, 12 packets and then at most 15 | any size |
//! | XCP | the first window at once | flows that it holds: later ones follow from what routers measure |
//! | constant rate, ideal | at equal distances | any size |
//! | Flowtune | the first window at once, behind the notice to the allocator | flows that it holds |
//! | Flowtune without a first window | at the allocated rate, from when it is there | any size, with the rate and its moment as the scheme has them |
//!
//! Rounds are derived where no queue marks or drops: where a switch's link is the narrowest,
//! DCTCP's, pFabric's and CoDel's queues do.

use std::sync::Arc;

use ratewright_simfabric::control::{Carrier, ControlConfig};
use ratewright_simfabric::host::Policy;
use ratewright_simfabric::net::AllocatorLinks;
use ratewright_simfabric::net::queue::{
    CodelConfig, Limit, ecn_threshold, pfabric, sfq_codel, xcp,
};
use ratewright_simfabric::report::ideal::completion_time;
use ratewright_simfabric::scheme::constant::ConstantRate;
use ratewright_simfabric::scheme::fixed_window::ConstantWindow;
use ratewright_simfabric::transport::Transport;
use ratewright_simfabric::transport::flowtune::{
    Flowtune, FlowtuneConfig, FlowtuneNode, control_traffic, paced_tcp,
};
use ratewright_simfabric::transport::ideal::{Ideal, IdealConfig};
use ratewright_simfabric::transport::tcp::congestion::{
    Congestion, Cubic, CubicConfig, Dctcp, NewReno, PFabric, Xcp,
};
use ratewright_simfabric::transport::tcp::{Tcp, TcpConfig};
use ratewright_simfabric::units::Delay;
use ratewright_simfabric::{
    Config, FabricConfig, FlowId, FlowSpec, Framing, HostId, QueueConfig, Sim, Span, Time,
};
use ratewright_topology::{Topology, TwoTierClos};

const PAYLOAD: u64 = 1_460;
/// A full packet and an acknowledgement on the link, with the default framing.
const FULL: u64 = PAYLOAD + 78;
const ACK: u64 = 84;
const LINK_PS: u64 = 1_500_000;
const HOST_PS: u64 = 2_000_000;
/// One byte at 10 Gbit/s.
const HOST_BYTE_PS: u64 = 800;
/// Start of the flow, neither at time 0 nor at a multiple of any period.
const START: Time = Time::from_ns(1_003_217);
const SIZES: [u64; 12] = [
    1, 7, 1_459, 1_460, 1_461, 2_921, 14_600, 14_601, 17_500, 100_001, 262_800, 2_000_000,
];
/// Receivers: a host of the sender's rack, and one of the other.
const RECEIVERS: [u32; 2] = [1, 3];

/// Links in a row, each with picoseconds per byte, and picoseconds from the last bit to the arrival
/// at the other end.
#[derive(Clone, Debug)]
struct TandemLinks(Vec<(u64, u64)>);

impl TandemLinks {
    /// The links from host 0 to a receiver: 10 Gbit/s at hosts, `fabric_gbps` between switches.
    fn to(receiver: u32, fabric_gbps: u64) -> Self {
        let host = (HOST_BYTE_PS, LINK_PS + HOST_PS);
        let fabric = (8_000 / fabric_gbps, LINK_PS);
        Self(match receiver {
            1 => vec![host, host],
            _ => vec![host, fabric, fabric, host],
        })
    }

    /// Arrival of the last of some packets, each with the moment it is handed over and its bytes on
    /// the link. A packet's transmission begins when it is there and the one before it has gone.
    fn last(&self, packets: impl IntoIterator<Item = (u64, u64)>) -> u64 {
        self.last_behind((0, 0), packets)
    }

    /// Arrival of the last of some packets behind another packet, which takes only the first
    /// `links` links.
    fn last_behind(
        &self,
        (bytes, links): (u64, usize),
        packets: impl IntoIterator<Item = (u64, u64)>,
    ) -> u64 {
        let mut free_at = vec![0; self.0.len()];
        let mut pass = |mut at: u64, bytes: u64, links: usize| {
            for ((byte_ps, delay_ps), free_at) in self.0.iter().zip(&mut free_at).take(links) {
                *free_at = at.max(*free_at) + bytes * byte_ps;
                at = *free_at + delay_ps;
            }
            at
        };
        // A packet of 0 bytes leaves every link free at once: `last` has none ahead.
        pass(0, bytes, links);
        let packets = packets.into_iter();
        packets.fold(0, |_, (at, bytes)| pass(at, bytes, self.0.len()))
    }

    /// Time of a full packet there and its acknowledgement back.
    fn round_trip(&self) -> u64 {
        // The reverse path has the same links in the other order, which adds up to the same.
        self.last([(0, FULL)]) + self.last([(0, ACK)])
    }

    fn slowest_byte_ps(&self) -> u64 {
        self.0.iter().map(|l| l.0).max().expect("a link")
    }

    /// Completion time of a flow in rounds.
    ///
    /// While a window's packets occupy the narrowest link for less than a round trip, the sender
    /// waits for the first acknowledgement. Acknowledgements are as far apart as packets left that
    /// link, and each releases at least one packet. A round therefore keeps the link as busy as if
    /// all of it had been handed over at once, and a window that is long enough keeps it busy to
    /// the end.
    fn rounds(&self, bytes: u64, first_window: u64, next: impl Fn(u64) -> u64) -> u64 {
        let (mut rest, mut window, mut waited) = (wire(bytes), first_window, 0);
        let round_trip = self.round_trip();
        while window < rest.len() as u64 && window * FULL * self.slowest_byte_ps() < round_trip {
            rest.drain(..window as usize);
            window = next(window);
            waited += round_trip;
        }
        waited + self.last(rest.into_iter().map(|bytes| (0, bytes)))
    }

    /// Completion time of a flow that is paced at a rate.
    fn paced(&self, bytes: u64, rate_bps: u64) -> u64 {
        let mut at = 0;
        self.last(wire(bytes).into_iter().map(|bytes| {
            let packet = (at, bytes);
            at += gap_ps(bytes, rate_bps);
            packet
        }))
    }
}

/// Bytes on the link of a flow's packets: all full but the last.
fn wire(bytes: u64) -> Vec<u64> {
    let packets = bytes.div_ceil(PAYLOAD);
    let last = bytes - (packets - 1) * PAYLOAD;
    let mut wire = vec![FULL; packets as usize];
    // 78 bytes of headers, Ethernet, preamble and gap; a minimum frame takes 84.
    wire[packets as usize - 1] = (last + 78).max(84);
    wire
}

/// Time of some bytes at a rate, to the nearest picosecond, as the simulator rounds.
fn gap_ps(bytes: u64, rate_bps: u64) -> u64 {
    (bytes * 8_000_000_000_000 + rate_bps / 2) / rate_bps
}

/// Two racks of two hosts.
fn topology(fabric_gbps: u64) -> Topology {
    TwoTierClos {
        racks: 2,
        hosts_per_rack: 2,
        spines: 1,
        host_capacity_bps: 10_000_000_000,
        fabric_capacity_bps: fabric_gbps * 1_000_000_000,
        host_delay_ns: LINK_PS / 1_000,
        fabric_delay_ns: LINK_PS / 1_000,
        ..TwoTierClos::default()
    }
    .build()
    .expect("a topology")
}

fn fabric(queue: QueueConfig) -> FabricConfig {
    FabricConfig {
        host_delay: Span::from_ps(HOST_PS),
        ..FabricConfig::with_switch_queues(queue)
    }
}

type LoneFlowSim<T> = Sim<T, std::iter::Once<FlowSpec>>;

fn sim<T: Transport>(
    topology: Topology,
    fabric: FabricConfig,
    (receiver, bytes): (u32, u64),
    transport: T,
) -> LoneFlowSim<T> {
    let config = Config {
        seed: 3,
        fabric,
        ..Config::default()
    };
    let flow = FlowSpec::new(HostId(0), HostId(receiver), bytes, START);
    Sim::new(config, topology, std::iter::once(flow), transport).expect("a good configuration")
}

/// Runs the flow to its end. Returns its completion time in picoseconds.
fn took<T: Transport>(mut sim: LoneFlowSim<T>) -> u64 {
    sim.run_until(START + Span::from_ms(100))
        .expect("a good workload");
    let results = sim.results();
    results.conservation.expect("nothing is lost unseen");
    // The oracle knows neither drops nor retransmissions.
    assert_eq!(results.drops(), 0);
    let flow = &results.flows[0];
    assert_eq!(flow.retransmits, 0);
    flow.fct().expect("the flow is complete").as_ps()
}

/// Asserts the completion times of all sizes to all receivers, with this rate between switches.
fn each<T: Transport>(
    name: &str,
    fabric_gbps: u64,
    fabric: &FabricConfig,
    sizes: &[u64],
    transport: impl Fn() -> T,
    by_hand: impl Fn(&TandemLinks, u64) -> u64,
) {
    for receiver in RECEIVERS {
        let links = TandemLinks::to(receiver, fabric_gbps);
        for &bytes in sizes {
            let case = (receiver, bytes);
            let run = sim(topology(fabric_gbps), fabric.clone(), case, transport());
            assert_eq!(
                took(run),
                by_hand(&links, bytes),
                "{name}: {bytes} bytes to host {receiver} over {fabric_gbps}G"
            );
        }
    }
}

fn tcp<C: Congestion>(window: u32, control: C::Config) -> Tcp<C> {
    Tcp::new(TcpConfig {
        initial_window_packets: window,
        // Above every round trip here: no time-out may add packets.
        min_rto: Span::from_ms(10),
        initial_rto: Span::from_ms(10),
        fixed_rto: None,
        handshake: false,
        stamp_step: Span::ZERO,
        ecn: true,
        warm_connections: 0,
        arbiter: Policy::default(),
        class: 0,
        maximum: None,
        control,
    })
}

/// The recursion, the closed form that slowdowns are divided by, and a run agree on packets that
/// are all handed over at once.
#[test]
fn a_burst_takes_as_long_as_the_closed_form_says() {
    let framing = Framing::default();
    for fabric_gbps in [4, 10, 40] {
        let plain = fabric(QueueConfig::default());
        each(
            "at once",
            fabric_gbps,
            &plain,
            &SIZES,
            ConstantRate::blast,
            |links, bytes| links.last(wire(bytes).into_iter().map(|bytes| (0, bytes))),
        );
        for receiver in RECEIVERS {
            let links = TandemLinks::to(receiver, fabric_gbps);
            for bytes in SIZES {
                let ends = (HostId(0), HostId(receiver));
                let host_delay = Span::from_ps(HOST_PS);
                let known = topology(fabric_gbps);
                let form = completion_time(&known, framing, host_delay, ends, bytes);
                let by_hand = links.last(wire(bytes).into_iter().map(|bytes| (0, bytes)));
                assert_eq!(form.expect("a path").as_ps(), by_hand);
            }
        }
    }
}

#[test]
fn windows_send_in_rounds() {
    for fabric_gbps in [4, 10, 40] {
        let plain = fabric(QueueConfig::default());
        for window in [1, 4, 10, 40] {
            let first = u64::from(window);
            let fixed = || ConstantWindow::new(window);
            each(
                "fixed window",
                fabric_gbps,
                &plain,
                &SIZES,
                fixed,
                |links, bytes| links.rounds(bytes, first, |window| window),
            );
            let slow_start =
                |links: &TandemLinks, bytes| links.rounds(bytes, first, |window| 2 * window);
            let newreno = || tcp::<NewReno>(window, ());
            each("NewReno", fabric_gbps, &plain, &SIZES, newreno, slow_start);
            let cubic = || tcp::<Cubic>(window, CubicConfig::default());
            each("CUBIC", fabric_gbps, &plain, &SIZES, cubic, slow_start);
        }
    }
}

/// A connection that stays open begins its second flow with the window of its first, which fills
/// the path; a cold one begins it in rounds.
#[test]
fn a_warm_connection_fills_the_path_at_once() {
    const LATER: Span = Span::from_ms(50);
    let bytes = 262_800;
    let links = TandemLinks::to(3, 10);
    let at_once = links.last(wire(bytes).into_iter().map(|bytes| (0, bytes)));
    let in_rounds = links.rounds(bytes, 10, |window| 2 * window);
    assert!(in_rounds > at_once);
    for (warm_connections, by_hand) in [(1, at_once), (0, in_rounds)] {
        let ends = (HostId(0), HostId(3));
        let flows = [(2_000_000, START), (bytes, START + LATER)]
            .map(|(bytes, start)| FlowSpec::new(ends.0, ends.1, bytes, start));
        let config = Config {
            fabric: fabric(QueueConfig::default()),
            ..Config::default()
        };
        let transport = Tcp::<NewReno>::new(TcpConfig {
            warm_connections,
            ..TcpConfig::datacenter()
        });
        let mut sim = Sim::new(config, topology(10), flows.into_iter(), transport).expect("good");
        sim.run_until(START + LATER * 2).expect("a good workload");
        let results = sim.results();
        results.conservation.expect("nothing is lost unseen");
        let took = results.flows[1].fct().expect("it is complete").as_ps();
        assert_eq!(took, by_hand, "{warm_connections} warm connections");
    }
}

/// Hosts' links are the narrowest here, so switches' queues stay below these schemes' thresholds.
#[test]
fn queues_that_mark_or_drop_leave_a_flow_alone_that_is_alone() {
    let marks = fabric(QueueConfig::EcnThreshold(ecn_threshold::Config::packets(
        65,
        Limit::packets(1_000),
    )));
    let codel = fabric(QueueConfig::SfqCodel(sfq_codel::Config {
        control: CodelConfig {
            target: Delay::from_us(10),
            interval: Delay::from_us(200),
            ecn: false,
        },
        limit: Limit::packets(1_000),
    }));
    let queue = QueueConfig::PFabric(pfabric::Config {
        limit: Limit::bytes(36_864),
    });
    let priorities = FabricConfig {
        nic: queue.clone(),
        ..fabric(queue)
    };
    for fabric_gbps in [10, 40] {
        for window in [1, 4, 10, 40] {
            let first = u64::from(window);
            let slow_start =
                |links: &TandemLinks, bytes| links.rounds(bytes, first, |window| 2 * window);
            let dctcp = || tcp::<Dctcp>(window, Default::default());
            each("DCTCP", fabric_gbps, &marks, &SIZES, dctcp, slow_start);
            let cubic = || tcp::<Cubic>(window, CubicConfig::default());
            each("sfqCoDel", fabric_gbps, &codel, &SIZES, cubic, slow_start);
        }
        let pfabric = || {
            Tcp::<PFabric>::new(TcpConfig {
                initial_window_packets: 12,
                fixed_rto: Some(Span::from_us(45)),
                ..TcpConfig::default()
            })
        };
        each(
            "pFabric",
            fabric_gbps,
            &priorities,
            &SIZES,
            pfabric,
            |links, bytes| links.rounds(bytes, 12, |_| 15),
        );
    }
}

/// XCP's routers set the window, but not before the first acknowledgement.
#[test]
fn a_first_window_of_xcp_is_a_burst() {
    let queue = QueueConfig::Xcp(xcp::Config {
        limit: Limit::packets(1_000),
        ..xcp::Config::default()
    });
    let routers = FabricConfig {
        nic: queue.clone(),
        ..fabric(queue)
    };
    for fabric_gbps in [4, 10, 40] {
        for (window, sizes) in [(10, &SIZES[..7]), (180, &SIZES[..11])] {
            let xcp = || tcp::<Xcp>(window, ());
            each("XCP", fabric_gbps, &routers, sizes, xcp, |links, bytes| {
                links.last(wire(bytes).into_iter().map(|bytes| (0, bytes)))
            });
        }
    }
}

#[test]
fn rates_space_packets() {
    for fabric_gbps in [4, 10, 40] {
        let plain = fabric(QueueConfig::default());
        let constant = || ConstantRate::new(3_000_000_000);
        each(
            "constant rate",
            fabric_gbps,
            &plain,
            &SIZES,
            constant,
            |links, bytes| links.paced(bytes, 3_000_000_000),
        );
        let shared = Arc::new(topology(fabric_gbps));
        let ideal = || Ideal::new(&shared, IdealConfig::default()).expect("good settings");
        each(
            "ideal",
            fabric_gbps,
            &plain,
            &SIZES,
            ideal,
            |links, bytes| {
                // The share of the narrowest link: 94.5 %.
                links.paced(bytes, 945 * 8_000_000_000 / links.slowest_byte_ps())
            },
        );
    }
}

fn flowtune(fabric_gbps: u64, case: (u32, u64), first_window: u32) -> LoneFlowSim<Flowtune> {
    let topology = topology(fabric_gbps);
    let config = FlowtuneConfig {
        carrier: Carrier::Datagram,
        control: ControlConfig {
            // Late acknowledgements: none of the session's own gets between the flow's packets.
            ack_delay_ns: 15_000_000,
            max_rto_ns: 50_000_000,
            ..ControlConfig::default()
        },
        tcp: TcpConfig {
            initial_window_packets: first_window,
            ..paced_tcp()
        },
        ..FlowtuneConfig::default()
    };
    let transport = Flowtune::new(&Arc::new(topology.clone()), config).expect("good settings");
    let fabric = FabricConfig {
        allocator: Some(AllocatorLinks {
            rate_bps: 40_000_000_000,
            delay: Span::from_ps(LINK_PS),
            processing: Span::ZERO,
        }),
        ..fabric(QueueConfig::default())
    };
    sim(topology, fabric, case, transport)
}

/// Bytes on links of all notices to the allocator so far.
fn notice_bytes(run: &LoneFlowSim<Flowtune>) -> u64 {
    control_traffic(run.shared(), run.endpoints())[0].wire_bytes
}

/// The notice is handed over first, and shares the flow's links as far as the spine.
#[test]
fn flowtunes_first_window_is_a_burst_behind_the_notice() {
    for fabric_gbps in [4, 10, 40] {
        for receiver in RECEIVERS {
            let links = TandemLinks::to(receiver, fabric_gbps);
            for &bytes in &SIZES[..7] {
                let mut run = flowtune(fabric_gbps, (receiver, bytes), 10);
                // Sessions talk before the flow starts; the notice is what the start itself adds.
                run.run_until(START - Span::from_ps(1))
                    .expect("a good workload");
                let before = notice_bytes(&run);
                run.run_until(START).expect("a good workload");
                let notice = notice_bytes(&run) - before;
                assert!(notice >= ACK, "a frame");
                // The allocator is at the spine: within the rack the notice shares the first link
                // alone, to the other rack the first two.
                let shared = if receiver == 1 { 1 } else { 2 };
                let packets = wire(bytes).into_iter().map(|bytes| (0, bytes));
                let by_hand = links.last_behind((notice, shared), packets);
                assert_eq!(
                    took(run),
                    by_hand,
                    "{bytes} bytes to host {receiver} over {fabric_gbps}G"
                );
            }
        }
    }
}

/// Rate that the flow is paced at; 0 without one.
fn rate_bps(run: &LoneFlowSim<Flowtune>) -> u64 {
    run.sender_of(FlowId(0))
        .and_then(|(node, slot)| Some(FlowtuneNode::host(node)?.rate_bps(slot)))
        .unwrap_or(0)
}

/// Changes of the flow's rate: picoseconds after its start, and the new rate in bit/s.
///
/// A first run samples the rate at coarse steps. Further runs, equal to the bit, sample at finer
/// steps where the coarser one showed a change.
fn rates(make: impl Fn() -> LoneFlowSim<Flowtune>) -> Vec<(u64, u64)> {
    let mut spans = vec![(0, 2_000_000_000)];
    let mut found = Vec::new();
    for step in [200_000, 400, 1] {
        let mut run = make();
        let mut look = |at| {
            run.run_until(START + Span::from_ps(at))
                .expect("a good workload");
            rate_bps(&run)
        };
        found.clear();
        for &(from, to) in &spans {
            let mut before = look(from);
            for at in (from + step..=to).step_by(step as usize) {
                let rate_bps = look(at);
                if rate_bps != before && rate_bps > 0 {
                    found.push((at, rate_bps));
                }
                before = rate_bps;
            }
        }
        spans = found.iter().map(|(at, _)| (at - step, *at)).collect();
    }
    found
}

/// A lone flow gets one rate: its narrowest link's capacity less the threshold of 1 % (flowtune
/// §5.3.2).
#[test]
fn flowtunes_rate_spaces_packets() {
    for fabric_gbps in [4, 10, 40] {
        for receiver in RECEIVERS {
            let links = TandemLinks::to(receiver, fabric_gbps);
            let make = |bytes| flowtune(fabric_gbps, (receiver, bytes), 0);
            // Found with the longest flow: until a shorter one ends, its run is the same.
            let found = rates(|| make(SIZES[SIZES.len() - 1]));
            let [(from_ps, rate_bps)] = found[..] else {
                panic!("one rate: {found:?}");
            };
            let narrowest_bps = 8_000_000_000_000 / links.slowest_byte_ps();
            // Below 0.99: the rate code has 11 bits and rounds down.
            let share = rate_bps as f64 / narrowest_bps as f64;
            assert!((0.98..0.99).contains(&share), "{share}");
            for bytes in SIZES {
                assert_eq!(
                    took(make(bytes)),
                    from_ps + links.paced(bytes, rate_bps),
                    "{bytes} bytes to host {receiver} over {fabric_gbps}G"
                );
            }
        }
    }
}
