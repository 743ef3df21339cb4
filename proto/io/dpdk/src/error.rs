//! Start-up errors of DPDK.

/// A start-up failure. None of these happens once a port runs.
#[derive(Debug, thiserror::Error)]
pub enum DpdkError {
    /// The environment exists once per process.
    #[error("DPDK's environment was already started in this process; it can be started once")]
    AlreadyStarted,
    /// An EAL option holds a NUL byte.
    #[error("EAL option {0:?} holds a NUL byte")]
    BadOption(String),
    /// `rte_eal_init` failed; EAL itself has printed the details.
    #[error(
        "DPDK's environment did not start with options {options:?}: {reason} (EAL's own messages are above)"
    )]
    Eal {
        /// The options that were given.
        options: Vec<String>,
        /// `rte_errno` in words.
        reason: String,
    },
    /// The options brought up fewer ports than asked for.
    #[error(
        "DPDK has {available} port(s), port {wanted} was asked for: name one with `-a <pci address>` or `--vdev=...` in the EAL options"
    )]
    NoPort {
        /// The port index asked for.
        wanted: u16,
        /// Ports that exist.
        available: u16,
    },
    /// The port has fewer queues than asked for.
    #[error("port {port} ({driver}) has {available} queue pair(s), {wanted} were asked for")]
    NoQueues {
        /// The port index.
        port: u16,
        /// Its driver.
        driver: String,
        /// Queue pairs asked for.
        wanted: u16,
        /// Queue pairs that it has.
        available: u16,
    },
    /// A call on the port failed.
    #[error("port {port}: {call} failed: {reason}")]
    Port {
        /// The port index.
        port: u16,
        /// The DPDK function.
        call: &'static str,
        /// Its error in words.
        reason: String,
    },
    /// No memory for packet buffers.
    #[error(
        "no memory for {buffers} packet buffers: {reason} (give EAL more with `-m <MB>` or hugepages)"
    )]
    Buffers {
        /// Buffers asked for.
        buffers: u32,
        /// `rte_errno` in words.
        reason: String,
    },
}
