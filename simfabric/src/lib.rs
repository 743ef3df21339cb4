//! The simulated fabric: the production allocator and the production session state machines, packet
//! by packet, next to the schemes of the papers that Ratewright builds on.
//!
//! A run is a [`Sim`]: a topology, one transport scheme for all hosts, and a stream of flows. It is
//! single-threaded and deterministic: the same seed gives the same bytes.
//!
//! | module | what lives there |
//! |---|---|
//! | [`time`], [`rng`] | integer picoseconds; a stream of random numbers for each thing that draws |
//! | [`packet`], [`ext`] | 64-byte packets in a slab; side tables for data that few packets carry |
//! | [`flow`] | flows, their progress and their share of the conservation law |
//! | [`event`] | the event queue: by time, order and kind |
//! | [`net`] | ports, wires, routing, buffers; [`net::queue`] has one file per queue discipline |
//! | [`host`] | what a scheme is at one host; the interface that pulls its packets |
//! | [`transport`] | schemes, and the [`Context`] through which their endpoints act |
//! | [`scheme`] | the registry of schemes: names, parameters, demands on the fabric |
//! | [`mod@parameters`], [`units`] | parameters with documentation and defaults; rates and times as texts |
//! | [`workload`] | streams of flows |
//! | [`run`] | the event loop; [`results`]: results of a run |
//! | [`control`] | Flowtune's control plane without a network: production sessions and engine |
//! | [`plan`] | runs described in a file |
//! | [`experiment`] | the papers' figures: scenario, sweep, the paper's numbers, ours |
//! | [`report`] | tables, CSV and JSON with seed and commit, SVG plots |
//! | [`mod@bench`] | the permutation that measures the engine's own speed |

pub mod bench;
mod cache;
pub mod control;
pub mod event;
pub mod experiment;
pub mod ext;
pub mod flow;
pub mod host;
pub mod net;
pub mod packet;
pub mod parameters;
pub mod plan;
pub mod report;
pub mod results;
pub mod rng;
pub mod run;
pub mod scheme;
pub mod time;
pub mod transport;
pub mod units;
pub mod workload;

pub use ext::Extension;
pub use flow::{FlowId, FlowSpec};
pub use net::{FabricConfig, FabricError, Framing, QueueConfig};
pub use packet::{Flags, Packet, PacketKind};
pub use ratewright_topology::HostId;
pub use results::RunResults;
pub use run::{Config, Sim};
pub use time::{Span, Time};
pub use transport::{Context, Transport};

// The golden table is a test of this crate's users, and here of the same code with longer ports.
#[cfg(test)]
extern crate self as ratewright_simfabric;
#[cfg(test)]
#[path = "../tests/behaviour/golden/mod.rs"]
mod golden;
