//! One host, one allocator, the network between them, and global time.

use std::collections::{BTreeMap, BTreeSet};

use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;
use ratewright_proto::StartRecord;
use ratewright_proto::client::ClientEvent;
use ratewright_proto::control::FrameDecoder;

use super::client_host::ClientHost;
use super::clock::Clock;
use super::network::{ConnectionNumber, FaultyNetwork, NetworkEvent, ScheduledEvent};
use super::ops::{NetworkConditions, ScheduleOp};
use super::oracle::{Oracle, Surfaced};
use super::sealed::{ClientEnd, ServerInput, session_of};
use super::server_host::{LEASE_NS, ServerHost};

const MS: u64 = 1_000_000;
/// Size for a few records: schedules have many datagrams, many of them partly filled.
const MAX_DATAGRAM: usize = 80;
/// Two clocks of ±100 ppm, and rounding.
const LEASE_TOLERANCE_NS: u64 = LEASE_NS / 5_000 + 10;
/// Longer than any straggler, any late notice and the liveness time.
const QUIET_NS: u64 = 6_000 * MS;

pub(crate) struct SessionWorld {
    now_ns: u64,
    network: FaultyNetwork,
    client: ClientHost,
    server: ServerHost,
    pub(crate) oracle: Oracle,
    client_frames: FrameDecoder,
    next_connection: ConnectionNumber,
    broken: BTreeSet<ConnectionNumber>,
}

impl SessionWorld {
    pub(crate) fn new(seed: u64, seals: bool) -> Self {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        // Clocks of two machines share neither origin nor rate: the protocol must not compare them.
        let mut clock = || Clock {
            offset_ns: rng.random_range(1..1_000_000 * MS),
            skew_ppm: rng.random_range(-100..=100),
            jumps: Vec::new(),
            stands: Vec::new(),
        };
        let (client_clock, server_clock) = (clock(), clock());
        // Close to the wrap of the 12 bits, so that schedules pass it.
        let generation = rng.random_range(4090..4096);
        // Few, so that schedules reach the bound.
        let max_in_flight = rng.random_range(1..=8);
        let mut world = Self {
            now_ns: 1,
            network: FaultyNetwork::new(rng),
            client: ClientHost::new(client_clock, generation, max_in_flight, seals),
            server: ServerHost::new(server_clock, max_in_flight),
            oracle: Oracle::default(),
            client_frames: FrameDecoder::new(),
            next_connection: 1,
            broken: BTreeSet::new(),
        };
        world.network.schedule(1, 1, NetworkEvent::Dial);
        world
    }

    /// Runs the schedule, lets the network become quiet and compares both ends.
    pub(crate) fn run(&mut self, operations: &[ScheduleOp]) -> Result<(), String> {
        self.advance(2 * MS)?;
        for &operation in operations {
            // What was sent before the operation was sent at another time.
            self.now_ns += 1;
            self.operate(operation)?;
            self.pump()?;
        }
        self.network.conditions = NetworkConditions::CALM;
        // Quiet begins when partitions are over and both clocks run.
        let [to_client_ns, to_server_ns] = self.network.cut_until_ns;
        let calm_ns = to_client_ns
            .max(to_server_ns)
            .max(self.network.blocked_until_ns)
            .max(self.client.clock.runs_at_ns())
            .max(self.server.clock.runs_at_ns());
        self.advance(calm_ns.saturating_sub(self.now_ns) + QUIET_NS)?;
        self.compare()?;
        let before = self.sent_records();
        self.advance(1_000 * MS)?;
        // Both ends agree, so a record now would be a retransmission without cause.
        if self.sent_records() != before {
            return Err("records are sent although nothing changes".to_owned());
        }
        self.compare()?;
        self.cover();
        Ok(())
    }

    fn operate(&mut self, operation: ScheduleOp) -> Result<(), String> {
        let now_ns = self.now_ns;
        match operation {
            ScheduleOp::Start { slot } if self.client.up => self.client.start(self.now_ns, slot),
            ScheduleOp::End { slot } if self.client.up => self.client.end(self.now_ns, slot),
            ScheduleOp::Update { slot } if self.client.up => {
                let demand_bps = self.network.rng.random_range(0..1_000_000_000_000);
                self.client.update(self.now_ns, slot, demand_bps)
            }
            ScheduleOp::Start { .. } | ScheduleOp::End { .. } | ScheduleOp::Update { .. } => Ok(()),
            ScheduleOp::Rate { slot, choice } => {
                self.server
                    .rate(self.now_ns, slot, choice, &mut self.oracle)
            }
            ScheduleOp::Release { on } => {
                self.server.release(self.now_ns, on);
                Ok(())
            }
            ScheduleOp::Topology => self.server.change_topology(),
            ScheduleOp::Network(conditions) => {
                self.network.conditions = conditions;
                Ok(())
            }
            ScheduleOp::Partition {
                ms,
                to_client,
                to_server,
            } => {
                for (until_ns, cut) in self
                    .network
                    .cut_until_ns
                    .iter_mut()
                    .zip([to_client, to_server])
                {
                    if cut {
                        *until_ns = (*until_ns).max(self.now_ns + u64::from(ms) * MS);
                    }
                }
                Ok(())
            }
            ScheduleOp::Block { ms } => {
                let until_ns = self.now_ns + u64::from(ms) * MS;
                let blocked = &mut self.network.blocked_until_ns;
                *blocked = until_ns.max(*blocked);
                Ok(())
            }
            ScheduleOp::ClockJumps { client, ms } => {
                self.clock(client).jump(now_ns, u64::from(ms) * MS);
                self.oracle.coverage.clock_faults += 1;
                Ok(())
            }
            ScheduleOp::ClockStands { client, ms } => {
                self.clock(client).stand(now_ns, u64::from(ms) * MS);
                self.oracle.coverage.clock_faults += 1;
                Ok(())
            }
            ScheduleOp::Break {
                client_ms,
                server_ms,
            } => {
                if let Some(connection) = self.client.connection {
                    self.broken.insert(connection);
                    self.later(client_ms, NetworkEvent::ClientNotices(connection));
                    self.later(server_ms, NetworkEvent::ServerNotices(connection));
                }
                Ok(())
            }
            ScheduleOp::ClientRestart { down_ms } => {
                if let Some(connection) = self.client.connection {
                    self.broken.insert(connection);
                    // The server learns of a dead daemon late: its transport has to time out.
                    let notice_ms = self.network.rng.random_range(0..2_000);
                    self.later(notice_ms, NetworkEvent::ServerNotices(connection));
                }
                self.cover_sealed_client();
                self.client.die();
                self.later(down_ms, NetworkEvent::ClientUp);
                Ok(())
            }
            ScheduleOp::ServerRestart { down_ms, client_ms } => {
                self.broken.extend(self.server.sessions.keys());
                self.cover_sealed_server(|_| true);
                if let Some(connection) = self.client.connection {
                    self.broken.insert(connection);
                    self.later(client_ms, NetworkEvent::ClientNotices(connection));
                }
                self.server.die(self.now_ns);
                self.later(down_ms, NetworkEvent::ServerUp);
                Ok(())
            }
            ScheduleOp::Wait { us } => self.advance(u64::from(us) * 1_000),
        }
    }

    fn later(&mut self, ms: u32, event: NetworkEvent) {
        let at_ns = self.now_ns + u64::from(ms) * MS;
        self.network.schedule(self.now_ns, at_ns, event);
    }

    /// Advances time, with all events in it.
    fn advance(&mut self, ns: u64) -> Result<(), String> {
        let until_ns = self.now_ns + ns;
        self.pump()?;
        let mut standing = 0;
        loop {
            let client_ns = self
                .client
                .session
                .next_timeout()
                .into_iter()
                .chain(
                    self.client
                        .sealed
                        .as_ref()
                        .and_then(ClientEnd::next_timeout),
                )
                .min()
                .map(|local| self.client.clock.when(local));
            let server_ns = self
                .server
                .sessions
                .values()
                .filter_map(|served| served.session.next_timeout())
                .min()
                .map(|local| self.server.clock.when(local));
            let next_ns = [self.network.next_at(), client_ns, server_ns]
                .into_iter()
                .flatten()
                .min()
                .filter(|&next_ns| next_ns <= until_ns);
            let Some(next_ns) = next_ns else {
                self.now_ns = until_ns;
                return Ok(());
            };
            standing = if next_ns > self.now_ns {
                0
            } else {
                standing + 1
            };
            // A timer that is due again at once would otherwise loop for ever.
            if standing > 1_000 {
                return Err(format!(
                    "time stands still: client {client_ns:?}, server {server_ns:?}, now {}",
                    self.now_ns
                ));
            }
            self.now_ns = self.now_ns.max(next_ns);
            if self.network.next_at().is_some_and(|at| at <= self.now_ns)
                && let Some(scheduled) = self.network.pop()
            {
                self.happen(scheduled)?;
            } else {
                let (client_now, server_now) = self.clocks();
                self.client.session.on_timeout(client_now);
                if let Some(sealed) = &mut self.client.sealed
                    && let Some(probe) = sealed.on_timeout(client_now)
                {
                    let event = NetworkEvent::SealedToServer(probe);
                    self.network.datagram(self.now_ns, &event);
                }
                for served in self.server.sessions.values_mut() {
                    served.session.on_timeout(server_now);
                }
            }
            self.pump()?;
        }
    }

    fn clock(&mut self, client: bool) -> &mut Clock {
        match client {
            true => &mut self.client.clock,
            false => &mut self.server.clock,
        }
    }

    fn clocks(&self) -> (u64, u64) {
        (
            self.client.clock.read(self.now_ns),
            self.server.clock.read(self.now_ns),
        )
    }

    fn happen(&mut self, scheduled: ScheduledEvent) -> Result<(), String> {
        let (client_now, server_now) = self.clocks();
        match scheduled.event {
            // A datagram reaches the present session, whatever connection it left on: sessions must
            // recognise foreign ones.
            NetworkEvent::ToClient(bytes) => self.datagram_to_client(scheduled.sent_ns, &bytes),
            NetworkEvent::SealedToClient(bytes) => {
                let sealed = self.client.sealed.as_mut();
                match sealed.and_then(|sealed| sealed.open(client_now, bytes)) {
                    Some(text) => self.datagram_to_client(scheduled.sent_ns, &text),
                    None => Ok(()),
                }
            }
            NetworkEvent::SealedToServer(bytes) => self.sealed_to_server(bytes),
            NetworkEvent::ToServer(connection, bytes) => {
                // A datagram of a broken connection goes to the newest session, which must reject
                // it.
                let own = self
                    .server
                    .sessions
                    .keys()
                    .copied()
                    .find(|&own| own == connection && !self.broken.contains(&own));
                let target = own.or_else(|| self.server.sessions.keys().last().copied());
                if let Some(target) = target
                    && self.datagram_to_server(target, &bytes)?
                    && let Some(served) = self.server.sessions.get_mut(&target)
                    && let Some(sealed) = &mut served.sealed
                {
                    sealed.answers_here = false;
                }
                Ok(())
            }
            NetworkEvent::StreamToClient(connection, bytes) => {
                if self.client.connection != Some(connection) || self.broken.contains(&connection) {
                    return Ok(());
                }
                self.client_frames.push(&bytes);
                while let Some(body) = self.client_frames.next_frame().map_err(|e| e.to_string())? {
                    self.client
                        .session
                        .on_control(client_now, body)
                        .map_err(|error| format!("client: {error}"))?;
                }
                self.kill_switch(scheduled.sent_ns)
            }
            NetworkEvent::StreamToServer(connection, bytes) => {
                let Some(served) = self.server.sessions.get_mut(&connection) else {
                    return Ok(());
                };
                if self.broken.contains(&connection) || served.session.is_closed() {
                    return Ok(());
                }
                served.frames.push(&bytes);
                while let Some(body) = served.frames.next_frame().map_err(|e| e.to_string())? {
                    served
                        .session
                        .on_control(server_now, body)
                        .map_err(|error| format!("server: {error}"))?;
                }
                self.server.heard(self.now_ns, connection);
                Ok(())
            }
            NetworkEvent::ClientNotices(connection) => {
                if self.client.connection == Some(connection) {
                    self.client.session.disconnected(client_now);
                    self.hang_up(10);
                }
                Ok(())
            }
            NetworkEvent::ServerNotices(connection) => {
                self.cover_sealed_server(|own| own == connection);
                self.server.gone(connection);
                Ok(())
            }
            NetworkEvent::Dial => {
                self.dial();
                Ok(())
            }
            NetworkEvent::ServerUp => {
                self.server.up = true;
                Ok(())
            }
            NetworkEvent::ClientUp => {
                if !self.client.up {
                    self.client.revive(self.now_ns)?;
                    self.dial();
                }
                Ok(())
            }
        }
    }

    fn datagram_to_client(&mut self, sent_ns: u64, bytes: &[u8]) -> Result<(), String> {
        let (client_now, _) = self.clocks();
        if self.client.session.on_datagram(client_now, bytes).is_ok() {
            let newest = &mut self.client.newest_accepted_ns;
            *newest = sent_ns.max(*newest);
            self.kill_switch(sent_ns)?;
            let stood_ns = self.client.clock.stood_ns(sent_ns);
            // In global time, from the server's sending: the strictest reading of the lease.
            if self.now_ns > sent_ns + LEASE_NS + LEASE_TOLERANCE_NS + stood_ns {
                return Err("accepted a datagram beyond its lease".to_owned());
            }
        }
        Ok(())
    }

    /// Hands a datagram to a session of the server. Returns false if it was refused.
    fn datagram_to_server(
        &mut self,
        connection: ConnectionNumber,
        bytes: &[u8],
    ) -> Result<bool, String> {
        let oracle = &mut self.oracle;
        let taken = (self.server).datagram(self.now_ns, connection, bytes, oracle)?;
        if taken {
            self.server.heard(self.now_ns, connection);
        }
        Ok(taken)
    }

    /// Sealed datagrams name their session; only that one's keys open them.
    fn sealed_to_server(&mut self, bytes: Vec<u8>) -> Result<(), String> {
        let number = session_of(&bytes);
        let mut sessions = self.server.sessions.iter_mut();
        let Some((&connection, served)) =
            sessions.find(|(_, served)| served.sealed.is_some() && Some(served.number) == number)
        else {
            return Ok(());
        };
        let Some(sealed) = &mut served.sealed else {
            return Ok(());
        };
        let text = match sealed.open(bytes) {
            None => return Ok(()),
            Some(ServerInput::Answer(bytes)) => {
                let event = NetworkEvent::SealedToClient(bytes);
                self.network.datagram(self.now_ns, &event);
                return Ok(());
            }
            Some(ServerInput::Datagram(text)) => text,
        };
        if self.datagram_to_server(connection, &text)?
            && let Some(served) = self.server.sessions.get_mut(&connection)
            && let Some(sealed) = &mut served.sealed
        {
            sealed.answers_here = true;
        }
        Ok(())
    }

    /// Checks the kill switch after something that the server sent at `sent_ns` was accepted: the
    /// client must hold the newest state that any such message carried.
    fn kill_switch(&mut self, sent_ns: u64) -> Result<(), String> {
        let newest = &mut self.client.newest_message_ns;
        *newest = sent_ns.max(*newest);
        let released = self.server.released_at(*newest);
        if self.client.session.is_established() && self.client.session.is_released() != released {
            return Err(format!(
                "was told released = {released}, took a stale state"
            ));
        }
        Ok(())
    }

    /// Closes the client's connection; it dials again later.
    fn hang_up(&mut self, redial_ms: u32) {
        if let Some(connection) = self.client.connection.take() {
            self.broken.insert(connection);
            let notice_ms = self.network.rng.random_range(0..400);
            self.later(notice_ms, NetworkEvent::ServerNotices(connection));
        }
        self.client.established = None;
        self.cover_sealed_client();
        self.later(redial_ms, NetworkEvent::Dial);
    }

    fn dial(&mut self) {
        if !self.client.up || self.client.connection.is_some() {
            return;
        }
        if !self.server.up {
            self.later(50, NetworkEvent::Dial);
            return;
        }
        let connection = self.next_connection;
        self.next_connection += 1;
        self.server.incoming(self.now_ns, connection);
        self.client.connection = Some(connection);
        self.client_frames = FrameDecoder::new();
        // A new session begins without messages; the Welcome brings the state.
        self.client.newest_message_ns = 0;
        let now = self.client.clock.read(self.now_ns);
        self.client.session.connected(now);
    }

    /// Sends all frames and datagrams of both ends, and handles their events.
    fn pump(&mut self) -> Result<(), String> {
        let mut out = Vec::new();
        let (client_now, server_now) = self.clocks();
        // Events first: they decide which datagrams there are.
        while self.client_event()? {}
        if let Some(connection) = self.client.connection {
            while let Some(frame) = self.client.session.poll_control() {
                let event = NetworkEvent::StreamToServer(connection, frame);
                self.network.stream(self.now_ns, connection, event);
            }
            while self
                .client
                .session
                .poll_datagram(client_now, MAX_DATAGRAM, &mut out)
            {
                let sealed = self.client.sealed.as_mut();
                let event = match sealed.and_then(|sealed| sealed.seal(client_now, &out)) {
                    Some(bytes) => NetworkEvent::SealedToServer(bytes),
                    None => NetworkEvent::ToServer(connection, out.clone()),
                };
                self.network.datagram(self.now_ns, &event);
            }
        }
        // Collected first, since events may add and remove sessions.
        let connections: Vec<_> = self.server.sessions.keys().copied().collect();
        for connection in connections {
            self.server.events(self.now_ns, connection)?;
            let Some(served) = self.server.sessions.get_mut(&connection) else {
                continue;
            };
            while let Some(frame) = served.session.poll_control() {
                let event = NetworkEvent::StreamToClient(connection, frame.to_vec());
                self.network.stream(self.now_ns, connection, event);
            }
            while served
                .session
                .poll_datagram(server_now, MAX_DATAGRAM, &mut out)
            {
                let sealed = served.sealed.as_mut().filter(|sealed| sealed.answers_here);
                let event = match sealed.and_then(|sealed| sealed.seal(&out)) {
                    Some(bytes) => NetworkEvent::SealedToClient(bytes),
                    None => NetworkEvent::ToClient(out.clone()),
                };
                self.network.datagram(self.now_ns, &event);
            }
            if served.session.is_closed() {
                self.cover_sealed_server(|own| own == connection);
                self.server.gone(connection);
                self.later(100, NetworkEvent::ClientNotices(connection));
            }
        }
        Ok(())
    }

    fn client_event(&mut self) -> Result<bool, String> {
        let Some(event) = self.client.session.poll_event() else {
            return Ok(false);
        };
        let now = self.client.clock.read(self.now_ns);
        match event {
            ClientEvent::Established(welcome) => {
                self.client.established = Some((welcome.epoch, welcome.session));
                self.cover_sealed_client();
                self.client.sealed = welcome
                    .sealed_udp
                    .map(|_| ClientEnd::new(now, welcome.epoch, welcome.session));
                self.client.topology_version = welcome.topology.version;
                self.client.newest_accepted_ns = 0;
                self.client.applied.clear();
                self.oracle.coverage.sessions += 1;
            }
            ClientEvent::Topology(topology) => self.client.topology_version = topology.version,
            ClientEvent::Members(_) => {}
            ClientEvent::Released(on) => {
                self.client.released = on;
                if on {
                    self.client.applied.clear();
                    self.oracle.coverage.releases += 1;
                }
                self.client
                    .session
                    .confirm_release(self.client.applied.len() as u32)
                    // The session may have ended between the event and its confirmation.
                    .or_else(|error| match self.client.session.is_established() {
                        true => Err(error.to_string()),
                        false => Ok(()),
                    })?;
            }
            ClientEvent::Rate {
                flow,
                rate_bps,
                expires_ns,
            } => {
                let Some(instance) = self.client.instance_of(flow) else {
                    return Err(format!("a rate for {flow}, which is over"));
                };
                let Some((epoch, session)) = self.client.established else {
                    return Err("a rate without a session".to_owned());
                };
                self.lease(expires_ns)?;
                self.oracle.check(Surfaced {
                    instance,
                    epoch,
                    session,
                    rate_bps,
                    now_ns: self.now_ns,
                    expires_ns: self.client.clock.when(expires_ns),
                    true_expiry_ns: self.true_expiry_ns(),
                })?;
                self.client.grant(self.now_ns, expires_ns);
                self.client.applied.insert(flow, rate_bps);
            }
            ClientEvent::LeaseRenewed { expires_ns } => {
                self.lease(expires_ns)?;
                self.client.grant(self.now_ns, expires_ns);
            }
            ClientEvent::Refused(refusal) => {
                if !refusal.retry {
                    return Err(format!("refused for good: {refusal:?}"));
                }
                self.client.session.disconnected(now);
                self.hang_up(50);
            }
            ClientEvent::SessionLost(_) => self.hang_up(10),
        }
        Ok(true)
    }

    fn true_expiry_ns(&self) -> u64 {
        let since_ns = self.client.newest_accepted_ns;
        // A host whose clock stands cannot know better, and its kernel's clock stands with it.
        since_ns + LEASE_NS + LEASE_TOLERANCE_NS + self.client.clock.stood_ns(since_ns)
    }

    /// Checks a lease that the client surfaced.
    fn lease(&self, expires_ns: u64) -> Result<(), String> {
        if self.client.released {
            return Err("a lease or a rate while released".to_owned());
        }
        let expires_ns = self.client.clock.when(expires_ns);
        let true_ns = self.true_expiry_ns();
        if expires_ns > true_ns {
            return Err(format!("lease until {expires_ns}, true until {true_ns}"));
        }
        Ok(())
    }

    /// Checks that both ends agree.
    fn compare(&self) -> Result<(), String> {
        let client = &self.client;
        let Some((epoch, _)) = client.established else {
            return Err("no session, although the network is quiet".to_owned());
        };
        let served = client
            .connection
            .and_then(|connection| self.server.sessions.get(&connection))
            .ok_or("the server has no session of the client's connection")?;
        if epoch != self.server.epoch {
            return Err(format!("epoch {epoch}, not {}", self.server.epoch));
        }
        if client.released != self.server.released {
            return Err(format!("client released: {}", client.released));
        }
        if client.topology_version != self.server.topology.version {
            return Err(format!("topology {}", client.topology_version));
        }
        if let Some(sealed) = &client.sealed
            && !sealed.is_up()
        {
            return Err("the sealed path is down, although the network is quiet".to_owned());
        }
        let by_slot = |record: StartRecord| (record.flow().slot(), record);
        let client_flows: BTreeMap<_, _> = client
            .session
            .flows()
            .map(|flow| by_slot(flow.record))
            .collect();
        let server_flows: BTreeMap<_, _> = served
            .session
            .flows()
            .map(|(record, _)| by_slot(record))
            .collect();
        if client_flows != client.flows
            || server_flows != client.flows
            || served.flows != client.flows
        {
            return Err(format!(
                "flows: applications {:?}\nclient {client_flows:?}\nserver {server_flows:?}\n\
                 service {:?}",
                client.flows, served.flows
            ));
        }
        let server_rates: BTreeMap<_, _> = served
            .session
            .flows()
            .map(|(record, rate_bps)| (record.flow(), rate_bps))
            .collect();
        let client_rates: BTreeMap<_, _> = client
            .session
            .flows()
            .map(|flow| (flow.record.flow(), flow.rate_bps.unwrap_or(0)))
            .collect();
        let service_rates: BTreeMap<_, _> = served
            .rates
            .iter()
            .map(|(&flow, code)| (flow, code.decode()))
            .collect();
        // Under the kill switch the daemon paces nothing, whatever the session holds.
        let applied_right = client.released || client.applied == server_rates;
        if server_rates != service_rates || client_rates != server_rates || !applied_right {
            return Err(format!(
                "rates: service {service_rates:?}\nserver {server_rates:?}\nclient \
                 {client_rates:?}\napplied {:?}",
                client.applied
            ));
        }
        let now = client.clock.read(self.now_ns);
        if !client.flows.is_empty() && client.session.lease_expires_ns() <= now {
            return Err("the lease ran out, although the network is quiet".to_owned());
        }
        Ok(())
    }

    fn sent_records(&self) -> (u64, u64) {
        let client = self.client.session.counters();
        let server = self.server.sessions.values();
        (
            client.starts_sent + client.ends_sent + client.timeouts,
            server
                .map(|served| served.session.counters())
                .map(|counters| counters.rates_sent + counters.timeouts)
                .sum(),
        )
    }

    /// Adds the counters of the client's sealed session, which is over.
    fn cover_sealed_client(&mut self) {
        if let Some(sealed) = self.client.sealed.take() {
            let coverage = &mut self.oracle.coverage;
            coverage.opened += sealed.counters.opened;
            coverage.not_opened += sealed.counters.dropped_total();
            coverage.fallbacks += sealed.fallbacks();
        }
    }

    /// Adds the counters of the server's sealed sessions on these connections, which are over.
    fn cover_sealed_server(&mut self, over: impl Fn(ConnectionNumber) -> bool) {
        let coverage = &mut self.oracle.coverage;
        for (&connection, served) in &mut self.server.sessions {
            if over(connection)
                && let Some(sealed) = served.sealed.take()
            {
                coverage.opened += sealed.counters.opened;
                coverage.not_opened += sealed.counters.dropped_total();
                coverage.key_updates += sealed.key_updates();
            }
        }
    }

    fn cover(&mut self) {
        self.cover_sealed_client();
        self.cover_sealed_server(|_| true);
        let mut all = *self.client.session.counters();
        for served in self.server.sessions.values() {
            all.add(served.session.counters());
        }
        let coverage = &mut self.oracle.coverage;
        coverage.expired += all.dropped_expired;
        coverage.stale += all.records_stale;
        coverage.lost += all.datagrams_lost;
        coverage.wrong_session += all.dropped_wrong_session;
        coverage.duplicates += all.dropped_duplicate;
        coverage.cut += self.network.cut;
    }
}
