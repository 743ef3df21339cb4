//! Input and output around the sessions: sockets, transports, timers, TLS, logs and admin listeners.
//!
//! | module | what is in it |
//! |---|---|
//! | [`admin`] | where admin interfaces listen, and who may change something there |
//! | [`log`] | a log that holds nobody up |
//! | [`dscp`] | the mark of control datagrams, for the network's queues and the host's own |
//! | [`quic`] | QUIC endpoints whose datagrams carry that mark |
//! | [`sched`] | what hot threads ask of the scheduler |
//! | [`timers`] | timers of thousands of sessions |
//! | [`tls`] | certificates in PEM files, and the client's side of TLS |
//! | [`udp`] | UDP sockets that move many datagrams per system call |
//! | [`transport`] | what carries the datagrams of client sessions: QUIC, sealed datagrams over such a socket, or whichever gets through |

pub mod admin;
pub mod dscp;
pub mod log;
pub mod quic;
pub mod sched;
pub mod timers;
pub mod tls;
pub mod transport;
pub mod udp;
