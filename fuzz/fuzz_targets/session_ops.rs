//! Arbitrary calls on both ends of a session, over a network that delays, repeats, drops and
//! tampers. In the end, a new connection over a good network must bring both ends into agreement.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use ratewright_fuzz::{MS, SLOTS, SessionEnds};
use ratewright_proto::control::{Refusal, RefusalCode, TopologySnapshot};
use ratewright_proto::telemetry::{LinkInt, Telemetry};
use ratewright_proto::{FlowId, FlowPath, RateCode, StartRecord, WeightCode};

#[derive(Arbitrary, Debug)]
enum SessionOperation {
    Start {
        slot: u8,
        generation: u8,
        class: u8,
        weight: u8,
        demand: u16,
        route: bool,
    },
    End {
        slot: u8,
        generation: u8,
    },
    Rate {
        slot: u8,
        generation: u8,
        rate_bps: u64,
    },
    Send {
        from_client: bool,
        max_bytes: u16,
    },
    /// Delivers or drops a datagram that is on its way.
    Deliver {
        index: u8,
        keep: bool,
        tamper: Option<(u8, u8)>,
    },
    Drop {
        index: u8,
    },
    Streams,
    Wait {
        ms: u16,
    },
    Timeout,
    Connect,
    Disconnect,
    Release {
        on: bool,
    },
    Confirm {
        paced_flows: u32,
    },
    Topology {
        version: u32,
    },
    Telemetry {
        bandwidth_bps: u64,
    },
    Refuse {
        retry: bool,
    },
    Events,
}

fn run(pair: &mut SessionEnds, operation: SessionOperation, in_flight: &mut Vec<(bool, Vec<u8>)>) {
    let now_ns = pair.now_ns;
    // Slots beyond the tables as well.
    let flow = |slot: u8, generation: u8| {
        FlowId::new(u32::from(slot) % (SLOTS + 2), u32::from(generation))
    };
    match operation {
        SessionOperation::Start {
            slot,
            generation,
            class,
            weight,
            demand,
            route,
        } => {
            let path = if route {
                FlowPath::Explicit(1)
            } else {
                FlowPath::Hash(1)
            };
            let record = StartRecord::new(flow(slot, generation), 1, path)
                .with_class(class)
                .with_weight(WeightCode(weight))
                .with_demand(RateCode(demand));
            let _ = pair.client.start(now_ns, record);
        }
        SessionOperation::End { slot, generation } => {
            let _ = pair.client.end(now_ns, flow(slot, generation));
        }
        SessionOperation::Rate {
            slot,
            generation,
            rate_bps,
        } => {
            let _ = pair
                .server
                .set_rate(now_ns, flow(slot, generation), rate_bps);
        }
        SessionOperation::Send {
            from_client,
            max_bytes,
        } => {
            let mut out = Vec::new();
            let max_bytes = usize::from(max_bytes);
            let sent = if from_client {
                pair.client.poll_datagram(now_ns, max_bytes, &mut out)
            } else {
                pair.server.poll_datagram(now_ns, max_bytes, &mut out)
            };
            if sent {
                assert!(out.len() <= max_bytes);
                in_flight.push((from_client, out));
            }
        }
        SessionOperation::Deliver {
            index,
            keep,
            tamper,
        } => {
            if in_flight.is_empty() {
                return;
            }
            let index = usize::from(index) % in_flight.len();
            let (from_client, mut bytes) = in_flight[index].clone();
            // Kept datagrams can be delivered again, and in another order.
            if !keep {
                in_flight.swap_remove(index);
            }
            if let Some((at, bits)) = tamper {
                let at = usize::from(at) % bytes.len();
                bytes[at] ^= bits;
            }
            if from_client {
                let _ = pair.server.on_datagram(now_ns, &bytes, |_| ());
            } else {
                let _ = pair.client.on_datagram(now_ns, &bytes);
            }
        }
        SessionOperation::Drop { index } => {
            if !in_flight.is_empty() {
                in_flight.swap_remove(usize::from(index) % in_flight.len());
            }
        }
        SessionOperation::Streams => pair.handshake(),
        SessionOperation::Wait { ms } => pair.now_ns += u64::from(ms) * MS,
        SessionOperation::Timeout => pair.check(),
        SessionOperation::Connect => pair.connect(),
        SessionOperation::Disconnect => pair.client.disconnected(now_ns),
        SessionOperation::Release { on } => pair.server.set_released(on),
        SessionOperation::Confirm { paced_flows } => {
            let _ = pair.client.confirm_release(paced_flows);
        }
        SessionOperation::Topology { version } => {
            let topology = TopologySnapshot {
                version,
                ..TopologySnapshot::default()
            };
            let _ = pair.server.set_topology(topology.into());
        }
        SessionOperation::Telemetry { bandwidth_bps } => {
            let link = LinkInt {
                bandwidth_bps,
                ..LinkInt::default()
            };
            let _ = pair.client.send_telemetry(Telemetry {
                links: vec![link],
                ..Telemetry::default()
            });
        }
        SessionOperation::Refuse { retry } => pair.server.refuse(Refusal {
            code: RefusalCode::Draining,
            reason: String::new(),
            retry,
        }),
        SessionOperation::Events => {
            while pair.client.poll_event().is_some() {}
            pair.answer();
        }
    }
}

fuzz_target!(|operations: Vec<SessionOperation>| {
    let mut pair = SessionEnds::busy();
    let mut in_flight = Vec::new();
    for operation in operations {
        run(&mut pair, operation, &mut in_flight);
    }
    pair.check();
    pair.now_ns += MS;
    pair.connect();
    pair.handshake();
    pair.settle();
    assert!(pair.client.is_established() && pair.server.is_established());
    let rates: Vec<_> = pair
        .server
        .flows()
        .map(|(record, _)| record.flow())
        .collect();
    for (index, flow) in rates.into_iter().enumerate() {
        // Distinct rates, so that a rate at the wrong flow shows.
        let rate_bps = 1_000_000 * (index as u64 + 1);
        assert!(pair.server.set_rate(pair.now_ns, flow, rate_bps).is_ok());
    }
    pair.settle();
    let client: Vec<_> = pair
        .client
        .flows()
        .map(|flow| (flow.record, flow.rate_bps.unwrap_or(0)))
        .collect();
    let server: Vec<_> = pair.server.flows().collect();
    assert_eq!(client, server);
    assert!(!pair.client.is_released());
});
