//! Ratewright's kernel-bypass port: datagrams between a poll-mode driver and a session, without the
//! kernel's network stack in between.
//!
//! | file | holds |
//! |---|---|
//! | [`stack`] | ARP, IPv4, ICMP echo and UDP for one address, sans-IO: frames in, datagrams and replies out |
//! | [`neighbours`] | bounded table of stations by IPv4 address |
//! | `bounds` | bounds of a received frame in its packet buffer |
//! | `eal` | DPDK's environment: started once per process, on the thread that will poll |
//! | `port` | one Ethernet port: queues, bursts, frames written in place |
//! | `endpoint` | a queue and a stack together: datagrams in bursts |
//! | `packets` | such an endpoint as a port that sealed sessions can stand on |
//!
//! The last four need the feature `dpdk` (libdpdk 22.11 and libclang at build time). The others are
//! plain code and are built and tested everywhere.
//!
//! Only IPv4 over untagged Ethernet is spoken. IPv6 daemons use the kernel's sockets.

#[cfg(any(test, feature = "dpdk"))]
mod bounds;
#[cfg(feature = "dpdk")]
pub mod eal;
#[cfg(feature = "dpdk")]
pub mod endpoint;
#[cfg(feature = "dpdk")]
mod error;
pub mod neighbours;
#[cfg(feature = "dpdk")]
pub mod packets;
#[cfg(feature = "dpdk")]
pub mod port;
pub mod stack;

#[cfg(feature = "dpdk")]
pub use error::DpdkError;
