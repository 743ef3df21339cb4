//! UDP endpoint: a queue pair and a stack that move datagrams in bursts.

use std::net::SocketAddrV4;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::DpdkError;
use crate::neighbours::Mac;
use crate::port::{BURST, Frame, QueueCounters, QueuePair};
use crate::stack::{ETHERNET_BYTES, Received, SendError, StackConfig, StackCounters, UdpStack};

/// Maximum number of frames that wait for the queue that serves their UDP port.
const HANDED_OVER: usize = 1_024;

/// A UDP port on a poll-mode driver, for one thread.
///
/// With several queues, each has its own stack and UDP port. The hardware spreads frames over the
/// queues by a hash of their addresses, not by UDP port. A frame that arrives at another queue is
/// handed over, in its buffer, to the endpoint that serves its port.
///
/// ARP replies reach only the queue that the hardware picks for them. The others learn stations
/// from received datagrams: a client opens its session, so its station is known before the first
/// answer.
#[derive(Debug)]
pub struct Endpoint {
    queue: QueuePair,
    stack: UdpStack,
    /// Buffer for the stack's own replies.
    reply: Box<[u8]>,
    /// Datagrams of the last burst, in their buffers.
    held: Vec<ReceivedDatagram>,
    /// Frames that other queues have received.
    inbox: Receiver<Frame>,
    /// Inboxes of all endpoints of the port, by UDP port, beginning with the first.
    outboxes: Vec<SyncSender<Frame>>,
    counters: HandOverCounters,
}

#[derive(Debug)]
struct ReceivedDatagram {
    frame: Frame,
    /// Offset of the UDP payload in the frame.
    start: usize,
    length: usize,
    from: SocketAddrV4,
    station: Mac,
}

/// Frames that came to a queue other than the one that serves their UDP port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandOverCounters {
    /// Given to the endpoint that serves them.
    pub handed_over: u64,
    /// Dropped because that endpoint's inbox was full.
    pub overflowed: u64,
}

impl Endpoint {
    /// Makes endpoints for all `queues` of a port: the first serves `config`'s UDP port, each
    /// further one the next.
    #[must_use]
    pub fn of_queues(queues: Vec<QueuePair>, config: &StackConfig) -> Vec<Self> {
        let count = queues.len() as u16;
        let (outboxes, inboxes): (Vec<_>, Vec<_>) =
            (0..count).map(|_| sync_channel(HANDED_OVER)).unzip();
        let first = config.udp_port;
        let ports = first..first.saturating_add(count);
        let parts = queues.into_iter().zip(inboxes).zip(ports.clone());
        parts
            .map(|((queue, inbox), udp_port)| Self {
                queue,
                reply: vec![0; ETHERNET_BYTES + config.mtu_bytes].into_boxed_slice(),
                stack: UdpStack::new(StackConfig {
                    udp_port,
                    // The own port may be among them: the stack checks for that first.
                    siblings: ports.clone(),
                    ..config.clone()
                }),
                held: Vec::with_capacity(BURST),
                inbox,
                outboxes: outboxes.clone(),
                counters: HandOverCounters::default(),
            })
            .collect()
    }

    /// Registers the calling thread, which is going to use the endpoint; see
    /// [`QueuePair::register_thread`].
    ///
    /// # Errors
    /// EAL does not accept the thread; everything works, more slowly.
    pub fn register_thread(&self) -> Result<(), DpdkError> {
        self.queue.register_thread()
    }

    /// Counters of the stack, the queue and the hand-over.
    #[must_use]
    pub fn counters(&self) -> (StackCounters, QueueCounters, HandOverCounters) {
        (self.stack.counters(), self.queue.counters(), self.counters)
    }

    /// Configuration of the stack, with the served address.
    #[must_use]
    pub fn config(&self) -> &StackConfig {
        self.stack.config()
    }

    /// Takes one burst of frames and sends the stack's replies. Keeps the datagrams for
    /// [`Endpoint::datagram`], in place of the last burst's. Returns their number, at most
    /// [`BURST`]. Never blocks.
    pub fn receive(&mut self) -> usize {
        self.held.clear();
        // Frames of other queues go first: they have waited longer.
        while self.held.len() < BURST / 2 {
            let Ok(frame) = self.inbox.try_recv() else {
                break;
            };
            if let Some(datagram) = take(&mut self.stack, &mut self.reply, &mut self.queue, frame) {
                self.held.extend(datagram.ok());
            }
        }
        if self.held.is_empty() {
            let Self {
                queue,
                stack,
                reply,
                held,
                outboxes,
                counters,
                ..
            } = self;
            let mut answered = false;
            queue.receive(|queue, frame| match take(stack, reply, queue, frame) {
                Some(Ok(datagram)) => held.push(datagram),
                Some(Err((port, frame))) => {
                    // `Received::Sibling` names only ports of `siblings`, and there is one outbox
                    // for each.
                    let at = usize::from(port - stack.config().siblings.start);
                    match outboxes[at].try_send(frame) {
                        Ok(()) => counters.handed_over += 1,
                        Err(_) => counters.overflowed += 1,
                    }
                }
                None => answered = true,
            });
            if answered {
                queue.flush();
            }
        }
        self.held.len()
    }

    /// Datagram of the last burst, to be opened in place, and its source, as its headers say.
    ///
    /// # Panics
    /// Panics if the burst had no such datagram.
    pub fn datagram(&mut self, index: usize) -> (&mut [u8], SocketAddrV4) {
        let held = &mut self.held[index];
        let (start, end) = (held.start, held.start + held.length);
        (&mut held.frame[start..end], held.from)
    }

    /// Reports that a datagram of the last burst was authentic. Its sender is then answered at the
    /// station that it came from. (An unauthenticated source is trusted only while no station is
    /// known.)
    pub fn authentic(&mut self, index: usize) {
        if let Some(held) = self.held.get(index) {
            self.stack.confirm(*held.from.ip(), held.station);
        }
    }

    /// Writes a datagram, which leaves with the burst or at [`Endpoint::flush`].
    ///
    /// # Errors
    /// The datagram was dropped, for the given reason. An ARP request was written if one is due.
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

    /// Passes the written frames to the driver.
    pub fn flush(&mut self) {
        self.queue.flush();
    }
}

/// Passes a frame to the stack. Returns a datagram, or the frame for the stack of another UDP port.
/// Returns `None` if nothing is left to do; a reply was written if one was due.
fn take(
    stack: &mut UdpStack,
    reply: &mut [u8],
    queue: &mut QueuePair,
    frame: Frame,
) -> Option<Result<ReceivedDatagram, (u16, Frame)>> {
    match stack.receive(&frame, reply) {
        Received::Datagram {
            from,
            station,
            payload,
        } => {
            // The payload borrows the frame, which is moved below: keep its offset instead.
            let start = payload.as_ptr().addr() - frame.as_ptr().addr();
            let length = payload.len();
            Some(Ok(ReceivedDatagram {
                frame,
                start,
                length,
                from,
                station,
            }))
        }
        Received::Sibling(port) => Some(Err((port, frame))),
        Received::Reply(bytes) => {
            queue.transmit(|room| {
                room.get_mut(..bytes)?.copy_from_slice(&reply[..bytes]);
                Some(bytes)
            });
            None
        }
        Received::Nothing => None,
    }
}
