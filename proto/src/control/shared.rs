//! Messages with the topology, whose bytes all sessions share.
//!
//! Every client is told the whole topology: for thousands of hosts that is hundreds of kilobytes, which are
//! encoded once and neither encoded nor copied again for each session. A frame is made of two pieces then:
//! what is the session's own, and the topology. In a Welcome that puts it behind fields with higher numbers,
//! which protobuf lets every writer do.

use bytes::Bytes;
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

use super::{MAX_FRAME_BYTES, TopologySnapshot, Welcome, wire};
use crate::error::SessionError;

/// `ControlMessage.welcome`, `ControlMessage.topology` and `Welcome.topology` of `control.proto`.
const WELCOME: u32 = 2;
const TOPOLOGY: u32 = 4;
const WELCOME_TOPOLOGY: u32 = 12;

/// A topology as it is on the wire. Clones share the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedTopology(Bytes);

impl From<&TopologySnapshot> for EncodedTopology {
    fn from(topology: &TopologySnapshot) -> Self {
        Self(wire::Topology::from(topology).encode_to_vec().into())
    }
}

impl From<TopologySnapshot> for EncodedTopology {
    fn from(topology: TopologySnapshot) -> Self {
        Self::from(&topology)
    }
}

/// What a field of a message takes beside the message's own bytes.
fn field_len(number: u32, message_bytes: usize) -> usize {
    key_len(number) + encoded_len_varint(message_bytes as u64) + message_bytes
}

fn put_header(out: &mut Vec<u8>, number: u32, message_bytes: usize) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(message_bytes as u64, out);
}

impl EncodedTopology {
    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// Room for a frame's length and a few headers.
    const HEADERS: usize = 16;

    fn checked(bytes: usize) -> Result<usize, SessionError> {
        if bytes > MAX_FRAME_BYTES {
            return Err(SessionError::FrameTooLarge {
                bytes,
                max: MAX_FRAME_BYTES,
            });
        }
        Ok(bytes)
    }

    /// The frame that tells a client of a new topology, but for the topology's own bytes, which follow.
    ///
    /// # Errors
    /// The whole would be too large for a frame.
    pub fn update_head(&self) -> Result<Bytes, SessionError> {
        let body = Self::checked(field_len(TOPOLOGY, self.0.len()))?;
        let mut head = Vec::with_capacity(Self::HEADERS);
        encode_varint(body as u64, &mut head);
        put_header(&mut head, TOPOLOGY, self.0.len());
        Ok(head.into())
    }

    /// The frame of a Welcome with this topology instead of its own, but for the topology's bytes, which
    /// follow.
    ///
    /// # Errors
    /// The whole would be too large for a frame.
    pub fn welcome_head(&self, welcome: &Welcome) -> Result<Bytes, SessionError> {
        let welcome = wire::Welcome {
            topology: None,
            ..wire::Welcome::from(welcome)
        };
        let own = welcome.encoded_len();
        let inner = own + field_len(WELCOME_TOPOLOGY, self.0.len());
        let body = Self::checked(field_len(WELCOME, inner))?;
        let mut head = Vec::with_capacity(own + 2 * Self::HEADERS);
        encode_varint(body as u64, &mut head);
        put_header(&mut head, WELCOME, inner);
        welcome.encode_raw(&mut head);
        put_header(&mut head, WELCOME_TOPOLOGY, self.0.len());
        Ok(head.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{ClassInfo, ControlMessage, FrameDecoder, HostInfo};

    fn topology(hosts: u32) -> TopologySnapshot {
        TopologySnapshot {
            version: 3,
            ecmp_seed: 7,
            ecmp_symmetric: true,
            hosts: (0..hosts)
                .map(|id| HostInfo {
                    id,
                    name: format!("host-{id}"),
                    prefixes: vec!["10.0.0.0/8".parse().expect("a prefix")],
                })
                .collect(),
        }
    }

    fn welcome(topology: TopologySnapshot) -> Welcome {
        Welcome {
            epoch: 5,
            session: 6,
            host_id: 7,
            lease_ns: 300,
            liveness_ns: 1_000,
            max_flows: 16,
            ack_delay_ns: 20,
            first_seq: 1,
            released: true,
            threshold: 0.01,
            topology,
            classes: vec![ClassInfo {
                id: 1,
                name: "gold".to_owned(),
            }],
            sealed_udp: None,
        }
    }

    fn decoded(pieces: &[&Bytes]) -> ControlMessage {
        let mut decoder = FrameDecoder::new();
        for piece in pieces {
            assert_eq!(
                decoder.next_frame(),
                Ok(None),
                "no frame before the last piece"
            );
            decoder.push(piece);
        }
        let body = decoder.next_frame().expect("a frame").expect("all of it");
        let message = ControlMessage::decode(body).expect("good");
        assert_eq!(decoder.next_frame(), Ok(None), "nothing is left over");
        message
    }

    /// Sizes on both sides of every length of a varint up to a frame's.
    #[test]
    fn frames_in_pieces_say_what_whole_ones_say() {
        for hosts in [0, 1, 3, 4, 5, 6, 400, 600, 700, 10_000] {
            let snapshot = topology(hosts);
            let encoded = EncodedTopology::from(&snapshot);
            let head = encoded
                .welcome_head(&welcome(TopologySnapshot::default()))
                .expect("small enough");
            assert_eq!(
                decoded(&[&head, encoded.bytes()]),
                ControlMessage::Welcome(welcome(snapshot.clone())),
                "{hosts} hosts"
            );
            let head = encoded.update_head().expect("small enough");
            assert_eq!(
                decoded(&[&head, encoded.bytes()]),
                ControlMessage::Topology(snapshot),
                "{hosts} hosts"
            );
        }
    }

    #[test]
    fn what_fits_no_frame_is_refused_as_it_is_whole() {
        let snapshot = topology(60_000);
        let encoded = EncodedTopology::from(&snapshot);
        assert!(encoded.bytes().len() > MAX_FRAME_BYTES);
        assert!(matches!(
            encoded.update_head(),
            Err(SessionError::FrameTooLarge { .. })
        ));
        assert!(matches!(
            encoded.welcome_head(&welcome(TopologySnapshot::default())),
            Err(SessionError::FrameTooLarge { .. })
        ));
    }
}
