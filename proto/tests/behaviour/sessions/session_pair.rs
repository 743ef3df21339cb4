//! Both ends with a perfect network that a test moves by hand.

use std::sync::Arc;

use ratewright_proto::client::{ClientConfig, ClientEvent, ClientSession};
use ratewright_proto::control::{AccessCapacity, FrameDecoder, TopologySnapshot};
use ratewright_proto::server::{Admission, FlowChange, ServerConfig, ServerEvent, ServerSession};
use ratewright_proto::{DatagramError, FlowId, FlowPath, StartRecord};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const LEASE_NS: u64 = 300 * MS;
pub(crate) const MTU: usize = 1200;

/// Both ends with a perfect network that the test moves by hand.
pub(crate) struct SessionPair {
    pub(crate) now_ns: u64,
    pub(crate) client: ClientSession,
    pub(crate) server: ServerSession,
    /// Changes of flows that the server has told.
    changes: Vec<FlowChange>,
}

pub(crate) fn start(slot: u32, generation: u32) -> StartRecord {
    StartRecord::new(FlowId::new(slot, generation), 9, FlowPath::Hash(1))
}

pub(crate) fn admission() -> Admission {
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

pub(crate) fn bodies(frames: impl Iterator<Item = impl AsRef<[u8]>>) -> Vec<Vec<u8>> {
    let mut decoder = FrameDecoder::new();
    let mut bodies = Vec::new();
    for frame in frames {
        decoder.push(frame.as_ref());
        while let Some(body) = decoder.next_frame().unwrap() {
            bodies.push(body.to_vec());
        }
    }
    bodies
}

impl SessionPair {
    pub(crate) fn unconnected(client: ClientConfig, server: ServerConfig) -> Self {
        Self {
            now_ns: 1_000 * MS,
            client: ClientSession::new(ClientConfig {
                host_name: "h1".to_owned(),
                ..client
            }),
            server: ServerSession::new(1_000 * MS, Arc::new(server)),
            changes: Vec::new(),
        }
    }

    /// Hands the server a datagram, and keeps what it tells of flows.
    pub(crate) fn hand_to_server(
        &mut self,
        now_ns: u64,
        bytes: &[u8],
    ) -> Result<(), DatagramError> {
        let changes = &mut self.changes;
        (self.server).on_datagram(now_ns, bytes, |change| changes.push(change))
    }

    /// Takes what the server has told of flows.
    pub(crate) fn server_changes(&mut self) -> Vec<FlowChange> {
        std::mem::take(&mut self.changes)
    }

    pub(crate) fn with(client: ClientConfig, server: ServerConfig) -> Self {
        let mut pair = Self::unconnected(client, server);
        pair.client.connected(pair.now_ns);
        pair.client_stream();
        assert!(matches!(
            pair.server.poll_event(),
            Some(ServerEvent::Hello(_))
        ));
        pair.server.accept(pair.now_ns, admission()).unwrap();
        pair.server_stream();
        assert!(matches!(
            pair.client.poll_event(),
            Some(ClientEvent::Established(_))
        ));
        pair.settle();
        pair
    }

    pub(crate) fn new() -> Self {
        Self::with(ClientConfig::default(), ServerConfig::default())
    }

    pub(crate) fn client_stream(&mut self) {
        for body in bodies(std::iter::from_fn(|| self.client.poll_control())) {
            self.server.on_control(self.now_ns, &body).unwrap();
        }
    }

    pub(crate) fn server_stream(&mut self) {
        for body in bodies(std::iter::from_fn(|| self.server.poll_control())) {
            self.client.on_control(self.now_ns, &body).unwrap();
        }
    }

    pub(crate) fn client_datagram(&mut self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        self.client
            .poll_datagram(self.now_ns, MTU, &mut out)
            .then_some(out)
    }

    pub(crate) fn server_datagram(&mut self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        self.server
            .poll_datagram(self.now_ns, MTU, &mut out)
            .then_some(out)
    }

    /// Exchanges datagrams until both ends are idle, acknowledgements included.
    pub(crate) fn settle(&mut self) {
        // Long enough for prompt and for delayed acknowledgements, and for their answers.
        for delay_ns in [MS, MS, ClientConfig::default().ack_delay_ns, MS] {
            self.now_ns += delay_ns;
            while let Some(bytes) = self.client_datagram() {
                self.hand_to_server(self.now_ns, &bytes).unwrap();
            }
            while let Some(bytes) = self.server_datagram() {
                self.client.on_datagram(self.now_ns, &bytes).unwrap();
            }
        }
    }

    /// Takes the client's events, and checks that each was announced by `has_events`.
    pub(crate) fn client_events(&mut self) -> Vec<ClientEvent> {
        std::iter::from_fn(|| {
            let promised = self.client.has_events();
            let event = self.client.poll_event();
            assert_eq!(promised, event.is_some(), "{event:?}");
            event
        })
        .collect()
    }

    /// Takes the server's events, and checks that each was announced by `has_events`.
    pub(crate) fn server_events(&mut self) -> Vec<ServerEvent> {
        std::iter::from_fn(|| {
            let promised = self.server.has_events();
            let event = self.server.poll_event();
            assert_eq!(promised, event.is_some(), "{event:?}");
            event
        })
        .collect()
    }

    pub(crate) fn rates(&mut self) -> Vec<(FlowId, u64)> {
        let rate = |event| match event {
            ClientEvent::Rate { flow, rate_bps, .. } => Some((flow, rate_bps)),
            _ => None,
        };
        self.client_events().into_iter().filter_map(rate).collect()
    }
}
