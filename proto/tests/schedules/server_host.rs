//! The allocator's process: sessions by connection, the registry, and a service
//! that keeps a flow set from events.

use std::collections::BTreeMap;
use std::sync::Arc;

use ratewright_proto::control::{FrameDecoder, TopologySnapshot};
use ratewright_proto::server::registry::{Claim, Decision, Registry, superseded};
use ratewright_proto::server::{Admission, ServerConfig, ServerEvent, ServerSession};
use ratewright_proto::{FlowId, RateCode, StartRecord};

use crate::clock::Clock;
use crate::network::Connection;
use crate::ops::SLOTS;
use crate::oracle::Oracle;

pub(crate) const LEASE_NS: u64 = 300_000_000;
const LIVENESS_NS: u64 = 1_500_000_000;
/// The one host of these schedules.
const HOST: u32 = 7;

/// One session with what the service knows of it.
pub(crate) struct Served {
    pub(crate) session: ServerSession,
    pub(crate) number: u32,
    pub(crate) frames: FrameDecoder,
    /// The flow set, from events alone.
    pub(crate) flows: BTreeMap<u32, StartRecord>,
    /// The rates that the service has set.
    pub(crate) rates: BTreeMap<FlowId, RateCode>,
    /// The rate before the newest.
    earlier: BTreeMap<FlowId, RateCode>,
}

/// The allocator's process.
pub(crate) struct ServerHost {
    pub(crate) clock: Clock,
    pub(crate) up: bool,
    pub(crate) epoch: u64,
    pub(crate) released: bool,
    pub(crate) topology: Arc<TopologySnapshot>,
    pub(crate) sessions: BTreeMap<Connection, Served>,
    registry: Registry,
    config: Arc<ServerConfig>,
    next_session: u32,
    next_code: u16,
}

fn config(epoch: u64) -> Arc<ServerConfig> {
    Arc::new(ServerConfig {
        epoch,
        lease_ns: LEASE_NS,
        liveness_ns: LIVENESS_NS,
        max_flows: SLOTS,
        max_in_flight: 8,
        first_seq: u32::MAX - 3,
        ..ServerConfig::default()
    })
}

impl ServerHost {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            up: true,
            epoch: 1,
            released: false,
            topology: Arc::new(TopologySnapshot {
                version: 1,
                ..TopologySnapshot::default()
            }),
            sessions: BTreeMap::new(),
            registry: Registry::new(LIVENESS_NS),
            config: config(1),
            next_session: 1,
            next_code: 8_000,
        }
    }

    /// The process dies and leaves nothing. Session numbers begin anew, so
    /// that only the epoch tells the sessions of the incarnations apart.
    pub(crate) fn die(&mut self) {
        self.up = false;
        self.sessions.clear();
        self.registry = Registry::new(LIVENESS_NS);
        self.epoch += 1;
        self.config = config(self.epoch);
        self.next_session = 1;
        self.released = false;
    }

    /// A transport connection comes in.
    pub(crate) fn incoming(&mut self, now_ns: u64, connection: Connection) {
        let served = Served {
            session: ServerSession::new(self.clock.read(now_ns), Arc::clone(&self.config)),
            number: 0,
            frames: FrameDecoder::new(),
            flows: BTreeMap::new(),
            rates: BTreeMap::new(),
            earlier: BTreeMap::new(),
        };
        self.sessions.insert(connection, served);
    }

    /// A rate code that was not used before in this schedule.
    fn fresh_code(&mut self) -> RateCode {
        self.next_code += 1;
        RateCode(self.next_code)
    }

    /// The service computes a rate for the flow on `slot` of every session.
    pub(crate) fn rate(
        &mut self,
        now_ns: u64,
        slot: u32,
        repeat: bool,
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
            let code = match served.earlier.get(&flow) {
                // Sometimes back to where it came from.
                Some(&before) if repeat => before,
                _ => fresh,
            };
            oracle.decided(record.dst_host(), self.epoch, served.number, code);
            if let Some(before) = served.rates.insert(flow, code) {
                served.earlier.insert(flow, before);
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
        connection: Connection,
        oracle: &mut Oracle,
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
                    self.hello(now_ns, connection, claim)?;
                }
                ServerEvent::Start(record) => {
                    let slot = record.flow().slot();
                    if let Some(before) = served.flows.insert(slot, record) {
                        return Err(format!("{record:?} began while {before:?} was on"));
                    }
                    // The engine answers every start with a rate.
                    self.rate(now_ns, slot, false, oracle)?;
                }
                ServerEvent::Update(record) => {
                    let before = served.flows.insert(record.flow().slot(), record);
                    if before.is_none_or(|before| before.flow() != record.flow()) {
                        return Err(format!("{record:?} changed, but {before:?} was on"));
                    }
                }
                ServerEvent::End(flow) => {
                    let before = served.flows.remove(&flow.slot());
                    if before.is_none_or(|before| before.flow() != flow) {
                        return Err(format!("{flow} ended, but {before:?} was on"));
                    }
                    served.rates.remove(&flow);
                    served.earlier.remove(&flow);
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

    fn hello(&mut self, now_ns: u64, connection: Connection, claim: Claim) -> Result<(), String> {
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
            topology: Arc::clone(&self.topology),
            classes: Vec::new(),
            threshold: 0.01,
            released: self.released,
        };
        let Some(served) = self.sessions.get_mut(&connection) else {
            return Err("a Hello from nowhere".to_owned());
        };
        if let Decision::Refuse(refusal) = decision {
            served.session.refuse(refusal);
            return Ok(());
        }
        served.number = number;
        served
            .session
            .accept(now, admission)
            .map_err(|error| error.to_string())
    }

    /// Notes that the session of `connection` was heard.
    pub(crate) fn heard(&mut self, now_ns: u64, connection: Connection) {
        if let Some(served) = self.sessions.get(&connection) {
            self.registry
                .heard(self.clock.read(now_ns), HOST, served.number);
        }
    }

    /// The transport of `connection` is gone.
    pub(crate) fn gone(&mut self, connection: Connection) {
        if let Some(served) = self.sessions.remove(&connection) {
            self.registry.remove(HOST, served.number);
        }
    }

    pub(crate) fn release(&mut self, on: bool) {
        self.released = on;
        for served in self.sessions.values_mut() {
            served.session.set_released(on);
        }
    }

    pub(crate) fn change_topology(&mut self) -> Result<(), String> {
        let topology = Arc::make_mut(&mut self.topology);
        topology.version += 1;
        for served in self.sessions.values_mut() {
            if served.session.is_established() {
                served
                    .session
                    .set_topology(Arc::clone(&self.topology))
                    .map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }
}
