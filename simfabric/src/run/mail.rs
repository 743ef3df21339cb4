//! Traffic between partitions: packets and pauses that leave one and enter another, handed over at
//! the end of a window.

use crate::ext::Extension;
use crate::net::port::WireSpan;
use crate::packet::{Packet, PacketId};
use crate::run::core::Core;
use crate::time::Time;

/// Lead, in ports or packets, of their prefetch.
const LEAD: usize = 6;

/// A pause or resume on its way to a port.
#[derive(Clone, Copy, Debug)]
struct Pause {
    at: Time,
    port: u32,
    class: u8,
    pause: bool,
}

/// Traffic from one partition to another.
#[derive(Debug, Default)]
pub(crate) struct Mail {
    packets: Vec<Packet>,
    /// Arrival time of each packet, and the port whose wire it is on.
    places: Vec<(Time, u32)>,
    /// Extensions of the packets that have one, in their order.
    extensions: Vec<Extension>,
    pauses: Vec<Pause>,
}

/// A partition's traffic with the others, by their number.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    sent: Vec<Mail>,
    received: Vec<Mail>,
    /// Ports whose wires leave the partition with packets on them or before them.
    active: Vec<u32>,
    /// Time of the next thing that concerns another partition, since the last import.
    next_at: Option<Time>,
}

impl Mailbox {
    /// Makes the mailbox of one of several partitions.
    pub(crate) fn new(partitions: usize) -> Self {
        let empty = || (0..partitions).map(|_| Mail::default()).collect();
        Self {
            sent: empty(),
            received: empty(),
            ..Self::default()
        }
    }

    /// Notes that a wire that leaves the partition is in use.
    #[inline]
    pub(crate) fn activate(&mut self, port: u32) {
        self.active.push(port);
    }

    /// Returns true if no wire that leaves the partition is in use.
    pub(crate) fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// Returns the earliest time at which what was exported, or waits before a wire that leaves the
    /// partition, concerns another one.
    pub(crate) fn next_at(&self) -> Option<Time> {
        self.next_at
    }
}

/// Exchanges the traffic of all partitions.
pub(crate) fn exchange(cores: &mut [&mut Core]) {
    for from in 0..cores.len() {
        for to in (0..cores.len()).filter(|to| *to != from) {
            let mail = std::mem::take(&mut cores[from].mailbox.sent[to]);
            // What comes back is empty and keeps its memory.
            let empty = std::mem::replace(&mut cores[to].mailbox.received[from], mail);
            cores[from].mailbox.sent[to] = empty;
        }
    }
}

impl Core {
    /// Returns the partition where a port's wire ends.
    fn partition_at_end(&self, port: u32) -> usize {
        let regions = self.regions.as_ref();
        regions.map_or(0, |regions| regions.partitions_of_port(port as usize)[1])
    }

    /// Sends a pause or resume to a port of another partition.
    #[cold]
    pub(crate) fn mail_pause(&mut self, by: u32, at: Time, port: u32, class: u8, pause: bool) {
        let to = self.partition_at_end(by);
        self.mailbox.sent[to].pauses.push(Pause {
            at,
            port,
            class,
            pause,
        });
        self.mailbox.next_at = Some(self.mailbox.next_at.map_or(at, |next| next.min(at)));
    }

    /// Puts packets that left the partition in a window, which ends then, into its mailbox.
    pub(crate) fn export(&mut self, window_ends: Time) {
        let last = Time(window_ends.0.saturating_sub(1));
        let mut active = std::mem::take(&mut self.mailbox.active);
        let mut next_at = self.mailbox.next_at.take().unwrap_or(Time::MAX);
        let mut kept = 0;
        for place in 0..active.len() {
            self.prefetch_export(&active, place);
            let index = active[place];
            let to = self.partition_at_end(index);
            let port = &mut self.fabric.ports[index as usize];
            // Past departures: what leaves in this window arrives in a later one.
            port.advance(last, &mut self.shared, &mut self.fabric.switches);
            let mail = &mut self.mailbox.sent[to];
            while let Some((at, id)) = port.export(&self.shared.packets) {
                let mut packet = self.shared.packets.remove(id);
                if let Some(extension) = self.shared.extensions.take(&mut packet) {
                    mail.extensions.push(extension);
                    // Any number but 0: the packet has one.
                    packet.ext = 1;
                }
                mail.packets.push(packet);
                mail.places.push((at, index));
                next_at = next_at.min(at);
            }
            let waits_until = port.next_departure();
            next_at = next_at.min(waits_until.unwrap_or(Time::MAX));
            *port.scheduled() = waits_until.is_some();
            if waits_until.is_some() {
                active[kept] = index;
                kept += 1;
            }
        }
        active.truncate(kept);
        self.mailbox.active = active;
        self.mailbox.next_at = Some(next_at).filter(|at| *at < Time::MAX);
    }

    /// Prefetches the ports that are exported next, and the packets on their wires.
    #[inline]
    fn prefetch_export(&self, active: &[u32], place: usize) {
        let port = |lead| {
            let index = active.get(place + lead)?;
            self.fabric.ports.get(*index as usize)
        };
        if let Some(port) = port(2 * LEAD) {
            port.prefetch();
            port.prefetch_wire();
        }
        if let Some(port) = port(LEAD) {
            port.prefetch_packets(&self.shared.packets);
            port.prefetch_neighbours(&self.shared.packets);
        }
    }

    /// Takes what other partitions sent.
    pub(crate) fn import(&mut self) {
        // All of the last export is in its window by now.
        self.mailbox.next_at = None;
        let mut received = std::mem::take(&mut self.mailbox.received);
        for mail in &mut received {
            let mut extensions = mail.extensions.drain(..);
            for (place, mut packet) in mail.packets.drain(..).enumerate() {
                if let Some((_, ahead)) = mail.places.get(place + LEAD) {
                    let port = &self.fabric.ports[*ahead as usize];
                    port.prefetch();
                    port.prefetch_wire();
                }
                let (at, index) = mail.places[place];
                if std::mem::take(&mut packet.ext) != 0
                    && let Some(extension) = extensions.next()
                {
                    self.shared.extensions.attach(&mut packet, extension);
                }
                packet.next = PacketId::NONE;
                let id = self.shared.packets.insert(packet);
                let port = &mut self.fabric.ports[index as usize];
                debug_assert_eq!(port.span(), WireSpan::Enters);
                port.import(at, id, &mut self.shared.packets);
                self.schedule(index);
            }
            drop(extensions);
            mail.places.clear();
            for pause in mail.pauses.drain(..) {
                self.pause_later(pause.at, pause.port, pause.class, pause.pause);
            }
        }
        self.mailbox.received = received;
    }
}
