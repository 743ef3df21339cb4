//! Outgoing connections that recognise a Retry, the first sign of a living server.
//!
//! An overloaded server answers a connection's first packet with a Retry (RFC 9000 §8.1.2) long
//! before it has time for the handshake. A client with a Retry knows that waiting pays. quinn does
//! not report it, so this module reads it from the datagrams.

use std::cell::Cell;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quinn::{
    ClientConfig, ConnectError, Connecting, ConnectionId, ConnectionIdGenerator, Endpoint,
    EndpointConfig,
};
use rustc_hash::FxHashMap;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::dscp::Dscp;
use crate::random;

thread_local! {
    /// Connection ID that was generated last on this thread.
    static LAST_MADE: Cell<Option<ConnectionId>> = const { Cell::new(None) };
}

/// Endpoint for outgoing connections. Clones share it.
#[derive(Debug, Clone)]
pub struct QuicClient {
    endpoint: Endpoint,
    attempts: Arc<ConnectAttempts>,
}

impl QuicClient {
    /// Makes an endpoint on a new socket, like [`on`](Self::on).
    ///
    /// # Errors
    /// The address cannot be had, or the socket cannot be used.
    pub fn bind(local: SocketAddr, dscp: Dscp) -> io::Result<Self> {
        Self::on(UdpSocket::bind(local)?, dscp)
    }

    /// Makes an endpoint on `socket`, whose datagrams are marked with `dscp`. Must run on a tokio
    /// runtime.
    ///
    /// # Errors
    /// The socket cannot be used.
    pub fn on(socket: UdpSocket, dscp: Dscp) -> io::Result<Self> {
        let attempts = Arc::new(ConnectAttempts::default());
        let mut settings = EndpointConfig::default();
        settings.cid_generator(|| Box::new(RecordingIds));
        let watch = Some(Arc::clone(&attempts));
        Ok(Self {
            endpoint: super::endpoint_with(socket, settings, None, dscp, watch)?,
            attempts,
        })
    }

    /// The endpoint itself.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Begins to connect.
    ///
    /// # Errors
    /// The address or the name cannot be connected to.
    pub fn connect(
        &self,
        config: ClientConfig,
        to: SocketAddr,
        name: &str,
    ) -> Result<ConnectAttempt, ConnectError> {
        LAST_MADE.set(None);
        let connecting = self.endpoint.connect_with(config, to, name)?;
        // quinn generates the ID within that call, and so on this thread.
        let id = LAST_MADE.take();
        let retried = Arc::new(Notify::new());
        if let Some(id) = id {
            self.attempts.lock().insert(id, Arc::clone(&retried));
        }
        Ok(ConnectAttempt {
            connecting,
            retry_wait: RetryWait {
                attempts: Arc::clone(&self.attempts),
                id,
                retried,
            },
        })
    }
}

/// A connection attempt whose handshake runs.
#[derive(Debug)]
pub struct ConnectAttempt {
    connecting: Connecting,
    retry_wait: RetryWait,
}

/// First sign of a living server.
#[derive(Debug)]
pub enum Answer {
    /// The handshake is over, well or badly.
    Settled(Result<quinn::Connection, quinn::ConnectionError>),
    /// A Retry: the server lives, and the handshake has its turn later.
    Queued(QueuedAttempt),
}

/// A connection attempt that a Retry has answered.
#[derive(Debug)]
pub struct QueuedAttempt {
    connecting: Connecting,
    attempts: Arc<ConnectAttempts>,
}

impl QueuedAttempt {
    /// Waits for the rest of the handshake. Returns `None` after `patience`.
    pub async fn within(
        mut self,
        patience: Duration,
    ) -> Option<Result<quinn::Connection, quinn::ConnectionError>> {
        // Biased: a connection that is ready wins over a time-out at the same moment.
        tokio::select! {
            biased;
            done = &mut self.connecting => Some(done),
            () = self.attempts.unread_after(patience) => None,
        }
    }
}

impl ConnectAttempt {
    /// Waits for the first answer. Returns `None` after `patience`.
    pub async fn answered(self, patience: Duration) -> Option<Answer> {
        let Self {
            mut connecting,
            retry_wait,
        } = self;
        // Biased: a connection that is ready wins over a time-out at the same moment.
        tokio::select! {
            biased;
            done = &mut connecting => return Some(Answer::Settled(done)),
            () = retry_wait.retried.notified() => {}
            () = retry_wait.attempts.unread_after(patience) => return None,
        }
        Some(Answer::Queued(QueuedAttempt {
            connecting,
            attempts: Arc::clone(&retry_wait.attempts),
        }))
    }

    /// Waits for `patience`, and from a Retry on for `queue_patience`. Returns `None` after this
    /// handshake time-out.
    pub async fn within(
        self,
        patience: Duration,
        queue_patience: Duration,
    ) -> Option<Result<quinn::Connection, quinn::ConnectionError>> {
        match self.answered(patience).await? {
            Answer::Settled(done) => Some(done),
            Answer::Queued(queued) => queued.within(queue_patience).await,
        }
    }
}

/// Interval of the check that the socket was read.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Longest wait for the socket to be read after a stall of this host.
const MOST_HELD_UP: Duration = Duration::from_millis(500);

/// Attempts without an answer, by connection ID.
#[derive(Debug)]
pub(super) struct ConnectAttempts {
    waiting: Mutex<FxHashMap<ConnectionId, Arc<Notify>>>,
    /// Time of the last read that found the socket empty, in nanoseconds since `began`.
    emptied_ns: AtomicU64,
    began: Instant,
}

impl Default for ConnectAttempts {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            emptied_ns: AtomicU64::new(0),
            began: Instant::now(),
        }
    }
}

impl ConnectAttempts {
    fn lock(&self) -> MutexGuard<'_, FxHashMap<ConnectionId, Arc<Notify>>> {
        // Each change is one call, so a panic elsewhere leaves the map consistent.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Records that the socket was read empty.
    pub(super) fn emptied(&self) {
        self.emptied_ns.store(self.now_ns(), Ordering::Relaxed);
    }

    /// Waits for `time`, and until everything that arrived in it was read: the answer to a host
    /// that stalled may be in the socket.
    async fn unread_after(&self, time: Duration) {
        let until = Instant::now().checked_add(time);
        let Some(until) = until else {
            return std::future::pending().await;
        };
        tokio::time::sleep_until(until).await;
        let until_ns = self.now_ns();
        let at_last = until + MOST_HELD_UP;
        while self.emptied_ns.load(Ordering::Relaxed) < until_ns && Instant::now() < at_last {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Inspects an arriving datagram for a Retry.
    pub(super) fn see(&self, datagram: &[u8]) {
        if let Some(id) = retry_to(datagram)
            && let Some(retried) = self.lock().remove(&ConnectionId::new(id))
        {
            retried.notify_one();
        }
    }
}

#[derive(Debug)]
struct RetryWait {
    attempts: Arc<ConnectAttempts>,
    id: Option<ConnectionId>,
    retried: Arc<Notify>,
}

impl Drop for RetryWait {
    fn drop(&mut self) {
        if let Some(id) = &self.id {
            self.attempts.lock().remove(id);
        }
    }
}

/// Long header, fixed bit, type Retry (RFC 9000, section 17.2.5).
const RETRY: u8 = 0xf0;

/// Longest connection ID of QUIC version 1.
const MAX_ID_BYTES: usize = 20;

/// Destination connection ID of a Retry of QUIC version 1, or `None` for any other datagram. The
/// tag is not checked: only a party that sees the first packet knows the ID, and that one can
/// answer it.
fn retry_to(datagram: &[u8]) -> Option<&[u8]> {
    let (&first, rest) = datagram.split_first()?;
    let (version, rest) = rest.split_first_chunk::<4>()?;
    let (&length, rest) = rest.split_first()?;
    // Fixed bits of a Retry are all ones, so one mask is both filter and value.
    let is_retry = first & RETRY == RETRY && u32::from_be_bytes(*version) == 1;
    let length = usize::from(length);
    (is_retry && length <= MAX_ID_BYTES).then(|| rest.get(..length))?
}

/// Generator of unpredictable connection IDs that records the last one.
struct RecordingIds;

impl ConnectionIdGenerator for RecordingIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let id = ConnectionId::new(&random::bytes::<{ size_of::<u64>() }>());
        LAST_MADE.set(Some(id));
        id
    }

    fn cid_len(&self) -> usize {
        size_of::<u64>()
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retry(id: &[u8]) -> Vec<u8> {
        let mut datagram = vec![RETRY | 5, 0, 0, 0, 1, id.len() as u8];
        datagram.extend_from_slice(id);
        datagram.extend_from_slice(&[8, 1, 2, 3, 4, 5, 6, 7, 8]);
        datagram
    }

    #[test]
    fn a_retry_tells_whom_it_is_for() {
        let datagram = retry(b"somebody");
        assert_eq!(retry_to(&datagram), Some(&b"somebody"[..]));
        for cut in 0..6 + 8 {
            assert_eq!(retry_to(&datagram[..cut]), None, "{cut} bytes of it");
        }
        assert_eq!(retry_to(&retry(&[1; 21])), None);
        let mut initial = datagram.clone();
        initial[0] = 0xc5;
        assert_eq!(retry_to(&initial), None);
        let mut other_version = datagram;
        other_version[4] = 2;
        assert_eq!(retry_to(&other_version), None);
    }

    fn retry_wait(attempts: &Arc<ConnectAttempts>, id: &[u8]) -> RetryWait {
        let (id, retried) = (ConnectionId::new(id), Arc::new(Notify::new()));
        attempts.lock().insert(id, Arc::clone(&retried));
        RetryWait {
            attempts: Arc::clone(attempts),
            id: Some(id),
            retried,
        }
    }

    #[tokio::test]
    async fn only_whose_retry_it_is_hears_of_it_and_who_has_gone_is_forgotten() {
        let attempts = Arc::new(ConnectAttempts::default());
        let (one, other) = (
            retry_wait(&attempts, b"one-----"),
            retry_wait(&attempts, b"other---"),
        );
        attempts.see(&retry(b"nobody--"));
        attempts.see(&retry(b"one-----"));
        one.retried.notified().await;
        let unheard = tokio::time::timeout(Duration::ZERO, other.retried.notified()).await;
        assert!(unheard.is_err());
        drop((one, other));
        assert!(attempts.lock().is_empty());
    }
}
