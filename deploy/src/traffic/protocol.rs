//! What the lab and its traffic programs say to each other, one JSON object a line.

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
pub enum Command {
    /// Starts a flow at a time.
    Start(FlowPlan),
    /// Ends a long flow now.
    Stop {
        /// Which flow.
        flow: u32,
    },
}

/// One flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowPlan {
    /// Number of the flow, unique in the lab.
    pub flow: u32,
    /// Where to connect.
    pub to: SocketAddr,
    /// When to connect.
    pub start_ns: u64,
    /// Ends after so many bytes, if set.
    pub bytes: Option<u64>,
    /// Ends at this time, if set.
    pub stop_ns: Option<u64>,
}

/// From either program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The sink listens on all its ports.
    Listening,
    /// The sender begins to connect.
    Started {
        /// Which flow.
        flow: u32,
        /// When.
        at_ns: u64,
    },
    /// The sender saw the receiver's end of stream: the flow is complete.
    Finished {
        /// Which flow.
        flow: u32,
        /// When.
        at_ns: u64,
        /// Payload bytes written.
        bytes: u64,
    },
    /// A connection broke or could not be made.
    Failed {
        /// Which flow.
        flow: u32,
        /// When.
        at_ns: u64,
        /// The system's reason.
        error: String,
    },
    /// The sink accepted a flow's connection.
    Accepted {
        /// Which flow.
        flow: u32,
        /// When.
        at_ns: u64,
    },
    /// The sink read the sender's end of stream.
    Received {
        /// Which flow.
        flow: u32,
        /// When.
        at_ns: u64,
        /// Payload bytes read.
        bytes: u64,
    },
    /// The sink lost a flow's connection.
    Lost {
        /// Which flow.
        flow: u32,
        /// When.
        at_ns: u64,
        /// The system's reason.
        error: String,
    },
    /// Payload bytes read since the last such report: (flow, bin number, bytes).
    Bins(Vec<(u32, u64, u64)>),
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
            bytes: Some(9),
            stop_ns: None,
        };
        let command = Command::Start(plan);
        let text = serde_json::to_string(&command).unwrap();
        assert_eq!(serde_json::from_str::<Command>(&text).unwrap(), command);
        let report = Report::Bins(vec![(1, 2, 3)]);
        assert_eq!(
            serde_json::from_str::<Report>(&serde_json::to_string(&report).unwrap()).unwrap(),
            report
        );
    }
}
