//! Configuration of the allocator: a TOML file, checked strictly.
//!
//! | module | contents |
//! |---|---|
//! | [`error`] | errors with file, line, key and the expected value |
//! | `raw` | the file's shape for serde |
//! | `check`, `classes` | conversion of the raw shape to a [`Config`], with every value checked |
//! | `transport` | the table `[transport]` |
//! | `membership` | the table `[membership]` |
//! | `feeds`, [`collector`] | the tables `[feeds]` and `[feeds.collector]` |
//! | [`relay`] | the configuration of a relay |
//! | [`rollout`] | hosts that pace |
//! | [`trust`] | hosts and relays that may have a session |
//! | [`example`] | a commented file with every key and its default |
//!
//! Paths in the file are relative to the file's own folder.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use ratewright_io::admin::AdminAddress;
use ratewright_io::dscp::Dscp;

use crate::feeds::FeedsConfig;

mod check;
mod classes;
pub mod collector;
pub mod error;
pub mod example;
mod feeds;
mod membership;
mod raw;
pub mod relay;
pub mod rollout;
#[cfg(test)]
pub(in crate::service) mod tests;
mod transport;
pub mod trust;

pub use classes::{class_meaning, class_table};
pub use collector::CollectorConfig;
pub use error::ConfigError;
pub use example::example_config;
pub use membership::MembershipConfig;
pub use relay::{RelayConfig, example_relay_config};
pub use rollout::{PacingOrder, Rollout};
pub use transport::DpdkTransport;
pub use trust::{Distrust, Fingerprint, HostPattern, RelayIdentity, Trust};

/// Highest class id that a start record can carry, in its seven bits.
pub const MAX_CLASS_ID: u8 = 127;

/// A checked configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// UDP address of the QUIC service.
    pub listen: SocketAddr,
    /// Address of the admin HTTP server.
    pub admin: AdminAddress,
    /// Path of the topology file.
    pub topology: PathBuf,
    /// Log filter at start (the syntax of `RUST_LOG`).
    pub log: String,
    /// Certificates.
    pub tls: TlsFiles,
    /// Table `[allocation]`.
    pub allocation: Allocation,
    /// Table `[transport]`.
    pub transport: TransportConfig,
    /// Table `[limits]`.
    pub limits: Limits,
    /// Table `[feeds]`; `external_share` stands in `[allocation]`.
    pub feeds: FeedsConfig,
    /// Table `[feeds.collector]`, if there is one.
    pub collector: Option<CollectorConfig>,
    /// Table `[membership]`.
    pub membership: MembershipConfig,
    /// Table `[trust]`.
    pub trust: Trust,
    /// Table `[rollout]`.
    pub rollout: Rollout,
    /// File of the audit log, if there is one.
    pub audit: Option<PathBuf>,
    /// Flow classes, ordered by id.
    pub classes: Vec<ClassConfig>,
}

/// PEM files of the service's identity, and of the authority that signs the hosts' certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Authority of both the allocator's and the hosts' certificates.
    pub ca: PathBuf,
    /// The allocator's certificate chain.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// The engine that computes rates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineKind {
    /// Readable f64 version on one thread, against which tests hold the other one.
    Reference,
    /// Single precision, vector instructions, any number of threads.
    #[default]
    Parallel,
}

/// Computation of rates, and their lifetime.
#[derive(Debug, Clone, PartialEq)]
pub struct Allocation {
    /// The engine.
    pub engine: EngineKind,
    /// Blocks into which the parallel engine cuts the topology, a power of two; `None` derives the
    /// number from its hosts and the workers.
    pub blocks: Option<u32>,
    /// Threads of the parallel engine; `None` derives the number from the hosts and this machine's
    /// cores.
    pub workers: Option<usize>,
    /// Time between two iterations while rates move; `None` is back to back.
    pub interval_us: Option<u64>,
    /// Least time between two datagrams to a host for rates other than first ones.
    pub update_interval_us: u64,
    /// Longest delay of an acknowledgement that shares a later datagram.
    pub ack_delay_ms: u64,
    /// Step size γ of the price update (flowtune §2).
    pub gamma: f64,
    /// Relative change of a rate below which no update is sent; capacities are derated by it.
    pub threshold: f64,
    /// Share of every link that is reserved for flows too short to be reported (flowtune §6).
    pub mice_reserve: f64,
    /// Upper bound of the reported external traffic, as a share of a link's capacity.
    pub external_share: f64,
    /// Lifetime of a rate at an endpoint that receives no datagram.
    pub lease_ms: u64,
    /// Liveness time-out: time without a datagram after which a daemon gives a session up. The
    /// allocator does so after three times that.
    pub liveness_ms: u64,
    /// Time from the service's start to its first rates, in which the hosts of its predecessor
    /// connect.
    pub start_grace_ms: u64,
    /// Core of the engine thread.
    pub pin_core: Option<usize>,
    /// True to start with the kill switch on.
    pub start_released: bool,
}

/// Transport of datagrams between hosts and the allocator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransportConfig {
    /// Interface that carries sealed datagrams past the kernel; `None` uses sockets.
    pub dpdk: Option<DpdkTransport>,
    /// True to offer sealed UDP beside QUIC.
    pub sealed_udp: bool,
    /// Threads, each with its own UDP port, that serve sealed datagrams.
    pub udp_shards: u16,
    /// First of those ports; `None` lets the system choose.
    pub udp_port: Option<u16>,
    /// AEAD of sealed datagrams.
    pub cipher: ratewright_proto::sealed::Cipher,
    /// True if threads with a port spin instead of sleeping.
    pub busy_poll: bool,
    /// DSCP of all datagrams to hosts and relays, or to the allocator.
    pub control_dscp: Dscp,
}

impl TransportConfig {
    /// Number of UDP ports: 0 without sealed UDP.
    pub fn shards(&self) -> u16 {
        if self.sealed_udp { self.udp_shards } else { 0 }
    }
}

impl Default for TransportConfig {
    fn default() -> Self {
        Self {
            dpdk: None,
            sealed_udp: true,
            udp_shards: 1,
            udp_port: None,
            cipher: ratewright_proto::sealed::Cipher::default(),
            busy_poll: false,
            control_dscp: Dscp::CS6,
        }
    }
}

/// Bounds on the state and work that peers can cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Hosts with a session.
    pub max_sessions: u32,
    /// Flows of one session.
    pub max_flows_per_session: u32,
    /// Flows of all sessions.
    pub max_flows: u32,
    /// Flowlet starts of one session that are applied in a second, on average.
    pub max_starts_per_s: u32,
    /// Flowlet starts and changes of demand of all sessions that are applied in a second, on
    /// average. Flows beyond stay with plain TCP until the budget allows them, and changes wait.
    pub max_total_starts_per_s: u32,
    /// Changes of demand of one session that are applied in a second, on average. Of those beyond,
    /// each flow's newest is applied later.
    pub max_demand_changes_per_s: u32,
    /// Datagrams of one session that are read in a second, on average.
    pub max_datagrams_per_s: u32,
    /// Bytes of one session's control stream that are read in a second, on average; every frame
    /// costs [`CONTROL_FRAME_COST_BYTES`] in addition.
    pub max_control_bytes_per_s: u32,
}

/// Cost of a control frame in addition to its bytes, so that many small ones are bounded too.
pub const CONTROL_FRAME_COST_BYTES: u32 = 256;

/// The utility of a class's flows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum UtilityConfig {
    /// w log x: weighted proportional fairness.
    Log,
    /// w x^(1-α)/(1-α): α-fairness.
    Alpha(f64),
}

/// A flow class.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassConfig {
    /// Id in start records.
    pub id: u8,
    /// Name in policy files.
    pub name: String,
    /// Utility, which defines fairness inside the class.
    pub utility: UtilityConfig,
    /// Rate at which a flow of the class weighs as much as a log flow. Unused for log classes.
    pub reference_bps: u64,
    /// Factor of every flow's own weight.
    pub weight: f64,
    /// Upper bound of every flow's rate.
    pub max_rate_bps: Option<u64>,
    /// True if a flow's rate is bounded by the demand that its host measures, and others get the
    /// rest. Otherwise a flow keeps its share, used or not.
    pub measured_demand: bool,
}

impl Config {
    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        // Relative paths must not depend on the directory of the process.
        let folder = path.parent().unwrap_or_else(|| Path::new(""));
        Self::from_toml_str(&text, &path.display().to_string(), folder)
    }

    /// Checks a text. `origin` is its name in errors; relative paths start from `folder`.
    pub fn from_toml_str(text: &str, origin: &str, folder: &Path) -> Result<Self, ConfigError> {
        let raw =
            toml::from_str(text).map_err(|source| error::syntax_error(text, origin, &source))?;
        check::Checker {
            text,
            origin,
            folder,
        }
        .config(raw)
    }

    /// Returns warnings of allowed but risky values, a line each.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if !self.admin.is_local() {
            warnings.push(format!(
                "admin = \"{}\": other machines may reach it, and whoever does {}; use a Unix socket or a loopback \
                 address",
                self.admin,
                match self.admin {
                    // Writable addresses accept changes, the others only answer.
                    AdminAddress::WritableTcp(_) => "can turn the kill switch and change the topology",
                    _ => "can read the names of hosts and links",
                }
            ));
        } else if matches!(self.admin, AdminAddress::WritableTcp(_)) {
            warnings.push(format!(
                "admin = \"{}\": every user of this machine can turn the kill switch and change the topology; use a \
                 Unix socket",
                self.admin
            ));
        }
        warnings
    }

    /// Returns the keys that differ from `other` and take effect only at the next start.
    pub fn restart_keys_changed(&self, other: &Self) -> Vec<&'static str> {
        let mut keys = Vec::new();
        // Keys that are bound to sockets, threads or the state of sessions; all others apply at a
        // reload.
        if self.listen != other.listen {
            keys.push("listen");
        }
        if self.admin != other.admin {
            keys.push("admin");
        }
        if self.transport != other.transport {
            keys.push("transport");
        }
        let listen = |config: &Self| config.collector.as_ref().map(|known| known.listen);
        if listen(self) != listen(other) {
            keys.push("feeds.collector.listen");
        }
        if self.allocation.lease_ms != other.allocation.lease_ms {
            keys.push("allocation.lease_ms");
        }
        if self.allocation.liveness_ms != other.allocation.liveness_ms {
            keys.push("allocation.liveness_ms");
        }
        if self.allocation.ack_delay_ms != other.allocation.ack_delay_ms {
            keys.push("allocation.ack_delay_ms");
        }
        keys
    }
}

impl Default for Allocation {
    fn default() -> Self {
        Self {
            engine: EngineKind::default(),
            blocks: None,
            workers: None,
            interval_us: Some(100),
            update_interval_us: 0,
            ack_delay_ms: 20,
            gamma: 0.4,
            threshold: 0.01,
            mice_reserve: 0.0,
            external_share: 0.9,
            lease_ms: 300,
            liveness_ms: 1_000,
            start_grace_ms: 300,
            pin_core: None,
            start_released: false,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_sessions: 4_096,
            max_flows_per_session: 16_384,
            max_flows: 1_000_000,
            max_starts_per_s: 200_000,
            // All flows within a second, after a restart.
            max_total_starts_per_s: 1_000_000,
            max_demand_changes_per_s: 20_000,
            max_datagrams_per_s: 200_000,
            max_control_bytes_per_s: 4 << 20,
        }
    }
}

/// Reference rate of classes without `reference_bps`.
pub(super) const DEFAULT_REFERENCE_BPS: u64 = 1_000_000_000;

impl Default for ClassConfig {
    fn default() -> Self {
        Self {
            id: 0,
            name: "default".to_owned(),
            utility: UtilityConfig::Log,
            reference_bps: DEFAULT_REFERENCE_BPS,
            weight: 1.0,
            max_rate_bps: None,
            measured_demand: true,
        }
    }
}
