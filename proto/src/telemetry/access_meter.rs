//! Meter of a host's own links: [`AccessUse`] out of what its sockets moved and its interface
//! counted. The daemon feeds it, and so do simulated hosts.
//!
//! The allocator gives links headroom that paced flows share with traffic which nobody paces. A
//! host cannot tell which senders pace; the allocator knows that by their sessions. So every sender
//! is named that has moved at least a small share of the link within the last second, and a
//! message follows only when this set changes.
//!
//! For the allocator's check of told capacities it tells, too, what the interface carried, to which
//! hosts backlogged connections meet congestion, and that an allowance holds packets up. What is
//! carried is told at most once in a second, and only when it has moved by a part of the
//! link.
//!
//! Sans-IO: what sockets moved and counters go in with their time.

use std::hash::Hash;
use std::net::IpAddr;

use indexmap::IndexMap;
use indexmap::map::Entry;
use rustc_hash::FxBuildHasher;

use super::{AccessUse, HostFaults, LinkUse, MAX_CONGESTED, MAX_USERS};
use crate::control::AccessCapacity;

/// Interval at which the users of links are looked at.
pub const ACCESS_INTERVAL_NS: u64 = 100_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// Length of one of the two parts of the window that slides.
const HALF_NS: u64 = 500_000_000;
/// A user has moved at least one in this many of what the link carries in a second. Remote shells,
/// scrapes and control traffic move less.
const MIN_SHARE: u64 = 100;
/// Among many senders it is enough to have one in this many of the fair share: the share of an
/// unpaced one may be less than a hundredth.
const FAIR_SHARE: u64 = 4;
/// Least bytes of a user in a second.
const MIN_BYTES: u64 = 62_500;
/// A user stays one down to one in this many of what made it one, so that it does not flap.
const LEAVE_SHARE: u64 = 4;
/// UDP counts from one in this many of what the link carries on: it is what the interface carried
/// less what TCP did, and headers are estimated.
const UDP_SHARE: u64 = 20;
/// Bytes of a UDP datagram at most: a packet.
const DATAGRAM_BYTES: u64 = 1_514;
/// Payload of a TCP segment for which one header stands,
const SEGMENT_BYTES: i64 = 1_448;
/// and headers of a segment or an acknowledgement.
const HEADER_BYTES: i64 = 66;
/// Shortest time between two messages.
const TELL_EVERY_NS: u64 = 500_000_000;
/// Time after which a state that is not empty is told anew, in case that it was lost.
const REPEAT_NS: u64 = 10_000_000_000;
/// Time over which the rate of all that an interface carries is taken.
const CARRIED_NS: u64 = 1_000_000_000;
/// Such a rate is told when it has moved by one in this many of the link's capacity.
const CARRIED_SHARE: u64 = 64;
/// Time for which a way has to be congested without a break before it is told.
const CONGESTED_NS: u64 = 1_000_000_000;
/// Most users that are remembered for each link.
const MAX_REMEMBERED: usize = 4_096;

/// Least queueing delay that is congestion, and not the noise of processors. Of a longer way it is
/// half of the least round-trip time.
const QUEUEING_US: u32 = 1_000;
/// A peer that takes too little closes its window for more than one in this many of the time with
/// data to send.
const MAX_RWND_SHARE: u64 = 8;

/// A sender as a host knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SenderName {
    /// Host of the topology.
    Host(u32),
    /// Address that no host of the topology has.
    Address(IpAddr),
}

/// Payload that a socket moved since the pass before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// The peer.
    pub name: SenderName,
    /// Payload received from it.
    pub received_bytes: u64,
    /// Payload that it acknowledged.
    pub acked_bytes: u64,
    /// State of its send queue since then.
    pub queue: SendQueue,
}

/// Facts about what a socket sends, as the kernel counts them. Counters run from the connection's
/// beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SendFacts {
    /// Payload that the peer acknowledged.
    pub acked_bytes: u64,
    /// Payload that was never sent yet.
    pub unsent_bytes: u32,
    /// Payload of a segment at most.
    pub segment_bytes: u32,
    /// Time with data to send.
    pub busy_us: u64,
    /// Time in which the peer's receive window kept the socket from sending.
    pub rwnd_limited_us: u64,
    /// Smoothed round-trip time; 0 before the first measurement.
    pub rtt_us: u32,
    /// Least round-trip time of the last minutes; `u32::MAX` before the first measurement.
    pub least_rtt_us: u32,
    /// Segments that were sent again.
    pub retransmitted: u32,
    /// Packets that reached the peer with a congestion mark (ECN).
    pub delivered_ce: u32,
}

/// State of a socket's send queue between two passes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SendQueue {
    /// It is empty at times, or its peer takes nothing.
    #[default]
    Idle,
    /// It is backlogged, and its packets meet no congestion: its rate holds it back.
    Uncongested,
    /// It is backlogged, and its packets queue, are lost or marked.
    Congested,
}

impl SendQueue {
    /// Returns the state between two passes, from the facts of both.
    #[must_use]
    pub fn between(before: &SendFacts, now: &SendFacts) -> Self {
        let is_backlogged = |facts: &SendFacts| facts.unsent_bytes >= facts.segment_bytes.max(1);
        let busy_us = now.busy_us.saturating_sub(before.busy_us);
        let rwnd_us = now.rwnd_limited_us.saturating_sub(before.rwnd_limited_us);
        let acked = now.acked_bytes > before.acked_bytes;
        if !(acked && is_backlogged(before) && is_backlogged(now))
            || rwnd_us > busy_us / MAX_RWND_SHARE
        {
            return Self::Idle;
        }
        let queueing_us = (now.least_rtt_us / 2).max(QUEUEING_US);
        let queues = now.rtt_us > now.least_rtt_us.saturating_add(queueing_us);
        if queues
            || now.retransmitted != before.retransmitted
            || now.delivered_ce != before.delivered_ce
        {
            Self::Congested
        } else {
            Self::Uncongested
        }
    }
}

/// Counters of an interface and of UDP, at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AccessCounters {
    /// Bytes received by the interface.
    pub rx_bytes: u64,
    /// Bytes sent by the interface.
    pub tx_bytes: u64,
    /// UDP datagrams received.
    pub udp_in: u64,
    /// UDP datagrams sent.
    pub udp_out: u64,
    /// UDP datagrams among those received that carried a tunnel's packets.
    pub tunnelled_in: u64,
}

/// Sum over the last half to one second.
#[derive(Debug, Clone, Copy, Default)]
struct Window {
    present: i64,
    former: i64,
}

impl Window {
    fn sum(self) -> u64 {
        // Differences of counters that were not read at one moment may be negative for a while.
        u64::try_from(self.present + self.former).unwrap_or(0)
    }

    fn add(&mut self, bytes: i64) {
        self.present = self.present.saturating_add(bytes);
    }

    /// Moves on by one half, or by more.
    fn advance(&mut self, by_one: bool) {
        self.former = if by_one { self.present } else { 0 };
        self.present = 0;
    }
}

/// A sum, and the judgement that it is one of a user.
#[derive(Debug, Clone, Copy, Default)]
struct User {
    moved: Window,
    uses: bool,
}

impl User {
    fn judge(&mut self, least: u64) {
        let bound = if self.uses {
            least / LEAVE_SHARE
        } else {
            least
        };
        self.uses = self.moved.sum() >= bound.max(1);
    }
}

/// Traffic of UDP on one link, as far as the counters tell.
#[derive(Debug, Clone, Copy, Default)]
struct UdpUse {
    /// Bytes of the interface that TCP did not carry.
    rest: Window,
    /// Bytes of the datagrams at most.
    datagrams: Window,
    uses: bool,
}

impl UdpUse {
    fn judge(&mut self, least: u64) {
        let bound = if self.uses {
            least / LEAVE_SHARE
        } else {
            least
        };
        let moved = self.rest.sum().min(self.datagrams.sum());
        self.uses = moved >= bound.max(1);
    }
}

/// Payload that backlogged connections to one host moved since the last look.
#[derive(Debug, Clone, Copy, Default)]
struct Backlog {
    congested_bytes: u64,
    uncongested_bytes: u64,
    /// Time since which most of it meets congestion; 0 if it does not.
    since_ns: u64,
}

/// Bytes of the interface at a time.
#[derive(Debug, Clone, Copy)]
struct Mark {
    at_ns: u64,
    rx_bytes: u64,
    tx_bytes: u64,
}

type Users<K> = IndexMap<K, User, FxBuildHasher>;

/// The users of a host's own links, and what they carry.
#[derive(Debug, Default)]
pub struct AccessUseMeter {
    senders: Users<SenderName>,
    /// Receivers that no host of the topology is.
    receivers: Users<IpAddr>,
    /// Hosts to which connections are backlogged.
    backlogs: IndexMap<u32, Backlog, FxBuildHasher>,
    mark: Option<Mark>,
    udp_in: UdpUse,
    udp_out: UdpUse,
    /// Bytes that TCP carried since the counters before, with headers: in and out.
    tcp_bytes: [i64; 2],
    counters: Option<AccessCounters>,
    access: AccessCapacity,
    /// End of the present half of the windows; 0 before the first look.
    half_ends_ns: u64,
    looked_ns: u64,
    present: AccessUse,
    told: AccessUse,
    told_ns: u64,
}

impl AccessUseMeter {
    /// Begins a session: the allocator knows nothing.
    pub fn begin_session(&mut self) {
        self.told = AccessUse::default();
        self.told_ns = 0;
    }

    /// Forgets what moved, because the measuring pauses.
    pub fn pause(&mut self) {
        *self = Self {
            told: std::mem::take(&mut self.told),
            told_ns: self.told_ns,
            ..Self::default()
        };
    }

    /// Takes what a socket moved since the pass before.
    pub fn add(&mut self, moved: &Moved) {
        let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        let (received, acked) = (bytes(moved.received_bytes), bytes(moved.acked_bytes));
        let headers = |own: i64, other: i64| {
            // Each second segment of the other direction is acknowledged.
            (own / SEGMENT_BYTES + other / (2 * SEGMENT_BYTES)) * HEADER_BYTES
        };
        self.tcp_bytes[0] += received.saturating_add(headers(received, acked));
        self.tcp_bytes[1] += acked.saturating_add(headers(acked, received));
        if received > 0 {
            add(&mut self.senders, moved.name, received);
        }
        if let (SenderName::Address(address), true) = (moved.name, acked > 0) {
            add(&mut self.receivers, address, acked);
        }
        self.add_backlog(moved);
    }

    fn add_backlog(&mut self, moved: &Moved) {
        let SenderName::Host(host) = moved.name else {
            return;
        };
        if moved.queue == SendQueue::Idle
            || (self.backlogs.len() >= MAX_REMEMBERED && !self.backlogs.contains_key(&host))
        {
            return;
        }
        let backlog = self.backlogs.entry(host).or_default();
        match moved.queue {
            SendQueue::Congested => backlog.congested_bytes += moved.acked_bytes,
            _ => backlog.uncongested_bytes += moved.acked_bytes,
        }
    }

    /// Returns the present state, told or not.
    #[must_use]
    pub fn present(&self) -> &AccessUse {
        &self.present
    }

    /// Returns the capacities of the links as the allocator was told them at the last look.
    #[must_use]
    pub fn access(&self) -> AccessCapacity {
        self.access
    }

    /// Takes the faults of the host.
    pub fn set_faults(&mut self, faults: HostFaults) {
        self.present.faults = faults;
    }

    /// Takes from the driver's counters that an allowance has held up packets from this host, and
    /// packets to it.
    pub fn hold_up(&mut self, [from, to]: [bool; 2]) {
        (self.present.uplink.held_up, self.present.downlink.held_up) = (from, to);
    }

    /// Takes the counters of the interface and the speed that it tells, in bit/s. Of several
    /// interfaces these are the sums.
    pub fn carry(&mut self, now_ns: u64, rx_bytes: u64, tx_bytes: u64, speed_bps: u64) {
        let now = Mark {
            at_ns: now_ns,
            rx_bytes,
            tx_bytes,
        };
        self.present.uplink.speed_bps = speed_bps;
        self.present.downlink.speed_bps = speed_bps;
        let before = *self.mark.get_or_insert(now);
        if rx_bytes < before.rx_bytes || tx_bytes < before.tx_bytes {
            // A counter that falls began anew: what was carried until then is not known.
            self.mark = Some(now);
            self.set_carried([None; 2]);
            return;
        }
        let passed_ns = now_ns.saturating_sub(before.at_ns);
        if passed_ns < CARRIED_NS {
            return;
        }
        self.mark = Some(now);
        let rate_bps = |bytes: u64| {
            let bits_ns = u128::from(bytes) * 8_000_000_000;
            u64::try_from(bits_ns / u128::from(passed_ns)).unwrap_or(u64::MAX)
        };
        let moved = [tx_bytes - before.tx_bytes, rx_bytes - before.rx_bytes];
        self.set_carried(moved.map(|bytes| Some(rate_bps(bytes))));
    }

    /// Takes rates from and to the host.
    fn set_carried(&mut self, [from, to]: [Option<u64>; 2]) {
        (
            self.present.uplink.carried_bps,
            self.present.downlink.carried_bps,
        ) = (from, to);
    }

    /// Notes that the interface cannot be read, or that it is another one: what it carried is not
    /// known, nor its speed, nor what an allowance held up.
    pub fn lose_interface(&mut self) {
        self.mark = None;
        self.counters = None;
        for link in [&mut self.present.uplink, &mut self.present.downlink] {
            (link.carried_bps, link.speed_bps, link.held_up) = (None, 0, false);
        }
    }

    /// Returns true if [`look`](Self::look) is due.
    #[must_use]
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.looked_ns) >= ACCESS_INTERVAL_NS
    }

    /// Returns true if somebody is known to use a link.
    #[must_use]
    pub fn has_users(&self) -> bool {
        let none = LinkUse::default();
        let AccessUse {
            uplink, downlink, ..
        } = &self.present;
        !self.backlogs.is_empty()
            || !uplink.has_the_users_of(&none)
            || !downlink.has_the_users_of(&none)
    }

    /// Judges the users after a pass over the sockets. Without `counters`, UDP is not judged.
    pub fn look(&mut self, now_ns: u64, counters: Option<AccessCounters>, access: AccessCapacity) {
        let since_ns = now_ns - std::mem::replace(&mut self.looked_ns, now_ns).min(now_ns);
        self.count_udp(counters);
        self.access = access;
        // What many sockets moved is known after more than a second.
        let seconds = if since_ns == now_ns {
            1
        } else {
            (since_ns / SECOND_NS).max(1)
        };
        let in_second = |capacity_bps: u64| capacity_bps / 8 * seconds;
        let least = |capacity_bps: u64, users: usize| {
            let shares = MIN_SHARE.max(FAIR_SHARE.saturating_mul(users as u64));
            (in_second(capacity_bps) / shares).max(MIN_BYTES * seconds)
        };
        let (up_bps, down_bps) = (access.uplink_bps, access.downlink_bps);
        let least_in = least(down_bps, self.senders.len());
        let least_out = least(up_bps, self.receivers.len());
        self.senders
            .values_mut()
            .for_each(|user| user.judge(least_in));
        self.receivers
            .values_mut()
            .for_each(|user| user.judge(least_out));
        self.udp_in.judge(in_second(down_bps) / UDP_SHARE);
        self.udp_out.judge(in_second(up_bps) / UDP_SHARE);
        self.judge_backlogs(now_ns);
        let downlink = if down_bps > 0 {
            self.downlink()
        } else {
            LinkUse::default()
        };
        self.present.downlink = LinkUse {
            carried_bps: self.present.downlink.carried_bps,
            speed_bps: self.present.downlink.speed_bps,
            held_up: self.present.downlink.held_up,
            ..downlink
        };
        let uplink = if up_bps > 0 {
            let strangers = self.receivers.iter().filter(|(_, user)| user.uses);
            link_use(
                Vec::new(),
                strangers.map(|(&address, _)| address),
                self.udp_out.uses,
            )
        } else {
            LinkUse::default()
        };
        let is_congested = |backlog: &Backlog| {
            backlog.since_ns > 0 && now_ns.saturating_sub(backlog.since_ns) >= CONGESTED_NS
        };
        let mut congested: Vec<u32> = (self.backlogs.iter())
            .filter(|(_, backlog)| is_congested(backlog))
            .map(|(&host, _)| host)
            .collect();
        congested.sort_unstable();
        congested.truncate(MAX_CONGESTED);
        let uncongested = self.backlogs.values().filter(|to| to.since_ns == 0).count();
        self.present.uplink = LinkUse {
            carried_bps: self.present.uplink.carried_bps,
            speed_bps: self.present.uplink.speed_bps,
            congested,
            uncongested: u32::try_from(uncongested).unwrap_or(u32::MAX),
            held_up: self.present.uplink.held_up,
            ..uplink
        };
        self.advance(now_ns);
    }

    /// Judges to which hosts most of what is backlogged meets congestion, and forgets those to
    /// which nothing is.
    fn judge_backlogs(&mut self, now_ns: u64) {
        self.backlogs.retain(|_, backlog| {
            let Backlog {
                congested_bytes,
                uncongested_bytes,
                since_ns,
            } = *backlog;
            let meets = congested_bytes > uncongested_bytes;
            *backlog = Backlog {
                since_ns: match (meets, since_ns) {
                    (true, 0) => now_ns,
                    (true, since_ns) => since_ns,
                    (false, _) => 0,
                },
                ..Backlog::default()
            };
            congested_bytes + uncongested_bytes > 0
        });
    }

    fn downlink(&self) -> LinkUse {
        let users = self.senders.iter().filter(|(_, user)| user.uses);
        let mut hosts: Vec<u32> = users
            .clone()
            .filter_map(|(name, _)| match name {
                SenderName::Host(host) => Some(*host),
                SenderName::Address(_) => None,
            })
            .collect();
        hosts.sort_unstable();
        hosts.truncate(MAX_USERS);
        let strangers = users.filter_map(|(name, _)| match name {
            SenderName::Address(address) => Some(*address),
            SenderName::Host(_) => None,
        });
        link_use(hosts, strangers, self.udp_in.uses)
    }

    /// Counts what the interface carried and TCP did not.
    fn count_udp(&mut self, counters: Option<AccessCounters>) {
        let [tcp_in, tcp_out] = std::mem::take(&mut self.tcp_bytes);
        let before = std::mem::replace(&mut self.counters, counters);
        let (Some(now), Some(before)) = (counters, before) else {
            return;
        };
        // A counter that falls began anew.
        let since = |now: u64, before: u64| now.saturating_sub(before);
        let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        let datagrams = |count: u64| bytes(count.saturating_mul(DATAGRAM_BYTES));
        let rx = bytes(since(now.rx_bytes, before.rx_bytes));
        let tx = bytes(since(now.tx_bytes, before.tx_bytes));
        self.udp_in.rest.add(rx.saturating_sub(tcp_in));
        self.udp_out.rest.add(tx.saturating_sub(tcp_out));
        let tunnelled = datagrams(since(now.tunnelled_in, before.tunnelled_in));
        self.udp_in
            .datagrams
            .add(datagrams(since(now.udp_in, before.udp_in)) - tunnelled);
        self.udp_out
            .datagrams
            .add(datagrams(since(now.udp_out, before.udp_out)));
    }

    /// Moves the windows on, and forgets who has moved nothing in them.
    fn advance(&mut self, now_ns: u64) {
        if self.half_ends_ns == 0 {
            self.half_ends_ns = now_ns + HALF_NS;
        }
        if now_ns < self.half_ends_ns {
            return;
        }
        let by_one = now_ns - self.half_ends_ns < HALF_NS;
        self.half_ends_ns = if by_one {
            self.half_ends_ns + HALF_NS
        } else {
            now_ns + HALF_NS
        };
        for window in [
            &mut self.udp_in.rest,
            &mut self.udp_in.datagrams,
            &mut self.udp_out.rest,
            &mut self.udp_out.datagrams,
        ] {
            window.advance(by_one);
        }
        advance(&mut self.senders, by_one);
        advance(&mut self.receivers, by_one);
    }

    /// Returns what is to be told now, if it has changed. `observes` says that this host is
    /// configured to pace nothing.
    #[must_use]
    pub fn to_tell(&self, now_ns: u64, observes: bool) -> Option<AccessUse> {
        let since_ns = now_ns.saturating_sub(self.told_ns);
        let links = [
            (
                &self.present.uplink,
                &self.told.uplink,
                self.access.uplink_bps,
            ),
            (
                &self.present.downlink,
                &self.told.downlink,
                self.access.downlink_bps,
            ),
        ];
        let differs = self.present.faults != self.told.faults
            || links.iter().any(|(now, told, _)| says_more(now, told));
        let moved = links.iter().any(|&(now, told, capacity_bps)| {
            let apart = match (now.carried_bps, told.carried_bps) {
                (Some(now), Some(told)) => now.abs_diff(told) > capacity_bps / CARRIED_SHARE,
                // Rest is not worth a message of its own.
                (Some(now), None) => now > capacity_bps / CARRIED_SHARE,
                (None, told) => told.is_some(),
            };
            capacity_bps > 0 && apart
        });
        let repeats = since_ns >= REPEAT_NS && self.told != AccessUse::default();
        let is_due = |every_ns| self.told_ns == 0 || since_ns >= every_ns;
        let tells = observes != self.told.observes
            || (differs && is_due(TELL_EVERY_NS))
            || (moved && is_due(CARRIED_NS))
            || repeats;
        tells.then(|| AccessUse {
            observes,
            ..self.present.clone()
        })
    }

    /// Notes that this was told.
    pub fn told(&mut self, now_ns: u64, access_use: AccessUse) {
        self.told = access_use;
        self.told_ns = now_ns;
    }
}

/// Returns true if a link's state differs from what was told in more than what is carried.
fn says_more(now: &LinkUse, told: &LinkUse) -> bool {
    !now.has_the_users_of(told)
        || now.speed_bps != told.speed_bps
        || now.congested != told.congested
        || now.held_up != told.held_up
        // While nothing is congested, nobody asks who is not.
        || (!now.congested.is_empty() && (now.uncongested > 0) != (told.uncongested > 0))
}

fn add<K: Hash + Eq>(users: &mut Users<K>, name: K, bytes: i64) {
    let known = users.len();
    match users.entry(name) {
        Entry::Occupied(mut entry) => entry.get_mut().moved.add(bytes),
        Entry::Vacant(entry) if known < MAX_REMEMBERED => {
            entry.insert(User::default()).moved.add(bytes);
        }
        Entry::Vacant(_) => {}
    }
}

fn advance<K: Hash + Eq>(users: &mut Users<K>, by_one: bool) {
    users.retain(|_, user| {
        user.moved.advance(by_one);
        user.uses || user.moved.sum() > 0
    });
}

fn link_use(hosts: Vec<u32>, strangers: impl Iterator<Item = IpAddr>, udp: bool) -> LinkUse {
    // The least, so that the one that is named stays the same.
    let (count, stranger) = strangers.fold((0, None), |(count, least), address| {
        let least = least.map_or(address, |least: IpAddr| least.min(address));
        (count + 1, Some(least))
    });
    LinkUse {
        hosts,
        strangers: count,
        stranger,
        udp,
        ..LinkUse::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const MBIT: u64 = 1_000_000;
    const GBIT: u64 = 1_000_000_000;
    const STRANGER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 9));

    /// A host whose counters are looked at every 100 ms, with links of 1 Gbit/s.
    struct MeteredHost {
        meter: AccessUseMeter,
        now_ns: u64,
        counters: AccessCounters,
        observes: bool,
        /// Messages with their times.
        told: Vec<(u64, AccessUse)>,
    }

    impl MeteredHost {
        fn new() -> Self {
            let mut host = Self {
                meter: AccessUseMeter::default(),
                now_ns: 5_000 * MS,
                counters: AccessCounters::default(),
                observes: false,
                told: Vec::new(),
            };
            host.run(100, &[], 0, 0);
            host
        }

        /// Lets `ms` pass in which senders and receivers move these rates by TCP. The interface
        /// carries `unseen_bps` beside them, in `datagrams` UDP datagrams per interval.
        fn run(
            &mut self,
            ms: u64,
            tcp: &[(SenderName, u64, u64)],
            unseen_bps: u64,
            datagrams: u64,
        ) {
            for _ in 0..ms / 100 {
                self.now_ns += 100 * MS;
                let bytes = |bps: u64| bps / 80;
                for &(name, in_bps, out_bps) in tcp {
                    let moved = Moved {
                        name,
                        received_bytes: bytes(in_bps),
                        acked_bytes: bytes(out_bps),
                        queue: SendQueue::Idle,
                    };
                    self.meter.add(&moved);
                    // Each segment of 1,448 bytes is a packet of 1,514.
                    self.counters.rx_bytes += bytes(in_bps) / 1_448 * 1_514;
                    self.counters.tx_bytes += bytes(out_bps) / 1_448 * 1_514;
                }
                self.counters.rx_bytes += bytes(unseen_bps);
                self.counters.udp_in += datagrams;
                let access = AccessCapacity::new(GBIT, GBIT);
                self.meter.look(self.now_ns, Some(self.counters), access);
                if let Some(access_use) = self.meter.to_tell(self.now_ns, self.observes) {
                    self.told.push((self.now_ns, access_use.clone()));
                    self.meter.told(self.now_ns, access_use);
                }
            }
        }

        fn downlink(&self) -> LinkUse {
            self.meter.present.downlink.clone()
        }
    }

    fn host(number: u32) -> SenderName {
        SenderName::Host(number)
    }

    /// A backlogged socket 100 ms apart: what the peer's window, the queues and losses make of it.
    #[test]
    fn a_backlogged_socket_is_congested_by_queues_losses_and_marks_and_not_by_its_rate_or_its_peer()
    {
        let before = SendFacts {
            segment_bytes: 1_448,
            unsent_bytes: 90_000,
            rtt_us: 200,
            least_rtt_us: 200,
            ..SendFacts::default()
        };
        let now = SendFacts {
            acked_bytes: 1_000_000,
            busy_us: 100_000,
            ..before
        };
        let with = |change: &dyn Fn(&mut SendFacts)| {
            let mut now = now;
            change(&mut now);
            SendQueue::between(&before, &now)
        };
        for (found, expected) in [
            (with(&|_| {}), SendQueue::Uncongested),
            (with(&|now| now.rtt_us = 1_100), SendQueue::Uncongested),
            (with(&|now| now.rtt_us = 1_300), SendQueue::Congested),
            (with(&|now| now.retransmitted = 1), SendQueue::Congested),
            (with(&|now| now.delivered_ce = 1), SendQueue::Congested),
            (with(&|now| now.unsent_bytes = 0), SendQueue::Idle),
            (with(&|now| now.acked_bytes = 0), SendQueue::Idle),
            // Nobody reads at the other end.
            (
                with(&|now| (now.rwnd_limited_us, now.rtt_us) = (50_000, 9_000)),
                SendQueue::Idle,
            ),
            // A long way: a tenth more is no queue.
            (
                with(&|now| (now.rtt_us, now.least_rtt_us) = (44_000, 40_000)),
                SendQueue::Uncongested,
            ),
        ] {
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_sender_is_told_at_once_and_taken_back_a_second_after_its_last_byte() {
        let mut receiver = MeteredHost::new();
        let began_ns = receiver.now_ns;
        let rates = [
            (host(3), 300 * MBIT, 0),
            (SenderName::Address(STRANGER), 300 * MBIT, 0),
        ];
        receiver.run(5_000, &rates, 0, 0);
        let ended_ns = receiver.now_ns;
        receiver.run(30_000, &[], 0, 0);
        let [(told_ns, told), (back_ns, back)] = &receiver.told[..] else {
            panic!("two messages: {:?}", receiver.told);
        };
        assert_eq!(told_ns - began_ns, 100 * MS);
        let expected = LinkUse {
            hosts: vec![3],
            strangers: 1,
            stranger: Some(STRANGER),
            ..LinkUse::default()
        };
        assert_eq!(
            (&told.downlink, &told.uplink),
            (&expected, &LinkUse::default())
        );
        assert_eq!(back, &AccessUse::default());
        assert!(
            back_ns - ended_ns <= 1_100 * MS,
            "{}",
            (back_ns - ended_ns) / MS
        );
    }

    #[test]
    fn shells_scrapes_and_control_traffic_use_no_link() {
        let mut receiver = MeteredHost::new();
        for _ in 0..20 {
            // A scrape of 1 MB in 100 ms, and a shell.
            receiver.run(
                100,
                &[(host(2), 80 * MBIT, 0), (host(3), MBIT / 10, 0)],
                0,
                5,
            );
            receiver.run(2_000, &[(host(3), MBIT / 10, 0)], MBIT, 20);
        }
        assert_eq!(receiver.told, []);
    }

    #[test]
    fn a_rate_is_judged_alike_however_long_a_pass_over_the_sockets_takes() {
        let access = AccessCapacity::new(GBIT, GBIT);
        for (bps, uses) in [(GBIT / 200, false), (GBIT / 30, true)] {
            let mut meter = AccessUseMeter::default();
            for second in (0..40).step_by(4) {
                let moved = Moved {
                    name: host(3),
                    received_bytes: bps / 8 * 4,
                    acked_bytes: 0,
                    queue: SendQueue::Idle,
                };
                meter.look(1_000 * MS * (second + 1), None, access);
                meter.add(&moved);
            }
            meter.look(41_000 * MS, None, access);
            assert_eq!(
                !meter.present.downlink.hosts.is_empty(),
                uses,
                "{bps} bit/s"
            );
        }
    }

    #[test]
    fn a_sender_among_many_uses_the_link_with_a_small_part_of_its_share() {
        let mut receiver = MeteredHost::new();
        let mut rates: Vec<_> = (2..402)
            .map(|number| (host(number), GBIT / 500, 0))
            .collect();
        // A third of the fair share.
        rates.push((SenderName::Address(STRANGER), GBIT / 1_200, 0));
        receiver.run(2_000, &rates, 0, 0);
        assert_eq!(receiver.downlink().strangers, 1);
        assert_eq!(receiver.downlink().hosts.len(), MAX_USERS);
    }

    #[test]
    fn what_goes_to_strangers_uses_the_uplink_and_what_goes_to_hosts_does_not() {
        let mut sender = MeteredHost::new();
        let rates = [
            (host(3), 0, 500 * MBIT),
            (SenderName::Address(STRANGER), 0, 300 * MBIT),
        ];
        sender.run(1_000, &rates, 0, 0);
        let uplink = &sender.meter.present.uplink;
        assert_eq!(
            (uplink.hosts.len(), uplink.strangers, uplink.udp),
            (0, 1, false)
        );
        assert_eq!(sender.downlink(), LinkUse::default());
    }

    #[test]
    fn udp_uses_a_link_from_a_twentieth_on_and_tcp_is_never_taken_for_it() {
        // TCP in both directions, short connections that no pass sees, and name lookups.
        let bulk = [(host(3), 900 * MBIT, 900 * MBIT)];
        for (tcp, unseen_bps, datagrams, udp) in [
            (&bulk[..], 0, 50, false),
            (&[], 700 * MBIT, 50, false),
            (&bulk[..0], 80 * MBIT, 700, true),
            (&bulk[..], 80 * MBIT, 700, true),
            (&[], 30 * MBIT, 250, false),
        ] {
            let mut receiver = MeteredHost::new();
            receiver.run(3_000, tcp, unseen_bps, datagrams);
            assert_eq!(
                receiver.downlink().udp,
                udp,
                "{unseen_bps} bit/s, {datagrams}"
            );
            receiver.run(1_100, tcp, 0, 0);
            assert!(!receiver.downlink().udp);
        }
    }

    /// A tunnel's packets are TCP of this host with more headers than are counted, or of its pods,
    /// whose sockets are not seen.
    #[test]
    fn what_comes_through_a_tunnel_is_no_udp_and_udp_beside_it_is() {
        for (tunnelled, datagrams, udp) in [
            (5_800, 5_800, false),
            (0, 5_800, true),
            (5_800, 6_500, true),
        ] {
            let mut receiver = MeteredHost::new();
            for _ in 0..30 {
                receiver.counters.tunnelled_in += tunnelled;
                receiver.run(100, &[], 700 * MBIT, datagrams);
            }
            assert_eq!(receiver.downlink().udp, udp, "{tunnelled} of {datagrams}");
        }
    }

    #[test]
    fn messages_are_paced_and_a_state_that_stands_is_repeated_now_and_then() {
        let mut receiver = MeteredHost::new();
        for turn in 0..50_u32 {
            // Another sender in every interval.
            receiver.run(100, &[(host(turn), 900 * MBIT, 0)], 0, 0);
        }
        assert!(receiver.told.len() <= 11, "{}", receiver.told.len());
        for pair in receiver.told.windows(2) {
            assert!(pair[1].0 - pair[0].0 >= TELL_EVERY_NS);
        }
        receiver.run(2_000, &[(host(1), GBIT / 2, 0)], 0, 0);
        let before = receiver.told.len();
        receiver.run(60_000, &[(host(1), GBIT / 2, 0)], 0, 0);
        assert_eq!(receiver.told.len() - before, 6);
        assert!(
            receiver.told[before..]
                .iter()
                .all(|(_, told)| told.downlink.hosts == [1])
        );
    }

    /// Lets a tenth of a second pass in which a backlogged connection to host 3 moves bytes.
    fn backlogged(sender: &mut MeteredHost, queue: SendQueue) {
        sender.meter.add(&Moved {
            name: host(3),
            received_bytes: 0,
            acked_bytes: GBIT / 160,
            queue,
        });
        sender.run(100, &[], 0, 0);
    }

    #[test]
    fn congestion_is_told_after_a_second_without_a_break_and_taken_back_at_once() {
        let mut sender = MeteredHost::new();
        for _ in 0..9 {
            for _ in 0..9 {
                backlogged(&mut sender, SendQueue::Congested);
            }
            backlogged(&mut sender, SendQueue::Uncongested);
        }
        assert_eq!(sender.told, [], "bursts of 0.9 s");
        let began_ns = sender.now_ns;
        for _ in 0..20 {
            backlogged(&mut sender, SendQueue::Congested);
        }
        let ended_ns = sender.now_ns;
        for _ in 0..20 {
            backlogged(&mut sender, SendQueue::Uncongested);
        }
        let told: Vec<(u64, &[u32])> = (sender.told.iter())
            .map(|(at_ns, told)| (*at_ns, &told.uplink.congested[..]))
            .collect();
        let [(told_ns, [3]), (back_ns, [])] = &told[..] else {
            panic!("two messages: {told:?}");
        };
        assert!((1_000 * MS..=1_100 * MS).contains(&(told_ns - began_ns)));
        assert!(back_ns - ended_ns <= TELL_EVERY_NS);
    }

    #[test]
    fn hosts_to_which_nothing_is_congested_are_counted_beside_those_to_which_something_is() {
        let mut sender = MeteredHost::new();
        for _ in 0..20 {
            sender.meter.add(&Moved {
                name: host(4),
                received_bytes: 0,
                acked_bytes: GBIT / 160,
                queue: SendQueue::Uncongested,
            });
            backlogged(&mut sender, SendQueue::Congested);
        }
        let (_, told) = sender.told.last().expect("told");
        assert_eq!(
            (&told.uplink.congested[..], told.uplink.uncongested),
            (&[3][..], 1)
        );
    }

    #[test]
    fn what_is_carried_is_told_once_a_second_at_most_and_when_it_has_moved() {
        let mut receiver = MeteredHost::new();
        let mut bytes = 0;
        for tenth in 0..400_u64 {
            // Steady for ten seconds of twenty, and another rate each tenth in the others.
            let bps = if tenth / 100 % 2 == 0 {
                GBIT / 2
            } else {
                GBIT / 20 * (tenth % 20)
            };
            bytes += bps / 80;
            receiver.meter.carry(receiver.now_ns, bytes, 0, GBIT);
            receiver.run(100, &[], 0, 0);
        }
        assert!(receiver.told.len() <= 30, "{}", receiver.told.len());
        for pair in receiver.told.windows(2) {
            assert!(pair[1].0 - pair[0].0 >= TELL_EVERY_NS);
        }
        let (_, told) = receiver.told.last().expect("told");
        assert_eq!(told.downlink.speed_bps, GBIT);
        let half = receiver.told.iter().filter(|(_, told)| {
            let carried_bps = told.downlink.carried_bps;
            carried_bps.is_some_and(|bps| bps.abs_diff(GBIT / 2) < GBIT / 50)
        });
        assert!(half.count() >= 2, "{:?}", receiver.told);
    }

    /// Each direction's counter falls at another moment: a driver that was reset, a device that is
    /// another one.
    #[test]
    fn a_counter_that_falls_says_nothing_of_what_is_carried() {
        for fallen in [0, 1] {
            let mut meter = AccessUseMeter::default();
            let carried = |meter: &AccessUseMeter| {
                let AccessUse {
                    uplink, downlink, ..
                } = meter.present();
                [downlink.carried_bps, uplink.carried_bps]
            };
            let mut bytes = [5 * GBIT, 7 * GBIT];
            let mut now_ns = 0;
            let mut rates = Vec::new();
            for tenth in 0..50 {
                if tenth == 24 {
                    bytes[fallen] = 0;
                }
                meter.carry(now_ns, bytes[0], bytes[1], GBIT);
                rates.push(carried(&meter));
                now_ns += 100 * MS;
                bytes = bytes.map(|bytes| bytes + GBIT / 80);
            }
            // Known after the first second, and again a second after the fall.
            let (none, full): ([Option<u64>; 2], _) = ([None; 2], [Some(GBIT); 2]);
            assert_eq!(rates[..10], [none; 10]);
            assert_eq!(rates[10..24], [full; 14]);
            assert_eq!(rates[24..34], [none; 10]);
            assert_eq!(rates[34..], [full; 16]);
        }
    }

    #[test]
    fn an_interface_that_is_lost_takes_its_words_with_it() {
        let mut host = MeteredHost::new();
        for second in 0..3 {
            host.meter
                .carry(host.now_ns, second * GBIT / 8, second * GBIT / 8, GBIT);
            host.meter.hold_up([true; 2]);
            host.run(1_000, &[], 0, 0);
        }
        let words = |link: &LinkUse| (link.carried_bps, link.speed_bps, link.held_up);
        let (_, told) = host.told.last().expect("told");
        for link in [&told.uplink, &told.downlink] {
            assert_eq!(words(link), (Some(GBIT), GBIT, true));
        }
        host.meter.lose_interface();
        host.run(1_000, &[], 0, 0);
        let (_, told) = host.told.last().expect("told");
        for link in [&told.uplink, &told.downlink] {
            assert_eq!(words(link), (None, 0, false));
        }
        // Another interface begins with other counters.
        host.meter.carry(host.now_ns, 50 * GBIT, 50 * GBIT, GBIT);
        assert_eq!(host.downlink().carried_bps, None);
    }

    #[test]
    fn an_allowance_that_holds_packets_up_is_told_of_its_direction_and_taken_back() {
        for held_up in [[true, false], [false, true]] {
            let mut host = MeteredHost::new();
            host.meter.hold_up(held_up);
            host.run(1_000, &[], 0, 0);
            host.meter.hold_up([false; 2]);
            host.run(1_000, &[], 0, 0);
            let told: Vec<[bool; 2]> = (host.told.iter())
                .map(|(_, told)| [told.uplink.held_up, told.downlink.held_up])
                .collect();
            assert_eq!(told, [held_up, [false; 2]]);
        }
    }

    #[test]
    fn a_host_that_begins_to_observe_says_so_at_once_and_in_every_session() {
        let mut sender = MeteredHost::new();
        sender.run(400, &[(host(1), GBIT / 2, 0)], 0, 0);
        sender.observes = true;
        sender.run(100, &[(host(1), GBIT / 2, 0)], 0, 0);
        let (_, told) = sender.told.last().expect("told");
        assert!(told.observes && told.downlink.hosts == [1]);
        sender.meter.begin_session();
        let again = sender.meter.to_tell(sender.now_ns, true);
        assert_eq!(again.as_ref(), Some(told));
        // A daemon that does not measure tells it, too.
        let meter = AccessUseMeter::default();
        assert_eq!(meter.to_tell(1, false), None);
        assert!(meter.to_tell(1, true).is_some_and(|told| told.observes));
    }
}
