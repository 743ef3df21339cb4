//! Requests of the admin server to the service thread.

use ratewright_topology::Topology;
use serde::Deserialize;
use tokio::sync::oneshot;

use super::hub::UnknownHost;
use super::overview::{HistoryPoint, LinkFlows, Overview};
use super::status::{
    Explanation, FeedsReport, HostFlows, Links, ReleaseReport, Snapshot, Status, TopFlows,
};

/// Request with the sender for its reply.
#[derive(Debug)]
pub enum AdminRequest {
    /// Reply, as a sign of life.
    Ping(oneshot::Sender<()>),
    /// Take a snapshot.
    Snapshot(oneshot::Sender<Box<Snapshot>>),
    /// Return everything in `/status`.
    Status(oneshot::Sender<Box<Status>>),
    /// Return the flows of a host by its name; `None` if it has no session.
    Flows(String, oneshot::Sender<Option<HostFlows>>),
    /// Return what the page shows.
    Overview(oneshot::Sender<Box<Overview>>),
    /// Return the figures that the page draws over time.
    HistoryPoint(oneshot::Sender<HistoryPoint>),
    /// Return a link with its largest flows; `None` if there is no such link.
    LinkFlows(u32, oneshot::Sender<Option<LinkFlows>>),
    /// Return the topology in force.
    Topology(oneshot::Sender<Box<Topology>>),
    /// Return the figures of the feeds, and their effects on links.
    Feeds(oneshot::Sender<FeedsReport>),
    /// Return the fastest flows, at most this many.
    TopFlows(usize, oneshot::Sender<TopFlows>),
    /// Return the fullest links, at most this many.
    Links(usize, oneshot::Sender<Links>),
    /// Explain the rates of the flows from one host to another; an error names the first of the two
    /// that the topology does not have.
    Explain(
        String,
        String,
        oneshot::Sender<Result<Box<Explanation>, UnknownHost>>,
    ),
    /// Release a host, or let it follow the rollout again.
    SetHostReleased(
        String,
        bool,
        oneshot::Sender<Result<ReleaseReport, UnknownHost>>,
    ),
    /// Return the progress of a host's release.
    HostReleaseReport(String, oneshot::Sender<ReleaseReport>),
    /// Turn the kill switch.
    SetReleased(bool, oneshot::Sender<ReleaseReport>),
    /// Return whether a host may still act on a rate although the kill switch is on.
    ReleaseWaits(oneshot::Sender<bool>),
    /// Return the progress of the kill switch.
    ReleaseReport(oneshot::Sender<ReleaseReport>),
    /// Apply a failure, repair or capacity change of a link or switch.
    ChangeTopology(
        TopologyChange,
        oneshot::Sender<Result<TopologyReport, TopologyChangeError>>,
    ),
    /// Take a report about external traffic.
    SetExternalLoad(
        ExternalLoad,
        oneshot::Sender<Result<ExternalLoadReport, TopologyChangeError>>,
    ),
}

/// Notification of the network's state (flowtune §6, network failure).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopologyChange {
    /// `POST /topology/link`.
    Link(LinkChange),
    /// `POST /topology/switch`.
    Switch(SwitchChange),
}

/// The body of `POST /topology/link`: the link's ends by name, and what changed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkChange {
    /// One end.
    pub from: String,
    /// The other end.
    pub to: String,
    /// True if the link works.
    pub up: Option<bool>,
    /// Capacity, in bit/s.
    pub capacity_bps: Option<u64>,
    /// Applies to the direction `from` to `to` only; otherwise to both.
    #[serde(default)]
    pub one_way: bool,
    /// Accepts a capacity however small it is.
    #[serde(default)]
    pub force: bool,
}

/// The body of `POST /topology/switch`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchChange {
    /// The switch's name.
    pub name: String,
    /// True if it works.
    pub up: bool,
}

/// The body of `POST /topology/load`: external traffic on a link, in one direction. It replaces the
/// report before; without traffic, it withdraws it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExternalLoad {
    /// The end that sends.
    pub from: String,
    /// The end that receives.
    pub to: String,
    /// Traffic that takes its bytes in any case, in bit/s.
    #[serde(default)]
    pub load_bps: u64,
    /// Weight, in flows of class 0, of traffic that gives way to others and takes what they leave.
    #[serde(default)]
    pub flows: f64,
    /// Lifetime of the report, in milliseconds; without it, until the next report.
    pub for_ms: Option<u64>,
}

/// Result of a report about external traffic.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct ExternalLoadReport {
    /// `from->to`.
    pub link: String,
    /// Capacity left for scheduled flows and the reported ones together, in bit/s.
    pub capacity_bps: f64,
}

/// Result of a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct TopologyReport {
    /// The topology's version after it.
    pub topology_epoch: u64,
    /// Links whose capacity changed.
    pub links_changed: usize,
    /// Flows that changed their path.
    pub flows_rerouted: usize,
    /// Flows without a path.
    pub flows_unroutable: usize,
}

/// Reason for which a notification was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyChangeError {
    /// No host or switch of that name.
    #[error("no host or switch is named {0:?}")]
    UnknownNode(String),
    /// No switch of that name.
    #[error("no switch is named {0:?}")]
    UnknownSwitch(String),
    /// The two are not neighbours.
    #[error("no link from {from:?} to {to:?}")]
    UnknownLink {
        /// One end.
        from: String,
        /// The other end.
        to: String,
    },
    /// Nothing to change.
    #[error("nothing to change: give \"up\" (true or false) or \"capacity_bps\"")]
    Nothing,
    /// An invalid capacity.
    #[error("capacity_bps = {0}: must be 1000 or more; say \"up\": false for a link that failed")]
    Capacity(u64),
    /// A capacity far below the nominal one, at which flows would nearly stop.
    #[error(
        "capacity_bps = {capacity_bps}: less than a hundredth of the link's {nominal_bps}: whatever crosses it would be \
         paced at that, and look healthy; say \"up\": false for a link that failed, or \"force\": true"
    )]
    CapacityFloor {
        /// Requested capacity, in bit/s.
        capacity_bps: u64,
        /// Nominal capacity in the topology file, in bit/s.
        nominal_bps: u64,
    },
    /// An invalid load.
    #[error("load_bps = {0}: more than any link can carry")]
    Load(u64),
    /// An invalid number of flows.
    #[error("flows = {0}: must be from 0 to 1000000")]
    Flows(String),
    /// An invalid duration.
    #[error("for_ms = {0}: must be 1 to 86400000")]
    Duration(u64),
}
