//! Control messages with the topology, whose bytes all sessions share.
//!
//! Every client receives the whole topology: hundreds of kilobytes for thousands of hosts. They are
//! encoded once, and neither encoded nor copied again for each session. A frame then has two
//! pieces: the session's own part, and the topology. In a Welcome, the topology thus stands behind
//! fields with higher numbers, which protobuf allows every writer.
//!
//! A client that knows the hosts, as all do after a restart of the allocator, receives their digest
//! alone.

use bytes::Bytes;
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

use super::{
    AccessCapacity, HOSTS_DIGEST_BYTES, HostsDigest, MAX_FRAME_BYTES, TopologySnapshot, Welcome,
};
use crate::error::SessionError;
use crate::wire;

/// `ControlMessage.welcome`, `ControlMessage.topology` and `Welcome.topology` of `control.proto`.
const WELCOME: u32 = 2;
const TOPOLOGY: u32 = 4;
const WELCOME_TOPOLOGY: u32 = 12;

/// Encoded topology, without what differs from client to client. Clones share the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedTopology {
    digest: HostsDigest,
    /// Encoding with all hosts.
    whole: Bytes,
    /// Encoding without hosts, for clients that know them.
    brief: Bytes,
}

impl From<&TopologySnapshot> for EncodedTopology {
    fn from(topology: &TopologySnapshot) -> Self {
        let mut whole = wire::Topology::from(&TopologySnapshot {
            access: None,
            ..topology.clone()
        });
        let hosts = wire::Topology {
            hosts: std::mem::take(&mut whole.hosts),
            ..wire::Topology::default()
        };
        // The digest covers the hosts alone, so a change of the version or of ECMP keeps it.
        let hash = ring::digest::digest(&ring::digest::SHA256, &hosts.encode_to_vec());
        let mut digest = [0; HOSTS_DIGEST_BYTES];
        digest.copy_from_slice(hash.as_ref());
        whole.hosts_digest = digest.to_vec();
        // Made before the hosts return to `whole`, so the clone copies none of them.
        let brief = wire::Topology {
            hosts_known: true,
            ..whole.clone()
        };
        whole.hosts = hosts.hosts;
        Self {
            digest: HostsDigest(digest),
            whole: whole.encode_to_vec().into(),
            brief: brief.encode_to_vec().into(),
        }
    }
}

impl From<TopologySnapshot> for EncodedTopology {
    fn from(topology: TopologySnapshot) -> Self {
        Self::from(&topology)
    }
}

/// Length of a length-delimited field: key, length and `message_bytes` of contents.
fn field_len(number: u32, message_bytes: usize) -> usize {
    key_len(number) + encoded_len_varint(message_bytes as u64) + message_bytes
}

fn put_header(out: &mut Vec<u8>, number: u32, message_bytes: usize) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(message_bytes as u64, out);
}

impl EncodedTopology {
    /// Digest of the hosts.
    #[must_use]
    pub fn digest(&self) -> HostsDigest {
        self.digest
    }

    /// Bytes for a client that knows the hosts of digest `known`.
    #[must_use]
    pub fn bytes(&self, known: Option<HostsDigest>) -> &Bytes {
        if known == Some(self.digest) {
            &self.brief
        } else {
            &self.whole
        }
    }

    /// Capacity for a frame's length and a few field headers.
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

    /// Makes the frame of a new topology with the capacities `access` of the client's own links,
    /// except for the topology's own bytes, which follow.
    ///
    /// # Errors
    /// The whole would be too large for a frame.
    pub fn update_head(
        &self,
        known: Option<HostsDigest>,
        access: AccessCapacity,
    ) -> Result<Bytes, SessionError> {
        let own = wire::Topology {
            uplink_bps: access.uplink_bps,
            downlink_bps: access.downlink_bps,
            uplink_line_rate_bps: access.uplink_line_rate_bps,
            downlink_line_rate_bps: access.downlink_line_rate_bps,
            ..wire::Topology::default()
        };
        let bytes = own.encoded_len() + self.bytes(known).len();
        let body = Self::checked(field_len(TOPOLOGY, bytes))?;
        let mut head = Vec::with_capacity(own.encoded_len() + Self::HEADERS);
        encode_varint(body as u64, &mut head);
        put_header(&mut head, TOPOLOGY, bytes);
        own.encode_raw(&mut head);
        Ok(head.into())
    }

    /// Makes the frame of a Welcome with this topology instead of its own, except for the
    /// topology's bytes, which follow.
    ///
    /// # Errors
    /// The whole would be too large for a frame.
    pub fn welcome_head(
        &self,
        welcome: &Welcome,
        known: Option<HostsDigest>,
    ) -> Result<Bytes, SessionError> {
        let bytes = self.bytes(known).len();
        let welcome = wire::Welcome {
            topology: None,
            ..wire::Welcome::from(welcome)
        };
        let own = welcome.encoded_len();
        // The outer lengths must count the topology's bytes, although those are in the second
        // piece.
        let inner = own + field_len(WELCOME_TOPOLOGY, bytes);
        let body = Self::checked(field_len(WELCOME, inner))?;
        let mut head = Vec::with_capacity(own + 2 * Self::HEADERS);
        encode_varint(body as u64, &mut head);
        put_header(&mut head, WELCOME, inner);
        welcome.encode_raw(&mut head);
        // The topology's own bytes follow as the frame's second piece.
        put_header(&mut head, WELCOME_TOPOLOGY, bytes);
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
            ..TopologySnapshot::default()
        }
    }

    fn welcome(topology: TopologySnapshot) -> Welcome {
        Welcome {
            epoch: 5,
            session: 6,
            host_id: 7,
            lease_ns: 300_000_000,
            liveness_ns: 1_000_000_000,
            max_flows: 16,
            ack_delay_ns: 20,
            first_seq: 1,
            released: true,
            observe: false,
            threshold: 0.01,
            topology,
            classes: vec![ClassInfo {
                id: 1,
                name: "gold".to_owned(),
            }],
            sealed_udp: None,
            telemetry_interval_ns: 0,
            telemetry_sync: None,
            access: AccessCapacity::default(),
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
            let whole = TopologySnapshot {
                digest: Some(encoded.digest()),
                ..snapshot
            };
            let brief = TopologySnapshot {
                hosts: [].into(),
                known: true,
                ..whole.clone()
            };
            let other = Some(HostsDigest([1; HOSTS_DIGEST_BYTES]));
            let known = Some(encoded.digest());
            for (known, expected) in [(None, whole.clone()), (other, whole), (known, brief)] {
                let head = encoded
                    .welcome_head(&welcome(TopologySnapshot::default()), known)
                    .expect("small enough");
                assert_eq!(
                    decoded(&[&head, encoded.bytes(known)]),
                    ControlMessage::Welcome(welcome(expected.clone())),
                    "{hosts} hosts"
                );
                let own =
                    AccessCapacity::new(25_000_000_000, u64::MAX).with_line_rates(u64::MAX, 1);
                for access in [None, Some(own)] {
                    let head = encoded
                        .update_head(known, access.unwrap_or_default())
                        .expect("small enough");
                    assert_eq!(
                        decoded(&[&head, encoded.bytes(known)]),
                        ControlMessage::Topology(TopologySnapshot {
                            access,
                            ..expected.clone()
                        }),
                        "{hosts} hosts"
                    );
                }
            }
        }
    }

    #[test]
    fn a_digest_names_the_hosts_and_nothing_else() {
        let digest = |snapshot: &TopologySnapshot| EncodedTopology::from(snapshot).digest();
        let one = topology(5);
        let before = digest(&one);
        let later = TopologySnapshot {
            version: 9,
            ecmp_seed: 1,
            ecmp_symmetric: false,
            ..one.clone()
        };
        assert_eq!(before, digest(&later));
        assert_ne!(before, digest(&topology(6)));
        let mut hosts = one.hosts.to_vec();
        hosts[4].name = "host-5".to_owned();
        let renamed = TopologySnapshot {
            hosts: hosts.into(),
            ..one
        };
        assert_ne!(before, digest(&renamed));
        let mut hosts = one.hosts.to_vec();
        hosts[0].prefixes.clear();
        let moved = TopologySnapshot {
            hosts: hosts.into(),
            ..one
        };
        assert_ne!(before, digest(&moved));
    }

    #[test]
    fn what_fits_no_frame_is_refused_as_it_is_whole() {
        let snapshot = topology(60_000);
        let encoded = EncodedTopology::from(&snapshot);
        assert!(encoded.bytes(None).len() > MAX_FRAME_BYTES);
        assert!(matches!(
            encoded.update_head(None, AccessCapacity::default()),
            Err(SessionError::FrameTooLarge { .. })
        ));
        assert!(matches!(
            encoded.welcome_head(&welcome(TopologySnapshot::default()), None),
            Err(SessionError::FrameTooLarge { .. })
        ));
    }
}
