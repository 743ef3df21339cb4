//! Sealed datagrams: a socket and a thread per shard.
//!
//! Session `id` belongs to shard `id % shards`, which alone holds its keys, receives on the port that
//! the session's Welcome names, opens and seals. The state machine is the one that QUIC datagrams go
//! through; the thread holds the state's lock only while it hands in what it has opened and takes out
//! what is to be sealed, never during a system call or a cipher.
//!
//! Datagrams are built when they can be sent and not before: what the socket does not take holds back
//! further building, meanwhile newer rates replace older ones in the flow table, and the engine is not
//! waited for anywhere.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use indexmap::IndexMap;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use ratewright_common::transport::MAX_DATAGRAM_BYTES;
use ratewright_common::udp::{BATCH, BatchSocket, SendBatch};
use ratewright_proto::datagram::Sender;
use ratewright_proto::sealed::{
    OpenError, SealedConfig, SealedCounters, SealedHeader, SealedSession, Secret,
};
use rustc_hash::FxBuildHasher;

use super::state::Shared;

/// Wakes a shard's thread.
#[derive(Debug)]
pub(super) struct Kick {
    event: EventFd,
    stop: AtomicBool,
}

impl Kick {
    fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        Ok(Self {
            event: EventFd::from_value_and_flags(0, flags)?,
            stop: AtomicBool::new(false),
        })
    }

    /// Has the thread look at its queue.
    pub(super) fn kick(&self) {
        // Fails only when the count is at its limit, and then the thread wakes anyway.
        let _ = self.event.write(1);
    }
}

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
    /// What the thread has counted.
    pub(super) counters: SealedCounters,
}

struct Peer {
    sealed: SealedSession,
    address: IpAddr,
    /// Where its newest datagram came from.
    remote: Option<SocketAddr>,
}

/// A shard before its thread runs.
pub(super) struct SealedShard {
    socket: BatchSocket,
    kick: Arc<Kick>,
    config: SealedConfig,
    busy_poll: bool,
}

/// The threads of all shards; they end with this.
#[derive(Default)]
pub(super) struct Threads(Vec<(Arc<Kick>, JoinHandle<()>)>);

impl Drop for Threads {
    fn drop(&mut self) {
        for (kick, thread) in self.0.drain(..) {
            kick.stop.store(true, Ordering::Release);
            kick.kick();
            let _ = thread.join();
        }
    }
}

impl SealedShard {
    pub(super) fn bind(
        address: SocketAddr,
        config: SealedConfig,
        busy_poll: bool,
    ) -> io::Result<(Self, Queue)> {
        let kick = Arc::new(Kick::new()?);
        let queue = Queue {
            kick: Arc::clone(&kick),
            notices: Vec::new(),
            first: VecDeque::new(),
            ready: VecDeque::new(),
            counters: SealedCounters::default(),
        };
        let socket = BatchSocket::bind(address)?;
        Ok((
            Self {
                socket,
                kick,
                config,
                busy_poll,
            },
            queue,
        ))
    }

    pub(super) fn port(&self) -> io::Result<u16> {
        Ok(self.socket.local_addr()?.port())
    }
}

/// Starts the shards' threads.
pub(super) fn start(shards: Vec<SealedShard>, shared: &Shared) -> io::Result<Threads> {
    let mut threads = Threads::default();
    for (index, shard) in shards.into_iter().enumerate() {
        let kick = Arc::clone(&shard.kick);
        let runner = Runner {
            index,
            shard,
            shared: shared.clone(),
            peers: IndexMap::default(),
            outgoing: SendBatch::default(),
            plain: vec![(0, Vec::with_capacity(MAX_DATAGRAM_BYTES)); BATCH],
            opened: Vec::with_capacity(BATCH),
            probes: Vec::with_capacity(BATCH),
            counters: SealedCounters::default(),
        };
        let thread = std::thread::Builder::new()
            .name(format!("sealed-{index}"))
            .spawn(move || runner.run())?;
        threads.0.push((kick, thread));
    }
    Ok(threads)
}

struct Runner {
    index: usize,
    shard: SealedShard,
    shared: Shared,
    peers: IndexMap<u32, Peer, FxBuildHasher>,
    outgoing: SendBatch,
    /// Plain datagrams between the state and the cipher.
    plain: Vec<(u32, Vec<u8>)>,
    /// Session, index in the socket's batch, start and end of the plain text in it.
    opened: Vec<(u32, usize, usize)>,
    /// Sessions whose probe is to be answered.
    probes: Vec<u32>,
    counters: SealedCounters,
}

impl Runner {
    fn run(mut self) {
        while !self.shard.kick.stop.load(Ordering::Acquire) {
            let received = match self.receive() {
                Ok(received) => received,
                Err(error) => {
                    tracing::error!(%error, "the socket of sealed datagrams is lost; hosts go on with QUIC");
                    return;
                }
            };
            let built = self.exchange();
            if received < BATCH && !built {
                self.wait();
            }
        }
    }

    /// Waits until the socket or the state has something, or takes what was held back.
    fn wait(&self) {
        if self.shard.busy_poll && self.outgoing.is_empty() {
            std::hint::spin_loop();
            return;
        }
        let mut interest = PollFlags::POLLIN;
        if !self.outgoing.is_empty() {
            interest |= PollFlags::POLLOUT;
        }
        let mut descriptors = [
            PollFd::new(self.shard.socket.as_fd(), interest),
            PollFd::new(self.shard.kick.event.as_fd(), PollFlags::POLLIN),
        ];
        // An interrupted wait is as good as a wake-up.
        let _ = poll(&mut descriptors, PollTimeout::NONE);
        let _ = self.shard.kick.event.read();
    }

    /// Takes a batch from the socket and opens it.
    fn receive(&mut self) -> io::Result<usize> {
        let count = self.shard.socket.receive()?;
        self.opened.clear();
        self.probes.clear();
        for index in 0..count {
            let (bytes, from) = self.shard.socket.datagram(index);
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
                }
                Err(reason) => self.counters.dropped(reason),
            }
        }
        Ok(count)
    }

    /// Hands in what was opened, takes out what is to be sent, and sends it. True if more may wait.
    fn exchange(&mut self) -> bool {
        let (index, peers, counters) = (self.index, &mut self.peers, &self.counters);
        let (socket, opened, plain) = (&mut self.shard.socket, &self.opened, &mut self.plain);
        let may_build = self.outgoing.is_empty();
        let config = self.shard.config;
        let built = self.shared.run_sealed(index, |state, now_ns| {
            for notice in state.sealed_notices(index, counters) {
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
                let (bytes, _) = socket.datagram(at);
                let start = ratewright_proto::sealed::HEADER_BYTES;
                state.on_sealed(now_ns, id, &bytes[start..start + length]);
            }
            state.take_rates_for_sealed(now_ns);
            state.flush(now_ns);
            if may_build {
                state.build_sealed(now_ns, index, plain)
            } else {
                0
            }
        });
        for id in std::mem::take(&mut self.probes) {
            self.seal(id, None);
        }
        for at in 0..built {
            self.seal(self.plain[at].0, Some(at));
        }
        self.flush();
        // What was held back for a full socket is built as soon as that takes the rest.
        (built == BATCH || !may_build) && self.outgoing.is_empty()
    }

    /// Seals a plain datagram, or an empty one, into the batch.
    fn seal(&mut self, id: u32, plain: Option<usize>) {
        if self.outgoing.is_full() {
            self.flush();
        }
        if self.outgoing.is_full() {
            // The socket is full: an answer to a probe is not worth waiting for, and a datagram's
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
        match self.shard.socket.send(&mut self.outgoing) {
            Ok(sent) => self.counters.sealed += sent as u64,
            Err(_) => self.counters.unsent += self.outgoing.clear() as u64,
        }
    }
}
