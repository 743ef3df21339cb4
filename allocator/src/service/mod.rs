//! The service: hosts' sessions over QUIC, the engine behind them, and the interface to operators.
//!
//! | module | content |
//! |---|---|
//! | [`config`] | the configuration file, checked strictly |
//! | [`clock`] | all reads of clocks |
//! | [`tls`] | certificates |
//! | [`hub`] | sessions, flows, topology, kill switch: sans-IO |
//! | [`runtime`] | the threads: QUIC endpoint, ports, the core and its engine |
//! | [`admission`], `entrance` | admission of handshakes, sans-IO; and the connections that wait for it |
//! | `sealed_peers` | keys and addresses of sealed sessions |
//! | `session_table` | tables by session number, and the numbers |
//! | [`relay`] | a relay between the allocator and some of its hosts, a process of its own |
//! | [`admin_request`], [`status`], [`health`] | requests of the admin server, and their replies |
//! | [`overview`] | what the page shows |
//! | [`audit`] | changes by operators, with who made them |
//! | [`admin`] | HTTP for operators and monitoring |
//! | [`run`], [`systemd`] | start, reload and stop of the whole |
//!
//! Threads: the core's thread owns sessions, flows and engine, and serves the first port for sealed
//! datagrams; each further port has a thread. The service thread (tokio, current-thread) serves
//! QUIC and control streams; the admin thread answers HTTP. No datagram to or from the engine waits
//! for a timer. ARCHITECTURE.md has the table of threads.

pub mod admin;
pub mod admin_request;
pub mod admission;
pub mod audit;
pub mod clock;
pub mod config;
mod entrance;
pub mod health;
pub mod hub;
pub mod overview;
pub mod relay;
pub mod run;
pub mod runtime;
mod sealed_peers;
mod session_table;
pub mod status;
pub mod systemd;
pub mod tls;
