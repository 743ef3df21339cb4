//! A host: the daemon's session and the flowlets of its applications.

use std::collections::BTreeMap;

use ratewright_proto::client::{ClientConfig, ClientSession};
use ratewright_proto::{FlowId, FlowPath, RateCode, StartRecord};

use super::clock::Clock;
use super::network::ConnectionNumber;
use super::ops::SLOTS;
use super::oracle::Instance;
use super::sealed::ClientEnd;

/// The daemon process.
pub(crate) struct ClientHost {
    pub(crate) clock: Clock,
    pub(crate) session: ClientSession,
    pub(crate) up: bool,
    pub(crate) incarnation: u64,
    /// Connection that the daemon takes for alive.
    pub(crate) connection: Option<ConnectionNumber>,
    /// The allocator's epoch and the session, once established.
    pub(crate) established: Option<(u64, u32)>,
    /// The session's sealed datagrams, if it is to have any.
    pub(crate) sealed: Option<ClientEnd>,
    /// The Hello asks for sealed datagrams.
    seals: bool,
    pub(crate) released: bool,
    pub(crate) topology_version: u32,
    /// Sending time of the newest datagram of this session that was accepted here.
    pub(crate) newest_accepted_ns: u64,
    /// Sending time of the newest stream message or datagram that was accepted here.
    pub(crate) newest_message_ns: u64,
    /// Flowlets of the applications at present: the truth.
    pub(crate) flows: BTreeMap<u32, StartRecord>,
    /// Rates that the daemon would pace at.
    pub(crate) applied: BTreeMap<FlowId, u64>,
    /// Expiry of these rates in the kernel, on this host's clock.
    pub(crate) granted_until_ns: u64,
    generations: [u32; SLOTS as usize],
    next_instance: Instance,
    max_in_flight: usize,
}

fn session(incarnation: u64, max_in_flight: usize, seals: bool) -> ClientSession {
    ClientSession::new(ClientConfig {
        host_name: "h1".to_owned(),
        incarnation,
        max_flows: SLOTS,
        max_in_flight,
        sealed_udp: seals,
        // Sequence numbers wrap on the wire within the first datagrams.
        first_seq: u32::MAX - 5,
        ..ClientConfig::default()
    })
}

impl ClientHost {
    pub(crate) fn new(clock: Clock, generation: u32, max_in_flight: usize, seals: bool) -> Self {
        Self {
            clock,
            session: session(1, max_in_flight, seals),
            sealed: None,
            seals,
            max_in_flight,
            up: true,
            incarnation: 1,
            connection: None,
            established: None,
            released: false,
            topology_version: 0,
            newest_accepted_ns: 0,
            newest_message_ns: 0,
            flows: BTreeMap::new(),
            applied: BTreeMap::new(),
            granted_until_ns: 0,
            generations: [generation; SLOTS as usize],
            next_instance: 1,
        }
    }

    /// Renews the lease as the kernel does: expired rates are dropped, and no later renewal revives
    /// them.
    pub(crate) fn grant(&mut self, now_ns: u64, expires_ns: u64) {
        if self.granted_until_ns <= self.clock.read(now_ns) {
            self.applied.clear();
        }
        self.granted_until_ns = self.granted_until_ns.max(expires_ns);
    }

    /// Identity of the flowlet that is on `flow`'s slot at present.
    pub(crate) fn instance_of(&self, flow: FlowId) -> Option<Instance> {
        self.flows
            .get(&flow.slot())
            .filter(|record| record.flow() == flow)
            .map(StartRecord::dst_host)
    }

    /// Starts a flowlet. Its destination identifies it for the oracle.
    pub(crate) fn start(&mut self, now_ns: u64, slot: u32) -> Result<(), String> {
        let generation = &mut self.generations[slot as usize];
        // The generation has 12 bits of the flow id.
        *generation = (*generation + 1) % 4096;
        let flow = FlowId::new(slot, *generation);
        let record = StartRecord::new(flow, self.next_instance, FlowPath::Hash(slot));
        self.next_instance += 1;
        if let Some(before) = self.flows.insert(slot, record) {
            self.applied.remove(&before.flow());
        }
        self.report(now_ns, record)
    }

    fn report(&mut self, now_ns: u64, record: StartRecord) -> Result<(), String> {
        self.session
            .start(self.clock.read(now_ns), record)
            .map_err(|error| error.to_string())
    }

    pub(crate) fn end(&mut self, now_ns: u64, slot: u32) -> Result<(), String> {
        let Some(record) = self.flows.remove(&slot) else {
            return Ok(());
        };
        self.applied.remove(&record.flow());
        self.session
            .end(self.clock.read(now_ns), record.flow())
            .map_err(|error| error.to_string())
    }

    pub(crate) fn update(&mut self, now_ns: u64, slot: u32, demand_bps: u64) -> Result<(), String> {
        let Some(record) = self.flows.get_mut(&slot) else {
            return Ok(());
        };
        *record = record.with_demand(RateCode::encode(demand_bps));
        let record = *record;
        self.report(now_ns, record)
    }

    /// Ends the daemon's process. Its rates are dropped by the kernel's expiry.
    pub(crate) fn die(&mut self) {
        self.up = false;
        self.sealed = None;
        self.connection = None;
        self.established = None;
        self.applied.clear();
        self.released = false;
        self.incarnation += 1;
        self.session = session(self.incarnation, self.max_in_flight, self.seals);
    }

    /// Starts the next incarnation, which finds the present flowlets.
    pub(crate) fn revive(&mut self, now_ns: u64) -> Result<(), String> {
        self.up = true;
        for slot in 0..SLOTS {
            // A new generation for each: the new process does not know the old ids.
            if self.flows.contains_key(&slot) {
                self.start(now_ns, slot)?;
            }
        }
        Ok(())
    }
}
