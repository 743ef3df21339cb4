//! Sealed datagrams: a port and a thread per shard.
//!
//! Session `id` belongs to shard `id % shards`, which alone holds its keys, receives on the UDP port
//! that the session's Welcome names, opens and seals. The state machine is the one that QUIC datagrams go
//! through; the thread holds the state's lock only while it hands in what it has opened and takes out
//! what is to be sealed, never during a system call or a cipher.
//!
//! Datagrams are built when they can be sent and not before: what the port does not take holds back
//! further building, meanwhile newer rates replace older ones in the flow table, and the engine is not
//! waited for anywhere.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;

use indexmap::IndexMap;
use ratewright_common::sched;
use ratewright_common::transport::MAX_DATAGRAM_BYTES;
use ratewright_common::udp::{BATCH, PacketPort, SendBatch};
use ratewright_proto::datagram::Sender;
use ratewright_proto::sealed::{
    OpenError, SealedConfig, SealedCounters, SealedHeader, SealedSession, Secret,
};
use rustc_hash::FxBuildHasher;

use super::engine_link::EngineSignal;
use super::port::{Kick, Spins, Waiter};
use super::state::Shared;
use crate::service::clock;

/// A spinning thread with nothing to do tells its counters this often all the same, as seen every so
/// many rounds.
const TELL_NS: u64 = 10_000_000;
const TELL_ROUNDS: u32 = 16;

/// What a shard's thread is told.
pub(super) enum Notice {
    /// A session has begun.
    Add {
        id: u32,
        secret: Secret,
        address: IpAddr,
    },
    /// A session is over.
    Remove(u32),
}

/// The state's side of a shard.
pub(super) struct Queue {
    pub(super) kick: Arc<Kick>,
    pub(super) notices: Vec<Notice>,
    /// Sessions with a datagram to send: those with a flow that waits for its first rate, and the others.
    pub(super) first: VecDeque<u32>,
    pub(super) ready: VecDeque<u32>,
    /// What the thread has counted, and its port.
    pub(super) counters: SealedCounters,
    pub(super) port_counters: Vec<(&'static str, u64)>,
}

struct Peer {
    sealed: SealedSession,
    address: IpAddr,
    /// Where its newest datagram came from.
    remote: Option<SocketAddr>,
}

/// A shard before its thread runs.
pub(super) struct SealedShard<P> {
    port: P,
    kick: Arc<Kick>,
    config: SealedConfig,
    spins: Spins,
}

/// The threads of all shards; they end with this.
#[derive(Default)]
pub(super) struct Threads(Vec<(Arc<Kick>, JoinHandle<()>)>);

impl Drop for Threads {
    fn drop(&mut self) {
        for (kick, thread) in self.0.drain(..) {
            kick.stop();
            let _ = thread.join();
        }
    }
}

impl<P: PacketPort + Send + 'static> SealedShard<P> {
    /// A shard on `port`.
    pub(super) fn new(port: P, config: SealedConfig, spins: Spins) -> io::Result<(Self, Queue)> {
        let kick = Arc::new(Kick::new(spins != Spins::No)?);
        let queue = Queue {
            kick: Arc::clone(&kick),
            notices: Vec::new(),
            first: VecDeque::new(),
            ready: VecDeque::new(),
            counters: SealedCounters::default(),
            port_counters: Vec::new(),
        };
        let shard = Self {
            port,
            kick,
            config,
            spins,
        };
        Ok((shard, queue))
    }
}

/// Starts the shards' threads.
pub(super) fn start<P: PacketPort + Send + 'static>(
    shards: Vec<SealedShard<P>>,
    shared: &Shared,
    signal: &Arc<EngineSignal>,
) -> io::Result<Threads> {
    let mut threads = Threads::default();
    for (index, shard) in shards.into_iter().enumerate() {
        let kick = Arc::clone(&shard.kick);
        let runner = Runner {
            index,
            shard,
            shared: shared.clone(),
            signal: Arc::clone(signal),
            peers: IndexMap::default(),
            outgoing: SendBatch::default(),
            plain: vec![(0, Vec::with_capacity(MAX_DATAGRAM_BYTES)); BATCH],
            opened: Vec::with_capacity(BATCH),
            probes: Vec::with_capacity(BATCH),
            counters: SealedCounters::default(),
        };
        let thread = std::thread::Builder::new()
            .name(format!("sealed-{index}"))
            .spawn(move || {
                let _ending = Ending(Arc::clone(&runner.shard.kick), Arc::clone(&runner.signal));
                runner.run();
            })?;
        threads.0.push((kick, thread));
    }
    Ok(threads)
}

/// When a shard's thread ends, for whatever reason, the runtime takes the rates.
struct Ending(Arc<Kick>, Arc<EngineSignal>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.set_gone();
        // The engine may have kicked just now, in vain.
        self.1.notify();
    }
}

struct Runner<P> {
    index: usize,
    shard: SealedShard<P>,
    shared: Shared,
    signal: Arc<EngineSignal>,
    peers: IndexMap<u32, Peer, FxBuildHasher>,
    outgoing: SendBatch,
    /// Plain datagrams between the state and the cipher.
    plain: Vec<(u32, Vec<u8>)>,
    /// Session, index in the port's batch, start and end of the plain text in it.
    opened: Vec<(u32, usize, usize)>,
    /// Sessions whose probe is to be answered.
    probes: Vec<u32>,
    counters: SealedCounters,
}

impl<P: PacketPort> Runner<P> {
    fn run(mut self) {
        self.shard.port.on_thread();
        if let Err(error) = sched::ask_for_slices(sched::HOT_SLICE_NS) {
            tracing::debug!(%error, "the thread keeps its time slices");
        }
        let spins = self.shard.spins;
        let mut waiter = Waiter::new(spins);
        let mut more = true;
        let (mut idle_rounds, mut told_ns) = (0u32, 0);
        while !self.shard.kick.stopped() {
            let received = match self.receive() {
                Ok(received) => received,
                Err(error) => {
                    tracing::error!(%error, "the port of sealed datagrams is lost; hosts go on with QUIC");
                    return;
                }
            };
            let due = self.shard.kick.take();
            // A thread that spins leaves the state's lock alone while nothing is to be done.
            let idle = spins != Spins::No
                && received == 0
                && !(due || more)
                && self.outgoing.is_empty()
                && !self.signal.rates_wait()
                && !self.is_to_tell(&mut idle_rounds, &mut told_ns);
            more = !idle && self.exchange();
            if received > 0 {
                waiter.busy();
            }
            if received < BATCH && !more {
                let shard = &self.shard;
                waiter.wait(&shard.port, &shard.kick, !self.outgoing.is_empty());
            }
        }
    }

    fn is_to_tell(&self, idle_rounds: &mut u32, told_ns: &mut u64) -> bool {
        *idle_rounds = (*idle_rounds + 1) % TELL_ROUNDS;
        if *idle_rounds != 0 {
            return false;
        }
        let now_ns = clock::now_ns();
        let due = now_ns.saturating_sub(*told_ns) >= TELL_NS;
        if due {
            *told_ns = now_ns;
        }
        due
    }

    /// Takes a batch from the port and opens it.
    fn receive(&mut self) -> io::Result<usize> {
        let count = self.shard.port.receive()?;
        self.opened.clear();
        self.probes.clear();
        for index in 0..count {
            let (bytes, from) = self.shard.port.datagram(index);
            let length = bytes.len();
            let header = match SealedHeader::parse(bytes) {
                Ok(header) => header,
                Err(reason) => {
                    self.counters.dropped(reason);
                    continue;
                }
            };
            let Some(peer) = self.peers.get_mut(&header.session) else {
                self.counters.dropped(OpenError::UnknownSession);
                continue;
            };
            let Some(from) = from.filter(|from| from.ip().to_canonical() == peer.address) else {
                self.counters.wrong_address += 1;
                continue;
            };
            let newest = peer.sealed.is_newest(&header);
            let updates = peer.sealed.key_updates();
            match peer.sealed.open(bytes) {
                Ok(text) => {
                    if newest {
                        peer.remote = Some(from);
                    }
                    if text.is_empty() {
                        self.probes.push(header.session);
                    } else {
                        self.opened.push((header.session, index, text.len()));
                    }
                    self.counters.opened += 1;
                    self.counters.opened_bytes += length as u64;
                    self.counters.key_updates += peer.sealed.key_updates() - updates;
                    if newest {
                        self.shard.port.authentic(index);
                    }
                }
                Err(reason) => self.counters.dropped(reason),
            }
        }
        Ok(count)
    }

    /// Hands in what was opened, takes out what is to be sent, and sends it. True if more may wait.
    fn exchange(&mut self) -> bool {
        let (index, peers, counters) = (self.index, &mut self.peers, &self.counters);
        let (port, opened, plain) = (&mut self.shard.port, &self.opened, &mut self.plain);
        let may_build = self.outgoing.is_empty();
        let config = self.shard.config;
        let (built, rates) = self.shared.run_sealed(index, |state, now_ns| {
            state.sealed_counted(index, counters, |visit| port.counters(visit));
            for notice in state.sealed_notices(index) {
                match notice {
                    Notice::Add {
                        id,
                        secret,
                        address,
                    } => {
                        let sealed = SealedSession::new(config, Sender::Server, id, &secret);
                        let peer = Peer {
                            sealed,
                            address,
                            remote: None,
                        };
                        peers.insert(id, peer);
                    }
                    Notice::Remove(id) => drop(peers.swap_remove(&id)),
                }
            }
            for &(id, at, length) in opened {
                let (bytes, _) = port.datagram(at);
                let start = ratewright_proto::sealed::HEADER_BYTES;
                state.on_sealed(now_ns, id, &bytes[start..start + length]);
            }
            let rates = state.take_rates_for_sealed(now_ns);
            state.flush(now_ns);
            let built = if may_build {
                state.build_sealed(now_ns, index, plain)
            } else {
                0
            };
            (built, rates)
        });
        for at in 0..self.probes.len() {
            self.seal(self.probes[at], None);
        }
        for at in 0..built {
            self.seal(self.plain[at].0, Some(at));
        }
        self.flush();
        // What was held back for a full port is built as soon as that takes the rest.
        let held_back = (built == BATCH || !may_build) && self.outgoing.is_empty();
        // A thread that sleeps leaves further rates to the service's thread.
        held_back || (rates && self.shard.spins != Spins::No)
    }

    /// Seals a plain datagram, or an empty one, into the batch.
    fn seal(&mut self, id: u32, plain: Option<usize>) {
        if self.outgoing.is_full() {
            self.flush();
        }
        if self.outgoing.is_full() {
            // The port is full: an answer to a probe is not worth waiting for, and a datagram's
            // state comes again.
            self.counters.unsent += 1;
            return;
        }
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        let Some(remote) = peer.remote else {
            self.counters.unsent += 1;
            return;
        };
        let text: &[u8] = plain.map_or(&[], |at| &self.plain[at].1);
        match peer.sealed.seal(text, self.outgoing.buffer()) {
            Ok(()) => self.outgoing.push(remote),
            Err(_) => self.counters.unsent += 1,
        }
    }

    fn flush(&mut self) {
        let before = self.outgoing.len();
        if before == 0 {
            return;
        }
        let sent = match self.shard.port.send(&mut self.outgoing) {
            Ok(sent) => sent,
            Err(_) => {
                self.outgoing.clear();
                0
            }
        };
        self.counters.sealed += sent as u64;
        self.counters.unsent += (before - sent - self.outgoing.len()) as u64;
    }
}
