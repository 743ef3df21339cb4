//! A switch: its ports, the buffer that they share, and the pauses that it sends.

use std::collections::VecDeque;

use crate::net::Notice;
use crate::net::deflection::Deflector;
use crate::net::mmu::Mmu;
use crate::net::port::{FarEnd, Port};
use crate::time::Span;

/// A switch.
#[derive(Debug, Default)]
pub(crate) struct Switch {
    /// Ports that it sends by, by their number within the switch.
    pub(crate) egress: Vec<u32>,
    /// Ports that send to it: the other directions of the same links.
    pub(crate) ingress: Vec<u32>,
    /// The buffer, if the ports share one.
    pub(crate) mmu: Option<Box<Mmu>>,
    /// The table of deflected flows, if switches deflect.
    pub(crate) deflector: Option<Box<Deflector>>,
    /// True if the departures of its ports are events.
    pub(crate) is_eager: bool,
    /// Notices of a tick that are being sent; empty in between.
    pub(crate) notices: Vec<Notice>,
}

impl Switch {
    /// Gives the ports of switch `number` a shared buffer.
    pub(crate) fn share(&mut self, number: u32, ports: &mut [Port], mmu: Mmu) {
        self.mmu = Some(Box::new(mmu));
        for (i, (egress, ingress)) in self.egress.iter().zip(&self.ingress).enumerate() {
            ports[*egress as usize].share_buffer(number, i as u16);
            ports[*ingress as usize].end_at(i as u16);
        }
    }
}

/// Finds the ports of all switches.
pub(crate) fn connect(switches: usize, ports: &[Port], reverse: &[u32]) -> Vec<Switch> {
    let mut found: Vec<Switch> = (0..switches).map(|_| Switch::default()).collect();
    for (index, port) in ports.iter().enumerate() {
        if let FarEnd::Switch(switch) = port.far() {
            let switch = &mut found[switch as usize];
            switch.ingress.push(index as u32);
            switch.egress.push(reverse[index]);
        }
    }
    found
}

/// Bytes of a pause on the link: a frame of the least size with preamble and gap (IEEE 802.1Qbb).
pub(crate) const PAUSE_WIRE_BYTES: u16 = 84;

/// Pauses and resumes on their way. They are no packets: each takes its time on the link, ahead of
/// all that wait and behind the packet that is being sent, and is heard by the far end's port
/// without a host's processing.
#[derive(Debug, Default)]
pub(crate) struct PausesUnderWay {
    /// Class, and true for a pause, by the port that will hear it, first to arrive first.
    queues: Box<[VecDeque<(u8, bool)>]>,
    /// Delay of each link alone.
    delays: Box<[Span]>,
}

impl PausesUnderWay {
    /// Makes an empty state for links with these delays.
    pub(crate) fn new(delays: Box<[Span]>) -> Self {
        Self {
            queues: delays.iter().map(|_| VecDeque::new()).collect(),
            delays,
        }
    }

    /// Returns the delay of a port's link, which is that of both directions.
    pub(crate) fn delay(&self, port: u32) -> Span {
        self.delays[port as usize]
    }

    /// Sends a pause or resume to a port.
    pub(crate) fn send(&mut self, to: u32, class: u8, pause: bool) {
        self.queues[to as usize].push_back((class, pause));
    }

    /// Returns true if nothing is on its way to a port.
    pub(crate) fn is_quiet(&self, port: u32) -> bool {
        let queue = self.queues.get(port as usize);
        queue.is_none_or(VecDeque::is_empty)
    }

    /// Takes what arrives next at a port.
    pub(crate) fn arrive(&mut self, at: u32) -> Option<(u8, bool)> {
        self.queues.get_mut(at as usize)?.pop_front()
    }
}
