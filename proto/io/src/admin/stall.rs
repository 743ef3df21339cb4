//! Connections whose peers do not read.
//!
//! A response that waits for its reader holds memory and a connection, and a stream of events would
//! hold them for ever. A write that makes no progress for [`PATIENCE`] therefore fails, which ends
//! the connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Longest wait of a write.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Connection whose writes fail once the peer has taken nothing for a while.
pub(super) struct Impatient<T> {
    inner: T,
    patience: Duration,
    /// End of the wait of the write under way.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<T> Impatient<T> {
    fn new(inner: T, patience: Duration) -> Self {
        Self {
            inner,
            patience,
            stalled: None,
        }
    }

    /// The connection itself.
    pub(super) fn get_ref(&self) -> &T {
        &self.inner
    }

    /// Passes progress on, and fails a write that has waited too long.
    fn bounded<V>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<V>>,
    ) -> Poll<io::Result<V>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let patience = self.patience;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Impatient<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Impatient<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.bounded(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, bytes);
        self.bounded(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(context);
        self.bounded(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.inner).poll_shutdown(context);
        self.bounded(context, shut)
    }
}

/// Listener whose connections are [`Impatient`].
pub(super) struct ImpatientListener<L> {
    inner: L,
    patience: Duration,
}

impl<L> ImpatientListener<L> {
    pub(super) fn new(inner: L) -> Self {
        Self {
            inner,
            patience: PATIENCE,
        }
    }
}

impl<L: Listener> Listener for ImpatientListener<L> {
    type Io = Impatient<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (connection, address) = self.inner.accept().await;
        (Impatient::new(connection, self.patience), address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.inner.local_addr()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Longer than any write of these tests that makes progress.
    const SHORT: Duration = Duration::from_millis(200);

    #[tokio::test]
    async fn a_peer_that_reads_nothing_ends_its_connection() {
        let (ours, _theirs) = tokio::io::duplex(1_024);
        let mut ours = Impatient::new(ours, SHORT);
        let error = ours.write_all(&[0; 4_096]).await.expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_slowly_keeps_its_connection() {
        let (ours, mut theirs) = tokio::io::duplex(1_024);
        let mut ours = Impatient::new(ours, PATIENCE);
        let reader = tokio::spawn(async move {
            let mut buffer = [0; 512];
            for _ in 0..20 {
                sleep(PATIENCE - Duration::from_secs(1)).await;
                theirs.read_exact(&mut buffer).await.expect("written");
            }
        });
        ours.write_all(&[0; 20 * 512]).await.expect("it reads on");
        reader.await.expect("all was read");
    }
}
