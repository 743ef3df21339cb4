//! Packet port over an endpoint, for sealed sessions, as over a kernel socket.

use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::BorrowedFd;

use ratewright_io::udp::{BatchSent, Ends, PacketPort, SendBatch};

use crate::endpoint::Endpoint;
use crate::stack::SendError;

/// Sealed datagrams in batches over a queue that DPDK drives.
#[derive(Debug)]
pub struct DpdkPort {
    endpoint: Endpoint,
    now_ns: fn() -> u64,
    /// EAL had no id left for the thread: packet buffers are taken without a cache.
    without_cache: bool,
}

impl DpdkPort {
    /// Makes a port over `endpoint`. `now_ns` is a monotonic clock, which paces ARP requests.
    #[must_use]
    pub fn new(endpoint: Endpoint, now_ns: fn() -> u64) -> Self {
        Self {
            endpoint,
            now_ns,
            without_cache: false,
        }
    }

    /// Endpoint below the port.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

impl PacketPort for DpdkPort {
    fn on_thread(&mut self) {
        // Without registration the port is slower, not wrong; a counter reports it.
        self.without_cache = self.endpoint.register_thread().is_err();
    }

    fn receive(&mut self) -> io::Result<usize> {
        Ok(self.endpoint.receive())
    }

    fn datagram(&mut self, index: usize) -> (&mut [u8], Option<Ends>) {
        let (bytes, from) = self.endpoint.datagram(index);
        (bytes, Some(SocketAddr::from(from).into()))
    }

    fn authentic(&mut self, index: usize) {
        self.endpoint.authentic(index);
    }

    fn send(&mut self, batch: &mut SendBatch) -> io::Result<BatchSent> {
        let now_ns = (self.now_ns)();
        let mut sent = BatchSent::default();
        batch.drain(|bytes, to| {
            let to = match to {
                SocketAddr::V4(to) => to,
                SocketAddr::V6(to) => match to.ip().to_ipv4_mapped() {
                    Some(ip) => SocketAddrV4::new(ip, to.port()),
                    None => return,
                },
            };
            match self.endpoint.send(now_ns, to, bytes) {
                Ok(()) => sent.count(bytes.len()),
                // Counted by the stack or the queue; the protocol sends the newest state again.
                Err(
                    SendError::Ask(_)
                    | SendError::Unresolved
                    | SendError::NoRoute
                    | SendError::TooLong
                    | SendError::NoBuffer,
                ) => {}
            }
        });
        self.endpoint.flush();
        Ok(sent)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        // Names under which the counters are reported.
        let (stack, queue, handed) = self.endpoint.counters();
        for (name, value) in [
            ("frames_in", queue.frames_in),
            ("frames_out", queue.frames_out),
            ("segmented", queue.segmented),
            ("ring_full", queue.ring_full),
            ("no_buffer", queue.no_buffer),
            ("datagrams_in", stack.datagrams_in),
            ("datagrams_out", stack.datagrams_out),
            ("arp_replies", stack.arp_replies),
            ("arp_requests", stack.arp_requests),
            ("echo_replies", stack.echo_replies),
            ("malformed", stack.malformed),
            ("bad_checksum", stack.bad_checksum),
            ("fragments", stack.fragments),
            ("not_ours", stack.not_ours),
            ("unresolved", stack.unresolved),
            ("handed_over", handed.handed_over),
            ("overflowed", handed.overflowed),
            ("threads_without_cache", self.without_cache.into()),
        ] {
            visit(name, value);
        }
    }
}
