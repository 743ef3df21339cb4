//! Real poll-mode drivers: `net_ring` (a port whose transmit ring is its receive ring), and
//! `net_af_packet` and `net_af_xdp` on a veth pair whose other end is the kernel's own stack.
//!
//! EAL starts once per process: run these with `cargo nextest run`, which gives every test its own.
//! The veth tests need root: each makes a network namespace of its own.
#![cfg(feature = "dpdk")]

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ratewright_dpdk::eal::Eal;
use ratewright_dpdk::endpoint::Endpoint;
use ratewright_dpdk::port::{EthernetPort, PortConfig};
use ratewright_dpdk::stack::StackConfig;
use ratewright_dpdk::{DpdkError, stack::SendError};

const OURS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const UDP_PORT: u16 = 7601;

fn options(device: &str) -> Vec<String> {
    [
        // No hugepages, no shared files, no PCI: the tests need nothing of the machine but root.
        "--no-huge",
        "-m",
        "64",
        "--no-shconf",
        "--no-pci",
        "--no-telemetry",
        "--log-level=4",
    ]
    .into_iter()
    .map(str::to_owned)
    .chain([format!("--vdev={device}")])
    .collect()
}

fn config(port: &EthernetPort) -> StackConfig {
    StackConfig {
        mac: port.mac,
        address: OURS,
        prefix_len: 24,
        gateway: None,
        udp_port: UDP_PORT,
        dscp: 48,
        siblings: 0..0,
        mtu_bytes: port.mtu_bytes,
        max_neighbours: 64,
    }
}

/// Short rings: the test that fills one is quick.
fn small() -> PortConfig {
    PortConfig {
        descriptors: 512,
        ..PortConfig::default()
    }
}

fn ip(arguments: &str) {
    let status = Command::new("ip")
        .args(arguments.split(' '))
        .status()
        .expect("iproute2 is installed");
    assert!(status.success(), "ip {arguments}");
}

/// A namespace of this thread's own with a veth pair: `port0` for the driver, `host0` for the
/// kernel.
fn veth() {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)
        .expect("root: the veth tests make a network namespace");
    ip(
        "link add port0 numrxqueues 1 numtxqueues 1 type veth peer name host0 numrxqueues 1 numtxqueues 1",
    );
    ip("link set lo up");
    ip("link set port0 up");
    ip("link set host0 up");
    ip("addr add 10.9.0.2/24 dev host0");
}

#[test]
fn a_ring_port_receives_what_it_transmits() {
    let eal = Eal::start(&options("net_ring0")).expect("EAL");
    let mut port = EthernetPort::start(&eal, &small()).expect("port");
    assert!(port.driver.contains("ring"), "{}", port.driver);
    let mut queue = port.queues.pop().expect("one queue");
    for round in 0..3000u32 {
        // Lengths from the shortest frame to nearly the MTU.
        let frame = vec![round as u8; 60 + (round as usize * 7) % 1400];
        assert!(queue.transmit(|room| {
            room[..frame.len()].copy_from_slice(&frame);
            Some(frame.len())
        }));
        queue.flush();
        let mut got = Vec::new();
        queue.receive(|_, frame| got.push(frame.to_vec()));
        assert_eq!(got, [frame]);
    }
    let counters = queue.counters();
    assert_eq!((counters.frames_in, counters.frames_out), (3000, 3000));
    assert_eq!(
        counters.no_buffer + counters.ring_full + counters.segmented,
        0
    );
}

#[test]
fn what_the_ring_cannot_hold_is_dropped_and_counted_and_no_buffer_leaks() {
    let eal = Eal::start(&options("net_ring0")).expect("EAL");
    let mut port = EthernetPort::start(&eal, &small()).expect("port");
    let mut queue = port.queues.pop().expect("one queue");
    // Nothing is received meanwhile: the ring (or the pool) runs full.
    for _ in 0..10_000 {
        queue.transmit(|_| Some(60));
    }
    queue.flush();
    let counters = queue.counters();
    assert!(counters.ring_full + counters.no_buffer > 0, "{counters:?}");
    assert_eq!(
        counters.frames_out + counters.ring_full + counters.no_buffer,
        10_000
    );
    let mut drained = 0;
    loop {
        let count = queue.receive(|_, _| {});
        if count == 0 {
            break;
        }
        drained += count as u64;
    }
    assert_eq!(drained, counters.frames_out);
    // Every buffer is back: frames go through again.
    assert!(queue.transmit(|_| Some(60)));
}

#[test]
fn a_second_environment_a_missing_port_and_too_many_queues_are_refused_in_words() {
    let eal = Eal::start(&options("net_ring0")).expect("EAL");
    assert!(matches!(Eal::start(&[]), Err(DpdkError::AlreadyStarted)));
    let missing = EthernetPort::start(&eal, &PortConfig { port: 7, ..small() });
    let text = missing.expect_err("one port").to_string();
    assert!(text.contains("--vdev"), "{text}");
    let many = EthernetPort::start(
        &eal,
        &PortConfig {
            queues: 999,
            ..small()
        },
    );
    assert!(matches!(many, Err(DpdkError::NoQueues { wanted: 999, .. })));
}

/// The kernel's stack pings and talks to ours over a driver on a veth.
fn talks_to_the_kernel(device: &str) {
    veth();
    let eal = Eal::start(&options(device)).expect("EAL");
    let port = EthernetPort::start(&eal, &small()).expect("port");
    let config = config(&port);
    let mut endpoint = Endpoint::of_queues(port.queues, &config)
        .pop()
        .expect("one queue");
    endpoint.register_thread().expect("EAL takes the thread");

    // Its sender: the kernel is unknown until it has answered ARP.
    let to_kernel = SocketAddrV4::new(KERNEL, 9000);
    assert!(matches!(
        endpoint.send(0, to_kernel, b"first"),
        Err(SendError::Ask(_))
    ));
    endpoint.flush();

    let stop = AtomicBool::new(false);
    let socket = UdpSocket::bind((KERNEL, 9000)).expect("bind");
    socket
        .set_read_timeout(Some(Duration::from_secs(5)))
        .expect("timeout");
    thread::scope(|scope| {
        let client = scope.spawn(|| {
            // A closure collects the first error, so that `stop` is set in every case.
            let echoed = (|| {
                for round in 0..500u32 {
                    let payload = vec![round as u8; 16 + (round as usize * 13) % 1400];
                    socket
                        .send_to(&payload, (OURS, UDP_PORT))
                        .map_err(|e| format!("send: {e}"))?;
                    let mut answer = [0; 2048];
                    let (bytes, from) = socket
                        .recv_from(&mut answer)
                        .map_err(|e| format!("round {round}: {e}"))?;
                    if from != (OURS, UDP_PORT).into() || answer[..bytes] != payload {
                        return Err(format!("round {round}: wrong echo from {from}"));
                    }
                }
                Ok(())
            })();
            let ping = Command::new("ping")
                .args(["-c", "2", "-W", "2", "-q", "10.9.0.1"])
                .output()
                .map(|output| output.status.success());
            stop.store(true, Ordering::Relaxed);
            (echoed, ping)
        });
        let mut pending = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let count = endpoint.receive();
            if count == 0 {
                thread::yield_now();
            }
            for index in 0..count {
                let (payload, from) = endpoint.datagram(index);
                pending.push((from, payload.to_vec()));
            }
            for (from, payload) in pending.drain(..) {
                endpoint
                    .send(1, from, &payload)
                    .expect("the kernel is known");
            }
            endpoint.flush();
        }
        let (echoed, ping) = client.join().expect("client");
        assert_eq!(echoed, Ok(()));
        // `ping` may be absent; where it is there, it is answered.
        if let Ok(answered) = ping {
            assert!(answered, "ping 10.9.0.1");
        }
    });
    let (stack, queue, _) = endpoint.counters();
    assert_eq!(stack.datagrams_in, 500);
    assert_eq!(stack.datagrams_out, 500);
    assert_eq!(stack.bad_checksum + stack.malformed, 0, "{stack:?}");
    assert_eq!(queue.no_buffer + queue.ring_full, 0);
}

/// Four kernel sockets, spread over two queues by the kernel's hash, talk to both of the queues'
/// UDP ports; each is answered by the port that it asked, whichever queue its frames came to.
#[test]
fn frames_reach_the_queue_of_their_udp_port_whichever_queue_they_come_to() {
    veth();
    let device = "net_af_packet0,iface=port0,qpairs=2";
    let eal = Eal::start(&options(device)).expect("EAL");
    let settings = PortConfig {
        queues: 2,
        buffers: 4_095,
        ..small()
    };
    let port = EthernetPort::start(&eal, &settings).expect("port");
    let config = config(&port);
    let endpoints = Endpoint::of_queues(port.queues, &config);
    let stop = AtomicBool::new(false);
    let (answered, counters) = thread::scope(|scope| {
        let servers: Vec<_> = endpoints
            .into_iter()
            .map(|mut endpoint| {
                let stop = &stop;
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let count = endpoint.receive();
                        for index in 0..count {
                            let (payload, from) = endpoint.datagram(index);
                            let payload = payload.to_vec();
                            endpoint
                                .send(1, from, &payload)
                                .expect("the sender is known");
                        }
                        endpoint.flush();
                        if count == 0 {
                            thread::yield_now();
                        }
                    }
                    endpoint.counters().2
                })
            })
            .collect();
        let answered = (|| {
            for local in 9000..9032u16 {
                let socket = UdpSocket::bind((KERNEL, local)).map_err(|e| e.to_string())?;
                socket
                    .set_read_timeout(Some(Duration::from_secs(5)))
                    .map_err(|e| e.to_string())?;
                for to in [UDP_PORT, UDP_PORT + 1] {
                    let payload = [local.to_be_bytes(), to.to_be_bytes()].concat();
                    socket
                        .send_to(&payload, (OURS, to))
                        .map_err(|e| e.to_string())?;
                    let mut answer = [0; 64];
                    let (bytes, from) = socket
                        .recv_from(&mut answer)
                        .map_err(|e| format!("from port {local} to {to}: {e}"))?;
                    if from != (OURS, to).into() || answer[..bytes] != payload {
                        return Err(format!("from port {local} to {to}: wrong echo from {from}"));
                    }
                }
            }
            Ok(())
        })();
        stop.store(true, Ordering::Relaxed);
        let counters: Vec<_> = servers
            .into_iter()
            .map(|server| server.join().expect("a server"))
            .collect();
        (answered, counters)
    });
    assert_eq!(answered, Ok(()));
    // 64 flows, each hashed to one of two queues: none on the wrong one is a chance of 2^-64.
    let handed_over: u64 = counters.iter().map(|c| c.handed_over).sum();
    assert!((1..64).contains(&handed_over), "{counters:?}");
    assert_eq!(counters.iter().map(|c| c.overflowed).sum::<u64>(), 0);
}

#[test]
fn af_packet_on_a_veth_talks_to_the_kernel() {
    talks_to_the_kernel("net_af_packet0,iface=port0,qdisc_bypass=1");
}

#[test]
fn af_xdp_on_a_veth_talks_to_the_kernel() {
    talks_to_the_kernel("net_af_xdp0,iface=port0");
}
