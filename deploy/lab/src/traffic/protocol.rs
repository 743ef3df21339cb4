//! Messages between the lab and its traffic programs, one JSON object a line.

use std::io::Write;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// First word of a connection, so that a stray client is noticed.
pub const FLOW_MAGIC: u32 = 0x5257_464c;

/// Width of the receiver's counting bins.
pub const BIN_NS: u64 = 10_000_000;

/// To the sender.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum SenderCommand {
    /// Starts a flow at a time.
    Start(FlowPlan),
    /// Ends a long flow now, once its receiver has what was written.
    Stop {
        /// Number of the flow.
        flow: u32,
    },
    /// Resets a flow's connection now, whatever was written.
    Abort {
        /// Number of the flow.
        flow: u32,
    },
}

/// Pattern of a flow's writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Writing {
    /// As much as the socket takes.
    #[default]
    Bulk,
    /// A number of bytes at regular times; late if the socket does not take them.
    Every {
        /// Bytes each time.
        bytes: u32,
        /// Time between two beginnings.
        every_ns: u64,
    },
    /// By turns: a number of bytes at regular times, then as much as the socket takes.
    Alternating {
        /// Bytes each time.
        bytes: u32,
        /// Time between two beginnings.
        every_ns: u64,
        /// Length of the part with regular writes.
        slow_ns: u64,
        /// Length of the part with all writes that the socket takes.
        fast_ns: u64,
    },
    /// UDP datagrams at regular times, whatever becomes of them.
    Datagrams {
        /// Payload of each.
        bytes: u32,
        /// Time between two of them.
        every_ns: u64,
    },
}

/// Congestion control that an application chooses for its socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Congestion {
    /// CUBIC
    Cubic,
    /// BBR
    Bbr,
}

impl Congestion {
    /// The kernel's name of it, also in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Congestion::Cubic => "cubic",
            Congestion::Bbr => "bbr",
        }
    }
}

/// Maximum rate that an application sets while it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaterMaximum {
    /// Time from the flow's start until then.
    pub after_ns: u64,
    /// The maximum from then on; `None`: the earlier one is taken away.
    pub max_rate_bps: Option<u64>,
}

/// Special behaviour of a flow's two ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Behaviour {
    /// Pattern of the application's writes.
    pub writing: Writing,
    /// The application's own limit (SO_MAX_PACING_RATE), if it sets one.
    pub max_rate_bps: Option<u64>,
    /// A change of that limit.
    pub later: Option<LaterMaximum>,
    /// Congestion control that the application chooses; `None`: its host's.
    pub congestion: Option<Congestion>,
    /// The receiver reads no faster than this; 0: not at all; `None`: as fast as it can.
    pub read_bps: Option<u64>,
    /// Both ends report times: of writes ([`Report::Marks`]), of what was read
    /// ([`Report::Arrivals`]).
    pub trace: bool,
}

/// One flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowPlan {
    /// Number of the flow, unique in the lab.
    pub flow: u32,
    /// Address of the sink.
    pub to: SocketAddr,
    /// Time of the first write, in nanoseconds of CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// Time of the connect, if it is before that.
    pub connect_ns: Option<u64>,
    /// Number of bytes after which the flow ends, if set.
    pub bytes: Option<u64>,
    /// Time at which the flow ends, if set.
    pub stop_ns: Option<u64>,
    /// Special behaviour of its two ends.
    #[serde(default)]
    pub behaviour: Behaviour,
}

/// The first bytes of a connection: what the receiver has to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Number of the flow.
    pub flow: u32,
    /// As in [`Behaviour::read_bps`].
    pub read_bps: Option<u64>,
    /// As in [`Behaviour::trace`].
    pub trace: bool,
}

/// Length of an encoded [`Header`].
pub const HEADER_BYTES: usize = 20;

impl Header {
    /// Encodes it, in network byte order.
    #[must_use]
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..4].copy_from_slice(&FLOW_MAGIC.to_be_bytes());
        out[4..8].copy_from_slice(&self.flow.to_be_bytes());
        // All ones stand for no limit: 0 is a receiver that never reads.
        out[8..16].copy_from_slice(&self.read_bps.unwrap_or(u64::MAX).to_be_bytes());
        out[16..].copy_from_slice(&u32::from(self.trace).to_be_bytes());
        out
    }

    /// Decodes it; `None` for a stray client.
    #[must_use]
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let word = |at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let read_bps = u64::from(word(8)) << 32 | u64::from(word(12));
        // A port scanner's connection must not count as a flow.
        (word(0) == FLOW_MAGIC).then(|| Header {
            flow: word(4),
            read_bps: (read_bps != u64::MAX).then_some(read_bps),
            trace: word(16) != 0,
        })
    }
}

/// From either program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The sink listens on all its ports.
    Listening,
    /// The sender begins to connect.
    Started {
        /// Number of the flow.
        flow: u32,
        /// Time in nanoseconds of CLOCK_MONOTONIC.
        at_ns: u64,
    },
    /// The sender saw the receiver's end of stream: the flow is complete.
    Finished {
        /// Number of the flow.
        flow: u32,
        /// Time in nanoseconds of CLOCK_MONOTONIC.
        at_ns: u64,
        /// Payload bytes written.
        bytes: u64,
    },
    /// A connection broke or could not be made.
    Failed {
        /// Number of the flow.
        flow: u32,
        /// Time in nanoseconds of CLOCK_MONOTONIC.
        at_ns: u64,
        /// The system's reason.
        error: String,
    },
    /// The sink accepted a flow's connection.
    Accepted {
        /// Number of the flow.
        flow: u32,
        /// Time in nanoseconds of CLOCK_MONOTONIC.
        at_ns: u64,
    },
    /// The sink read the sender's end of stream.
    Received {
        /// Number of the flow.
        flow: u32,
        /// Time in nanoseconds of CLOCK_MONOTONIC.
        at_ns: u64,
        /// Payload bytes read.
        bytes: u64,
    },
    /// The sink lost a flow's connection.
    Lost {
        /// Number of the flow.
        flow: u32,
        /// Time in nanoseconds of CLOCK_MONOTONIC.
        at_ns: u64,
        /// The system's reason.
        error: String,
    },
    /// Payload bytes read since the last such report: (flow, bin number, bytes).
    Bins(Vec<(u32, u64, u64)>),
    /// Of a traced flow: when the application began to write at regular times, or as much as it
    /// could, and how many bytes it had written before.
    Marks {
        /// Number of the flow.
        flow: u32,
        /// (time in ns, bytes before).
        marks: Vec<(u64, u64)>,
    },
    /// Of a traced flow: when the receiver read, and how many bytes it had then.
    Arrivals {
        /// Number of the flow.
        flow: u32,
        /// (time in ns, bytes until then).
        arrivals: Vec<(u64, u64)>,
    },
}

/// Writes one line and flushes it; the reader may be gone, which ends this program soon anyway.
pub fn say<T: Serialize>(message: &T) {
    let mut line = serde_json::to_string(message).unwrap_or_default();
    line.push('\n');
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_wire() {
        let plan = FlowPlan {
            flow: 7,
            to: "[fd77::1]:5001".parse().unwrap(),
            start_ns: 1,
            connect_ns: None,
            bytes: Some(9),
            stop_ns: None,
            behaviour: Behaviour {
                writing: Writing::Every {
                    bytes: 310,
                    every_ns: 500_000,
                },
                read_bps: Some(0),
                ..Behaviour::default()
            },
        };
        let command = SenderCommand::Start(plan);
        let text = serde_json::to_string(&command).unwrap();
        assert_eq!(
            serde_json::from_str::<SenderCommand>(&text).unwrap(),
            command
        );
        let report = Report::Bins(vec![(1, 2, 3)]);
        assert_eq!(
            serde_json::from_str::<Report>(&serde_json::to_string(&report).unwrap()).unwrap(),
            report
        );
    }

    #[test]
    fn a_header_tells_the_receiver_what_to_do() {
        for read_bps in [None, Some(0), Some(5 << 32)] {
            let header = Header {
                flow: 7,
                read_bps,
                trace: read_bps.is_some(),
            };
            assert_eq!(Header::decode(&header.encode()), Some(header));
        }
        assert_eq!(Header::decode(b"GET / HTTP/1.1\r\nHost"), None);
    }
}
