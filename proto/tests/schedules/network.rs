//! The network: an unreliable datagram path and reliable streams, one event
//! queue ordered by time and by the order of sending.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use rand::RngExt as _;
use rand_pcg::Pcg64Mcg;

use crate::ops::Weather;

/// A transport connection.
pub(crate) type Connection = u32;

/// What arrives or happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A datagram for the client, sent at `sent_ns` in `epoch`.
    ToClient(Vec<u8>),
    /// A datagram for the server, from `Connection` if that still lives.
    ToServer(Connection, Vec<u8>),
    /// A sealed datagram for the client, sent at `sent_ns`.
    SealedToClient(Vec<u8>),
    /// A sealed datagram for the server: it names its session itself.
    SealedToServer(Vec<u8>),
    /// Stream bytes for the client.
    StreamToClient(Connection, Vec<u8>),
    /// Stream bytes for the server.
    StreamToServer(Connection, Vec<u8>),
    /// The client notices that a connection is gone.
    ClientNotices(Connection),
    /// The server notices that a connection is gone.
    ServerNotices(Connection),
    /// The client opens its next connection.
    Dial,
    /// The server process is up again.
    ServerUp,
    /// The daemon is up again.
    ClientUp,
}

/// An event with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scheduled {
    pub(crate) at_ns: u64,
    pub(crate) sent_ns: u64,
    pub(crate) event: Event,
}

/// The event queue and the weather.
pub(crate) struct Network {
    pub(crate) rng: Pcg64Mcg,
    pub(crate) weather: Weather,
    /// Until when no datagram passes to the client, to the server.
    pub(crate) cut_until_ns: [u64; 2],
    pub(crate) cut: u64,
    /// Until when no sealed datagram passes.
    pub(crate) blocked_until_ns: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, Scheduled>,
    next_id: u64,
    /// When the last bytes of each stream direction arrive.
    stream_tail_ns: BTreeMap<(Connection, bool), u64>,
}

impl Network {
    pub(crate) fn new(rng: Pcg64Mcg) -> Self {
        Self {
            rng,
            weather: Weather::CALM,
            cut_until_ns: [0; 2],
            cut: 0,
            blocked_until_ns: 0,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            next_id: 0,
            stream_tail_ns: BTreeMap::new(),
        }
    }

    pub(crate) fn schedule(&mut self, now_ns: u64, at_ns: u64, event: Event) {
        let id = self.next_id;
        self.next_id += 1;
        self.queue.push(Reverse((at_ns, id)));
        self.events.insert(
            id,
            Scheduled {
                at_ns,
                sent_ns: now_ns,
                event,
            },
        );
    }

    pub(crate) fn next_at(&self) -> Option<u64> {
        self.queue.peek().map(|Reverse((at_ns, _))| *at_ns)
    }

    pub(crate) fn pop(&mut self) -> Option<Scheduled> {
        let Reverse((_, id)) = self.queue.pop()?;
        self.events.remove(&id)
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_range(0..100) < percent
    }

    fn delay_ns(&mut self) -> u64 {
        let weather = self.weather;
        let mut us = weather.min_delay_us + self.rng.random_range(0..=weather.jitter_us);
        if self.chance(weather.straggler_percent) {
            us += weather.straggler_us;
        }
        u64::from(us) * 1_000 + self.rng.random_range(0..1_000)
    }

    /// Sends a datagram: it arrives never, once or twice.
    pub(crate) fn datagram(&mut self, now_ns: u64, event: &Event) {
        let to_server = matches!(event, Event::ToServer(..) | Event::SealedToServer(..));
        let sealed = matches!(event, Event::SealedToClient(..) | Event::SealedToServer(..));
        if now_ns < self.cut_until_ns[usize::from(to_server)]
            || sealed && now_ns < self.blocked_until_ns
        {
            self.cut += 1;
            return;
        }
        let copies = 1 + u32::from(self.chance(self.weather.duplicate_percent));
        for _ in 0..copies {
            if !self.chance(self.weather.loss_percent) {
                let at_ns = now_ns + self.delay_ns();
                self.schedule(now_ns, at_ns, event.clone());
            }
        }
    }

    /// Sends stream bytes: they arrive, in order.
    pub(crate) fn stream(&mut self, now_ns: u64, connection: Connection, event: Event) {
        let to_client = matches!(event, Event::StreamToClient(..));
        let delay_ns = self.delay_ns();
        let tail_ns = self
            .stream_tail_ns
            .entry((connection, to_client))
            .or_default();
        let at_ns = (now_ns + delay_ns).max(*tail_ns + 1);
        *tail_ns = at_ns;
        self.schedule(now_ns, at_ns, event);
    }
}
