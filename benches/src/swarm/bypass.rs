//! A place for an allocator whose sealed datagrams go past the kernel: a network namespace of this
//! program's own with a veth pair. DPDK drives one end; the hosts' sockets are on the other, in the
//! kernel, as they would be on hosts of their own.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use nix::sched::{CloneFlags, unshare};
use ratewright_cli::tool;

use super::options::{DpdkDriver, SwarmOptions};

/// The kernel's address: the hosts', and the QUIC service's.
pub const KERNEL: std::net::Ipv4Addr = std::net::Ipv4Addr::new(10, 9, 0, 2);
/// The address that only DPDK answers for.
const DPDK: &str = "10.9.0.1";
/// Packet buffers of a port, about 2.3 KB each.
const BUFFERS: u32 = 16_383;

/// Moves this thread, and what it starts from now on, into a new network namespace with the pair.
/// The namespace ends with the last process in it.
///
/// # Errors
/// Without root, or without iproute2.
pub fn enter(shards: u16) -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNET)
        .context("making a network namespace for --transport dpdk (run this as root)")?;
    let link = format!(
        "link add port0 numrxqueues {shards} numtxqueues {shards} type veth \
         peer name host0 numrxqueues {shards} numtxqueues {shards}"
    );
    let address = format!("addr add {KERNEL}/24 dev host0");
    for arguments in [
        link.as_str(),
        "link set lo up",
        "link set port0 up",
        "link set host0 up",
        address.as_str(),
    ] {
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        // In the thread's namespace: `ip` inherits it.
        tool::run("ip", &arguments)?;
    }
    Ok(())
}

/// The table `[transport.dpdk]` of the allocator's configuration.
#[must_use]
pub fn table(options: &SwarmOptions) -> String {
    let shards = options.shards;
    let device = match options.dpdk_driver {
        DpdkDriver::AfXdp => format!("net_af_xdp0,iface=port0,queue_count={shards}"),
        DpdkDriver::AfPacket => {
            format!("net_af_packet0,iface=port0,qdisc_bypass=1,qpairs={shards}")
        }
    };
    // Buffers and rings of every port, with a reserve.
    let megabytes = 64 + 64 * u32::from(shards);
    let mut table = String::from("[transport.dpdk]\n");
    let _ = writeln!(
        table,
        "eal = [\"--no-huge\", \"-m\", \"{megabytes}\", \"--no-shconf\", \"--no-pci\", \"--no-telemetry\", \
         \"--log-level=4\", \"--lcores=0\", \"--vdev={device}\"]\n\
         interface = \"{DPDK}/24\"\nbuffers = {BUFFERS}"
    );
    table
}
