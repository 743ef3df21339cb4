//! One QUIC connection with its control stream.

use std::collections::VecDeque;
use std::net::SocketAddr;

use quinn::{
    ClientConfig, Connection, ConnectionError, Endpoint, ReadError, RecvStream, SendStream,
};
use ratewright_proto::control::FrameDecoder;
use tokio::sync::mpsc;

use super::{LinkError, LinkEvent};

/// Read at once from the control stream.
const READ_BYTES: usize = 64 * 1024;

/// One socket for each address family (IPv4, IPv6) that was needed, or why it could not be opened.
pub(super) type Endpoints = [Option<Result<Endpoint, String>>; 2];

/// Where to connect to, and how.
pub(super) struct Target {
    pub(super) address: String,
    pub(super) server_name: String,
    pub(super) client: ClientConfig,
}

/// A connection that is up.
pub(super) struct Up {
    pub(super) address: String,
    pub(super) connection: Connection,
    pub(super) outgoing: mpsc::UnboundedSender<Vec<u8>>,
    incoming: RecvStream,
    decoder: FrameDecoder,
    frames: VecDeque<Vec<u8>>,
}

/// Resolves the address, shakes hands and opens the control stream.
pub(super) async fn open(endpoints: Endpoints, target: Target) -> Result<Up, LinkError> {
    let Target {
        address,
        server_name,
        client,
    } = target;
    let unusable = |reason: String| LinkError::Address {
        address: address.clone(),
        reason,
    };
    let found: Vec<SocketAddr> = match address.parse() {
        Ok(literal) => vec![literal],
        Err(_) => tokio::net::lookup_host(&address)
            .await
            .map_err(|error| unusable(error.to_string()))?
            .collect(),
    };
    let mut problem = "no address of a family that this host can use".to_owned();
    for remote in found {
        let endpoint = match &endpoints[usize::from(remote.is_ipv6())] {
            Some(Ok(endpoint)) => endpoint,
            Some(Err(reason)) => {
                problem.clone_from(reason);
                continue;
            }
            None => continue,
        };
        let connecting = endpoint
            .connect_with(client, remote, &server_name)
            .map_err(|error| unusable(error.to_string()))?;
        let failed = |error: ConnectionError| LinkError::connection(&address, &error);
        let connection = connecting.await.map_err(failed)?;
        let (send, incoming) = connection.open_bi().await.map_err(failed)?;
        let (outgoing, queue) = mpsc::unbounded_channel();
        tokio::task::spawn_local(write_all(send, queue));
        return Ok(Up {
            address,
            connection,
            outgoing,
            incoming,
            decoder: FrameDecoder::new(),
            frames: VecDeque::new(),
        });
    }
    Err(unusable(problem))
}

/// Writes what is queued, in order, until the connection is dropped or breaks.
async fn write_all(mut stream: SendStream, mut queue: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(frame) = queue.recv().await {
        if stream.write_all(&frame).await.is_err() {
            return;
        }
    }
}

impl Up {
    /// What arrives next; control frames before datagrams, which may build on them. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<LinkEvent, LinkError> {
        let lost = |reason: String| LinkError::Lost {
            address: self.address.clone(),
            reason,
        };
        loop {
            if let Some(frame) = self.frames.pop_front() {
                return Ok(LinkEvent::Control(frame));
            }
            tokio::select! {
                biased;
                chunk = self.incoming.read_chunk(READ_BYTES, true) => match chunk {
                    Ok(Some(chunk)) => {
                        self.decoder.push(&chunk.bytes);
                        while let Some(frame) = self.decoder.next_frame().map_err(|error| lost(error.to_string()))? {
                            self.frames.push_back(frame.to_vec());
                        }
                    }
                    Ok(None) => return Err(lost("the allocator closed the control stream".to_owned())),
                    Err(ReadError::ConnectionLost(error)) => {
                        return Err(LinkError::connection(&self.address, &error));
                    }
                    Err(error) => return Err(lost(error.to_string())),
                },
                datagram = self.connection.read_datagram() => {
                    return datagram
                        .map(LinkEvent::Datagram)
                        .map_err(|error| LinkError::connection(&self.address, &error));
                }
            }
        }
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // Also where the caller just forgets it: the allocator learns at once.
        self.connection.close(1_u32.into(), b"given up");
    }
}
