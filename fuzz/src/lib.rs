//! A pair of sessions for the fuzz targets: established, with flows, and without a network of its
//! own.

use std::sync::Arc;

use ratewright_proto::client::{ClientConfig, ClientSession};
use ratewright_proto::control::{AccessCapacity, FrameDecoder, TopologySnapshot};
use ratewright_proto::server::{Admission, ServerConfig, ServerEvent, ServerSession};
use ratewright_proto::{FlowId, FlowPath, StartRecord};

/// One millisecond.
pub const MS: u64 = 1_000_000;
/// Slots of both flow tables.
pub const SLOTS: u32 = 16;

/// Both ends of one session, and the time.
pub struct SessionEnds {
    /// Time of both ends.
    pub now_ns: u64,
    /// The daemon's end.
    pub client: ClientSession,
    /// The allocator's end.
    pub server: ServerSession,
    next_session: u32,
}

impl Default for SessionEnds {
    fn default() -> Self {
        Self::new()
    }
}

fn server(now_ns: u64) -> ServerSession {
    let config = ServerConfig {
        max_flows: SLOTS,
        // Small bounds, so that a fuzzer's short inputs reach them.
        max_in_flight: 8,
        max_events: 64,
        max_control_bytes: 1 << 16,
        ..ServerConfig::default()
    };
    ServerSession::new(now_ns, Arc::new(config))
}

impl SessionEnds {
    /// Two ends without a transport.
    pub fn new() -> Self {
        let config = ClientConfig {
            host_name: "h1".to_owned(),
            max_flows: SLOTS,
            max_in_flight: 8,
            max_control_bytes: 1 << 16,
            ..ClientConfig::default()
        };
        Self {
            now_ns: MS,
            client: ClientSession::new(config),
            server: server(MS),
            next_session: 1,
        }
    }

    /// An established session in which flows have rates and state is in
    /// flight both ways.
    pub fn busy() -> Self {
        let mut pair = Self::new();
        pair.connect();
        pair.handshake();
        for slot in 0..4 {
            let record = StartRecord::new(FlowId::new(slot, 1), slot, FlowPath::Hash(slot));
            pair.client.start(pair.now_ns, record).unwrap();
        }
        pair.settle();
        for slot in 0..4 {
            let rate_bps = 1_000_000 * u64::from(slot + 1);
            let _ = pair
                .server
                .set_rate(pair.now_ns, FlowId::new(slot, 1), rate_bps);
        }
        pair
    }

    /// A fresh transport connection.
    pub fn connect(&mut self) {
        self.client.connected(self.now_ns);
        self.server = server(self.now_ns);
    }

    /// Moves control frames until no end has more to send, and accepts every Hello.
    pub fn handshake(&mut self) {
        // Hello, Welcome, and the messages that follow the Welcome.
        for _ in 0..3 {
            self.client_stream();
            self.answer();
            self.server_stream();
        }
    }

    /// Moves the client's control frames to the server.
    pub fn client_stream(&mut self) {
        let mut frames = FrameDecoder::new();
        while let Some(frame) = self.client.poll_control() {
            frames.push(&frame);
            while let Some(body) = frames.next_frame().unwrap() {
                let _ = self.server.on_control(self.now_ns, body);
            }
        }
    }

    /// Moves the server's control frames to the client.
    pub fn server_stream(&mut self) {
        let mut frames = FrameDecoder::new();
        while let Some(frame) = self.server.poll_control() {
            frames.push(&frame);
            while let Some(body) = frames.next_frame().unwrap() {
                let _ = self.client.on_control(self.now_ns, body);
            }
        }
    }

    /// Takes the server's events, and accepts every Hello.
    pub fn answer(&mut self) {
        while let Some(event) = self.server.poll_event() {
            if matches!(event, ServerEvent::Hello(_)) {
                let admission = Admission {
                    session: self.next_session,
                    host_id: 1,
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
                self.next_session += 1;
                self.server.accept(self.now_ns, admission).unwrap();
            }
        }
    }

    /// Exchanges datagrams over a perfect network until there are none.
    pub fn settle(&mut self) {
        let mut out = Vec::new();
        // Far longer than any retransmission needs.
        for _ in 0..64 {
            self.now_ns += MS;
            self.client.on_timeout(self.now_ns);
            self.server.on_timeout(self.now_ns);
            while self.client.poll_datagram(self.now_ns, 200, &mut out) {
                let _ = self.server.on_datagram(self.now_ns, &out, |_| ());
            }
            while self.server.poll_datagram(self.now_ns, 200, &mut out) {
                let _ = self.client.on_datagram(self.now_ns, &out);
            }
        }
    }

    /// Checks invariants of any state, after all output was polled: timeouts lie ahead, and tables
    /// are within their bounds.
    pub fn check(&mut self) {
        let mut out = Vec::new();
        self.client.on_timeout(self.now_ns);
        self.server.on_timeout(self.now_ns);
        while self.client.poll_datagram(self.now_ns, 200, &mut out) {
            assert!(out.len() <= 200);
        }
        while self.server.poll_datagram(self.now_ns, 200, &mut out) {
            assert!(out.len() <= 200);
        }
        for timeout_ns in [self.client.next_timeout(), self.server.next_timeout()] {
            assert!(timeout_ns.is_none_or(|timeout_ns| timeout_ns > self.now_ns));
        }
        assert!(self.client.flow_count() <= SLOTS && self.server.flow_count() <= SLOTS);
        assert_eq!(
            self.client.flows().count(),
            self.client.flow_count() as usize
        );
        assert_eq!(
            self.server.flows().count(),
            self.server.flow_count() as usize
        );
        while self.client.poll_event().is_some() {}
        while self.server.poll_event().is_some() {}
        // `has_events` must agree with `poll_event`, or a driver would spin.
        assert!(!self.client.has_events() && !self.server.has_events());
    }
}

/// Writes the session and epoch of [`SessionEnds::busy`] into a datagram's header, so
/// that it passes the check of those.
pub fn aim(bytes: &mut [u8]) {
    if let Some(session) = bytes.get_mut(8..16) {
        // Session 1 and epoch 1, little endian, in bytes 8 to 16 of the header.
        session.copy_from_slice(&[1, 0, 0, 0, 1, 0, 0, 0]);
    }
}
