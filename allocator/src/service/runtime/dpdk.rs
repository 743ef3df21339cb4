//! Ports on an interface that DPDK drives: a receive and a transmit queue each.

use std::io;
use std::thread::Builder;

use ratewright_dpdk::DpdkError;
use ratewright_dpdk::eal::Eal;
use ratewright_dpdk::endpoint::Endpoint;
use ratewright_dpdk::packets::DpdkPort;
use ratewright_dpdk::port::{EthernetPort, PortConfig};
use ratewright_dpdk::stack::StackConfig;
use ratewright_io::dscp::Dscp;

use crate::service::clock;
use crate::service::config::DpdkTransport;

/// Reason for which the interface cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// DPDK refuses.
    #[error("[transport.dpdk] cannot be used")]
    Dpdk(#[from] DpdkError),
    /// No thread for DPDK's environment.
    #[error("[transport.dpdk]: no thread for DPDK's environment")]
    Thread(#[from] io::Error),
    /// That thread panicked.
    #[error("[transport.dpdk]: the thread that starts DPDK panicked")]
    Panicked,
    /// Another interface than the configured one.
    #[error("transport.dpdk.mac: port {port} ({driver}) is {found}, not {wanted}")]
    OtherMac {
        /// The port.
        port: u16,
        /// Its driver.
        driver: String,
        /// Its Ethernet address.
        found: String,
        /// The configured one.
        wanted: String,
    },
}

/// Starts DPDK and a queue for each of `shards` ports. These are the UDP ports from `udp_port`
/// on, and mark their datagrams with `dscp`.
///
/// # Errors
/// DPDK refuses, or the interface is another one.
pub(super) fn start(
    config: &DpdkTransport,
    shards: u16,
    udp_port: u16,
    dscp: Dscp,
) -> Result<Vec<DpdkPort>, InterfaceError> {
    let settings = PortConfig {
        port: config.port,
        queues: shards,
        descriptors: config.descriptors,
        buffers: config.buffers,
    };
    let options = config.eal.clone();
    // EAL pins its thread to its first core, and does not mind that the thread ends.
    let port = Builder::new()
        .name("dpdk-start".to_owned())
        .spawn(move || EthernetPort::start(&Eal::start(&options)?, &settings))?
        .join()
        .map_err(|_| InterfaceError::Panicked)??;
    if let Some(wanted) = config.mac.filter(|&wanted| wanted != port.mac) {
        return Err(InterfaceError::OtherMac {
            port: config.port,
            driver: port.driver,
            found: mac_text(port.mac),
            wanted: mac_text(wanted),
        });
    }
    tracing::info!(
        port = config.port,
        driver = %port.driver,
        mac = %mac_text(port.mac),
        mtu_bytes = port.mtu_bytes,
        address = %config.address,
        queues = shards,
        "DPDK drives the interface of sealed datagrams"
    );
    let stack = StackConfig {
        mac: port.mac,
        address: config.address,
        prefix_len: config.prefix_len,
        gateway: config.gateway,
        udp_port,
        dscp: dscp.value(),
        siblings: 0..0,
        mtu_bytes: port.mtu_bytes,
        max_neighbours: config.neighbours as usize,
    };
    let endpoints = Endpoint::of_queues(port.queues, &stack);
    Ok(endpoints
        .into_iter()
        .map(|endpoint| DpdkPort::new(endpoint, clock::now_ns))
        .collect())
}

fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
