//! Reproduction of FNCC (Xu et al.: *FNCC: Fast Notification Congestion Control in Data Center
//! Networks*): congestion's news by the acknowledgements that pass it, against HPCC, DCQCN and
//! RoCC.
//!
//! | file | what of the paper |
//! |---|---|
//! | [`int_age`] | fig. 12, §5.4.1: age of each hop's telemetry at the sender, exactly |
//! | [`scene`] | figures 9 and 11, §5.5: the networks |
//!
//! What the paper's text lacks is fixed here, before any run:
//!
//! | parameter | value | reason |
//! |---|---|---|
//! | packets | 1,456 bytes of payload, 1,538 on the link | a frame of 1,518 bytes (§5) has 62 of Ethernet, IP, UDP and RoCEv2; preamble and gap take 20 |

pub mod int_age;
pub mod scene;

use super::Experiment;
use crate::net::Framing;

/// The experiments, in the order of the paper.
pub const FNCC: &[Experiment] = &[Experiment {
    name: "fig12",
    file_name: "fig12_telemetry_age",
    title: "fig. 12: age of each hop's telemetry at the sender",
    run: int_age::run,
    variations: &[],
}];

/// Bytes of packets and around them: frames of 1,518 bytes (§5) with headers of Ethernet, IP, UDP
/// and RoCEv2 (62 bytes), preamble and gap.
const FRAMING: Framing = Framing {
    mss_bytes: 1_456,
    header_bytes: 82,
    min_wire_bytes: 84,
};
