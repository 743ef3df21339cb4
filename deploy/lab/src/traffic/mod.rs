//! Traffic of the lab: a plain sender and a plain receiver of TCP (and UDP), each a process of its
//! own inside a host. They use sockets as any application does and know nothing of Ratewright.
//!
//! A connection begins with a header that names the flow and says how to read it; the rest is
//! payload. The lab talks to both programs in JSON lines over their standard input and output
//! ([`protocol`]); times are CLOCK_MONOTONIC nanoseconds, which all namespaces share.

pub mod burn;
pub mod pacing_limit;
pub mod protocol;
pub mod sender;
pub mod sink;
