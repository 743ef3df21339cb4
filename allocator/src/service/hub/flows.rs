//! Flowlet starts and ends as engine events, and rate updates to sessions.
//!
//! A session goes by its position among the sessions here, which stands until one of them leaves:
//! one look-up by its number serves a datagram.

use std::num::NonZeroU32;

use ratewright_proto::records::{FlowId, FlowPath, StartRecord};
use ratewright_proto::server::FlowChange;
use ratewright_proto::telemetry::AccessUse;
use ratewright_topology::{HostId, PathChoice, PathError, Topology};

use crate::engine::{
    DurationHistogram, EngineEvent, FlowNumber, FlowNumbers, FlowSpec, LinkPath, RateUpdate,
};
use crate::shared_links::FlowKind;

use super::class_rules::ClassRules;
use super::session::{Session, Tallies};
use super::session_flows::{FlowOwner, HubFlow, Placement, UnmanagedReason};
use super::sweep::{MAX_EVENTS, Sweep};
use super::{Hub, HubSettings, MAX_ENGINE_BACKLOG, TokenBucket};

/// Retry interval of flows that wait for credit of the budget of all sessions.
const CREDIT_RETRY_NS: u64 = 100_000_000;

/// Minimum wait of a session without credit, so that its flows are served together.
const MIN_WAIT_NS: u64 = 1_000_000;

/// Deferred flows that are served in one go.
const DEFERRED_AT_ONCE: usize = 256;

/// The engine's numbers of flows, their placement, and the budget for them.
pub(super) struct Flows {
    /// Number of the engine in force. Each replacement has the next number.
    pub(super) engine_number: u8,
    /// Numbers of the flows that this engine has.
    pub(super) numbers: FlowNumbers<FlowOwner>,
    /// Flows by placement, over all sessions.
    pub(super) tallies: Tallies,
    pub(super) class_rules: ClassRules,
    /// Budget of all sessions for starts and demand changes.
    pub(super) starts: TokenBucket,
    /// Changes that a datagram brings, while they are taken.
    changes: Vec<FlowChange<HubFlow>>,
    /// Durations from taking a start to handing its first rate to its session.
    pub(super) first_rates: DurationHistogram,
    pub(super) sweep: Sweep,
}

impl Flows {
    /// Begins without a flow, on a network of so many links.
    pub(super) fn new(settings: &HubSettings, links: u32) -> Self {
        Self {
            engine_number: 0,
            numbers: FlowNumbers::new(links),
            tallies: Tallies::default(),
            class_rules: ClassRules::new(&settings.classes),
            starts: TokenBucket::new(settings.limits.max_total_starts_per_s, 0),
            changes: Vec::new(),
            first_rates: DurationHistogram::default(),
            sweep: Sweep::default(),
        }
    }

    /// Puts other settings in force.
    pub(super) fn reconfigure(&mut self, settings: &HubSettings) {
        self.class_rules = ClassRules::new(&settings.classes);
        self.starts.set_rate(settings.limits.max_total_starts_per_s);
    }

    /// Begins with the next engine, which has no flow, on a network of so many links. The flows of
    /// `sessions` follow by a sweep.
    pub(super) fn restart(&mut self, links: u32, sessions: impl Iterator<Item = u32>) {
        self.engine_number = self.engine_number.wrapping_add(1);
        self.numbers.restart(links);
        self.sweep.restart(sessions);
    }
}

impl Hub {
    /// Takes one datagram of a session; true if it was taken. A datagram that is refused changes
    /// only a counter.
    pub fn on_datagram(&mut self, now_ns: u64, id: u32, bytes: &[u8]) -> bool {
        let Some(position) = self.sessions.position(id) else {
            return false;
        };
        let session = &mut self.sessions[position];
        if session.closing.is_some() {
            self.counts.datagrams_dropped.count("closing");
            return false;
        }
        // Before the protocol sees it: a dropped datagram is not acknowledged, so the host repeats
        // its records, and nothing is lost.
        if !session.starts.has_credit(now_ns) {
            self.counts.datagrams_dropped.count("start_rate");
            return false;
        }
        if !session.datagrams.has_credit(now_ns) {
            self.counts.datagrams_dropped.count("datagram_rate");
            return false;
        }
        session.datagrams.spend(1);
        // An engine that stalls must not make the queue grow without bound.
        if self.network.engine_events.len() >= MAX_ENGINE_BACKLOG {
            self.counts.datagrams_dropped.count("engine_backlog");
            return false;
        }
        let mut changes = std::mem::take(&mut self.flows.changes);
        let told = |change| changes.push(change);
        let result = session.proto.on_datagram(now_ns, bytes, told);
        for change in changes.drain(..) {
            match change {
                FlowChange::Start(record) => self.start(now_ns, position, record),
                FlowChange::Update { before, record } => {
                    self.update(now_ns, position, &before, record);
                }
                FlowChange::End(id, flow) => self.end(now_ns, position, id.slot(), flow),
            }
        }
        self.flows.changes = changes;
        match result {
            Ok(()) => self.counts.datagrams_received += 1,
            Err(error) => self
                .counts
                .datagrams_dropped
                .count(super::reasons::datagram(error)),
        }
        self.ready.mark(&mut self.sessions[position]);
        result.is_ok()
    }

    /// Hands a rate to its flow's session, unless the flow has ended meanwhile.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the engine's rates are finite and not negative; rounding down never over-allocates"
    )]
    pub fn on_rate(&mut self, now_ns: u64, update: RateUpdate) {
        // Dummy flows stand for traffic of others, which no session carries.
        if self.network.feeds.external_mut().on_rate(&update) {
            return;
        }
        // A flow that has ended meanwhile has lost its number.
        if let Some(&owner) = self.flows.numbers.owner(update.number)
            && let Some(session) = self.sessions.get_mut(owner.session)
            && session
                .proto
                .set_rate(now_ns, owner.flow, update.rate_bps as u64)
                .is_ok()
            && let Some(flow) = session.proto.state_mut(owner.flow)
        {
            self.counts.updates += 1;
            if let Some(started_us) = flow.started_us.take() {
                let waited_us = microseconds(now_ns).get().wrapping_sub(started_us.get());
                self.flows.first_rates.record(u64::from(waited_us) * 1_000);
            }
            if !std::mem::replace(&mut flow.has_rate, true) {
                self.ready.mark_first(session);
            } else {
                self.ready.mark(session);
            }
        } else {
            self.counts.updates_stale += 1;
        }
    }

    /// Starts a flowlet, or replaces the description of an active one.
    pub(super) fn start(&mut self, now_ns: u64, position: usize, record: StartRecord) {
        let session = &mut self.sessions[position];
        self.counts.starts += 1;
        session.starts.spend(1);
        // The datagram that started it may have ended it, too.
        if session.proto.rate_of(record.flow()).is_none() {
            return;
        }
        let budgeted = self.flows.starts.has_credit(now_ns);
        if budgeted {
            self.flows.starts.spend(1);
        }
        // Without credit too: the table then has it as unmanaged, so that its end and its retry
        // find it.
        self.place(now_ns, position, &record, budgeted);
        if !budgeted {
            self.defer(position, record.flow().slot(), now_ns + CREDIT_RETRY_NS);
        }
    }

    /// Takes another description of an active flowlet. If only its demand differs, its path stays.
    pub(super) fn update(
        &mut self,
        now_ns: u64,
        position: usize,
        before: &StartRecord,
        record: StartRecord,
    ) {
        let session = &mut self.sessions[position];
        let slot = record.flow().slot();
        let engine_number = self.flows.engine_number;
        let is_demand = before.with_demand(record.demand()) == record;
        let flow = session.proto.state_mut(record.flow());
        let Some(flow) = flow.filter(|flow| is_demand && flow.is_allocated()) else {
            return self.start(now_ns, position, record);
        };
        self.counts.demand_changes += 1;
        let is_paced = flow.counted == Some(FlowKind::Paced);
        let more = demand_bps(&record) > demand_bps(before);
        // A flow that the engine does not have yet will reach it with this record.
        if flow.engine_number != engine_number
            || self.flows.class_rules.ignores_demand(record.class())
        {
            return;
        }
        // A flow that can use more waits for a higher rate as a new one waits for its first.
        flow.has_rate &= !more;
        if !is_paced {
            self.recount(now_ns, position, slot);
        }
        let session = &mut self.sessions[position];
        if session.flows.deferred() > 0 {
            // In turn, behind the flows that have waited longer.
            session.flows.defer(slot);
            return;
        }
        match self.demand_credit(now_ns, position) {
            Ok(()) => self.push_demand(position, slot),
            Err(retry_ns) => {
                self.counts.demand_changes_deferred += 1;
                self.defer(position, slot, retry_ns);
            }
        }
    }

    /// Takes credit for a demand change from the budgets of the session and of all sessions.
    ///
    /// # Errors
    /// There is no credit. The error is the time of the next attempt.
    fn demand_credit(&mut self, now_ns: u64, position: usize) -> Result<(), u64> {
        let session = &mut self.sessions[position];
        if let Some(wait_ns) = session.demands.wait_ns(now_ns) {
            return Err(now_ns + wait_ns.max(MIN_WAIT_NS));
        }
        // The session's own budget first: its wait is known exactly, while the common one is
        // refilled for all sessions at once.
        if !self.flows.starts.has_credit(now_ns) {
            return Err(now_ns + CREDIT_RETRY_NS);
        }
        // Charged only once both have credit, so a refused change costs nothing.
        session.demands.spend(1);
        self.flows.starts.spend(1);
        Ok(())
    }

    /// Queues the flow on a slot until there is credit.
    fn defer(&mut self, position: usize, slot: u32, retry_ns: u64) {
        let session = &mut self.sessions[position];
        session.flows.defer(slot);
        session.deferred_ns.get_or_insert(retry_ns);
        // For its timeout.
        self.ready.mark(session);
    }

    /// Serves a session's deferred flows as far as credit reaches, at most [`DEFERRED_AT_ONCE`] of
    /// them, so that other sessions do not wait.
    pub(super) fn serve_deferred(&mut self, now_ns: u64, position: usize) {
        for _ in 0..DEFERRED_AT_ONCE {
            if self.sessions[position].flows.deferred() == 0 {
                break;
            }
            let credit = self.demand_credit(now_ns, position);
            let session = &mut self.sessions[position];
            if let Err(retry_ns) = credit {
                session.deferred_ns = Some(retry_ns);
                return;
            }
            let Some(slot) = session.flows.pop_deferred() else {
                break;
            };
            match session.flow(slot) {
                Some((_, flow)) if flow.number_in(self.flows.engine_number).is_some() => {
                    self.push_demand(position, slot);
                }
                Some((record, flow))
                    if flow.placement == Placement::Unmanaged(UnmanagedReason::StartRate) =>
                {
                    self.place(now_ns, position, &record, true);
                }
                // It has ended, or needs no credit any more.
                _ => {}
            }
        }
        let session = &mut self.sessions[position];
        session.deferred_ns = (session.flows.deferred() > 0).then_some(now_ns);
    }

    /// Sends a flow's present demand to the engine. Its path stays.
    pub(super) fn push_demand(&mut self, position: usize, slot: u32) {
        let session = &self.sessions[position];
        let Some((record, flow)) = session.flow(slot) else {
            return;
        };
        // A start with a known key replaces the flow's parameters in the engine.
        let links = session.flows.path(slot).iter().copied().collect();
        if let Some(number) = flow.number_in(self.flows.engine_number) {
            let spec = self.spec(session, &record, number, links);
            self.network
                .engine_events
                .push_back(EngineEvent::Start(spec));
        }
    }

    /// Ends a flowlet that was on a slot, in this state.
    fn end(&mut self, now_ns: u64, position: usize, slot: u32, flow: Option<HubFlow>) {
        self.counts.ends += 1;
        // Without a state its datagram had started it, too.
        let Some(flow) = flow else {
            return;
        };
        let session = &mut self.sessions[position];
        if let Some(kind) = flow.counted_by(self.flows.engine_number) {
            self.network
                .shared
                .remove(now_ns, session.flows.path(slot), kind);
        }
        let had_beyond = session.has_beyond();
        self.flows
            .tallies
            .change(session, Some(flow.placement), None);
        let was_last_beyond = had_beyond && !session.has_beyond();
        if let Some(number) = flow.number_in(self.flows.engine_number) {
            self.flows.numbers.give_back(number);
            self.network
                .engine_events
                .push_back(EngineEvent::End(number));
        }
        if was_last_beyond {
            (self.network).note_flows_beyond(now_ns, &self.sessions[position]);
        }
        self.network.push_shared(&mut self.counts);
    }

    /// Hands a flow to the engine or leaves it unmanaged, in place of its former placement. A new
    /// flow, or one whose description has changed, must be within the budget.
    pub(super) fn place(
        &mut self,
        now_ns: u64,
        position: usize,
        record: &StartRecord,
        budgeted: bool,
    ) {
        let session = &self.sessions[position];
        let id = session.id;
        let slot = record.flow().slot();
        let before = session.proto.state(record.flow()).copied();
        let stood = before.is_some_and(|flow| flow.is_allocated());
        let number = before.and_then(|flow| flow.number_in(self.flows.engine_number));
        let path = match &session.peer {
            None => Err(UnmanagedReason::UnknownHost),
            Some(_) if !budgeted => Err(UnmanagedReason::StartRate),
            Some(_) if !self.flows.class_rules.is_known(record.class()) => {
                Err(UnmanagedReason::UnknownClass)
            }
            Some(peer) => {
                self.counts.paths += 1;
                links(&self.network.topology, peer.host, record)
            }
        };
        // A flow that already has a place keeps it even if the limit has been lowered.
        let room = stood || self.flows.tallies.allocated < self.settings.limits.max_flows;
        let path = path.and_then(|path| room.then_some(path).ok_or(UnmanagedReason::TableFull));
        let (placement, path) = match path {
            Ok(path) => {
                let owner = FlowOwner {
                    session: id,
                    flow: record.flow(),
                };
                let number = number.unwrap_or_else(|| self.flows.numbers.take(owner));
                let spec = self.spec(session, record, number, path.clone());
                self.network
                    .engine_events
                    .push_back(EngineEvent::Start(spec));
                (Placement::Allocated(number), path)
            }
            Err(reason) => {
                // An engine that does not have the flow would refuse its end.
                if let Some(number) = number {
                    self.flows.numbers.give_back(number);
                    self.network
                        .engine_events
                        .push_back(EngineEvent::End(number));
                }
                if before.is_none_or(|flow| flow.placement != Placement::Unmanaged(reason)) {
                    self.counts.flows_unmanaged.count(reason.reason());
                }
                (Placement::Unmanaged(reason), LinkPath::new())
            }
        };
        let session = &mut self.sessions[position];
        if let Some(kind) = before.and_then(|flow| flow.counted_by(self.flows.engine_number)) {
            self.network
                .shared
                .remove(now_ns, session.flows.path(slot), kind);
        }
        let peer = session.peer.as_ref().filter(|_| !path.is_empty());
        let counted = peer.and_then(|peer| {
            let kind = session.kind_of(&self.network.topology, record)?;
            self.network.shared.add(now_ns, &path, kind, peer.host);
            Some(kind)
        });
        let had_beyond = session.has_beyond();
        self.flows
            .tallies
            .change(session, before.map(|flow| flow.placement), Some(placement));
        // Told again while it stands: another topology makes the check forget it.
        let beyond_changed = session.has_beyond() || had_beyond;
        let flow = HubFlow {
            placement,
            has_rate: false,
            // A flow that is only placed anew goes on waiting, or has its rate already.
            started_us: match before {
                None => Some(microseconds(now_ns)),
                Some(before) => before.started_us,
            },
            engine_number: self.flows.engine_number,
            counted,
        };
        session.proto.set_state(record.flow(), flow);
        session.flows.set_path(slot, path);
        // Zero withdraws the rate now; otherwise the host would use the last one until its lease
        // ends.
        if stood && !flow.is_allocated() && session.proto.set_rate(now_ns, record.flow(), 0).is_ok()
        {
            self.ready.mark(session);
        }
        if beyond_changed {
            (self.network).note_flows_beyond(now_ns, &self.sessions[position]);
        }
        self.network.push_shared(&mut self.counts);
    }

    /// Counts the flow on a slot anew, after its host's conduct or its demand has changed.
    fn recount(&mut self, now_ns: u64, position: usize, slot: u32) {
        let engine_number = self.flows.engine_number;
        let session = &mut self.sessions[position];
        let (Some((record, flow)), Some(peer)) = (session.flow(slot), &session.peer) else {
            return;
        };
        if flow.number_in(engine_number).is_none() {
            return;
        }
        let kind = session.kind_of(&self.network.topology, &record);
        if kind == flow.counted {
            return;
        }
        let path = session.flows.path(slot);
        if let Some(before) = flow.counted {
            self.network.shared.remove(now_ns, path, before);
        }
        if let Some(kind) = kind {
            self.network.shared.add(now_ns, path, kind, peer.host);
        }
        if let Some(flow) = session.proto.state_mut(record.flow()) {
            flow.counted = kind;
        }
        self.network.push_shared(&mut self.counts);
    }

    /// Takes what a host tells of its own links and of its own conduct.
    pub(super) fn on_access_use(&mut self, now_ns: u64, id: u32, access_use: &AccessUse) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let Some(host) = session.peer.as_ref().map(|peer| peer.host) else {
            return;
        };
        if std::mem::replace(&mut session.observes, access_use.observes) != access_use.observes {
            self.pacing_changed(now_ns, [id]);
        }
        let network = &mut self.network;
        (network.shared).tell(now_ns, host, access_use.clone(), &network.topology);
        let hosts = self.admission.hosts(&self.sessions);
        if let Some(session) = self.sessions.get(id) {
            network.tell_link_check(now_ns, session, access_use, hosts);
        }
        network.push_shared(&mut self.counts);
    }

    /// Notes that hosts begin or cease to pace. Their flows are counted anew in slices, by the
    /// sweep.
    pub(super) fn pacing_changed(&mut self, now_ns: u64, ids: impl IntoIterator<Item = u32>) {
        let mut changed = Vec::new();
        for id in ids {
            if let Some(session) = self.sessions.get(id)
                && let Some(peer) = &session.peer
            {
                let shared = &mut self.network.shared;
                shared.set_paces(now_ns, peer.host, session.paces());
                changed.push(id);
            }
        }
        self.flows.sweep.extend(&changed);
        self.network.push_shared(&mut self.counts);
    }

    /// True if [`sweep`](Self::sweep) has something to do and the engine's backlog has room.
    pub fn can_sweep(&self) -> bool {
        !self.flows.sweep.is_idle() && self.network.engine_events.len() < MAX_EVENTS
    }

    /// True while a new engine does not have all flows: its rates so far give some flows too much.
    pub fn is_restarting(&self) -> bool {
        self.flows.sweep.is_restarting()
    }

    /// True while a sweep is under way.
    pub fn is_rerouting(&self) -> bool {
        !self.flows.sweep.is_idle()
    }

    /// Visits at most `max` slots of flow tables. True if more remain.
    pub fn sweep(&mut self, now_ns: u64, max: usize) -> bool {
        let mut left = max;
        while left > 0 && self.can_sweep() {
            let Some((id, from)) = self.flows.sweep.next() else {
                break;
            };
            // A session without flows costs one slot, so that many of them do not make a slice
            // long.
            left -= 1;
            let position = self.sessions.position(id);
            let end = position.map_or(0, |position| self.sessions[position].proto.slots());
            // One flow adds at most one event, so the backlog stays below twice MAX_EVENTS.
            let room = u32::try_from(left.min(MAX_EVENTS)).unwrap_or(u32::MAX);
            let until = end.min(from.saturating_add(room));
            if let Some(position) = position {
                (from..until).for_each(|slot| self.revisit(now_ns, position, slot));
            }
            left -= until.saturating_sub(from) as usize;
            self.flows.sweep.visited((until < end).then_some(until));
        }
        for link in self.flows.sweep.take_dead_links(now_ns) {
            self.network.push_capacity(link);
        }
        !self.flows.sweep.is_idle()
    }

    /// Renews the path and the placement of the flow on a slot.
    fn revisit(&mut self, now_ns: u64, position: usize, slot: u32) {
        let session = &mut self.sessions[position];
        let (Some((record, flow)), Some(peer)) = (session.flow(slot), &session.peer) else {
            return;
        };
        if let Some(number) = flow.number_in(self.flows.engine_number) {
            self.counts.paths += 1;
            if let Ok(path) = links(&self.network.topology, peer.host, &record) {
                // Most flows keep their path: comparing costs far less than an event that the
                // engine must apply.
                if session.flows.path(slot) != path.as_slice() {
                    if let Some(kind) = flow.counted {
                        let before = session.flows.path(slot);
                        self.network.shared.remove(now_ns, before, kind);
                        self.network.shared.add(now_ns, &path, kind, peer.host);
                    }
                    session.flows.set_path(slot, path.clone());
                    self.counts.reroutes += 1;
                    (self.network.engine_events).push_back(EngineEvent::Reroute {
                        number,
                        links: path,
                    });
                }
                self.recount(now_ns, position, slot);
                return;
            }
        }
        self.place(now_ns, position, &record, true);
        if let Some(now) = self.sessions[position].proto.state_mut(record.flow())
            && flow.is_allocated()
            && now.is_allocated()
        {
            // It has a rate, if an older one, and is no more urgent than others.
            now.has_rate = flow.has_rate;
        }
    }

    /// Returns the time of the next [`give_room`](Self::give_room); `None` if no flow waits.
    pub(super) fn next_room_ns(&self) -> Option<u64> {
        let waits = self.flows.tallies.awaiting_room > 0;
        waits.then(|| self.flows.sweep.next_room_ns())
    }

    /// Starts a sweep over sessions whose flows wait for room, if that is due.
    pub(super) fn give_room(&mut self, now_ns: u64) {
        if (self.next_room_ns()).is_none_or(|due_ns| due_ns > now_ns) {
            return;
        }
        let max_flows = self.settings.limits.max_flows;
        let room = max_flows.saturating_sub(self.flows.tallies.allocated);
        self.flows.sweep.give_room(now_ns, room, &self.sessions);
    }

    /// Builds the engine's description of a flow.
    fn spec(
        &self,
        session: &Session,
        record: &StartRecord,
        number: FlowNumber,
        links: LinkPath,
    ) -> FlowSpec {
        let demand_bps = if self.flows.class_rules.ignores_demand(record.class()) {
            f64::INFINITY
        } else {
            demand_bps(record)
        };
        FlowSpec {
            number,
            links,
            class: record.class(),
            weight: record.weight().decode(),
            demand_bps: demand_bps
                .min(self.max_flow_bps(session, record))
                .min(self.credit_demand_bps(session, record.flow())),
        }
    }

    /// Returns the network's bound on a flow of a session in bit/s; infinite if it has none.
    #[allow(clippy::cast_precision_loss, reason = "rates are far below 2^53 bit/s")]
    fn max_flow_bps(&self, session: &Session, record: &StartRecord) -> f64 {
        let bound = session.peer.as_ref().and_then(|peer| {
            self.network
                .topology
                .max_flow_bps(peer.host, HostId(record.dst_host()))
        });
        bound.map_or(f64::INFINITY, |bps| bps as f64)
    }

    /// Returns the bound that credit puts on a flow's demand, in bit/s; infinite without one.
    pub(super) fn credit_demand_bps(&self, session: &Session, flow: FlowId) -> f64 {
        if !self.network.feeds.bounds_demands() {
            return f64::INFINITY;
        }
        let peer = session.peer.as_ref();
        peer.map_or(f64::INFINITY, |peer| {
            self.network.feeds.demand_bps(peer.host, flow.0)
        })
    }
}

/// Returns the time in microseconds that wrap after 71 minutes, at least 1, so that a flow's start
/// takes four bytes.
#[allow(
    clippy::cast_possible_truncation,
    reason = "differences are taken modulo 2^32"
)]
fn microseconds(now_ns: u64) -> NonZeroU32 {
    NonZeroU32::new((now_ns / 1_000) as u32).unwrap_or(NonZeroU32::MIN)
}

/// Returns the demand of a flow in bit/s; infinite if it has none.
#[allow(clippy::cast_precision_loss, reason = "rates are far below 2^53 bit/s")]
pub(super) fn demand_bps(record: &StartRecord) -> f64 {
    let demand = record.demand();
    if demand.is_none() {
        f64::INFINITY
    } else {
        demand.decode() as f64
    }
}

/// Returns the links of a flow in a topology.
///
/// # Errors
/// The flow has no path there.
pub(super) fn links(
    topology: &Topology,
    source: HostId,
    record: &StartRecord,
) -> Result<LinkPath, UnmanagedReason> {
    let choice = match record.path() {
        FlowPath::Hash(hash) => PathChoice::Hash(hash),
        FlowPath::Explicit(route) => PathChoice::Explicit(route),
    };
    match topology.path(source, HostId(record.dst_host()), choice) {
        Ok(path) => Ok(path.iter().map(|link| link.0).collect()),
        Err(PathError::UnknownHost(_)) => Err(UnmanagedReason::UnknownHost),
        Err(PathError::SameHost(_)) => Err(UnmanagedReason::SameHost),
        Err(
            PathError::HostCutOff { .. }
            | PathError::NoRoute { .. }
            | PathError::RouteOutOfRange { .. }
            | PathError::RouteDown { .. },
        ) => Err(UnmanagedReason::Unroutable),
    }
}
