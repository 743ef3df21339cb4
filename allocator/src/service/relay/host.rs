//! One host's connection: its stream to the allocator, its datagrams, its end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quinn::{Connection, Incoming, RecvStream, SendStream, VarInt};
use ratewright_io::transport::secret_of;
use ratewright_proto::control::{ControlMessage, FrameDecoder, MAX_HELLO_BYTES, frame_of};
use ratewright_proto::relay::{Attach, MAX_ATTACH_BYTES};

use super::state::RelayHandle;
use crate::service::entrance::Turn;
use crate::service::shard::connection::Datagrams;
use crate::service::shard::transport::KNOWN_WINDOW_BYTES;
use crate::service::tls;

/// How long the allocator may take to have room for a stream, or a host to take control bytes.
const STREAM_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the allocator's last word may take to reach the host.
const LAST_WORD_TIMEOUT: Duration = Duration::from_secs(1);

/// Bytes that are read from a stream in one go.
const READ_CHUNK_BYTES: usize = 64 * 1024;

/// Serves a host from its handshake, which has to be over within its turn, to its end.
pub(super) async fn serve(shared: RelayHandle, incoming: Incoming, turn: Turn) {
    let address = incoming.remote_address();
    let handshaken = async {
        let connecting = turn.begin(incoming)?;
        connecting.await
    };
    let handshaken = tokio::select! {
        handshaken = handshaken => Some(handshaken),
        () = turn.over() => None,
    };
    let reason = match handshaken {
        Some(Ok(connection)) => {
            let reason = relay(&shared, &connection, turn).await;
            connection.close(VarInt::from_u32(0), reason.as_bytes());
            reason
        }
        Some(Err(error)) => {
            // Whoever can reach the port can have these written: not as a warning each.
            tracing::debug!(%address, %error, "handshake failed");
            "handshake"
        }
        None => "stalled",
    };
    tracing::debug!(%address, reason, "host gone");
    shared.lock().counts.hosts_closed.count(reason);
}

/// Takes the host's channel off the state, however its task ends.
struct HostRegistration<'a> {
    shared: &'a RelayHandle,
    channel: u32,
}

impl Drop for HostRegistration<'_> {
    fn drop(&mut self) {
        self.shared.lock().remove_host(self.channel);
    }
}

/// Carries a host's session until one side ends it; says in a word why.
async fn relay(shared: &RelayHandle, connection: &Connection, turn: Turn) -> &'static str {
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
    let Ok(channel) = u32::try_from(send.id().index()) else {
        return "too_many_streams";
    };
    shared.lock().add_host(channel, connection);
    let _registration = HostRegistration { shared, channel };
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

/// Carries the control stream in both directions.
async fn control(
    shared: &RelayHandle,
    channel: u32,
    connection: &Connection,
    (to_allocator, from_allocator): (SendStream, RecvStream),
    turn: Turn,
) -> &'static str {
    let (to_host, from_host) = tokio::select! {
        streams = connection.accept_bi() => match streams {
            Ok(streams) => streams,
            Err(_) => return "host_lost",
        },
        // The allocator waits for no Hello any more, or never wanted one.
        _ = to_allocator.stopped() => return "allocator_closed",
        () = turn.over() => return "no_hello",
    };
    let wants_sealed = AtomicBool::new(false);
    tokio::select! {
        reason = upwards(connection, from_host, to_allocator, &wants_sealed, turn) => reason,
        reason = downwards(shared, channel, connection, from_allocator, to_host, &wants_sealed) => reason,
    }
}

/// From the host to the allocator, as it is. Its Hello says whether it can send sealed datagrams.
async fn upwards(
    connection: &Connection,
    mut from_host: RecvStream,
    mut to_allocator: SendStream,
    wants_sealed: &AtomicBool,
    turn: Turn,
) -> &'static str {
    let mut decoder = FrameDecoder::new();
    decoder.set_max_bytes(MAX_HELLO_BYTES);
    let mut hello = Some((decoder, turn));
    loop {
        let chunk = match &hello {
            None => from_host.read_chunk(READ_CHUNK_BYTES, true).await,
            Some((_, turn)) => tokio::select! {
                biased;
                chunk = from_host.read_chunk(MAX_HELLO_BYTES, true) => chunk,
                () = turn.over() => return "no_hello",
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
                // What is wrong with it is the allocator's to say.
                Err(_) => hello = None,
            }
            if hello.is_none() {
                connection.set_receive_window(VarInt::from_u32(KNOWN_WINDOW_BYTES));
            }
        }
        if to_allocator.write_chunk(chunk).await.is_err() {
            break;
        }
    }
    // What the allocator still has to say comes the other way.
    let _ = to_allocator.finish();
    std::future::pending().await
}

/// From the allocator to the host, but for the offer of sealed datagrams in the Welcome: they go to
/// this relay.
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

/// The Welcome in `body`, with this relay's offer of sealed datagrams; nothing if it stays as it is.
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
