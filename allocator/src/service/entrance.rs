//! Connection attempts of a QUIC endpoint that wait for their turn: what [`Admission`] decides is
//! done here.

use std::hash::BuildHasher as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use indexmap::IndexMap;
use quinn::{Connecting, ConnectionError, Incoming};
use ratewright_proto::handshake_timeout;
use rustc_hash::FxBuildHasher;
use tokio::sync::Notify;

use super::admission::{
    Admission, AdmissionConfig, AdmissionStep, ConnectionAttempt, OfferOutcome, Ticket,
};
use super::clock;

/// The entrance of an endpoint. Clones share it.
#[derive(Clone)]
pub(super) struct Entrance(Arc<EntranceState>);

struct EntranceState {
    queue: Mutex<EntranceQueue>,
    /// A turn is free, or a timeout has changed.
    changed: Notify,
    /// Counts an attempt that came to nothing, by reason.
    count: CountRejection,
}

/// Counts by reason.
type CountRejection = Box<dyn Fn(&'static str) + Send + Sync>;

struct EntranceQueue {
    admission: Admission,
    incoming: IndexMap<Ticket, Incoming, FxBuildHasher>,
    /// Wakes the tasks of handshakes under way that are to end.
    over: IndexMap<Ticket, Arc<Notify>, FxBuildHasher>,
}

impl Entrance {
    /// An entrance where nobody waits. Attempts that come to nothing before their turn are given to
    /// `count`.
    pub(super) fn new(
        config: AdmissionConfig,
        count: impl Fn(&'static str) + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(EntranceState {
            queue: Mutex::new(EntranceQueue {
                admission: Admission::new(config),
                incoming: IndexMap::default(),
                over: IndexMap::default(),
            }),
            changed: Notify::new(),
            count: Box::new(count),
        }))
    }

    /// A panic while it was held ended the process.
    fn lock(&self) -> MutexGuard<'_, EntranceQueue> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an attempt's first packet: answers it, or lets it wait.
    pub(super) fn offer(&self, incoming: Incoming) {
        let attempt = ConnectionAttempt {
            source: incoming.remote_address().ip(),
            validated: incoming.remote_address_validated(),
            patience_ns: handshake_timeout::of_connection_id(&incoming.orig_dst_cid()),
            id: FxBuildHasher.hash_one(&*incoming.orig_dst_cid()),
        };
        let mut queue = self.lock();
        match queue.admission.offer(clock::now_ns(), attempt) {
            OfferOutcome::Retry => {
                drop(queue);
                // Fails only where the address was validated, which was asked just now.
                let _ = incoming.retry();
            }
            OfferOutcome::Over => {
                drop(queue);
                (self.0.count)("abandoned");
                incoming.ignore();
            }
            OfferOutcome::Waits { ticket, instead_of } => {
                queue.incoming.insert(ticket, incoming);
                let other = instead_of.and_then(|ticket| queue.incoming.swap_remove(&ticket));
                drop(queue);
                if let Some(other) = other {
                    (self.0.count)("busy");
                    other.refuse();
                }
            }
        }
    }

    /// The next attempt whose turn it is. Cancel-safe.
    pub(super) async fn next(&self) -> (Incoming, HandshakeTurn) {
        loop {
            let step = self.lock().admission.next(clock::now_ns());
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
        let mut queue = self.lock();
        match step {
            AdmissionStep::Begin { ticket, .. } => {
                let incoming = queue.incoming.swap_remove(&ticket)?;
                let over = Arc::new(Notify::new());
                queue.over.insert(ticket, Arc::clone(&over));
                drop(queue);
                let turn = HandshakeTurn {
                    entrance: self.clone(),
                    ticket,
                    over,
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
                queue.over.swap_remove(&ticket)?.notify_one();
                None
            }
        }
    }

    /// Waits until there may be something to do.
    async fn wait(&self) {
        let timeout_ns = self.lock().admission.next_timeout();
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

/// The right to a handshake, from its beginning to the peer's Hello. Dropped, it lets another
/// begin.
pub(super) struct HandshakeTurn {
    entrance: Entrance,
    ticket: Ticket,
    over: Arc<Notify>,
}

impl HandshakeTurn {
    /// Begins the handshake: our first flight, with its signature.
    ///
    /// # Errors
    /// The first packet was no good.
    pub(super) fn begin(&self, incoming: Incoming) -> Result<Connecting, ConnectionError> {
        let began_ns = clock::now_ns();
        let connecting = incoming.accept();
        let cost_ns = clock::now_ns().saturating_sub(began_ns);
        self.entrance.lock().admission.record_cost(cost_ns);
        connecting
    }

    /// The Hello is there.
    pub(super) fn introduced(&self) {
        self.entrance.lock().admission.introduced(self.ticket);
        self.entrance.0.changed.notify_one();
    }

    /// Whether another has to wait for this one.
    pub(super) fn holds(&self) -> bool {
        let queue = self.entrance.lock();
        queue.admission.is_under_way(self.ticket)
    }

    /// Waits until the handshake is to end without a Hello.
    pub(super) async fn over(&self) {
        self.over.notified().await;
    }
}

impl Drop for HandshakeTurn {
    fn drop(&mut self) {
        let mut queue = self.entrance.lock();
        queue.admission.left(self.ticket);
        queue.over.swap_remove(&self.ticket);
        drop(queue);
        self.entrance.0.changed.notify_one();
    }
}
