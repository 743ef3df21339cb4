//! Drives both ends of a session by hand: a flowlet starts, gets a rate, and ends. The second
//! datagram is lost, and the session mends it.
//!
//! Run it with `cargo run -p ratewright-proto --example session`.
//!
//! Sessions are sans-IO. The caller brings the clock, the reliable stream and the datagrams, and
//! after each call asks for what is to be sent (`poll_control`, `poll_datagram`) and for what has
//! happened (`poll_event`).

use std::error::Error;
use std::sync::Arc;

use ratewright_proto::client::{ClientConfig, ClientEvent, ClientSession};
use ratewright_proto::control::{AccessCapacity, FrameDecoder, TopologySnapshot};
use ratewright_proto::server::{Admission, FlowChange, ServerConfig, ServerEvent, ServerSession};
use ratewright_proto::{FlowId, FlowPath, StartRecord};

const MS: u64 = 1_000_000;
const MTU_BYTES: usize = 1200;
const DESTINATION_HOST: u32 = 9;

fn main() -> Result<(), Box<dyn Error>> {
    let mut now_ns = 1_000 * MS;
    let mut client = ClientSession::new(ClientConfig {
        host_name: "h1".to_owned(),
        ..ClientConfig::default()
    });
    let mut server: ServerSession = ServerSession::new(now_ns, Arc::new(ServerConfig::default()));

    // The reliable stream carries Hello and Welcome.
    client.connected(now_ns);
    for body in frames(std::iter::from_fn(|| client.poll_control()))? {
        server.on_control(now_ns, &body)?;
    }
    let Some(ServerEvent::Hello(hello)) = server.poll_event() else {
        return Err("no Hello".into());
    };
    println!("the allocator hears from {}", hello.host_name);
    server.accept(now_ns, admission())?;
    for body in frames(std::iter::from_fn(|| server.poll_control()))? {
        client.on_control(now_ns, &body)?;
    }

    // A flowlet starts at the host; the first datagram with its start is lost.
    let flow = FlowId::new(0, 1);
    client.start(
        now_ns,
        StartRecord::new(flow, DESTINATION_HOST, FlowPath::Hash(1)),
    )?;
    let (mut datagram, mut changes) = (Vec::new(), Vec::new());
    client.poll_datagram(now_ns, MTU_BYTES, &mut datagram);
    println!("{} bytes are lost", datagram.len());

    for _ in 0..1_000 {
        // A caller sleeps until `next_timeout`; here a millisecond passes.
        now_ns += MS;
        client.on_timeout(now_ns);
        server.on_timeout(now_ns);
        loop {
            datagram.clear();
            if !client.poll_datagram(now_ns, MTU_BYTES, &mut datagram) {
                break;
            }
            server.on_datagram(now_ns, &datagram, |change| changes.push(change))?;
        }
        for change in changes.drain(..) {
            match change {
                FlowChange::Start(record) => {
                    println!(
                        "{} ms: the allocator learns of the start",
                        now_ns / MS - 1_000
                    );
                    server.set_rate(now_ns, record.flow(), 2_500_000_000)?;
                }
                FlowChange::End(..) => {
                    println!(
                        "{} ms: the allocator learns of the end",
                        now_ns / MS - 1_000
                    );
                    return Ok(());
                }
                FlowChange::Update { .. } => {}
            }
        }
        loop {
            datagram.clear();
            if !server.poll_datagram(now_ns, MTU_BYTES, &mut datagram) {
                break;
            }
            client.on_datagram(now_ns, &datagram)?;
        }
        while let Some(event) = client.poll_event() {
            if let ClientEvent::Rate { flow, rate_bps, .. } = event {
                println!(
                    "{} ms: the host may send at {rate_bps} bit/s",
                    now_ns / MS - 1_000
                );
                client.end(now_ns, flow)?;
            }
        }
    }
    Err("the session made no progress".into())
}

/// Returns the server's admission: the client's session number and host id, and the topology.
fn admission() -> Admission {
    Admission {
        session: 42,
        host_id: 3,
        topology: TopologySnapshot::default().into(),
        classes: Vec::new(),
        threshold: 0.01,
        released: false,
        observe: false,
        sealed_udp: None,
        telemetry_interval_ns: 0,
        telemetry_sync: None,
        access: AccessCapacity::default(),
    }
}

/// Cuts the stream's bytes into the bodies of its frames.
fn frames(chunks: impl Iterator<Item = impl AsRef<[u8]>>) -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
    let mut decoder = FrameDecoder::new();
    let mut bodies = Vec::new();
    for chunk in chunks {
        decoder.push(chunk.as_ref());
        while let Some(body) = decoder.next_frame()? {
            bodies.push(body.to_vec());
        }
    }
    Ok(bodies)
}
