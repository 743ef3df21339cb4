//! What the admin server asks of the service thread.

use serde::Deserialize;
use tokio::sync::oneshot;

use super::status::{HostFlows, ReleaseReport, Snapshot, Status};

/// A request with the place for its answer.
#[derive(Debug)]
pub enum AdminRequest {
    /// Answer, to show that the thread is alive.
    Ping(oneshot::Sender<()>),
    /// Take a snapshot.
    Snapshot(oneshot::Sender<Box<Snapshot>>),
    /// Say everything that `/status` lists, too.
    Status(oneshot::Sender<Box<Status>>),
    /// The flows of a host by its name; nothing if it has no session.
    Flows(String, oneshot::Sender<Option<HostFlows>>),
    /// Turn the kill switch.
    SetReleased(bool, oneshot::Sender<ReleaseReport>),
    /// Whether a host may still act on a rate although the kill switch is on.
    ReleaseWaits(oneshot::Sender<bool>),
    /// How far the kill switch has got.
    ReleaseReport(oneshot::Sender<ReleaseReport>),
    /// A link or switch failed, came back or changed its capacity.
    ChangeTopology(
        TopologyChange,
        oneshot::Sender<Result<TopologyReport, TopologyChangeError>>,
    ),
    /// Somebody has measured traffic that the allocator does not schedule.
    SetExternalLoad(
        ExternalLoad,
        oneshot::Sender<Result<ExternalLoadReport, TopologyChangeError>>,
    ),
}

/// A notification of the network's state (flowtune §6, network failure).
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
    /// The link works, or not.
    pub up: Option<bool>,
    /// What it can carry.
    pub capacity_bps: Option<u64>,
    /// Only the direction `from` to `to`; else both.
    #[serde(default)]
    pub one_way: bool,
    /// The capacity is meant, however small it is.
    #[serde(default)]
    pub force: bool,
}

/// The body of `POST /topology/switch`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchChange {
    /// The switch's name.
    pub name: String,
    /// It works, or not.
    pub up: bool,
}

/// The body of `POST /topology/load`: traffic on a link, in one direction, that the allocator does
/// not schedule. It replaces what was told of the link before; without traffic, it takes that back.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExternalLoad {
    /// The end that sends.
    pub from: String,
    /// The end that receives.
    pub to: String,
    /// What goes over the link whatever the allocator does.
    #[serde(default)]
    pub load_bps: u64,
    /// As how many flows of class 0 the traffic weighs that gives way to others and takes what they
    /// leave.
    #[serde(default)]
    pub flows: f64,
    /// How long this holds unless it is told again; without it, until something else is told.
    pub for_ms: Option<u64>,
}

/// What came of a word about external traffic.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct ExternalLoadReport {
    /// `from->to`.
    pub link: String,
    /// What is left for the flows that the allocator schedules and those told of together.
    pub capacity_bps: f64,
}

/// What a notification did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct TopologyReport {
    /// The topology's version after it.
    pub topology_epoch: u64,
    /// Links whose capacity is another now.
    pub links_changed: usize,
    /// Flows that take another path now.
    pub flows_rerouted: usize,
    /// Flows that have no path now.
    pub flows_unroutable: usize,
}

/// Why a notification was refused.
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
    /// A capacity that cannot be.
    #[error("capacity_bps = {0}: must be 1000 or more; say \"up\": false for a link that failed")]
    Capacity(u64),
    /// A capacity at which flows would all but stand still.
    #[error(
        "capacity_bps = {capacity_bps}: less than a hundredth of the link's {nominal_bps}: whatever crosses it would be \
         paced at that, and look healthy; say \"up\": false for a link that failed, or \"force\": true"
    )]
    CapacityFloor {
        /// What was asked for.
        capacity_bps: u64,
        /// What the topology file says.
        nominal_bps: u64,
    },
    /// A load that cannot be.
    #[error("load_bps = {0}: more than any link can carry")]
    Load(u64),
    /// A number of flows that cannot be.
    #[error("flows = {0}: must be from 0 to 1000000")]
    Flows(String),
    /// A duration that cannot be.
    #[error("for_ms = {0}: must be 1 to 86400000")]
    Duration(u64),
}
