//! Port for sealed datagrams with the keys of its sessions: opens what comes, seals what goes.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use ratewright_io::udp::{BATCH, BatchSent, Ends, PacketPort, SendBatch};
use ratewright_proto::sealed::{HEADER_BYTES, SealedConfig, SealedCounters, Secret};

use crate::service::sealed_peers::SealedPeers;

/// State of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PortState {
    /// QUIC carries everything.
    Absent,
    /// Its sessions may use it.
    Open,
    /// It cannot be used any more.
    Lost,
}

/// The port of an owner of the core that has none.
pub(super) struct NoPort;

impl PacketPort for NoPort {
    fn receive(&mut self) -> io::Result<usize> {
        Ok(0)
    }

    fn datagram(&mut self, _index: usize) -> (&mut [u8], Option<Ends>) {
        (&mut [], None)
    }

    fn send(&mut self, batch: &mut SendBatch) -> io::Result<BatchSent> {
        batch.clear();
        Ok(BatchSent::default())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Notice to a port about a session.
pub(super) enum SessionNotice {
    /// A session has begun.
    Add {
        id: u32,
        secret: Secret,
        address: IpAddr,
    },
    /// A session is over.
    Remove(u32),
}

/// Port, keys and batches of one thread.
pub(super) struct SealedPort<P> {
    pub(super) port: P,
    pub(super) state: PortState,
    config: SealedConfig,
    peers: SealedPeers<()>,
    outgoing: SendBatch,
    /// Opened datagrams: session, index in the port's batch, length of the plain text behind the
    /// header.
    opened: Vec<(u32, usize, usize)>,
    /// Sessions with a probe to answer.
    probes: Vec<u32>,
    pub(super) counters: SealedCounters,
}

impl<P: PacketPort> SealedPort<P> {
    pub(super) fn new(port: P, state: PortState, config: SealedConfig) -> Self {
        Self {
            port,
            state,
            config,
            peers: SealedPeers::new(),
            outgoing: SendBatch::default(),
            opened: Vec::with_capacity(BATCH),
            probes: Vec::with_capacity(BATCH),
            counters: SealedCounters::default(),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.state == PortState::Open
    }

    /// Returns the port, if a thread may wait for it.
    pub(super) fn to_wait_for(&self) -> Option<&P> {
        self.is_open().then_some(&self.port)
    }

    /// True if datagrams wait for a port that is full.
    pub(super) fn is_full(&self) -> bool {
        !self.outgoing.is_empty() && self.is_open()
    }

    /// True if nothing waits for the port, so that newer datagrams may be built.
    pub(super) fn may_build(&self) -> bool {
        self.outgoing.is_empty() && self.is_open()
    }

    pub(super) fn heed(&mut self, notice: SessionNotice) {
        match notice {
            SessionNotice::Add {
                id,
                secret,
                address,
            } => self.peers.add(id, (), self.config, &secret, address),
            SessionNotice::Remove(id) => self.peers.remove(id),
        }
    }

    /// Receives a batch from the port and opens it. Returns the number of datagrams that came.
    ///
    /// # Errors
    /// The port is lost.
    pub(super) fn receive(&mut self) -> io::Result<usize> {
        self.opened.clear();
        self.probes.clear();
        if !self.is_open() {
            return Ok(0);
        }
        let count = self.port.receive()?;
        for index in 0..count {
            let (bytes, ends) = self.port.datagram(index);
            let Some(opened) = self.peers.open(bytes, ends, &mut self.counters) else {
                continue;
            };
            if opened.length == 0 {
                self.probes.push(opened.session);
            } else {
                self.opened.push((opened.session, index, opened.length));
            }
            // Only a datagram newer than all others proves where the host is now.
            if opened.newest {
                self.port.authentic(index);
            }
        }
        Ok(count)
    }

    /// Hands over what the last batch had, once.
    pub(super) fn take_opened(&mut self, mut take: impl FnMut(u32, &[u8])) {
        for (id, at, length) in self.opened.drain(..) {
            let (bytes, _) = self.port.datagram(at);
            take(id, &bytes[HEADER_BYTES..][..length]);
        }
    }

    /// Answers the probes of the last batch, once.
    pub(super) fn answer_probes(&mut self) {
        for at in 0..self.probes.len() {
            self.seal(self.probes[at], &[]);
        }
        self.probes.clear();
    }

    /// Seals a plain datagram, or an empty one as the answer to a probe, into the batch.
    pub(super) fn seal(&mut self, id: u32, plain: &[u8]) {
        if self.outgoing.is_full() {
            self.flush();
        }
        if self.outgoing.is_full() {
            // The port is full. The probe comes again, and so does the datagram's state.
            self.counters.unsent += 1;
            return;
        }
        let out = self.outgoing.buffer();
        match self.peers.seal(id, plain, out, &mut self.counters) {
            Some(ends) => self.outgoing.push(ends),
            None => self.counters.unsent += 1,
        }
    }

    /// Sends what was sealed, as far as the port takes it.
    pub(super) fn flush(&mut self) {
        if !self.outgoing.is_empty() {
            self.port
                .send_sealed(&mut self.outgoing, &mut self.counters);
        }
    }
}
