//! Entrance of a QUIC endpoint: carries out the decisions of [`Admission`] on its connection
//! attempts.

use std::cell::{RefCell, RefMut};
use std::hash::BuildHasher as _;
use std::rc::Rc;

use indexmap::IndexMap;
use quinn::{Connecting, ConnectionError, Incoming};
use ratewright_proto::handshake_timeout;
use rustc_hash::FxBuildHasher;
use tokio::sync::Notify;

use super::admission::{
    Admission, AdmissionConfig, AdmissionStep, ConnectionAttempt, OfferOutcome, Ticket,
};
use super::clock;

/// Entrance of an endpoint. Clones share it, on one thread.
#[derive(Clone)]
pub(super) struct Entrance(Rc<EntranceState>);

struct EntranceState {
    queue: RefCell<EntranceQueue>,
    /// Wakes [`Entrance::next`]: a turn is free, or a time-out has changed.
    changed: Notify,
    /// Counts an attempt that ended before its turn, by reason.
    count: Box<dyn Fn(&'static str)>,
}

struct EntranceQueue {
    admission: Admission,
    incoming: IndexMap<Ticket, Incoming, FxBuildHasher>,
    /// Wake-ups of the tasks whose handshakes must end.
    ends: IndexMap<Ticket, Rc<Notify>, FxBuildHasher>,
}

impl Entrance {
    /// Creates an empty entrance. It passes the reason of attempts that end before their turn to
    /// `count`.
    pub(super) fn new(config: AdmissionConfig, count: impl Fn(&'static str) + 'static) -> Self {
        Self(Rc::new(EntranceState {
            queue: RefCell::new(EntranceQueue {
                admission: Admission::new(config),
                incoming: IndexMap::default(),
                ends: IndexMap::default(),
            }),
            changed: Notify::new(),
            count: Box::new(count),
        }))
    }

    fn queue(&self) -> RefMut<'_, EntranceQueue> {
        self.0.queue.borrow_mut()
    }

    /// Takes an attempt's first packet: answers it or lets it wait. `is_host` says that the
    /// topology gives its address to a host; of an address that may be forged nothing is looked up.
    pub(super) fn offer(&self, incoming: Incoming, is_host: bool) {
        let source = incoming.remote_address().ip();
        let validated = incoming.remote_address_validated();
        let attempt = ConnectionAttempt {
            source,
            validated,
            is_host: validated && is_host,
            patience_ns: handshake_timeout::of_connection_id(&incoming.orig_dst_cid()),
            id: FxBuildHasher.hash_one(&*incoming.orig_dst_cid()),
        };
        let mut queue = self.queue();
        match queue.admission.offer(clock::now_ns(), attempt) {
            OfferOutcome::Retry => {
                // Quinn's calls may come back here.
                drop(queue);
                // Fails only for a validated address, and this one is not.
                let _ = incoming.retry();
            }
            OfferOutcome::Rejected => {
                drop(queue);
                (self.0.count)("abandoned");
                incoming.ignore();
            }
            OfferOutcome::Waits { ticket, displaced } => {
                queue.incoming.insert(ticket, incoming);
                let other = displaced.and_then(|ticket| queue.incoming.swap_remove(&ticket));
                drop(queue);
                if let Some(other) = other {
                    (self.0.count)("busy");
                    other.refuse();
                }
            }
        }
    }

    /// Waits for the next attempt whose turn it is. Cancel-safe.
    pub(super) async fn next(&self) -> (Incoming, HandshakeTurn) {
        loop {
            let step = self.queue().admission.next(clock::now_ns());
            match step {
                Some(step) => {
                    if let Some(begun) = self.take(step) {
                        return begun;
                    }
                }
                None => self.wait().await,
            }
        }
    }

    fn take(&self, step: AdmissionStep) -> Option<(Incoming, HandshakeTurn)> {
        let mut queue = self.queue();
        match step {
            AdmissionStep::Begin { ticket, .. } => {
                let incoming = queue.incoming.swap_remove(&ticket)?;
                let end = Rc::new(Notify::new());
                queue.ends.insert(ticket, Rc::clone(&end));
                drop(queue);
                let turn = HandshakeTurn {
                    entrance: self.clone(),
                    ticket,
                    end,
                };
                Some((incoming, turn))
            }
            AdmissionStep::Refuse(ticket) => {
                let incoming = queue.incoming.swap_remove(&ticket)?;
                drop(queue);
                (self.0.count)("busy");
                incoming.refuse();
                None
            }
            AdmissionStep::Drop(ticket) => {
                let incoming = queue.incoming.swap_remove(&ticket)?;
                drop(queue);
                (self.0.count)("abandoned");
                incoming.ignore();
                None
            }
            AdmissionStep::Close(ticket) => {
                queue.ends.swap_remove(&ticket)?.notify_one();
                None
            }
        }
    }

    /// Waits until `Admission::next` may have an action.
    async fn wait(&self) {
        let timeout_ns = self.queue().admission.next_timeout();
        // A wake-up between the read of the time-out and this line is not lost: Notify stores one.
        let changed = self.0.changed.notified();
        match timeout_ns {
            None => changed.await,
            Some(at_ns) => {
                let at = tokio::time::Instant::from_std(clock::instant_at(at_ns));
                tokio::select! {
                    () = changed => {}
                    () = tokio::time::sleep_until(at) => {}
                }
            }
        }
    }
}

/// Right to a handshake, from its beginning to the peer's Hello. Dropped, it lets another one
/// begin.
pub(super) struct HandshakeTurn {
    entrance: Entrance,
    ticket: Ticket,
    end: Rc<Notify>,
}

impl HandshakeTurn {
    /// Begins the handshake: our first flight, with its signature.
    ///
    /// # Errors
    /// The first packet is invalid.
    pub(super) fn begin(&self, incoming: Incoming) -> Result<Connecting, ConnectionError> {
        let began_ns = clock::now_ns();
        let connecting = incoming.accept();
        let cost_ns = clock::now_ns().saturating_sub(began_ns);
        self.entrance.queue().admission.record_cost(cost_ns);
        connecting
    }

    /// Records the peer's Hello.
    pub(super) fn hello_received(&self) {
        self.entrance.queue().admission.hello_received(self.ticket);
        self.entrance.0.changed.notify_one();
    }

    /// True while the handshake is under way.
    pub(super) fn holds(&self) -> bool {
        let queue = self.entrance.queue();
        queue.admission.is_under_way(self.ticket)
    }

    /// Waits until the handshake must end without a Hello.
    pub(super) async fn end(&self) {
        self.end.notified().await;
    }
}

impl Drop for HandshakeTurn {
    fn drop(&mut self) {
        let mut queue = self.entrance.queue();
        queue.admission.finish(self.ticket);
        queue.ends.swap_remove(&self.ticket);
        drop(queue);
        self.entrance.0.changed.notify_one();
    }
}
