//! Cost of a rate update on the allocator's core below the engine, over DPDK without a kernel. Both
//! ends' production sessions run in one process, with sealed datagrams over net_ring.
//!
//! One thread plays the allocator and then the hosts, in turn. Only the allocator's turns count, by
//! part: rates into datagrams, sealing, headers and driver, and the hosts' acknowledgements.
//! net_ring passes packet buffers in memory, so the cost of a NIC's driver is not included.
//!
//! `cargo run --release -p ratewright-dpdk --features dpdk --example update_cost`

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement on the command line"
)]

mod sealed_pair;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Instant;

use anyhow::{Result, anyhow};
use ratewright_dpdk::eal::Eal;
use ratewright_dpdk::neighbours::Mac;
use ratewright_dpdk::port::{EthernetPort, PortConfig, QueuePair};
use ratewright_dpdk::stack::{Received, StackConfig, UdpStack};
use ratewright_proto::sealed::{MAX_SEALED_BYTES, OVERHEAD_BYTES, SealedHeader};
use sealed_pair::SealedPair;

const ALLOCATOR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const HOSTS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const ALLOCATOR_MAC: Mac = [2, 0, 0, 0, 0, 1];
const HOSTS_MAC: Mac = [2, 0, 0, 0, 0, 2];
const UDP_PORT: u16 = 7601;
const SESSIONS: u32 = 256;
const FLOWS: u32 = 80;
const ROUNDS: u64 = 400;
const ROUND_NS: u64 = 1_000_000;

/// The allocator's time of one round, in nanoseconds, by part.
#[derive(Clone, Copy, Default)]
struct Parts {
    encode: u64,
    seal: u64,
    send: u64,
    receive: u64,
}

impl Parts {
    fn total(&self) -> u64 {
        self.encode + self.seal + self.send + self.receive
    }
}

fn stack(mac: Mac, address: Ipv4Addr, port: u16, to: (Ipv4Addr, Mac), ports: u16) -> UdpStack {
    let mut stack = UdpStack::new(StackConfig {
        mac,
        address,
        prefix_len: 24,
        gateway: None,
        udp_port: port,
        dscp: 48,
        siblings: port..port + ports,
        mtu_bytes: 1_500,
        max_neighbours: 4,
    });
    stack.confirm(to.0, to.1);
    stack
}

struct Measurement {
    queue: QueuePair,
    allocator: UdpStack,
    hosts: UdpStack,
    pairs: Vec<SealedPair>,
    plain: Vec<Vec<u8>>,
    sealed: Vec<Vec<u8>>,
    reply: Vec<u8>,
    delivered: u64,
}

fn ns(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// UDP payload of a frame that the other end's stack wrote.
fn payload<'a>(stack: &mut UdpStack, frame: &'a [u8], reply: &mut [u8]) -> Option<&'a [u8]> {
    match stack.receive(frame, reply) {
        Received::Datagram { payload, .. } => Some(payload),
        // The hosts' UDP ports are all one stack's here.
        Received::Sibling(_) => frame.get(42..),
        Received::Reply(_) | Received::Nothing => None,
    }
}

impl Measurement {
    /// Sends `count` new rates to each session.
    fn send_rates(&mut self, now_ns: u64, round: u64, count: u32) -> Result<(u64, Parts)> {
        let mut parts = Parts::default();
        let (mut updates, max_bytes) = (0, MAX_SEALED_BYTES - OVERHEAD_BYTES);
        // In batches, as the service does.
        for chunk in self.pairs.chunks_mut(32) {
            let from = Instant::now();
            for (pair, out) in chunk.iter_mut().zip(&mut self.plain) {
                updates += pair.set_rates(now_ns, round, count)?;
                pair.server.on_timeout(now_ns);
                if !pair.server.poll_datagram(now_ns, max_bytes, out) {
                    out.clear();
                }
            }
            parts.encode += ns(from);
            let from = Instant::now();
            for ((pair, text), out) in chunk.iter_mut().zip(&self.plain).zip(&mut self.sealed) {
                out.clear();
                if !text.is_empty() {
                    pair.server_seal.seal(text, out)?;
                }
            }
            parts.seal += ns(from);
            let from = Instant::now();
            for (pair, bytes) in chunk.iter().zip(&self.sealed) {
                if !bytes.is_empty() {
                    let (stack, to) = (&mut self.allocator, pair.address);
                    self.queue
                        .transmit(|room| stack.send(now_ns, to, bytes, room).ok());
                }
            }
            self.queue.flush();
            parts.send += ns(from);
        }
        Ok((updates, parts))
    }

    /// Takes and acknowledges datagrams at the hosts. Not part of the allocator's time.
    fn hosts(&mut self, now_ns: u64) -> Result<()> {
        let Self {
            queue,
            hosts,
            pairs,
            reply,
            sealed,
            delivered,
            ..
        } = self;
        let mut frames = Vec::new();
        while queue.receive(|_, frame| frames.push(frame)) > 0 {}
        for frame in &frames {
            let bytes = payload(hosts, frame, reply).ok_or_else(|| anyhow!("a foreign frame"))?;
            let mut bytes = bytes.to_vec();
            let header = SealedHeader::parse(&bytes)?;
            let pair = &mut pairs[header.session as usize - 1];
            let text = pair.client_seal.open(&mut bytes)?;
            pair.client.on_datagram(now_ns, text)?;
            while pair.client.poll_event().is_some() {
                *delivered += 1;
            }
        }
        drop(frames);
        let to = SocketAddrV4::new(ALLOCATOR, UDP_PORT);
        let mut text = Vec::new();
        for pair in pairs.iter_mut() {
            pair.client.on_timeout(now_ns);
            while pair.client.poll_datagram(now_ns, 1_200, &mut text) {
                pair.client_seal.seal(&text, &mut sealed[0])?;
                queue.transmit(|room| hosts.send(now_ns, to, &sealed[0], room).ok());
            }
        }
        queue.flush();
        Ok(())
    }

    /// Takes the hosts' datagrams at the allocator.
    fn take(&mut self, now_ns: u64) -> Result<u64> {
        let from = Instant::now();
        let Self {
            queue,
            allocator,
            pairs,
            reply,
            ..
        } = self;
        let mut failure = None;
        while queue.receive(|_, mut frame| {
            let Some(length) = payload(allocator, &frame, reply).map(<[u8]>::len) else {
                return;
            };
            let start = frame.len().min(42);
            let bytes = &mut frame[start..start + length];
            let taken = (|| -> Result<()> {
                let header = SealedHeader::parse(bytes)?;
                let pair = &mut pairs[header.session as usize - 1];
                let text = pair.server_seal.open(bytes)?;
                pair.server.on_datagram(now_ns, text, |_| ())?;
                while pair.server.poll_event().is_some() {}
                Ok(())
            })();
            failure = taken.err().or(failure.take());
        }) > 0
        {}
        match failure {
            Some(error) => Err(error),
            None => Ok(ns(from)),
        }
    }
}

fn main() -> Result<()> {
    let options = [
        "--no-huge",
        "-m",
        "64",
        "--no-shconf",
        "--no-pci",
        "--no-telemetry",
        "--log-level=4",
        "--lcores=0",
        "--vdev=net_ring0",
    ];
    let eal = Eal::start(&options.map(str::to_owned))?;
    let mut port = EthernetPort::start(&eal, &PortConfig::default())?;
    let queue = port.queues.pop().ok_or_else(|| anyhow!("no queue"))?;
    let mut now_ns = 1_000_000_000;
    let pairs = (1..=SESSIONS)
        .map(|number| SealedPair::new(now_ns, number, FLOWS, HOSTS))
        .collect::<Result<Vec<_>>>()?;
    // Past the time that the sessions took to begin, and well within a lease.
    now_ns += 20 * ROUND_NS;
    let mut measurement = Measurement {
        queue,
        allocator: stack(ALLOCATOR_MAC, ALLOCATOR, UDP_PORT, (HOSTS, HOSTS_MAC), 1),
        hosts: stack(HOSTS_MAC, HOSTS, 20_000, (ALLOCATOR, ALLOCATOR_MAC), 1_000),
        pairs,
        plain: vec![Vec::new(); 32],
        sealed: vec![Vec::new(); 32],
        reply: vec![0; 1_600],
        delivered: 0,
    };
    println!(
        "{SESSIONS} sessions of {FLOWS} flows, {ROUNDS} rounds; nanoseconds of the allocator's core per update\n\
         updates per datagram   encode    seal    send  receive   total: least, median   updates/s: median, most"
    );
    for count in [1, 4, 10, 40] {
        let mut rounds = Vec::new();
        for round in 0..ROUNDS {
            now_ns += ROUND_NS;
            let before = measurement.delivered;
            let (updates, mut parts) = measurement.send_rates(now_ns, round, count)?;
            measurement.hosts(now_ns + ROUND_NS / 4)?;
            parts.receive = measurement.take(now_ns + ROUND_NS / 2)?;
            let delivered = measurement.delivered - before;
            // The first tenth warms caches and branch predictors up.
            if round > ROUNDS / 10 {
                if delivered < updates {
                    return Err(anyhow!("{delivered} of {updates} updates came"));
                }
                rounds.push((parts, updates));
            }
        }
        // Least and median: other processes only ever add time.
        rounds.sort_by_key(|(parts, _)| parts.total());
        let ((least, updates), (median, _)) = (rounds[0], rounds[rounds.len() / 2]);
        let each = |ns: u64| ns as f64 / updates as f64;
        println!(
            "{count:>19} {:>9.1} {:>7.1} {:>7.1} {:>8.1} {:>14.1}, {:>6.1} {:>17.2} M, {:.2} M",
            each(median.encode),
            each(median.seal),
            each(median.send),
            each(median.receive),
            each(least.total()),
            each(median.total()),
            1e3 / each(median.total()),
            1e3 / each(least.total()),
        );
    }
    let counters = measurement.queue.counters();
    println!("driver: {counters:?}");
    Ok(())
}
