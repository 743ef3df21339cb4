//! The topology that every Welcome repeats.
//!
//! Each of thousands of hosts would read hundreds of kilobytes for itself; here one thread reads
//! them for all, and would be late with everything else meanwhile. What was read once is taken out
//! of the Welcomes that follow, before the sessions see them.

use std::borrow::Cow;

use ratewright_proto::control::{ControlMessage, EncodedTopology, frame_of};

/// The keys of `ControlMessage.welcome` and `Welcome.topology` on the wire.
const WELCOME_KEY: u8 = 2 << 3 | 2;
const TOPOLOGY_KEY: u8 = 12 << 3 | 2;

/// Cache of the topology in the first Welcome.
#[derive(Debug, Default)]
pub struct TopologyCache {
    /// The field as allocators write it, at the end of a Welcome; empty before the first.
    field: Vec<u8>,
}

impl TopologyCache {
    /// Returns a control frame's body, without the topology if it is a Welcome with the cached one.
    pub fn strip<'a>(&mut self, body: &'a [u8]) -> Cow<'a, [u8]> {
        // Most frames are others: one byte shows it.
        if body.first() != Some(&WELCOME_KEY) {
            return body.into();
        }
        if self.field.is_empty() {
            if let Ok(ControlMessage::Welcome(welcome)) = ControlMessage::decode(body)
                // A Welcome to a host that knows the topology has none to remember.
                && !welcome.topology.known
            {
                self.field.push(TOPOLOGY_KEY);
                let topology = EncodedTopology::from(&welcome.topology);
                self.field.extend(frame_of(topology.bytes(None)));
            }
            return body.into();
        }
        self.without(body).map_or(body.into(), Cow::from)
    }

    fn without(&self, body: &[u8]) -> Option<Vec<u8>> {
        // Byte for byte: another topology keeps its Welcome whole.
        let rest = body.strip_suffix(&self.field[..])?;
        // Behind the key comes the length, whose last byte alone is below 128.
        let length_end = 1 + rest.get(1..)?.iter().position(|byte| byte & 0x80 == 0)?;
        let mut welcome = rest.get(length_end + 1..)?.to_vec();
        // An empty topology in its place, so that the message still has the field.
        welcome.extend([TOPOLOGY_KEY, 0]);
        let mut short = vec![WELCOME_KEY];
        short.extend(frame_of(&welcome));
        Some(short)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratewright_proto::control::{
        AccessCapacity, FrameDecoder, HostInfo, TopologySnapshot, Welcome,
    };

    fn welcome(session: u32, hosts: u32) -> Welcome {
        Welcome {
            epoch: 1 << 60,
            session,
            host_id: session,
            lease_ns: 300_000_000,
            liveness_ns: 1_000_000_000,
            max_flows: 16_384,
            ack_delay_ns: 20_000_000,
            first_seq: 1,
            released: false,
            observe: false,
            threshold: 0.01,
            topology: TopologySnapshot {
                version: 1,
                ecmp_seed: 2,
                ecmp_symmetric: false,
                hosts: (0..hosts)
                    .map(|id| HostInfo {
                        id,
                        name: format!("h{id}"),
                        prefixes: Vec::new(),
                    })
                    .collect(),
                ..TopologySnapshot::default()
            },
            classes: Vec::new(),
            sealed_udp: None,
            telemetry_interval_ns: 0,
            telemetry_sync: None,
            access: AccessCapacity::default(),
        }
    }

    /// The frame's body as an allocator's session writes it.
    fn body(welcome: &Welcome) -> Vec<u8> {
        let topology = EncodedTopology::from(&welcome.topology);
        let mut decoder = FrameDecoder::new();
        decoder.push(&topology.welcome_head(welcome, None).expect("small"));
        decoder.push(topology.bytes(None));
        let body = decoder.next_frame().expect("good").expect("whole");
        body.to_vec()
    }

    #[test]
    fn only_the_first_of_equal_topologies_is_read() {
        let mut cache = TopologyCache::default();
        let first = body(&welcome(1, 1_000));
        assert_eq!(cache.strip(&first), first);
        let second = welcome(2, 1_000);
        let body_2 = body(&second);
        let short = cache.strip(&body_2);
        assert!(short.len() < 100, "{} bytes", short.len());
        let expected = Welcome {
            topology: TopologySnapshot::default(),
            ..second
        };
        let message = ControlMessage::decode(&short).expect("good");
        assert_eq!(message, ControlMessage::Welcome(expected));
        let other = body(&welcome(3, 999));
        assert_eq!(cache.strip(&other), other, "another topology");
        let refused = [3 << 3 | 2, 0];
        assert_eq!(cache.strip(&refused)[..], refused);
    }
}
