//! The service: hosts' sessions over QUIC, the engine behind them, and what operators see and turn.
//!
//! | module | what |
//! |---|---|
//! | [`config`] | the configuration file, checked strictly |
//! | [`clock`] | the one place that reads clocks |
//! | [`tls`] | certificates |
//! | [`hub`] | sessions, flows, topology, kill switch: sans-IO |
//! | [`runtime`] | the service thread: the QUIC endpoint, the hub and the engine's rings |
//! | [`admission`], `entrance` | who may shake hands and when, sans-IO; and the connections that wait for it |
//! | [`relay`] | a relay between the allocator and some of its hosts, a process of its own |
//! | [`instrumented_engine`] | an engine with a histogram of its iteration times |
//! | [`admin_request`], [`status`], [`health`] | what the admin server asks and what it is told |
//! | [`admin`] | HTTP for operators and monitoring |
//! | [`run`], [`systemd`] | puts the parts together: start, reload, stop |
//!
//! Threads: the service thread (tokio, current-thread) does QUIC and control streams; each shard of
//! sealed datagrams has a thread with a port; the admin thread answers HTTP. One shard, the
//! default, drives the engine itself. With several shards, or with QUIC alone, the engine has a
//! thread of its own behind two rings. No datagram waits for a timer on its way to the engine and
//! back. ARCHITECTURE.md has the table of threads.

pub mod admin;
pub mod admin_request;
pub mod admission;
pub mod clock;
pub mod config;
mod entrance;
pub mod health;
pub mod hub;
pub mod instrumented_engine;
pub mod relay;
pub mod run;
pub mod runtime;
mod sealed_peers;
pub mod status;
pub mod systemd;
pub mod tls;
