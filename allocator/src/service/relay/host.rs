//! One host's connection: its stream to the allocator and its datagrams.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quinn::{Connection, Incoming, RecvStream, SendStream, VarInt};
use ratewright_io::transport::secret_of;
use ratewright_proto::control::{ControlMessage, FrameDecoder, MAX_HELLO_BYTES, frame_of};
use ratewright_proto::relay::{Attach, MAX_ATTACH_BYTES};

use super::state::RelayHandle;
use crate::service::entrance::HandshakeTurn;
use crate::service::runtime::connection::Datagrams;
use crate::service::runtime::transport::SESSION_WINDOW_BYTES;
use crate::service::tls;

/// Longest wait for the allocator to accept a stream, or for a host to read control bytes.
const STREAM_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest wait for the allocator's last message to reach the host.
const LAST_WORD_TIMEOUT: Duration = Duration::from_secs(1);

/// Most bytes of one read from a stream.
const READ_CHUNK_BYTES: usize = 64 * 1024;

/// Serves a host from its handshake, which must finish within its turn, to its end.
pub(super) async fn serve(shared: RelayHandle, incoming: Incoming, turn: HandshakeTurn) {
    let address = incoming.remote_address();
    let handshaken = async {
        let connecting = turn.begin(incoming)?;
        connecting.await
    };
    let handshaken = tokio::select! {
        handshaken = handshaken => Some(handshaken),
        () = turn.end() => None,
    };
    let reason = match handshaken {
        Some(Ok(connection)) => {
            let reason = carry_session(&shared, &connection, turn).await;
            connection.close(VarInt::from_u32(0), reason.as_bytes());
            reason
        }
        Some(Err(error)) => {
            // Any machine that reaches the port can cause these: at debug level, they cannot flood
            // the log.
            tracing::debug!(%address, %error, "handshake failed");
            "handshake"
        }
        None => "stalled",
    };
    tracing::debug!(%address, reason, "host gone");
    shared.lock().counts.hosts_closed.count(reason);
}

/// Removes the host's channel from the state when its task ends, however it ends.
struct HostRegistration<'a> {
    shared: &'a RelayHandle,
    channel: u32,
    connection: &'a Connection,
}

impl Drop for HostRegistration<'_> {
    fn drop(&mut self) {
        self.shared
            .lock()
            .remove_host(self.channel, self.connection);
    }
}

/// Carries a host's session until one side ends it; returns the reason as a word for the metrics.
async fn carry_session(
    shared: &RelayHandle,
    connection: &Connection,
    turn: HandshakeTurn,
) -> &'static str {
    let Some(upstream) = shared.lock().upstream() else {
        return "no_allocator";
    };
    let Some((first, others)) = tls::peer_chain(connection)
        .as_ref()
        .and_then(|chain| chain.split_first())
        .map(|(first, others)| {
            let others = others.iter().map(|der| der.to_vec()).collect::<Vec<_>>();
            (first.to_vec(), others)
        })
    else {
        return "no_certificate";
    };
    let attach = Attach {
        certificate: first,
        intermediates: others,
        address: connection.remote_address(),
    };
    // The allocator checks the chain itself: a relay cannot attach a host without its certificate.
    let frame = attach.to_frame();
    if frame.len() > MAX_ATTACH_BYTES {
        return "certificate_too_long";
    }
    let opened = async {
        let (mut send, receive) = upstream.open_bi().await.ok()?;
        send.write_all(&frame).await.ok()?;
        Some((send, receive))
    };
    let Ok(Some((send, receive))) = tokio::time::timeout(STREAM_TIMEOUT, opened).await else {
        return "allocator_full";
    };
    // Both ends number a stream alike, so its index names the host in bundles.
    let Ok(channel) = u32::try_from(send.id().index()) else {
        return "too_many_streams";
    };
    shared.lock().add_host(channel, connection);
    let _registration = HostRegistration {
        shared,
        channel,
        connection,
    };
    tokio::select! {
        reason = datagrams(shared, channel, connection) => reason,
        reason = control(shared, channel, connection, (send, receive), turn) => reason,
    }
}

async fn datagrams(shared: &RelayHandle, channel: u32, connection: &Connection) -> &'static str {
    let mut batch = Datagrams::default();
    loop {
        if batch.read(connection).await.is_err() {
            return "host_lost";
        }
        shared.lock().take_quic(channel, batch.iter());
    }
}

/// Carries the control stream in both directions; returns the reason of its end.
async fn control(
    shared: &RelayHandle,
    channel: u32,
    connection: &Connection,
    (to_allocator, from_allocator): (SendStream, RecvStream),
    turn: HandshakeTurn,
) -> &'static str {
    let (to_host, from_host) = tokio::select! {
        streams = connection.accept_bi() => match streams {
            Ok(streams) => streams,
            Err(_) => return "host_lost",
        },
        // The allocator no longer waits for a Hello, or never did.
        _ = to_allocator.stopped() => return "allocator_closed",
        () = turn.end() => return "no_hello",
    };
    let wants_sealed = AtomicBool::new(false);
    tokio::select! {
        reason = upwards(connection, from_host, to_allocator, &wants_sealed, turn) => reason,
        reason = downwards(shared, channel, connection, from_allocator, to_host, &wants_sealed) => reason,
    }
}

/// Copies control bytes from the host to the allocator, unchanged. Reads from the Hello whether the
/// host can send sealed datagrams.
async fn upwards(
    connection: &Connection,
    mut from_host: RecvStream,
    mut to_allocator: SendStream,
    wants_sealed: &AtomicBool,
    turn: HandshakeTurn,
) -> &'static str {
    let mut decoder = FrameDecoder::new();
    // The bound that the allocator has: before its Hello, a peer gets no more memory.
    decoder.set_max_bytes(MAX_HELLO_BYTES);
    let mut hello = Some((decoder, turn));
    loop {
        let chunk = match &hello {
            None => from_host.read_chunk(READ_CHUNK_BYTES, true).await,
            Some((_, turn)) => tokio::select! {
                biased;
                chunk = from_host.read_chunk(MAX_HELLO_BYTES, true) => chunk,
                () = turn.end() => return "no_hello",
            },
        };
        let chunk = match chunk {
            Ok(Some(chunk)) => chunk.bytes,
            Ok(None) => break,
            Err(_) => return "host_lost",
        };
        if let Some((decoder, _)) = &mut hello {
            decoder.push(&chunk);
            match decoder.next_frame() {
                Ok(None) => {}
                Ok(Some(body)) => {
                    if let Ok(ControlMessage::Hello(message)) = ControlMessage::decode(body) {
                        wants_sealed.store(message.sealed_udp, Ordering::Relaxed);
                    }
                    hello = None;
                }
                // The allocator finds the mistake too, and reports it to the host.
                Err(_) => hello = None,
            }
            // A host that has introduced itself may have more bytes in flight.
            if hello.is_none() {
                connection.set_receive_window(VarInt::from_u32(SESSION_WINDOW_BYTES));
            }
        }
        if to_allocator.write_chunk(chunk).await.is_err() {
            break;
        }
    }
    // The allocator may still send: the downward direction ends the session.
    let _ = to_allocator.finish();
    std::future::pending().await
}

/// Copies control messages from the allocator to the host. In the Welcome, it replaces the offer of
/// sealed datagrams by this relay's own.
async fn downwards(
    shared: &RelayHandle,
    channel: u32,
    connection: &Connection,
    mut from_allocator: RecvStream,
    mut to_host: SendStream,
    wants_sealed: &AtomicBool,
) -> &'static str {
    let mut decoder = FrameDecoder::new();
    loop {
        loop {
            let frame = match decoder.next_frame() {
                Ok(Some(body)) => {
                    // The first message is the Welcome, if there is one: later ones are not
                    // decoded.
                    let welcome = if wants_sealed.swap(false, Ordering::Relaxed) {
                        offer(shared, channel, connection, body)
                    } else {
                        None
                    };
                    welcome.unwrap_or_else(|| frame_of(body))
                }
                Ok(None) => break,
                Err(_) => return "malformed_control",
            };
            match tokio::time::timeout(STREAM_TIMEOUT, to_host.write_all(&frame)).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return "host_lost",
                Err(_) => return "host_does_not_read",
            }
        }
        match from_allocator.read_chunk(READ_CHUNK_BYTES, true).await {
            Ok(Some(chunk)) => decoder.push(&chunk.bytes),
            Ok(None) => break,
            Err(_) => return "allocator_closed",
        }
    }
    if to_host.finish().is_ok() {
        let _ = tokio::time::timeout(LAST_WORD_TIMEOUT, to_host.stopped()).await;
    }
    "allocator_closed"
}

/// Returns the Welcome in `body` with this relay's offer of sealed datagrams; None to forward it
/// unchanged.
fn offer(
    shared: &RelayHandle,
    channel: u32,
    connection: &Connection,
    body: &[u8],
) -> Option<Vec<u8>> {
    let Ok(ControlMessage::Welcome(mut welcome)) = ControlMessage::decode(body) else {
        return None;
    };
    let secret = secret_of(connection, welcome.epoch, welcome.session).ok()?;
    let mut state = shared.lock();
    let offer = state.sealed.as_ref()?.offer();
    welcome.sealed_udp = Some(offer);
    let session = welcome.session;
    let frame = ControlMessage::Welcome(welcome).to_frame().ok()?;
    let address = connection.remote_address().ip();
    state
        .sealed
        .as_mut()?
        .add(session, channel, &secret, address);
    state.set_session(channel, session);
    Some(frame)
}
