//! Pacing back ends: mechanisms that notice flowlets in the kernel and bring rates to sockets.
//!
//! | module | mechanism | detects | paces |
//! |---|---|---|---|
//! | [`sock_ops`] | a cgroup sock_ops program | socket callbacks | `SO_MAX_PACING_RATE` |
//! | [`tc_htb`] | a clsact classifier | packets by 5-tuple | one HTB class per flow |
//! | [`probe`] | tries what this kernel offers, and says why not | | |
//!
//! Every back end keeps the promise of flowtune §6 (fault-tolerance): a rate carries its expiry
//! into the kernel. Once it has passed, the socket is plain TCP again, with or without a daemon.

pub(crate) mod cgroup;
mod htb_netlink;
pub mod left_behind;
mod mounts;
pub(crate) mod namespaces;
mod open;
mod pass_rest;
mod pins;
pub mod probe;
pub mod ring;
mod slots;
pub mod sock_ops;
mod sys;
pub mod tc_htb;
mod tunnels;

use std::os::fd::BorrowedFd;

pub use open::{check, open};

use ratewright_topology::ecmp::FiveTuple;

/// Mechanism of a back end; the names are those that `--backend` takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackendKind {
    /// BPF sock_ops with `SO_MAX_PACING_RATE`.
    SockOps,
    /// tc HTB classes chosen by a clsact BPF program.
    TcHtb,
}

/// Index of a connection in the back end's bounded flow table (`0..max_flows`, below 2^20).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotIndex(pub u32);

/// Connection as the kernel names it. `use_count` distinguishes successive connections in one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Conn {
    /// Slot that holds the connection's rate.
    pub slot: SlotIndex,
    /// Number of connections that had this slot before; the back end ignores stale handles.
    pub use_count: u32,
}

/// Properties that policy matches on, read from the socket when its flowlet starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowFacts {
    /// Local address is the source: the flow is what this host sends.
    pub tuple: FiveTuple,
    /// cgroup v2 id of the socket (0 if unknown).
    pub cgroup_id: u64,
    /// `SO_MARK` of the socket.
    pub mark: u32,
    /// The six DSCP bits of the socket's TOS or traffic class.
    pub dscp: u8,
    /// The application's own `SO_MAX_PACING_RATE` in bytes/s, if it set one: a demand limit.
    pub app_max_bytes_per_s: Option<u64>,
}

/// Kind of an event, in the order in which the kernel saw them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlowEventKind {
    /// A send backlog of at least the minimum flowlet size began: a flowlet starts.
    Start(FlowFacts),
    /// The backlog is empty and everything was acknowledged.
    Idle,
    /// The backlog is back before the daemon reported an end.
    Resume,
    /// The socket closed, or gave its slot back while idle; the slot is free once this was drained.
    Close,
    /// The flowlet, which was [watched](PacingBackend::watch), has used up its rate and has more to
    /// send.
    Limited,
    /// The application changed its own `SO_MAX_PACING_RATE`, in bytes/s; `None`: it has none now.
    OwnMax(Option<u64>),
    /// The first transmission under a valid rate after `Start`.
    FirstPaced {
        /// Nanoseconds from the write of the flowlet's first byte to its first paced transmission.
        latency_ns: u64,
    },
}

/// One event from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowEvent {
    /// The connection.
    pub conn: Conn,
    /// CLOCK_MONOTONIC nanoseconds at which the kernel saw it.
    pub at_ns: u64,
    /// Kind.
    pub kind: FlowEventKind,
}

/// Use of its rate by a running flowlet's connection, as the kernel last saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// The connection.
    pub conn: Conn,
    /// Bytes on the wire since the connection took its slot, with Ethernet headers, tunnels and
    /// retransmissions; only differences have a meaning.
    pub sent_bytes: u64,
    /// Bytes that the receiver acknowledged, likewise; equal to `sent_bytes` where the back end
    /// sees no acknowledgements.
    pub acked_bytes: u64,
    /// Last time at which only the rate kept the connection from sending, or, while
    /// [observing](PacingBackend::observe), only TCP did; 0: never.
    pub limited_ns: u64,
    /// Smoothed round-trip time; 0 where the back end does not know it.
    pub round_trip_ns: u64,
}

/// Counters of a back end since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct BackendStats {
    /// Connections that hold a slot now.
    pub connections: u64,
    /// Connections that found the flow table full and run as plain TCP.
    pub table_full: u64,
    /// Events that the kernel could not queue for the daemon.
    pub events_lost: u64,
    /// Connections that were taken over when the back end started.
    pub adopted: u64,
    /// Leases that ran out in the kernel, whose sockets went back to plain TCP.
    pub expired: u64,
    /// Passes over the sockets.
    pub socket_passes: u64,
    /// Network namespaces of pods whose sockets are paced.
    pub pods: u64,
}

/// Error of a back end: it cannot start, or cannot do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// This machine does not offer the mechanism.
    #[error("{mechanism} is not available here: {reason}")]
    Unavailable {
        /// The mechanism's name.
        mechanism: &'static str,
        /// Description of the lack, and of its remedy.
        reason: String,
    },
    /// A system call or BPF operation failed.
    #[error("{what}: {source}")]
    System {
        /// Operation that failed.
        what: String,
        /// The error of the system.
        source: std::io::Error,
    },
}

impl BackendError {
    /// An error of libbpf, with its whole chain of causes.
    pub(crate) fn bpf(what: impl Into<String>, error: &libbpf_rs::Error) -> Self {
        Self::System {
            what: what.into(),
            source: std::io::Error::other(format!("{error:#}")),
        }
    }
}

/// Configuration of a back end.
#[derive(Debug, Clone)]
pub struct BackendConfig {
    /// Names the daemon's kernel objects; unique per network namespace and daemon, at most 8
    /// characters [a-z0-9].
    pub instance: String,
    /// Number of slots.
    pub max_flows: u32,
    /// A flowlet is reported once this many bytes of it were written.
    pub min_flowlet_bytes: u64,
    /// cgroup v2 directory whose sockets are paced (sock_ops).
    pub cgroup: Option<std::path::PathBuf>,
    /// Network device whose egress is paced (tc_htb).
    pub device: Option<String>,
    /// Pace connections that exist at start, too.
    pub take_over: bool,
    /// Patterns of the files of further network namespaces, those of pods, whose sockets are paced.
    pub network_namespaces: Vec<String>,
    /// Least bytes that tunnels add to each frame, for tunnels that no device here shows.
    pub tunnel_bytes: u16,
    /// Begin with [`observe`](PacingBackend::observe): what only pacing needs is not installed.
    pub observe: bool,
}

/// Detection and pacing for the network namespace that the daemon runs in, and for those of its
/// pods.
///
/// Not `Send`: it lives on the daemon's one I/O thread. Times are CLOCK_MONOTONIC nanoseconds.
/// Rates count Ethernet frames with their header of 14 bytes, as they leave the host: with what
/// tunnels add. A back end converts where it counts otherwise.
pub trait PacingBackend {
    /// Returns the mechanism.
    fn kind(&self) -> BackendKind;

    /// Returns a descriptor that is readable while events wait.
    fn event_fd(&self) -> BorrowedFd<'_>;

    /// Moves all waiting events to `out`, oldest first. Never blocks.
    ///
    /// # Errors
    /// When the kernel refuses; events that were already moved stay in `out`.
    fn poll_events(&mut self, now_ns: u64, out: &mut Vec<FlowEvent>) -> Result<(), BackendError>;

    /// Returns the time of the next `poll_events` even if the descriptor stays quiet, for back ends
    /// that scan.
    fn next_poll_ns(&self) -> Option<u64>;

    /// Paces `conn` at `rate_bps` until `expires_ns`. A stale `conn` is ignored.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn set_rate(&mut self, conn: Conn, rate_bps: u64, expires_ns: u64) -> Result<(), BackendError>;

    /// Carries out changes that earlier calls put off in order to batch them. Called at the end of
    /// each of the daemon's turns.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn flush(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Moves the expiry of all connections whose rate still holds. A lapsed rate stays lapsed until
    /// a new [`set_rate`](Self::set_rate).
    ///
    /// # Errors
    /// When the kernel refuses.
    fn renew(&mut self, expires_ns: u64) -> Result<(), BackendError>;

    /// Turns observing on or off; either takes all rates away. While it is on, no rate may be set.
    /// [`usage`](Self::usage) then also has connections without a rate, and
    /// [`limited_ns`](Usage::limited_ns) is the last time at which an application had more to send
    /// than plain TCP let out. What the back end needs for pacing alone is not in force.
    ///
    /// # Errors
    /// When the kernel refuses. The back end then observes.
    fn observe(&mut self, observing: bool) -> Result<(), BackendError>;

    /// Takes the rate away: `conn` continues as plain TCP from that rate.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn clear(&mut self, conn: Conn) -> Result<(), BackendError>;

    /// Takes all rates away (kill switch).
    ///
    /// # Errors
    /// When the kernel refuses.
    fn clear_all(&mut self) -> Result<(), BackendError>;

    /// Appends the use of every connection with a running flowlet and a rate. Costs one read of
    /// each such connection's slot, and no system call.
    fn usage(&mut self, now_ns: u64, out: &mut Vec<Usage>);

    /// Asks for one [`FlowEventKind::Limited`] when `conn` has next used up its rate, without
    /// waiting for the next [`usage`](Self::usage). Until then, and until a new rate answers that,
    /// `conn` is not held: it runs as plain TCP. A stale `conn` is ignored.
    fn watch(&mut self, conn: Conn);

    /// Returns the counters.
    fn stats(&self) -> BackendStats;

    /// Takes the rate of every connection away and removes what was installed.
    ///
    /// # Errors
    /// When something could not be undone; the rest was.
    fn shut_down(&mut self) -> Result<(), BackendError>;
}
