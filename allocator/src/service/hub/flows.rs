//! Flowlet starts and ends become engine events; rates find their way to the flow's session.

use ratewright_proto::records::{FlowId, FlowPath, StartRecord};
use ratewright_topology::{HostId, PathChoice, PathError, Topology};

use crate::engine::{EngineEvent, FlowKey, FlowSpec, LinkPath, RateUpdate};

use super::external::EXTERNAL_SESSION;
use super::session::{Flow, LeftAlone, Place};
use super::{Hub, MAX_ENGINE_BACKLOG};

impl Hub {
    /// Takes one datagram of a session; true if it was taken. One that cannot be taken changes nothing
    /// but a counter.
    pub fn on_datagram(&mut self, now_ns: u64, id: u32, bytes: &[u8]) -> bool {
        let Some(session) = self.sessions.get_mut(&id) else {
            return false;
        };
        if session.closing.is_some() {
            self.counts.datagrams_dropped.count("closing");
            return false;
        }
        if !session.starts.has_credit(now_ns) {
            self.counts.datagrams_dropped.count("start_rate");
            return false;
        }
        if !session.datagrams.has_credit(now_ns) {
            self.counts.datagrams_dropped.count("datagram_rate");
            return false;
        }
        session.datagrams.spend(1);
        if self.engine_events.len() >= MAX_ENGINE_BACKLOG {
            self.counts.datagrams_dropped.count("engine_backlog");
            return false;
        }
        let result = session.proto.on_datagram(now_ns, bytes);
        match result {
            Ok(()) => self.counts.datagrams_received += 1,
            Err(error) => self
                .counts
                .datagrams_dropped
                .count(super::reasons::datagram(error)),
        }
        self.take_events(now_ns, id);
        result.is_ok()
    }

    /// Hands a rate to its flow's session, unless the flow has ended meanwhile.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the engine's rates are finite and not negative; rounding down never over-allocates"
    )]
    pub fn on_rate(&mut self, now_ns: u64, update: RateUpdate) {
        if update.key.session() == EXTERNAL_SESSION {
            self.on_dummy_rate(update.key.flow_id(), update.rate_bps);
            return;
        }
        let flow_id = FlowId(update.key.flow_id());
        if let Some(session) = self.sessions.get_mut(&update.key.session())
            && let Some(flow) = session.flows.get_mut(flow_id.slot())
            && flow.id() == flow_id
            && flow.place == Place::Engine
            && session
                .proto
                .set_rate(now_ns, flow_id, update.rate_bps as u64)
                .is_ok()
        {
            self.counts.updates += 1;
            let touched = std::mem::replace(&mut session.touched, true);
            if !std::mem::replace(&mut flow.answered, true) {
                // Ahead of all whose flows have a rate already: a flowlet's wait for its first rate is what
                // users feel, and every host that is told before it adds to that.
                self.touched_first.push(session.id);
            } else if !touched {
                self.touched.push(session.id);
            }
        } else {
            self.counts.updates_stale += 1;
        }
    }

    /// A flowlet starts, or one that is known is described anew.
    pub(super) fn start(&mut self, now_ns: u64, id: u32, record: StartRecord) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        self.counts.starts += 1;
        session.starts.spend(1);
        let slot = record.flow().slot();
        if let Some(old) = session.flows.get(slot).copied()
            && old.id() != record.flow()
        {
            // The slot's next flowlet: the end of the one before was lost or overtaken.
            self.end(id, old.id());
        }
        let place = self.place(now_ns, id, &record);
        if let Some(session) = self.sessions.get_mut(&id) {
            session.flows.insert(
                slot,
                Flow {
                    record,
                    place,
                    answered: false,
                },
            );
        }
    }

    /// A flowlet ends.
    pub(super) fn end(&mut self, id: u32, flow_id: FlowId) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let slot = flow_id.slot();
        if session
            .flows
            .get(slot)
            .is_none_or(|flow| flow.id() != flow_id)
        {
            return;
        }
        self.counts.ends += 1;
        if let Some(flow) = session.flows.remove(slot)
            && flow.place == Place::Engine
        {
            session.placed -= 1;
            self.placed -= 1;
            self.engine_events
                .push_back(EngineEvent::End(FlowKey::new(id, flow_id.0)));
        }
    }

    /// Puts a flow before the engine, or says why not. Its former place, if any, is given up.
    pub(super) fn place(&mut self, now_ns: u64, id: u32, record: &StartRecord) -> Place {
        let Some(session) = self.sessions.get(&id) else {
            return Place::Alone(LeftAlone::UnknownHost);
        };
        let Some(peer) = &session.peer else {
            return Place::Alone(LeftAlone::UnknownHost);
        };
        let source = peer.host;
        let before = session
            .flows
            .get(record.flow().slot())
            .filter(|flow| flow.id() == record.flow())
            .map(|flow| flow.place);
        let spec = self.spec(id, source, record).and_then(|spec| {
            let room =
                before == Some(Place::Engine) || self.placed < self.settings.limits.max_flows;
            if room {
                Ok(spec)
            } else {
                Err(LeftAlone::TableFull)
            }
        });
        let Some(session) = self.sessions.get_mut(&id) else {
            return Place::Alone(LeftAlone::UnknownHost);
        };
        match spec {
            Ok(spec) => {
                if before != Some(Place::Engine) {
                    session.placed += 1;
                    self.placed += 1;
                }
                self.engine_events.push_back(EngineEvent::Start(spec));
                Place::Engine
            }
            Err(reason) => {
                if before == Some(Place::Engine) {
                    session.placed -= 1;
                    self.placed -= 1;
                    self.engine_events
                        .push_back(EngineEvent::End(FlowKey::new(id, record.flow().0)));
                    // No rate from now on, rather than the last one until the lease runs out.
                    if session.proto.set_rate(now_ns, record.flow(), 0).is_ok() {
                        self.touch(id);
                    }
                }
                if before != Some(Place::Alone(reason)) {
                    self.counts.flows_left_alone.count(reason.reason());
                }
                Place::Alone(reason)
            }
        }
    }

    /// What the engine has to know about a flow.
    #[allow(clippy::cast_precision_loss, reason = "rates are far below 2^53 bit/s")]
    fn spec(&self, id: u32, source: HostId, record: &StartRecord) -> Result<FlowSpec, LeftAlone> {
        let class = record.class();
        if !self
            .class_known
            .get(usize::from(class))
            .copied()
            .unwrap_or(false)
        {
            return Err(LeftAlone::UnknownClass);
        }
        let links = links(&self.topology, source, record)?;
        let demand = record.demand();
        Ok(FlowSpec {
            key: FlowKey::new(id, record.flow().0),
            links,
            class,
            weight: record.weight().decode(),
            demand_bps: if demand.is_none() {
                f64::INFINITY
            } else {
                demand.decode() as f64
            },
        })
    }
}

/// The links of a flow in a topology.
pub(super) fn links(
    topology: &Topology,
    source: HostId,
    record: &StartRecord,
) -> Result<LinkPath, LeftAlone> {
    let choice = match record.path() {
        FlowPath::Hash(hash) => PathChoice::Hash(hash),
        FlowPath::Explicit(route) => PathChoice::Explicit(route),
    };
    match topology.path(source, HostId(record.dst_host()), choice) {
        Ok(path) => Ok(path.iter().map(|link| link.0).collect()),
        Err(PathError::UnknownHost(_)) => Err(LeftAlone::UnknownHost),
        Err(PathError::SameHost(_)) => Err(LeftAlone::SameHost),
        Err(
            PathError::HostCutOff { .. }
            | PathError::NoRoute { .. }
            | PathError::RouteOutOfRange { .. }
            | PathError::RouteDown { .. },
        ) => Err(LeftAlone::Unroutable),
    }
}
