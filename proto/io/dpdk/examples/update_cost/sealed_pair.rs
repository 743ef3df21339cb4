//! Sessions of an allocator and of its hosts in one process, established in memory.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use ratewright_proto::client::{ClientConfig, ClientSession};
use ratewright_proto::control::{AccessCapacity, FrameDecoder, TopologySnapshot};
use ratewright_proto::datagram::SessionRole;
use ratewright_proto::sealed::{SealedConfig, SealedSession, Secret};
use ratewright_proto::server::{Admission, ServerConfig, ServerEvent, ServerSession};
use ratewright_proto::{FlowId, FlowPath, StartRecord};

/// Both ends of a session, and the seals of both.
pub(crate) struct SealedPair {
    pub(crate) server: ServerSession,
    pub(crate) server_seal: SealedSession,
    pub(crate) client: ClientSession,
    pub(crate) client_seal: SealedSession,
    /// Source address of the host's datagrams.
    pub(crate) address: SocketAddrV4,
    /// The flow whose rate changes next.
    pub(crate) next_flow: u32,
}

impl SealedPair {
    /// Makes session `number` with `flows` flows that the allocator knows.
    pub(crate) fn new(now_ns: u64, number: u32, flows: u32, hosts: Ipv4Addr) -> Result<Self> {
        let config = Arc::new(ServerConfig {
            epoch: 1,
            max_flows: flows,
            ..ServerConfig::default()
        });
        let mut server = ServerSession::new(now_ns, config);
        let mut client = ClientSession::new(ClientConfig {
            host_name: format!("h{number}"),
            incarnation: 1,
            max_flows: flows,
            sealed_udp: true,
            ..ClientConfig::default()
        });
        client.connected(now_ns);
        let mut frames = FrameDecoder::new();
        while let Some(frame) = client.poll_control() {
            frames.push(&frame);
        }
        while let Some(body) = frames.next_frame()? {
            server.on_control(now_ns, body)?;
        }
        let Some(ServerEvent::Hello(_)) = server.poll_event() else {
            return Err(anyhow!("no Hello came"));
        };
        let admission = Admission {
            session: number,
            host_id: number,
            topology: TopologySnapshot::default().into(),
            classes: Vec::new(),
            threshold: 0.01,
            released: false,
            observe: false,
            sealed_udp: None,
            telemetry_interval_ns: 0,
            telemetry_sync: None,
            access: AccessCapacity::default(),
        };
        server.accept(now_ns, admission)?;
        let mut frames = FrameDecoder::new();
        while let Some(frame) = server.poll_control() {
            frames.push(&frame);
        }
        while let Some(body) = frames.next_frame()? {
            client.on_control(now_ns, body)?;
        }
        let secret = Secret::new([7; Secret::BYTES]);
        let seal = |own| SealedSession::new(SealedConfig::default(), own, number, &secret);
        let port = u16::try_from(20_000 + number).context("fewer sessions")?;
        let mut pair = Self {
            server,
            client,
            server_seal: seal(SessionRole::Server),
            client_seal: seal(SessionRole::Client),
            address: SocketAddrV4::new(hosts, port),
            next_flow: 0,
        };
        for slot in 0..flows {
            let flow = FlowId::new(slot, 1);
            let record = StartRecord::new(flow, number + 1, FlowPath::Hash(slot));
            pair.client.start(now_ns, record)?;
        }
        pair.exchange_in_memory(now_ns)?;
        if pair.server.flow_count() != flows {
            return Err(anyhow!(
                "{} of {flows} flows began",
                pair.server.flow_count()
            ));
        }
        Ok(pair)
    }

    fn exchange_in_memory(&mut self, mut now_ns: u64) -> Result<()> {
        let mut bytes = Vec::new();
        // A window of datagrams, an acknowledgement, and so on.
        for _ in 0..1_000 {
            now_ns += 1_000_000;
            let mut idle = true;
            while self.client.poll_datagram(now_ns, 1_200, &mut bytes) {
                self.server.on_datagram(now_ns, &bytes, |_| ())?;
                idle = false;
            }
            while self.server.poll_event().is_some() {}
            self.server.on_timeout(now_ns);
            while self.server.poll_datagram(now_ns, 1_200, &mut bytes) {
                self.client.on_datagram(now_ns, &bytes)?;
                idle = false;
            }
            self.client.on_timeout(now_ns);
            if idle && self.client.flow_count() == self.server.flow_count() {
                return Ok(());
            }
        }
        Err(anyhow!("the sessions do not come to rest"))
    }

    /// Sets new rates for the next `count` flows, in turn.
    pub(crate) fn set_rates(&mut self, now_ns: u64, round: u64, count: u32) -> Result<u64> {
        let flows = self.server.flow_count();
        let mut changed = 0;
        for _ in 0..count {
            let flow = FlowId::new(self.next_flow, 1);
            self.next_flow = (self.next_flow + 1) % flows;
            // Never the rate before: the codes are less than a percent apart.
            let rate_bps = 1_000_000_000 + (round % 64) * 20_000_000;
            changed += u64::from(self.server.set_rate(now_ns, flow, rate_bps)?);
        }
        Ok(changed)
    }
}
