//! Input and output around the sessions: sockets, transports, timers, TLS, logs and admin
//! listeners.
//!
//! | module | what is in it |
//! |---|---|
//! | [`admin`] | listeners of admin interfaces, and their protection from web pages |
//! | [`log`] | a log that never blocks its writers |
//! | [`dscp`] | the mark of control datagrams, for the network's queues and the host's own |
//! | [`random`] | the operating system's randomness |
//! | [`quic`] | QUIC endpoints whose datagrams carry that mark |
//! | [`sched`] | scheduler settings of hot threads |
//! | [`timers`] | timers of thousands of sessions |
//! | [`tls`] | certificates in PEM files, and the client's side of TLS |
//! | [`udp`] | UDP sockets that move many datagrams per system call |
//! | [`transport`] | transports of client sessions' datagrams: QUIC, sealed datagrams over such a socket, or the one that gets through |

pub mod admin;
pub mod dscp;
pub mod log;
pub mod quic;
pub mod random;
pub mod sched;
pub mod timers;
pub mod tls;
pub mod transport;
pub mod udp;
