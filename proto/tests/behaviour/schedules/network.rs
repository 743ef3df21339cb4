//! The network: an unreliable datagram path and reliable streams, one event
//! queue ordered by time and by the order of sending.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use rand::RngExt as _;
use rand_pcg::Pcg64Mcg;

use super::ops::NetworkConditions;

/// A transport connection.
pub(crate) type ConnectionNumber = u32;

/// Arrival or other event at a scheduled time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NetworkEvent {
    /// A datagram for the client, sent at `sent_ns` in `epoch`.
    ToClient(Vec<u8>),
    /// A datagram for the server, of a connection if that still lives.
    ToServer(ConnectionNumber, Vec<u8>),
    /// A sealed datagram for the client, sent at `sent_ns`.
    SealedToClient(Vec<u8>),
    /// A sealed datagram for the server: it names its session itself.
    SealedToServer(Vec<u8>),
    /// Stream bytes for the client.
    StreamToClient(ConnectionNumber, Vec<u8>),
    /// Stream bytes for the server.
    StreamToServer(ConnectionNumber, Vec<u8>),
    /// The client notices that a connection is gone.
    ClientNotices(ConnectionNumber),
    /// The server notices that a connection is gone.
    ServerNotices(ConnectionNumber),
    /// The client opens its next connection.
    Dial,
    /// The server process is up again.
    ServerUp,
    /// The daemon is up again.
    ClientUp,
}

/// An event with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScheduledEvent {
    pub(crate) at_ns: u64,
    pub(crate) sent_ns: u64,
    pub(crate) event: NetworkEvent,
}

/// Event queue and present conditions of the network.
pub(crate) struct FaultyNetwork {
    pub(crate) rng: Pcg64Mcg,
    pub(crate) conditions: NetworkConditions,
    /// End of the partition towards the client, and towards the server.
    pub(crate) cut_until_ns: [u64; 2],
    pub(crate) cut: u64,
    /// End of the time in which no sealed datagram passes.
    pub(crate) blocked_until_ns: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, ScheduledEvent>,
    next_id: u64,
    /// Arrival time of the last bytes of each stream direction.
    stream_tail_ns: BTreeMap<(ConnectionNumber, bool), u64>,
}

impl FaultyNetwork {
    pub(crate) fn new(rng: Pcg64Mcg) -> Self {
        Self {
            rng,
            conditions: NetworkConditions::CALM,
            cut_until_ns: [0; 2],
            cut: 0,
            blocked_until_ns: 0,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            next_id: 0,
            stream_tail_ns: BTreeMap::new(),
        }
    }

    pub(crate) fn schedule(&mut self, now_ns: u64, at_ns: u64, event: NetworkEvent) {
        let id = self.next_id;
        self.next_id += 1;
        self.queue.push(Reverse((at_ns, id)));
        self.events.insert(
            id,
            ScheduledEvent {
                at_ns,
                sent_ns: now_ns,
                event,
            },
        );
    }

    pub(crate) fn next_at(&self) -> Option<u64> {
        self.queue.peek().map(|Reverse((at_ns, _))| *at_ns)
    }

    pub(crate) fn pop(&mut self) -> Option<ScheduledEvent> {
        let Reverse((_, id)) = self.queue.pop()?;
        self.events.remove(&id)
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_range(0..100) < percent
    }

    fn delay_ns(&mut self) -> u64 {
        let conditions = self.conditions;
        let mut us = conditions.min_delay_us + self.rng.random_range(0..=conditions.jitter_us);
        if self.chance(conditions.straggler_percent) {
            us += conditions.straggler_us;
        }
        // Nanoseconds at random break ties that real networks never have.
        u64::from(us) * 1_000 + self.rng.random_range(0..1_000)
    }

    /// Sends a datagram, which arrives never, once or twice.
    pub(crate) fn datagram(&mut self, now_ns: u64, event: &NetworkEvent) {
        let to_server = matches!(
            event,
            NetworkEvent::ToServer(..) | NetworkEvent::SealedToServer(..)
        );
        let sealed = matches!(
            event,
            NetworkEvent::SealedToClient(..) | NetworkEvent::SealedToServer(..)
        );
        if now_ns < self.cut_until_ns[usize::from(to_server)]
            // As a firewall that drops the sealed port but lets QUIC pass.
            || sealed && now_ns < self.blocked_until_ns
        {
            self.cut += 1;
            return;
        }
        // Each copy has its own loss and delay, so copies arrive in either order.
        let copies = 1 + u32::from(self.chance(self.conditions.duplicate_percent));
        for _ in 0..copies {
            if !self.chance(self.conditions.loss_percent) {
                let at_ns = now_ns + self.delay_ns();
                self.schedule(now_ns, at_ns, event.clone());
            }
        }
    }

    /// Sends stream bytes, which arrive in order.
    pub(crate) fn stream(
        &mut self,
        now_ns: u64,
        connection: ConnectionNumber,
        event: NetworkEvent,
    ) {
        let to_client = matches!(event, NetworkEvent::StreamToClient(..));
        let delay_ns = self.delay_ns();
        let tail_ns = self
            .stream_tail_ns
            .entry((connection, to_client))
            .or_default();
        // A stream is ordered: no bytes arrive before those sent earlier.
        let at_ns = (now_ns + delay_ns).max(*tail_ns + 1);
        *tail_ns = at_ns;
        self.schedule(now_ns, at_ns, event);
    }
}
