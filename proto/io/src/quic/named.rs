//! Connections to a name: all of its addresses are tried, in turns of both families (RFC 8305).
//!
//! An attempt begins when the last one has failed, or was silent for [`ATTEMPT_DELAY`]. An address
//! that has answered, if only by a Retry, holds up those that have not begun: an overloaded server
//! gets one handshake of this host, not one per address. The first connection that is up wins.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use quinn::{ClientConfig, Connection, ConnectionError};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::client::{Answer, QuicClient};

/// Wait for an answer before the next address is tried as well (RFC 8305, section 8).
pub const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Most addresses of one name that are tried.
pub const MOST_ADDRESSES: usize = 8;

/// Failure to connect to one of a name's addresses, or to find one.
#[derive(Debug, thiserror::Error)]
pub enum NamedConnectError {
    /// The name has no address, or none that this host can use.
    #[error("{0}")]
    Unusable(String),
    /// No answer arrived in time.
    #[error("no answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// The other end answered, and the connection failed.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
}

impl NamedConnectError {
    /// Returns the rank of a failure: what tells most of a live server is reported.
    fn rank(&self) -> u8 {
        match self {
            Self::Unusable(_) => 0,
            Self::Timeout(_) => 1,
            Self::Connection(ConnectionError::ConnectionClosed(frame))
                if frame.error_code == quinn::TransportErrorCode::CONNECTION_REFUSED =>
            {
                3
            }
            Self::Connection(_) => 2,
        }
    }
}

/// Name and port of a server, or an address and a port, as configured.
#[derive(Debug)]
pub struct RemoteName {
    text: String,
    /// Look-up that took longer than its caller waited.
    late: Mutex<Option<JoinHandle<io::Result<Vec<SocketAddr>>>>>,
}

impl RemoteName {
    /// Makes a name out of `host:port`.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            late: Mutex::new(None),
        }
    }

    /// Returns the text as configured.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Looks the name up anew. A look-up that takes longer than `patience` goes on, and the next
    /// call waits for that one: a name never has two under way.
    async fn resolve(&self, patience: Duration) -> Result<Vec<SocketAddr>, NamedConnectError> {
        let late = || self.late.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = late().take();
        let mut look_up = begun.unwrap_or_else(|| {
            let text = self.text.clone();
            tokio::spawn(async move { Ok(tokio::net::lookup_host(text).await?.collect()) })
        });
        let unusable = |reason: String| NamedConnectError::Unusable(reason);
        match tokio::time::timeout(patience, &mut look_up).await {
            Ok(Ok(found)) => found.map_err(|error| unusable(error.to_string())),
            Ok(Err(error)) => Err(unusable(error.to_string())),
            Err(_) => {
                *late() = Some(look_up);
                Err(unusable("its name is not resolved in time".to_owned()))
            }
        }
    }
}

/// Settings of the attempts at the addresses of one name.
#[derive(Debug)]
pub struct AttemptSettings<'a> {
    /// QUIC and TLS.
    pub client: ClientConfig,
    /// The name in the server's certificate.
    pub server_name: &'a str,
    /// Wait for an address's first answer, and for the name's look-up.
    pub patience: Duration,
    /// Wait from a Retry on.
    pub queue_patience: Duration,
}

/// Connects to the first address of `name` that lets it. `socket` returns the endpoint for IPv6
/// (true) or IPv4, or the reason why there is none.
///
/// # Errors
/// The failure that tells most, after all addresses have failed.
pub async fn connect(
    name: &RemoteName,
    settings: &AttemptSettings<'_>,
    mut socket: impl FnMut(bool) -> Result<QuicClient, String>,
) -> Result<Connection, NamedConnectError> {
    let found = name.resolve(settings.patience).await?;
    let begin = |to: SocketAddr| {
        let attempt = socket(to.is_ipv6()).and_then(|socket| {
            let client = settings.client.clone();
            let attempt = socket.connect(client, to, settings.server_name);
            attempt.map_err(|error| error.to_string())
        });
        async move {
            let attempt = attempt.map_err(NamedConnectError::Unusable)?;
            let answer = attempt.answered(settings.patience).await;
            match answer.ok_or(NamedConnectError::Timeout(settings.patience))? {
                Answer::Settled(connected) => Ok(Step::Up(connected?)),
                Answer::Queued(queued) => Ok(Step::Answered(async move {
                    let connected = queued.within(settings.queue_patience).await;
                    let timeout = NamedConnectError::Timeout(settings.queue_patience);
                    Ok(connected.ok_or(timeout)??)
                })),
            }
        }
    };
    let failures = match race(in_order_of_trial(found), begin).await {
        Ok(connection) => return Ok(connection),
        Err(failures) => failures,
    };
    let most_telling = failures.into_iter().max_by_key(NamedConnectError::rank);
    Err(most_telling
        .unwrap_or_else(|| NamedConnectError::Unusable("the name has no address".to_owned())))
}

/// Orders addresses by turns of their families, beginning with the first one's, without duplicates
/// (RFC 8305, section 4). At most [`MOST_ADDRESSES`].
fn in_order_of_trial(found: Vec<SocketAddr>) -> VecDeque<SocketAddr> {
    let first_is_ipv6 = found.first().is_some_and(SocketAddr::is_ipv6);
    let (mut first, mut second) = (VecDeque::new(), VecDeque::new());
    for address in found {
        let family = if address.is_ipv6() == first_is_ipv6 {
            &mut first
        } else {
            &mut second
        };
        // Bounded before it is searched: a name may have thousands.
        if family.len() < MOST_ADDRESSES && !family.contains(&address) {
            family.push_back(address);
        }
    }
    let mut ordered = VecDeque::new();
    while ordered.len() < MOST_ADDRESSES && !(first.is_empty() && second.is_empty()) {
        ordered.extend(first.pop_front());
        ordered.extend(second.pop_front());
    }
    ordered.truncate(MOST_ADDRESSES);
    ordered
}

/// Progress of an attempt.
enum Step<C, F> {
    /// The connection is up.
    Up(C),
    /// The other end lives, and the rest of the handshake is this future.
    Answered(F),
}

/// Tries addresses in order, staggered, until a connection is up. Returns all failures if none is.
async fn race<C, E, A, F>(
    mut addresses: VecDeque<SocketAddr>,
    mut begin: impl FnMut(SocketAddr) -> A,
) -> Result<C, Vec<E>>
where
    A: Future<Output = Result<Step<C, F>, E>>,
    F: Future<Output = Result<C, E>>,
{
    let (mut silent, mut living) = (FuturesUnordered::new(), FuturesUnordered::new());
    let mut failures = Vec::new();
    let mut next_at = Instant::now();
    loop {
        if addresses.is_empty() && silent.is_empty() && living.is_empty() {
            return Err(failures);
        }
        tokio::select! {
            biased;
            Some(connected) = living.next() => match connected {
                Ok(connection) => return Ok(connection),
                Err(failure) => {
                    failures.push(failure);
                    next_at = Instant::now();
                }
            },
            Some(step) = silent.next() => match step {
                Ok(Step::Up(connection)) => return Ok(connection),
                Ok(Step::Answered(rest)) => living.push(rest),
                Err(failure) => {
                    failures.push(failure);
                    next_at = Instant::now();
                }
            },
            () = tokio::time::sleep_until(next_at), if living.is_empty() && !addresses.is_empty() => {
                silent.extend(addresses.pop_front().map(&mut begin));
                next_at = Instant::now() + ATTEMPT_DELAY;
            }
        }
    }
}

#[cfg(test)]
mod tests;
