//! Process of the allocator: sessions by connection, the registry, and a service that keeps a flow
//! set from events.

use std::collections::BTreeMap;
use std::sync::Arc;

use ratewright_proto::control::{
    AccessCapacity, EncodedTopology, FrameDecoder, SealedUdp, TopologySnapshot,
};
use ratewright_proto::sealed::Cipher;
use ratewright_proto::server::registry::{Claim, Decision, Registry, superseded};
use ratewright_proto::server::{Admission, FlowChange, ServerConfig, ServerEvent, ServerSession};
use ratewright_proto::{FlowId, RateCode, StartRecord};

use super::clock::Clock;
use super::network::ConnectionNumber;
use super::ops::{Choice, SLOTS};
use super::oracle::Oracle;
use super::sealed::ServerEnd;

pub(crate) const LEASE_NS: u64 = 300_000_000;
const LIVENESS_NS: u64 = 1_500_000_000;
/// The one host of these schedules.
const HOST: u32 = 7;

/// One session, with the service's state of it.
pub(crate) struct Served {
    pub(crate) session: ServerSession,
    pub(crate) number: u32,
    pub(crate) frames: FrameDecoder,
    /// Its sealed datagrams, if it has any.
    pub(crate) sealed: Option<ServerEnd>,
    /// Flow set, from events alone.
    pub(crate) flows: BTreeMap<u32, StartRecord>,
    /// The rates that the service has set.
    pub(crate) rates: BTreeMap<FlowId, RateCode>,
    /// The rate before the newest, of each slot.
    earlier: BTreeMap<u32, RateCode>,
}

/// The allocator's process.
pub(crate) struct ServerHost {
    pub(crate) clock: Clock,
    pub(crate) up: bool,
    pub(crate) epoch: u64,
    pub(crate) released: bool,
    /// States of the kill switch, each with its beginning.
    release_history: Vec<(u64, bool)>,
    pub(crate) topology: Arc<TopologySnapshot>,
    pub(crate) sessions: BTreeMap<ConnectionNumber, Served>,
    registry: Registry,
    config: Arc<ServerConfig>,
    next_session: u32,
    next_code: u16,
}

fn config(epoch: u64, max_in_flight: usize) -> Arc<ServerConfig> {
    Arc::new(ServerConfig {
        epoch,
        lease_ns: LEASE_NS,
        liveness_ns: LIVENESS_NS,
        max_flows: SLOTS,
        max_in_flight,
        updates_in_flight: 2,
        update_interval_ns: 1_000_000,
        first_seq: u32::MAX - 3,
        ..ServerConfig::default()
    })
}

impl ServerHost {
    pub(crate) fn new(clock: Clock, max_in_flight: usize) -> Self {
        Self {
            clock,
            up: true,
            epoch: 1,
            released: false,
            release_history: vec![(0, false)],
            topology: Arc::new(TopologySnapshot {
                version: 1,
                ..TopologySnapshot::default()
            }),
            sessions: BTreeMap::new(),
            registry: Registry::new(LIVENESS_NS),
            config: config(1, max_in_flight),
            next_session: 1,
            next_code: 8_000,
        }
    }

    /// Ends the process, without a trace. Session numbers start from 1 again, so only the epoch
    /// distinguishes the sessions of the incarnations.
    pub(crate) fn die(&mut self, now_ns: u64) {
        self.up = false;
        self.sessions.clear();
        self.registry = Registry::new(LIVENESS_NS);
        self.epoch += 1;
        self.config = config(self.epoch, self.config.max_in_flight);
        self.next_session = 1;
        // A new incarnation begins without the kill switch, and the Welcome must say so.
        self.release(now_ns, false);
    }

    /// A transport connection comes in.
    pub(crate) fn incoming(&mut self, now_ns: u64, connection: ConnectionNumber) {
        let served = Served {
            session: ServerSession::new(self.clock.read(now_ns), Arc::clone(&self.config)),
            number: 0,
            frames: FrameDecoder::new(),
            sealed: None,
            flows: BTreeMap::new(),
            rates: BTreeMap::new(),
            earlier: BTreeMap::new(),
        };
        self.sessions.insert(connection, served);
    }

    /// A rate code that was not used before in this schedule.
    fn fresh_code(&mut self) -> RateCode {
        // Neighbouring codes are distinct rates, so the oracle can name the decision by the code.
        self.next_code += 1;
        RateCode(self.next_code)
    }

    /// The service computes a rate for the flow on `slot` of every session.
    pub(crate) fn rate(
        &mut self,
        now_ns: u64,
        slot: u32,
        choice: Choice,
        oracle: &mut Oracle,
    ) -> Result<(), String> {
        let connections: Vec<_> = self.sessions.keys().copied().collect();
        for connection in connections {
            let fresh = self.fresh_code();
            let Some(served) = self.sessions.get_mut(&connection) else {
                continue;
            };
            let Some(record) = served.flows.get(&slot).copied() else {
                continue;
            };
            let flow = record.flow();
            let code = match choice {
                Choice::Fresh => None,
                Choice::Same => served.rates.get(&flow),
                Choice::Earlier => served.earlier.get(&slot),
            };
            let code = code.copied().unwrap_or(fresh);
            oracle.decided(record.dst_host(), self.epoch, served.number, code);
            if let Some(before) = served.rates.insert(flow, code) {
                served.earlier.insert(slot, before);
            }
            let now = self.clock.read(now_ns);
            served
                .session
                .set_rate(now, flow, code.decode())
                .map_err(|error| format!("the service's flow is unknown: {error}"))?;
        }
        Ok(())
    }

    /// Acts on the events of one session.
    pub(crate) fn events(
        &mut self,
        now_ns: u64,
        connection: ConnectionNumber,
    ) -> Result<(), String> {
        loop {
            let Some(served) = self.sessions.get_mut(&connection) else {
                return Ok(());
            };
            let Some(event) = served.session.poll_event() else {
                return Ok(());
            };
            match event {
                ServerEvent::Hello(hello) => {
                    let claim = Claim {
                        incarnation: hello.incarnation,
                        attempt: hello.attempt,
                    };
                    self.hello(now_ns, connection, claim, hello.sealed_udp)?;
                }
                ServerEvent::ReleaseAck { .. } | ServerEvent::Telemetry(_) => {}
                ServerEvent::Refused(refusal) => return Err(format!("refused: {refusal:?}")),
                ServerEvent::PeerLost(_) => {
                    let number = served.number;
                    self.registry.remove(HOST, number);
                }
            }
        }
    }

    /// Takes a datagram of a session, and acts on what it changes. Returns false if it was refused.
    pub(crate) fn datagram(
        &mut self,
        now_ns: u64,
        connection: ConnectionNumber,
        bytes: &[u8],
        oracle: &mut Oracle,
    ) -> Result<bool, String> {
        let server_now = self.clock.read(now_ns);
        let Some(served) = self.sessions.get_mut(&connection) else {
            return Ok(false);
        };
        let mut changes = Vec::new();
        let told = |change| changes.push(change);
        if served.session.on_datagram(server_now, bytes, told).is_err() {
            return Ok(false);
        }
        for change in changes {
            self.change(now_ns, connection, change, oracle)?;
        }
        Ok(true)
    }

    fn change(
        &mut self,
        now_ns: u64,
        connection: ConnectionNumber,
        change: FlowChange,
        oracle: &mut Oracle,
    ) -> Result<(), String> {
        let Some(served) = self.sessions.get_mut(&connection) else {
            return Err(format!("{change:?} without a session"));
        };
        match change {
            FlowChange::Start(record) => {
                let slot = record.flow().slot();
                if let Some(before) = served.flows.insert(slot, record) {
                    return Err(format!("{record:?} began while {before:?} was on"));
                }
                // The engine gives every new flow a rate. It may equal the previous flow's, which
                // the oracle must distinguish.
                let choice = match record.dst_host() % 3 {
                    0 => Choice::Earlier,
                    _ => Choice::Fresh,
                };
                self.rate(now_ns, slot, choice, oracle)?;
            }
            FlowChange::Update { before, record } => {
                let known = served.flows.insert(record.flow().slot(), record);
                if known != Some(before) || before.flow() != record.flow() {
                    return Err(format!(
                        "{before:?} became {record:?}, but {known:?} was on"
                    ));
                }
            }
            FlowChange::End(flow, _) => {
                let before = served.flows.remove(&flow.slot());
                if before.is_none_or(|before| before.flow() != flow) {
                    return Err(format!("{flow} ended, but {before:?} was on"));
                }
                if let Some(code) = served.rates.remove(&flow) {
                    served.earlier.insert(flow.slot(), code);
                }
            }
        }
        Ok(())
    }

    fn hello(
        &mut self,
        now_ns: u64,
        connection: ConnectionNumber,
        claim: Claim,
        seals: bool,
    ) -> Result<(), String> {
        let number = self.next_session;
        self.next_session += 1;
        let now = self.clock.read(now_ns);
        let decision = self.registry.register(now, HOST, number, claim);
        if let Decision::Supersede { session } = decision {
            for served in self.sessions.values_mut() {
                if served.number == session {
                    served.session.refuse(superseded());
                }
            }
        }
        let admission = Admission {
            session: number,
            host_id: HOST,
            topology: EncodedTopology::from(&*self.topology),
            classes: Vec::new(),
            threshold: 0.01,
            released: self.released,
            observe: false,
            sealed_udp: seals.then_some(SealedUdp {
                port: 7_601,
                address: None,
                cipher: Cipher::default(),
            }),
            telemetry_interval_ns: 0,
            telemetry_sync: None,
            access: AccessCapacity::default(),
        };
        let epoch = self.epoch;
        let Some(served) = self.sessions.get_mut(&connection) else {
            return Err("a Hello from nowhere".to_owned());
        };
        if let Decision::Refuse(refusal) = decision {
            served.session.refuse(refusal);
            return Ok(());
        }
        served.number = number;
        served.sealed = seals.then(|| ServerEnd::new(epoch, number));
        served
            .session
            .accept(now, admission)
            .map_err(|error| error.to_string())
    }

    /// Reports to the registry that the session of `connection` is alive.
    pub(crate) fn heard(&mut self, now_ns: u64, connection: ConnectionNumber) {
        if let Some(served) = self.sessions.get(&connection) {
            self.registry
                .heard(self.clock.read(now_ns), HOST, served.number);
        }
    }

    /// Removes the session of `connection`, whose transport is gone.
    pub(crate) fn gone(&mut self, connection: ConnectionNumber) {
        if let Some(served) = self.sessions.remove(&connection) {
            self.registry.remove(HOST, served.number);
        }
    }

    pub(crate) fn release(&mut self, now_ns: u64, on: bool) {
        self.released = on;
        self.release_history.push((now_ns, on));
        for served in self.sessions.values_mut() {
            served.session.set_released(on);
        }
    }

    /// State of the kill switch at `at_ns`.
    pub(crate) fn released_at(&self, at_ns: u64) -> bool {
        let since = self
            .release_history
            .iter()
            .rfind(|(since_ns, _)| *since_ns <= at_ns);
        since.is_some_and(|&(_, on)| on)
    }

    pub(crate) fn change_topology(&mut self) -> Result<(), String> {
        let topology = Arc::make_mut(&mut self.topology);
        topology.version += 1;
        for served in self.sessions.values_mut() {
            if served.session.is_established() {
                served
                    .session
                    .set_topology(EncodedTopology::from(&*self.topology))
                    .map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }
}
