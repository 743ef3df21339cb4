//! Ratewright's endpoint daemon: flowlet detection and socket pacing in the kernel, and the client
//! session to the allocator.
//!
//! | module | what lives there |
//! |---|---|
//! | [`backend`] | mechanisms that notice flowlets and pace sockets, behind one trait |
//! | [`flows`] | the flow table: kernel events to session starts and ends, rates to the back end; sans-IO |
//! | [`policy`] | class, weight and cap of a flow by cgroup, port, DSCP and mark |
//! | [`second_line`] | shares from receivers' daemons while the allocator is lost |
//! | [`telemetry`] | what this host measures for the allocator's feeds |
//! | [`session_io`] | the connection to the allocator: QUIC with mutual TLS, sealed datagrams, reconnects |
//! | [`daemon`] | the one I/O loop that joins the three |
//! | [`status`], [`metrics`], [`admin`], [`samples`] | what operators see |
//! | [`config`] | the configuration file |
//! | [`instance_lock`] | one daemon for each network namespace |
//! | [`doctor`], [`cleanup`] | checks of a host, and the removal of what a killed daemon left |
//! | [`clock`] | the one place that reads the time |

pub mod admin;
pub mod backend;
pub mod cleanup;
pub mod clock;
pub mod config;
pub mod daemon;
pub mod doctor;
pub mod flows;
pub mod instance_lock;
pub mod metrics;
mod netlink;
pub mod policy;
mod readable;
pub mod samples;
pub mod second_line;
pub mod session_io;
pub mod status;
pub mod telemetry;
