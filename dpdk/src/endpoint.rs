//! A queue and a stack together: datagrams in bursts.

use std::net::SocketAddrV4;

use crate::port::{Queue, QueueCounters};
use crate::stack::{ETHERNET_BYTES, Received, SendError, StackConfig, StackCounters, UdpStack};

/// A UDP port on a poll-mode driver, for one thread.
///
/// With more than one queue each has a stack of its own. ARP replies reach only the queue that the
/// hardware picks for them, so the others learn stations from the datagrams that they receive: a
/// session is opened by its client, hence the station is known before the first answer.
#[derive(Debug)]
pub struct Endpoint {
    queue: Queue,
    stack: UdpStack,
    /// Where the stack writes what it answers by itself.
    reply: Box<[u8]>,
}

impl Endpoint {
    /// Serves `config`'s address and UDP port on `queue`.
    #[must_use]
    pub fn new(queue: Queue, config: StackConfig) -> Self {
        Self {
            queue,
            reply: vec![0; ETHERNET_BYTES + config.mtu_bytes].into_boxed_slice(),
            stack: UdpStack::new(config),
        }
    }

    /// What the stack and the queue counted.
    #[must_use]
    pub fn counters(&self) -> (StackCounters, QueueCounters) {
        (self.stack.counters(), self.queue.counters())
    }

    /// The address that is served.
    #[must_use]
    pub fn config(&self) -> &StackConfig {
        self.stack.config()
    }

    /// Takes one burst of frames, answers what the stack answers, and hands every datagram to
    /// `sink`. Returns how many frames there were. Never blocks.
    pub fn poll(&mut self, mut sink: impl FnMut(SocketAddrV4, &[u8])) -> usize {
        let (stack, reply) = (&mut self.stack, &mut self.reply);
        let frames = self
            .queue
            .receive(|queue, frame| match stack.receive(frame, reply) {
                Received::Datagram { from, payload } => sink(from, payload),
                Received::Reply(bytes) => {
                    queue.transmit(|room| {
                        room.get_mut(..bytes)?.copy_from_slice(&reply[..bytes]);
                        Some(bytes)
                    });
                }
                Received::Nothing => {}
            });
        if frames > 0 {
            self.queue.flush();
        }
        frames
    }

    /// Writes a datagram; it leaves with the burst, or at [`Endpoint::flush`].
    ///
    /// # Errors
    /// The datagram was dropped, for the reason given; an ARP request is on its way if one is due.
    pub fn send(&mut self, now_ns: u64, to: SocketAddrV4, payload: &[u8]) -> Result<(), SendError> {
        let stack = &mut self.stack;
        let mut outcome = Ok(());
        let mut offered = false;
        self.queue.transmit(|room| {
            offered = true;
            match stack.send(now_ns, to, payload, room) {
                Ok(bytes) => Some(bytes),
                Err(SendError::Ask(bytes)) => {
                    outcome = Err(SendError::Ask(bytes));
                    Some(bytes)
                }
                Err(error) => {
                    outcome = Err(error);
                    None
                }
            }
        });
        if offered {
            outcome
        } else {
            Err(SendError::NoBuffer)
        }
    }

    /// Gives what was written to the driver.
    pub fn flush(&mut self) {
        self.queue.flush();
    }
}
