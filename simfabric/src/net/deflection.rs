//! In-order flow deflection (Dart §IV): a switch sends a short message by another port than its
//! route's, because the route's queue is long, and all packets of the message take that port.
//!
//! | packet | what the switch does |
//! |---|---|
//! | first of a message | deflects it if it has a token, its queue is above the threshold, and the table has room: to a random other port, which the table keeps |
//! | any of a message in the table | sends it by the table's port; the last one frees the entry |
//! | any other | sends it by its route |
//!
//! Each deflection takes a token of the packet. A switch may see a message again, with fewer
//! tokens, which then is another message to its table: otherwise the last packet would free the
//! entry while earlier ones are still to come by for the second time. With that, every packet of a
//! message takes the path of its first one, so that none overtakes another.
//!
//! A leaf deflects to switches only, never to a host that is not the destination. Nothing whose
//! route leads to its receiver is deflected, as every other path ends at the same link (§I).
//!
//! **Deadlocks** (§IV-B). Routes go up and then down, so that no buffers wait for each other in a
//! circle. A deflected packet may turn from down to up again, in a valley, and with others close
//! such a circle. At each valley it therefore goes on in the next *escape lane*, a class of its
//! own. Within a lane every path goes up and then down, and no packet returns to an earlier lane:
//! whatever waits, waits for something farther on in this order, and the last of it can move. A
//! packet has no more valleys than tokens, so that one lane more than tokens is enough. The paper
//! has two classes, the second for packets that are not deflected any more; packets of the first
//! that wait in a circle have no way to the second then.
//!
//! **Failures** (§IV-C). Where links or switches fail or return, all packets on their way of a
//! message whose route changes, or that was deflected, are dropped at the next switch or host, and
//! their sender repeats them: what takes the new route overtakes nothing on the old one.
//!
//! A message is a flow here, and its length is known to its sender's fabric: packets of longer
//! flows have no tokens. A message whose last packet is dropped keeps its entry, as no entry may be
//! overwritten.

use std::ops::RangeInclusive;

use arrayvec::ArrayVec;
use rand::RngExt as _;
use serde::Deserialize;

use crate::flow::FlowId;
use crate::packet::{Flags, Packet, PacketKind};
use crate::rng::Stream;

/// The most entries that a table can have.
pub const MAX_ENTRIES: usize = 64;

/// Settings of deflection, alike in all switches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Deflection {
    /// Entries of a switch's table of deflected flows, at most [`MAX_ENTRIES`] (Dart §VI-A: 8).
    pub table_entries: usize,
    /// Bytes in all lanes of its route's queue above which a packet is deflected (§VI-A: 15 kB,
    /// below the threshold of marks).
    pub threshold_bytes: u64,
    /// Deflections that a packet may meet, at most [`Packet::MAX_TOKENS`] (§VI-A: 4).
    pub tokens: u8,
    /// Bytes of the longest flow that is deflected (§VI-A: 8 kB).
    pub short_bytes: u64,
    /// Classes of packets before their first valley and after their last possible one; `None`: all
    /// stay in their own.
    pub escape_lanes: Option<[u8; 2]>,
}

impl Default for Deflection {
    fn default() -> Self {
        Self {
            table_entries: 8,
            threshold_bytes: 15_000,
            tokens: 4,
            short_bytes: 8_192,
            escape_lanes: None,
        }
    }
}

impl Deflection {
    /// Returns true if a switch can work with the settings.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        (1..=MAX_ENTRIES).contains(&self.table_entries)
            && (1..=Packet::MAX_TOKENS).contains(&self.tokens)
            && (self.escape_lanes).is_none_or(|[first, last]| first <= last && last < 8)
    }

    /// Gives a packet that its host sends the tokens of a flow of so many bytes.
    pub(crate) fn give_tokens(&self, packet: &mut Packet, flow_bytes: u64) {
        if packet.kind == PacketKind::Data && flow_bytes <= self.short_bytes {
            packet.set_tokens(self.tokens);
        }
    }
}

/// Counters of a switch's deflections.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeflectionCounts {
    /// Packets that left by another port than their route's.
    pub packets: u64,
    /// Messages that were deflected.
    pub messages: u64,
    /// Most entries of the table in use at once.
    pub most_entries: u64,
}

/// An entry of the table.
#[derive(Clone, Copy, Debug)]
struct Entry {
    flow: FlowId,
    /// Tokens that the message's packets have when they come.
    tokens: u8,
    port: u32,
}

/// Far end of a switch's port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Neighbour {
    /// A host, or the allocator.
    Host,
    /// A switch that is farther from hosts.
    Above,
    /// Another switch.
    Below,
}

/// The table of deflected flows of one switch.
#[derive(Debug)]
pub(crate) struct Deflector {
    config: Deflection,
    table: ArrayVec<Entry, MAX_ENTRIES>,
    /// Ports that lead to switches.
    ports: Box<[u32]>,
    /// Neighbours that are above, by the number of the switch's port to them.
    above: Box<[bool]>,
    rng: Stream,
    counts: DeflectionCounts,
}

impl Deflector {
    /// Makes an empty table of a switch with these ports, each with where it leads.
    pub(crate) fn new(config: Deflection, ports: &[(u32, Neighbour)], rng: Stream) -> Self {
        let to_switches = ports.iter().filter(|(_, to)| *to != Neighbour::Host);
        Self {
            config,
            table: ArrayVec::new(),
            ports: to_switches.map(|(port, _)| *port).collect(),
            above: (ports.iter())
                .map(|(_, to)| *to == Neighbour::Above)
                .collect(),
            rng,
            counts: DeflectionCounts::default(),
        }
    }

    /// Returns the table's port for a packet, if its message is in the table.
    pub(crate) fn follow(&mut self, packet: &mut Packet) -> Option<u32> {
        if packet.tokens() == 0 || packet.kind != PacketKind::Data {
            return None;
        }
        let (flow, tokens) = (packet.flow, packet.tokens());
        let mut entries = self.table.iter();
        let at = entries.position(|entry| entry.flow == flow && entry.tokens == tokens)?;
        let port = self.table[at].port;
        if packet.flags.contains(Flags::FIN) {
            self.table.swap_remove(at);
        }
        self.take_token(packet);
        Some(port)
    }

    /// Returns true if a packet's message can be deflected from here on.
    pub(crate) fn may_begin(&self, packet: &Packet) -> bool {
        packet.tokens() > 0
            && packet.kind == PacketKind::Data
            && packet.seq == 0
            // What is sent again must not leave its message behind.
            && !packet.flags.contains(Flags::RETRANSMIT)
            && self.table.len() < self.config.table_entries
    }

    /// Returns the classes whose packets wait for one link with a packet: all lanes, which are one
    /// queue in the paper.
    pub(crate) fn lanes(&self, packet: &Packet) -> RangeInclusive<u8> {
        let [first, last] = self.config.escape_lanes.unwrap_or([packet.class; 2]);
        first..=last
    }

    /// Returns the port that the message of a packet is deflected to, if it is. `queue_bytes` wait
    /// for the link of its route, and `works` tells of a port's link.
    pub(crate) fn begin(
        &mut self,
        packet: &mut Packet,
        route: u32,
        queue_bytes: u64,
        works: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        if queue_bytes <= self.config.threshold_bytes || !self.ports.contains(&route) {
            return None;
        }
        let others = || {
            let ports = self.ports.iter().copied();
            ports.filter(|port| *port != route && works(*port))
        };
        let count = others().count();
        if count == 0 {
            return None;
        }
        let port = others().nth(self.rng.random_range(0..count))?;
        self.counts.messages += 1;
        let used = self.table.len() as u64 + 1;
        self.counts.most_entries = self.counts.most_entries.max(used);
        if !packet.flags.contains(Flags::FIN) {
            self.table.push(Entry {
                flow: packet.flow,
                tokens: packet.tokens(),
                port,
            });
        }
        self.take_token(packet);
        Some(port)
    }

    fn take_token(&mut self, packet: &mut Packet) {
        packet.set_tokens(packet.tokens() - 1);
        packet.flags.insert(Flags::DEFLECTED);
        self.counts.packets += 1;
    }

    /// Puts a packet that came from one neighbour and leaves for another, by their numbers, into
    /// the next escape lane if it turns from down to up.
    #[inline]
    pub(crate) fn turn(&self, packet: &mut Packet, from: u16, to: u16) {
        let is_above = |neighbour: u16| self.above.get(usize::from(neighbour)) == Some(&true);
        if let Some([first, last]) = self.config.escape_lanes
            && (first..last).contains(&packet.class)
            && is_above(from)
            && is_above(to)
        {
            packet.class += 1;
        }
    }

    /// Returns the counters since the end of the warm-up.
    pub(crate) fn counts(&self) -> DeflectionCounts {
        self.counts
    }

    /// Begins to count anew, at the end of a warm-up.
    pub(crate) fn reset_counts(&mut self) {
        self.counts = DeflectionCounts {
            most_entries: self.table.len() as u64,
            ..DeflectionCounts::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Purpose;

    const ROUTE: u32 = 7;

    fn deflector(table_entries: usize) -> Deflector {
        let config = Deflection {
            table_entries,
            escape_lanes: Some([0, 2]),
            ..Deflection::default()
        };
        let rng = Stream::new(1, Purpose::Test, 0);
        let ports = [
            (9, Neighbour::Host),
            (3, Neighbour::Above),
            (5, Neighbour::Below),
            (ROUTE, Neighbour::Above),
        ];
        Deflector::new(config, &ports, rng)
    }

    fn packet(flow: u32, seq: u64, last: bool) -> Packet {
        let mut packet = Packet {
            flow: FlowId(flow),
            seq,
            flags: if last { Flags::FIN } else { Flags::NONE },
            ..Packet::default()
        };
        packet.set_tokens(4);
        packet
    }

    /// Sends a packet whose route has a long queue.
    fn send(deflector: &mut Deflector, packet: &mut Packet) -> Option<u32> {
        let follows = deflector.follow(packet);
        follows.or_else(|| {
            let may = deflector.may_begin(packet);
            may.then(|| deflector.begin(packet, ROUTE, 15_001, |_| true))?
        })
    }

    #[test]
    fn packets_follow_their_first_one_until_the_last() {
        let mut deflector = deflector(8);
        let port = send(&mut deflector, &mut packet(1, 0, false));
        assert!(port == Some(3) || port == Some(5), "not the route's");
        assert_eq!(send(&mut deflector, &mut packet(1, 1_460, false)), port);
        // A message whose first packet was not deflected is not, and others are none of it.
        assert_eq!(send(&mut deflector, &mut packet(2, 1_460, false)), None);
        assert_eq!(send(&mut deflector, &mut packet(1, 2_920, true)), port);
        assert_eq!(send(&mut deflector, &mut packet(1, 2_920, true)), None);
        assert_eq!(deflector.table.len(), 0);
        let counts = deflector.counts();
        assert_eq!((counts.packets, counts.messages), (3, 1));
    }

    #[test]
    fn a_full_table_deflects_no_more_and_overwrites_nothing() {
        let mut deflector = deflector(2);
        let ports = [1, 2].map(|flow| send(&mut deflector, &mut packet(flow, 0, false)));
        assert!(ports.iter().all(Option::is_some));
        assert_eq!(send(&mut deflector, &mut packet(3, 0, false)), None);
        assert_eq!(send(&mut deflector, &mut packet(3, 0, true)), None);
        assert_eq!(send(&mut deflector, &mut packet(1, 9, true)), ports[0]);
        assert!(send(&mut deflector, &mut packet(3, 0, true)).is_some());
        assert_eq!(deflector.counts().most_entries, 2);
    }

    #[test]
    fn without_tokens_or_a_long_queue_nothing_is_deflected() {
        let mut deflector = deflector(8);
        let mut long = packet(1, 0, false);
        long.set_tokens(0);
        assert_eq!(send(&mut deflector, &mut long), None);
        let mut short = packet(1, 0, false);
        let port = deflector.begin(&mut short, ROUTE, 15_000, |_| true);
        assert_eq!((port, short.tokens()), (None, 4));
        assert_eq!(deflector.begin(&mut short, ROUTE, 15_001, |_| false), None);
        // The receiver's own link.
        assert_eq!(deflector.begin(&mut short, 9, 15_001, |_| true), None);
        let only = |port| port == 5;
        assert_eq!(deflector.begin(&mut short, ROUTE, 15_001, only), Some(5));
    }

    /// A switch that sees a message again decides anew, and either visit's last packet frees its
    /// own entry.
    #[test]
    fn visits_are_apart() {
        let mut deflector = deflector(8);
        let mut first = packet(1, 0, false);
        let mut last = packet(1, 1_460, true);
        let ports: Vec<_> = (0..4).map(|_| send(&mut deflector, &mut first)).collect();
        assert_eq!(first.tokens(), 0);
        assert_eq!(send(&mut deflector, &mut first), None);
        assert_eq!(deflector.table.len(), 4);
        for port in ports {
            assert_eq!(send(&mut deflector, &mut last), port);
        }
        assert_eq!(deflector.table.len(), 0);
    }

    /// A packet changes its lane where it comes down and goes up, and nowhere else; the last lane
    /// and classes before the first keep what they have.
    #[test]
    fn valleys_lead_to_the_next_lane() {
        let deflector = deflector(8);
        let lane = |class: u8, from: u16, to: u16| {
            let mut packet = packet(1, 0, false);
            packet.class = class;
            deflector.turn(&mut packet, from, to);
            packet.class
        };
        // Neighbours 1 and 3 are above; 0 is a host, and 2 below.
        assert_eq!((lane(0, 1, 3), lane(1, 3, 1)), (1, 2));
        assert_eq!((lane(2, 1, 3), lane(3, 1, 3)), (2, 3), "no lane is left");
        for (from, to) in [(0, 3), (2, 3), (1, 2), (1, 0), (2, 0)] {
            assert_eq!(lane(0, from, to), 0, "{from} {to}");
        }
    }
}
