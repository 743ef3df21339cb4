//! A queue and a stack together: datagrams in bursts.

use std::net::SocketAddrV4;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::DpdkError;
use crate::neighbours::Mac;
use crate::port::{BURST, Frame, QueueCounters, QueuePair};
use crate::stack::{ETHERNET_BYTES, Received, SendError, StackConfig, StackCounters, UdpStack};

/// Frames that wait for the queue that serves their UDP port, at most.
const HANDED_OVER: usize = 1_024;

/// A UDP port on a poll-mode driver, for one thread.
///
/// With more than one queue each has a stack of its own, and a UDP port. The hardware spreads frames
/// over the queues by a hash of their addresses, not by UDP port: a frame that comes to another
/// queue is handed over to the one that serves its port, in its buffer.
///
/// ARP replies reach only the queue that the hardware picks for them, so the others learn stations
/// from the datagrams that they receive: a session is opened by its client, hence the station is
/// known before the first answer.
#[derive(Debug)]
pub struct Endpoint {
    queue: QueuePair,
    stack: UdpStack,
    /// Where the stack writes what it answers by itself.
    reply: Box<[u8]>,
    /// Datagrams of the last burst, in their buffers.
    held: Vec<ReceivedDatagram>,
    /// Frames that other queues have received.
    inbox: Receiver<Frame>,
    /// The inboxes of all endpoints of the port, by UDP port from the first on.
    outboxes: Vec<SyncSender<Frame>>,
    counters: HandOverCounters,
}

#[derive(Debug)]
struct ReceivedDatagram {
    frame: Frame,
    /// Where the UDP payload begins and how long it is.
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
    /// Dropped because that endpoint did not keep up.
    pub overflowed: u64,
}

impl Endpoint {
    /// Endpoints for all `queues` of a port: the first serves `config`'s UDP port, each other the next.
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

    /// To be called on the thread that is going to use it: see [`QueuePair::register_thread`].
    ///
    /// # Errors
    /// EAL does not take the thread; everything works, more slowly.
    pub fn register_thread(&self) -> Result<(), DpdkError> {
        self.queue.register_thread()
    }

    /// What the stack, the queue and the hand-over counted.
    #[must_use]
    pub fn counters(&self) -> (StackCounters, QueueCounters, HandOverCounters) {
        (self.stack.counters(), self.queue.counters(), self.counters)
    }

    /// The address that is served.
    #[must_use]
    pub fn config(&self) -> &StackConfig {
        self.stack.config()
    }

    /// Takes one burst of frames, answers what the stack answers, and keeps the datagrams for
    /// [`Endpoint::datagram`] in place of those of the last burst. Returns how many those are, at
    /// most [`BURST`]. Never blocks.
    pub fn receive(&mut self) -> usize {
        self.held.clear();
        // What others have received first: it has waited longer.
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

    /// A datagram of the last burst, to be opened in place, and who sent it, as its headers say.
    ///
    /// # Panics
    /// The burst had no such datagram.
    pub fn datagram(&mut self, index: usize) -> (&mut [u8], SocketAddrV4) {
        let held = &mut self.held[index];
        let (start, end) = (held.start, held.start + held.length);
        (&mut held.frame[start..end], held.from)
    }

    /// A datagram of the last burst was authentic: its sender is answered at the station that it
    /// came from. (Of an unauthenticated one that is believed only while no station is known.)
    pub fn authentic(&mut self, index: usize) {
        if let Some(held) = self.held.get(index) {
            self.stack.confirm(*held.from.ip(), held.station);
        }
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

/// Shows a frame to the stack: a datagram, or a frame for the stack of another UDP port, or nothing
/// further to do (an answer was written where one was due).
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
