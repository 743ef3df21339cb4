//! Messages between daemons, one to a QUIC datagram. They have a fixed length; what does not fit is
//! no message.

/// Version of the format, the first byte.
const VERSION: u8 = 1;
const DEMAND: u8 = 1;
const SHARE: u8 = 2;

/// Message of one daemon to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerMessage {
    /// Sender → receiver: this many flows are active towards you.
    Demand {
        /// Grows with every message to this receiver.
        seq: u64,
        /// Active flows; 0 takes the sender out of the set.
        flows: u32,
    },
    /// Receiver → sender: what you may send to me.
    Share(Share),
}

/// Share of a receiver's downlink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Grows with every message to this sender.
    pub seq: u64,
    /// Newest [`PeerMessage::Demand`] that the receiver knew. The share holds for one lease after
    /// the sender has sent that one.
    pub echo: u64,
    /// The share at Ethernet level.
    pub rate_bps: u64,
    /// Size of the active unique sender set (dart §III-A).
    pub senders: u32,
}

impl PeerMessage {
    /// Encodes the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        match *self {
            Self::Demand { seq, flows } => {
                out.push(DEMAND);
                out.extend_from_slice(&seq.to_le_bytes());
                out.extend_from_slice(&flows.to_le_bytes());
            }
            Self::Share(share) => {
                out.push(SHARE);
                out.extend_from_slice(&share.seq.to_le_bytes());
                out.extend_from_slice(&share.echo.to_le_bytes());
                out.extend_from_slice(&share.rate_bps.to_le_bytes());
                out.extend_from_slice(&share.senders.to_le_bytes());
            }
        }
        out
    }

    /// Decodes a datagram; `None` if it is no message of this version.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&[version, kind], rest) = bytes.split_first_chunk()?;
        if version != VERSION {
            return None;
        }
        let (seq, rest) = long(rest)?;
        match kind {
            DEMAND => Some(Self::Demand {
                seq,
                flows: u32::from_le_bytes(rest.try_into().ok()?),
            }),
            SHARE => {
                let (echo, rest) = long(rest)?;
                let (rate_bps, rest) = long(rest)?;
                Some(Self::Share(Share {
                    seq,
                    echo,
                    rate_bps,
                    senders: u32::from_le_bytes(rest.try_into().ok()?),
                }))
            }
            _ => None,
        }
    }
}

fn long(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (first, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*first), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_a_round_trip_and_nothing_else_is_one() {
        let messages = [
            PeerMessage::Demand {
                seq: 1 << 40,
                flows: 7,
            },
            PeerMessage::Share(Share {
                seq: 3,
                echo: u64::MAX,
                rate_bps: 12_500_000,
                senders: 8,
            }),
        ];
        for message in messages {
            let bytes = message.encode();
            assert_eq!(PeerMessage::decode(&bytes), Some(message));
            for length in 0..bytes.len() {
                assert_eq!(
                    PeerMessage::decode(&bytes[..length]),
                    None,
                    "{length} bytes"
                );
            }
            let longer = [&bytes[..], &[0]].concat();
            assert_eq!(PeerMessage::decode(&longer), None);
            for (at, wrong) in [(0, 2), (1, 9)] {
                let mut other = bytes.clone();
                other[at] = wrong;
                assert_eq!(PeerMessage::decode(&other), None);
            }
        }
    }
}
