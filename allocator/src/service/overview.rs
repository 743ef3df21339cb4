//! The page's view of the service: the body of `/overview` and of each event of `/events`.
//!
//! Its size is bounded whatever the network is: lists hold the largest or the first few of what
//! they are of.

use serde::Serialize;

use super::status::{CheckedLink, ExternalStatus, FaultyHost, IterationStatus, OptimalityStatus};

/// Most links in [`Overview::links`].
pub const MAX_LINKS: usize = 4_096;
/// Most links in [`Overview::busiest`].
pub const MAX_BUSIEST: usize = 12;
/// Most racks in [`Overview::racks`].
pub const MAX_RACKS: usize = 512;
/// Most flows in [`Overview::top_flows`].
pub const MAX_FLOWS: usize = 16;
/// Most names in lists of hosts or dead links, and most entries of external traffic.
pub const MAX_NAMES: usize = 12;

/// State of the service at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Overview {
    /// Monotonic time of this process, in milliseconds.
    pub at_ms: u64,
    /// Version of this binary.
    pub version: &'static str,
    /// Incarnation of this allocator, as text: it has more digits than a JSON number holds.
    pub epoch: String,
    /// Version of the topology.
    pub topology_epoch: u64,
    /// The kill switch is on.
    pub released: bool,
    /// Lease of a rate, in milliseconds.
    pub lease_ms: u64,
    /// Hosts of the topology.
    pub hosts: u64,
    /// Hosts with a session.
    pub sessions: u64,
    /// Names of the first hosts without one.
    pub hosts_missing: Vec<String>,
    /// Flows with a rate.
    pub flows: u64,
    /// Flows that are known and left to plain TCP.
    pub flows_left_alone: u64,
    /// Times of iterations.
    pub iteration: IterationStatus,
    /// Distance of the last rates from the optimum.
    pub optimality: OptimalityStatus,
    /// Durations from taking a start to handing its first rate to its session: upper bounds in
    /// seconds with cumulative counts.
    pub first_rate_buckets: Vec<(f64, u64)>,
    /// Durations of iterations, likewise.
    pub iteration_buckets: Vec<(f64, u64)>,
    /// Totals since the start, by name.
    pub totals: Vec<(&'static str, u64)>,
    /// All that was refused, lost or left alone since the start.
    pub refusals: Vec<Refused>,
    /// Links that carry nothing.
    pub links_down: u64,
    /// Names of the first of them.
    pub links_down_names: Vec<String>,
    /// Links with external traffic.
    pub external_links: u64,
    /// The first of them.
    pub external: Vec<ExternalStatus>,
    /// Links that are not as they were told.
    pub links_not_as_told: u64,
    /// The first of them.
    pub not_as_told: Vec<CheckedLink>,
    /// Faults of hosts.
    pub hosts_not_as_told: u64,
    /// The first of them.
    pub faults: Vec<FaultyHost>,
    /// Links that carry something, by id, with load over capacity: the most loaded ones.
    pub links: Vec<(u32, f64)>,
    /// The most loaded links.
    pub busiest: Vec<LinkView>,
    /// Racks in the order of their ids, the first ones of many.
    pub racks: Vec<RackView>,
    /// The flows with the largest rates.
    pub top_flows: Vec<FlowView>,
}

/// Count of one kind of refusal for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// Thing that was refused, lost or left alone.
    pub what: &'static str,
    /// Reason, as in the metrics.
    pub reason: &'static str,
    /// Count since the start.
    pub count: u64,
}

/// One link.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LinkView {
    /// The link's id in this topology.
    pub id: u32,
    /// `from->to`, by the names of its ends.
    pub name: String,
    /// Sum of the rates over it, in bit/s.
    pub load_bps: f64,
    /// Capacity for scheduled flows, in bit/s.
    pub capacity_bps: f64,
    /// Flows over it.
    pub flows: u32,
}

/// One rack. Utilisations are the largest load over capacity.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RackView {
    /// The rack's id in this topology.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Its hosts.
    pub hosts: u32,
    /// Its hosts with a session.
    pub sessions: u32,
    /// Of its hosts' links away from them.
    pub up: f64,
    /// Of its hosts' links towards them.
    pub down: f64,
    /// Of the links between its leaf and the fabric, either way; 0 where there are none.
    pub fabric: f64,
}

/// One flow with its rate.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FlowView {
    /// Name of the sending host.
    pub from: String,
    /// Name of the receiving host.
    pub to: String,
    /// Number of the flow at its host.
    pub flow: u32,
    /// Its class.
    pub class: u8,
    /// Newest rate, in bit/s.
    pub rate_bps: u64,
}

/// The body of `GET /links/flows`: a link with its largest flows.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LinkFlows {
    /// The link.
    pub link: LinkView,
    /// Its flows, the largest first: at most [`MAX_FLOWS`].
    pub top_flows: Vec<FlowView>,
}

/// Figures of one second that the page draws over time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct HistoryPoint {
    /// Monotonic time of this process, in milliseconds.
    pub at_ms: u64,
    /// Distance from the optimum; `None` while it is no number.
    pub gap: Option<f64>,
    /// Largest load over capacity of any link.
    pub max_link_load: f64,
    /// Flows with a rate.
    pub flows: u64,
    /// Flowlet starts taken since the start.
    pub starts: u64,
    /// 99th percentile of recent iterations, in microseconds.
    pub iteration_p99_us: f64,
}
