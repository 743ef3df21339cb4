//! Outgoing connections that learn early whether anybody is there.
//!
//! A server that is overloaded answers a connection's first packet with a Retry (RFC 9000, section 8.1.2) long before it has
//! time for the handshake. Whoever has one knows that it pays to wait. quinn does not tell, so it is read off the datagrams.

use std::cell::Cell;
use std::hash::{BuildHasher as _, RandomState};
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

thread_local! {
    /// The connection ID that was made last on this thread.
    static LAST_MADE: Cell<Option<ConnectionId>> = const { Cell::new(None) };
}

/// An endpoint for outgoing connections. Clones share it.
#[derive(Debug, Clone)]
pub struct QuicClient {
    endpoint: Endpoint,
    attempts: Arc<ConnectAttempts>,
}

impl QuicClient {
    /// An endpoint on a socket of its own; otherwise as [`on`](Self::on).
    ///
    /// # Errors
    /// The address cannot be had, or the socket cannot be used.
    pub fn bind(local: SocketAddr, dscp: Dscp) -> io::Result<Self> {
        Self::on(UdpSocket::bind(local)?, dscp)
    }

    /// An endpoint on `socket`, whose datagrams are marked with `dscp`. To be called on a tokio runtime.
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
        // Made within that call, and so on this thread.
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

/// A connection on its way.
#[derive(Debug)]
pub struct ConnectAttempt {
    connecting: Connecting,
    retry_wait: RetryWait,
}

impl ConnectAttempt {
    /// Waits for `patience`, and from a Retry on for `queue_patience`; `None` if that was not enough.
    pub async fn within(
        self,
        patience: Duration,
        queue_patience: Duration,
    ) -> Option<Result<quinn::Connection, quinn::ConnectionError>> {
        let Self {
            connecting,
            retry_wait,
        } = self;
        let mut connecting = std::pin::pin!(connecting);
        let unread = retry_wait.attempts.unread_after(patience);
        tokio::select! {
            biased;
            done = &mut connecting => return Some(done),
            () = retry_wait.retried.notified() => {}
            () = unread => return None,
        }
        let unread = retry_wait.attempts.unread_after(queue_patience);
        tokio::select! {
            biased;
            done = &mut connecting => Some(done),
            () = unread => None,
        }
    }
}

/// Interval at which the test looks whether the socket was read.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Whoever was itself held up for so long reads what has come meanwhile, and no longer.
const MOST_HELD_UP: Duration = Duration::from_millis(500);

/// Attempts that have no answer yet, by their connection ID.
#[derive(Debug)]
pub(super) struct ConnectAttempts {
    waiting: Mutex<FxHashMap<ConnectionId, Arc<Notify>>>,
    /// When the socket was last read empty, in nanoseconds since `began`.
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
        // Every change of it is one call.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The socket holds nothing more.
    pub(super) fn emptied(&self) {
        self.emptied_ns.store(self.now_ns(), Ordering::Relaxed);
    }

    /// Returns when so much time has passed and nothing that came in it is unread: a host that was itself held up
    /// has no reason to think that nobody has answered.
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

    /// Looks at a datagram that has come.
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

/// Whose connection ID a datagram is for, if it is a Retry of QUIC version 1. Its tag is not checked: whoever does not see the
/// first packet cannot know the ID, and whoever does can answer it.
fn retry_to(datagram: &[u8]) -> Option<&[u8]> {
    let (&first, rest) = datagram.split_first()?;
    let (version, rest) = rest.split_first_chunk::<4>()?;
    let (&length, rest) = rest.split_first()?;
    let is_retry = first & RETRY == RETRY && u32::from_be_bytes(*version) == 1;
    let length = usize::from(length);
    (is_retry && length <= MAX_ID_BYTES).then(|| rest.get(..length))?
}

/// Makes unpredictable connection IDs, and tells which one was made last.
struct RecordingIds;

impl ConnectionIdGenerator for RecordingIds {
    fn generate_cid(&mut self) -> ConnectionId {
        // The standard library's hasher is keyed by the operating system's randomness, and by another key each time.
        let drawn = RandomState::new().hash_one(());
        let id = ConnectionId::new(&drawn.to_ne_bytes());
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
