//! One connection: its datagrams, its control stream, its end.

use std::time::Duration;

use bytes::Bytes;
use quinn::{Connection, ConnectionError, Incoming, RecvStream, SendStream, VarInt};
use ratewright_io::log::LogThrottle;
use ratewright_io::transport::secret_of;
use ratewright_proto::control::{FrameDecoder, MAX_FRAME_BYTES, MAX_HELLO_BYTES};
use tokio::sync::Notify;

use super::core_handle::CoreHandle;
use super::service_core::{NextFrame, OpenedSession};
use super::transport::SESSION_WINDOW_BYTES;
use super::{Rejections, relayed};
use crate::service::entrance::HandshakeTurn;
use crate::service::tls;

/// Time after which the session of a peer that takes no control bytes ends.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time for a last message to arrive before the connection closes.
const LAST_WORD_TIMEOUT: Duration = Duration::from_secs(1);

/// Poll interval for a host's first datagram after its Welcome.
const ANSWER_CHECK: Duration = Duration::from_millis(2);

/// Datagrams that are taken in one go before their results are sent.
const DATAGRAM_BATCH: usize = 32;

/// Maximum of bytes per read of the control stream.
const READ_CHUNK_BYTES: usize = 64 * 1024;

/// Rate limit of the log for failed handshakes: their peers have presented no certificate.
static HANDSHAKE_FAILURES: LogThrottle = LogThrottle::new(Duration::from_secs(1));

/// Serves a connection from its handshake, which must end within its turn, to its end.
pub(super) async fn serve(
    core: CoreHandle,
    rejections: Rejections,
    incoming: Incoming,
    turn: HandshakeTurn,
) {
    let address = incoming.remote_address();
    let handshaken = async {
        let connecting = turn.begin(incoming)?;
        connecting.await
    };
    let connection = tokio::select! {
        handshaken = handshaken => match handshaken {
            Ok(connection) => connection,
            Err(error) => {
                if let Some(others) = HANDSHAKE_FAILURES.now() {
                    tracing::warn!(%address, %error, others, "handshake failed");
                }
                return rejections.count("handshake");
            }
        },
        () = turn.end() => return rejections.count("stalled"),
    };
    let Some(certificate) = tls::peer_certificate(&connection) else {
        connection.close(VarInt::from_u32(1), b"no certificate");
        return;
    };
    if tls::protocol(&connection).as_deref() == Some(ratewright_proto::relay::ALPN) {
        // Hosts present their certificates within the relay's connection.
        drop(turn);
        // Many hosts' streams share the connection; the window of each stream bounds what it may
        // send.
        connection.set_receive_window(VarInt::MAX);
        return relayed::serve(core, connection, certificate).await;
    }
    let direct = connection.clone();
    let opened = core.call(move |core, now_ns| core.open(now_ns, direct, certificate));
    let Some(OpenedSession {
        id,
        outbox_ready,
        sealed_epoch,
    }) = opened.await
    else {
        tracing::warn!(%address, "no room for another session");
        connection.close(VarInt::from_u32(1), b"no room for another session");
        return;
    };
    if let Some(epoch) = sealed_epoch
        && let Ok(secret) = secret_of(&connection, epoch, id)
    {
        let from = connection.remote_address().ip().to_canonical();
        core.call(move |core, _| core.add_secret(id, secret, from))
            .await;
    }
    let reason = tokio::select! {
        reason = take_datagrams(&core, id, &connection) => reason,
        reason = serve_control(&core, id, &connection, &outbox_ready, turn) => reason,
    };
    connection.close(VarInt::from_u32(0), reason.as_bytes());
    core.call(move |core, now_ns| core.close(now_ns, id, reason))
        .await;
}

/// Batch of datagrams that arrived together.
#[derive(Default)]
pub(in crate::service) struct Datagrams(arrayvec::ArrayVec<Bytes, DATAGRAM_BATCH>);

impl Datagrams {
    /// Waits for a datagram, then takes the others that have arrived.
    pub(in crate::service) async fn read(
        &mut self,
        connection: &Connection,
    ) -> Result<(), ConnectionError> {
        self.0.clear();
        self.0.push(connection.read_datagram().await?);
        while !self.0.is_full() {
            tokio::select! {
                biased;
                next = connection.read_datagram() => self.0.push(next?),
                // Ready at once: a batch has only datagrams that have arrived, and never waits to
                // fill.
                () = std::future::ready(()) => break,
            }
        }
        Ok(())
    }

    pub(in crate::service) fn iter(&self) -> impl Iterator<Item = &Bytes> {
        self.0.iter()
    }
}

/// Takes datagrams until the connection ends.
async fn take_datagrams(core: &CoreHandle, id: u32, connection: &Connection) -> &'static str {
    loop {
        let mut batch = Datagrams::default();
        if let Err(error) = batch.read(connection).await {
            return lost(&error);
        }
        let take = core.call(move |core, now_ns| {
            for datagram in batch.iter() {
                core.on_quic(now_ns, id, datagram);
            }
        });
        take.await;
    }
}

/// Serves the control stream, which the peer opens, until the session ends.
async fn serve_control(
    core: &CoreHandle,
    id: u32,
    connection: &Connection,
    outbox_ready: &Notify,
    turn: HandshakeTurn,
) -> &'static str {
    let accepted = async {
        tokio::select! {
            biased;
            accepted = connection.accept_bi() => accepted.map_err(|error| lost(&error)),
            reason = closing(core, id, outbox_ready) => Err(reason),
            () = turn.end() => Err("no_hello"),
        }
    };
    let (send, receive) = match accepted.await {
        Ok(streams) => streams,
        Err(reason) => return reason,
    };
    let introduction = Introduction {
        turn,
        connection: connection.clone(),
    };
    let decoder = FrameDecoder::new();
    let control = (send, receive, decoder);
    serve_streams(core, id, control, Some(introduction), outbox_ready).await
}

/// Connection whose peer has not sent its Hello.
pub(super) struct Introduction {
    turn: HandshakeTurn,
    connection: Connection,
}

/// Serves both directions of a control stream until the session ends. The peer must send its Hello
/// first, within its turn unless it has none.
pub(super) async fn serve_streams(
    core: &CoreHandle,
    id: u32,
    (send, receive, decoder): (SendStream, RecvStream, FrameDecoder),
    introduction: Option<Introduction>,
    outbox_ready: &Notify,
) -> &'static str {
    tokio::select! {
        reason = read_control(core, id, receive, decoder, introduction) => reason,
        reason = write_control(core, id, send, outbox_ready) => reason,
    }
}

/// Waits until the session's end is decided.
async fn closing(core: &CoreHandle, id: u32, outbox_ready: &Notify) -> &'static str {
    loop {
        if let Some(reason) = core.call(move |core, _| core.hub.closing(id)).await {
            return reason;
        }
        outbox_ready.notified().await;
    }
}

async fn read_control(
    core: &CoreHandle,
    id: u32,
    mut receive: RecvStream,
    mut decoder: FrameDecoder,
    mut introduction: Option<Introduction>,
) -> &'static str {
    let mut before_hello = true;
    // Kept until the host answers its Welcome, which costs as much as a handshake.
    let mut welcoming: Option<HandshakeTurn> = None;
    // Before its Hello a peer may make us hold no more than the largest Hello.
    decoder.set_max_bytes(MAX_HELLO_BYTES);
    loop {
        // A relay's stream has frames behind its Attach, which are in the decoder already.
        let (mut frames, mut fault) = (Vec::new(), None);
        loop {
            match decoder.next_frame() {
                Ok(Some(body)) => frames.push(Bytes::copy_from_slice(body)),
                Ok(None) => break,
                Err(error) => {
                    fault = Some(error.to_string());
                    break;
                }
            }
        }
        let is_broken = fault.is_some();
        let taken = core.call(move |core, now_ns| {
            for body in &frames {
                core.hub.on_control(now_ns, id, body);
            }
            if let Some(error) = fault {
                core.hub.on_broken_control(now_ns, id, &error);
            }
            core.hub.awaits_hello(id)
        });
        let awaits_hello = taken.await;
        if is_broken {
            // The writer sends the refusal and ends the connection.
            std::future::pending::<()>().await;
        }
        if before_hello && !awaits_hello {
            before_hello = false;
            decoder.set_max_bytes(MAX_FRAME_BYTES);
            if let Some(introduction) = introduction.take() {
                // Until here flow control has let the peer send one Hello only.
                let window = VarInt::from_u32(SESSION_WINDOW_BYTES);
                introduction.connection.set_receive_window(window);
                introduction.turn.hello_received();
                welcoming = Some(introduction.turn);
            }
        }
        // A stream over its budget is not read: QUIC flow control then stops the peer, and nothing
        // is lost.
        loop {
            let wait = core.call(move |core, now_ns| core.hub.control_wait_ns(now_ns, id));
            let Some(wait_ns) = wait.await else { break };
            tokio::time::sleep(Duration::from_nanos(wait_ns)).await;
        }
        let chunk = match &introduction {
            None if before_hello => receive.read_chunk(MAX_HELLO_BYTES, true).await,
            None => match &welcoming {
                None => receive.read_chunk(READ_CHUNK_BYTES, true).await,
                Some(turn) => tokio::select! {
                    biased;
                    chunk = receive.read_chunk(READ_CHUNK_BYTES, true) => chunk,
                    () = answered(core, id, turn) => {
                        welcoming = None;
                        continue;
                    }
                },
            },
            Some(introduction) => tokio::select! {
                biased;
                chunk = receive.read_chunk(MAX_HELLO_BYTES, true) => chunk,
                () = introduction.turn.end() => return "no_hello",
            },
        };
        match chunk {
            Ok(Some(chunk)) => decoder.push(&chunk.bytes),
            Ok(None) => return "stream_finished",
            Err(_) => return "stream_lost",
        }
    }
}

/// Waits for the first datagram of a host after its Welcome, or for the end of its turn.
async fn answered(core: &CoreHandle, id: u32, turn: &HandshakeTurn) {
    while turn.holds() && !core.call(move |core, _| core.hub.has_answered(id)).await {
        tokio::time::sleep(ANSWER_CHECK).await;
    }
}

async fn write_control(
    core: &CoreHandle,
    id: u32,
    mut send: SendStream,
    outbox_ready: &Notify,
) -> &'static str {
    loop {
        match core.call(move |core, _| core.next_frame(id)).await {
            NextFrame::Frame(frame) => {
                match tokio::time::timeout(WRITE_TIMEOUT, send.write_chunk(frame)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return "stream_lost",
                    Err(_) => return "does_not_read",
                }
            }
            NextFrame::End(reason) => {
                // The last message has to arrive before the connection closes.
                if send.finish().is_ok() {
                    let _ = tokio::time::timeout(LAST_WORD_TIMEOUT, send.stopped()).await;
                }
                return reason;
            }
            NextFrame::None => outbox_ready.notified().await,
        }
    }
}

/// Returns the label of a connection's end for metrics.
pub(super) fn lost(error: &ConnectionError) -> &'static str {
    use ConnectionError as E;
    match error {
        E::TimedOut => "timed_out",
        E::ApplicationClosed(_) => "closed_by_host",
        E::ConnectionClosed(_) => "closed_by_transport",
        E::Reset => "reset",
        E::LocallyClosed => "closed_by_us",
        E::VersionMismatch | E::TransportError(_) | E::CidsExhausted => "transport_error",
    }
}
