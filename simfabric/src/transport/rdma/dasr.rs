//! Direct apportioning of sending rates (Dart §III), at a receiver: the senders that are active,
//! what congests them, and the number by which each divides the line's rate.
//!
//! | event | what the receiver does |
//! |---|---|
//! | first packet of a message | its sender joins the set of active senders (AUSS, §III-B), or has one message more there |
//! | list of an incast's senders with it | those that have not sent yet join, too (look-ahead, §III-D) |
//! | last byte of a message | its sender has one less, and leaves the set with its last one |
//! | no packet of a sender for long | it is taken for dead and leaves the set (§III-B) |
//! | mark of congestion | it tells marks to senders unless its line is full (§III-C, fig. 5) |
//!
//! A sender that has several messages under way shares its part among them: its NIC serialises
//! them (§III-B). The number that an acknowledgement tells is therefore that of the senders times
//! that of the sender's messages.
//!
//! The NIC maintains the set, or software does (§V-A). Acknowledgements follow software after a
//! delay: see [`DasrConfig::set_delay`].
//!
//! With tenants apart (§III-E), each active tenant has an equal part of the line, which its own
//! senders divide.

use std::collections::{BTreeMap, VecDeque};

use ratewright_topology::HostId;

use crate::time::{Span, Time};
use crate::transport::slots::Slots;

/// Parameters of a receiver.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DasrConfig {
    /// Time without a packet after which a sender is taken for dead.
    pub idle_time_out: Span,
    /// Part of the line's rate from which on the line counts as full.
    pub full_share: f64,
    /// Packets over which the throughput is measured.
    pub measured_packets: usize,
    /// Time after a mark from which on nothing is congested.
    pub quiet: Span,
    /// True if senders name the other senders of their incast, and receivers heed that.
    pub look_ahead: bool,
    /// Time from a change of the set until acknowledgements tell it: 0 if the NIC maintains it.
    pub set_delay: Span,
    /// True if the senders of each tenant are counted apart.
    pub tenants: bool,
    /// Number that it tells whatever it counts, as a receiver does that lies.
    pub told: Option<u16>,
}

/// State of a receiver (Dart fig. 5).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Congestion {
    /// No mark came of late.
    #[default]
    None,
    /// Marks come, and the receiver's line is full: its senders divide it, and hear of no marks.
    Receiver,
    /// Marks come, and the line is not full: senders hear of marks, and divide nothing.
    Elsewhere,
}

/// The tenant of a message; 0 for all where tenants are not apart.
pub type Tenant = u16;

/// The group of senders of an incast: its tenant, and the application's number of it.
pub type Group = (Tenant, u8);

/// Most incasts of one group that may be open at a receiver. Further lists are ignored, so that one
/// that repeats itself takes no memory.
const MAX_OPEN: usize = 8;

/// An incast of which a sender told, and of which some have not sent yet.
#[derive(Clone, Debug)]
struct Incast {
    group: Group,
    told: Time,
    waiting: Vec<HostId>,
}

/// Bytes on the link of a list with this many senders (Dart §III-D: two bytes each).
#[must_use]
pub fn wire_bytes(senders: usize) -> u16 {
    u16::try_from(2 * senders).unwrap_or(u16::MAX)
}

/// Writes the list of an incast's senders.
pub fn list_of(senders: &[HostId], list: &mut Vec<u8>) {
    list.extend(senders.iter().flat_map(|host| host.0.to_le_bytes()));
}

/// Reads the list of an incast's senders; what is no whole entry is left out.
pub fn hosts_of(list: &[u8]) -> impl Iterator<Item = HostId> {
    let (entries, _) = list.as_chunks::<4>();
    entries
        .iter()
        .map(|entry| HostId(u32::from_le_bytes(*entry)))
}

/// A sender in the set.
#[derive(Clone, Copy, Debug)]
struct Sender {
    key: (Tenant, HostId),
    /// Messages that have begun and are not complete.
    messages: u32,
    /// Messages that others told of, and that have not begun.
    announced: u32,
    /// Time of its last packet, or of the last list with its name.
    last: Time,
}

/// The set of active senders, and the state of the receiver.
#[derive(Debug)]
pub(super) struct Dasr {
    config: DasrConfig,
    line_bps: f64,
    senders: Slots<Sender>,
    places: BTreeMap<(Tenant, HostId), u32>,
    /// Number of active senders of each tenant that has any.
    tenants: BTreeMap<Tenant, u32>,
    /// Those numbers as acknowledgements tell them.
    told_tenants: BTreeMap<Tenant, u32>,
    /// Changes that software has yet to tell the NIC of: when it does, and a tenant's number from
    /// then on.
    untold: VecDeque<(Time, Tenant, u32)>,
    /// Open incasts, the oldest first.
    incasts: Vec<Incast>,
    /// No sender is taken for dead before this time.
    check_at: Time,
    /// Arrival times of the last packets, with all bytes until then.
    arrivals: VecDeque<(Time, u64)>,
    bytes: u64,
    marked_at: Option<Time>,
    congestion: Congestion,
}

impl Dasr {
    /// Makes the state of a receiver whose line has this rate.
    pub(super) fn new(config: DasrConfig, line_bps: u64) -> Self {
        Self {
            arrivals: VecDeque::with_capacity(config.measured_packets + 1),
            config,
            line_bps: line_bps as f64,
            senders: Slots::default(),
            places: BTreeMap::new(),
            tenants: BTreeMap::new(),
            told_tenants: BTreeMap::new(),
            untold: VecDeque::new(),
            incasts: Vec::new(),
            check_at: Time::MAX,
            bytes: 0,
            marked_at: None,
            congestion: Congestion::None,
        }
    }

    /// Returns the tenant by which a message of this workload is counted.
    pub(super) fn tenant(&self, label: u16) -> Tenant {
        if self.config.tenants { label } else { 0 }
    }

    /// Returns the number of active senders.
    pub(super) fn active(&self) -> usize {
        self.senders.len()
    }

    /// Iterates over the active senders; true for those that others told of and that have not sent.
    pub(super) fn active_senders(&self) -> impl Iterator<Item = (HostId, bool)> {
        let senders = self.senders.iter();
        senders.map(|sender| (sender.key.1, sender.messages == 0))
    }

    /// Returns the state.
    pub(super) fn congestion(&self) -> Congestion {
        self.congestion
    }

    /// Returns the place of a sender, which joins the set if it is not in it.
    fn join(&mut self, now: Time, key: (Tenant, HostId)) -> u32 {
        if let Some(place) = self.places.get(&key) {
            return *place;
        }
        let place = self.senders.insert(Sender {
            key,
            messages: 0,
            announced: 0,
            last: now,
        });
        self.places.insert(key, place);
        *self.tenants.entry(key.0).or_default() += 1;
        self.tell(now, key.0);
        self.check_at = self.check_at.min(now + self.config.idle_time_out);
        place
    }

    /// Has acknowledgements follow a tenant's number of senders, at once or after the delay.
    fn tell(&mut self, now: Time, tenant: Tenant) {
        let count = self.tenants.get(&tenant).copied().unwrap_or(0);
        self.untold
            .push_back((now + self.config.set_delay, tenant, count));
        self.take_told(now);
    }

    /// Takes what software has told the NIC until now.
    #[inline]
    fn take_told(&mut self, now: Time) {
        while let Some((_, tenant, count)) = self.untold.pop_front_if(|(at, ..)| *at <= now) {
            if count == 0 {
                self.told_tenants.remove(&tenant);
            } else {
                self.told_tenants.insert(tenant, count);
            }
        }
    }

    fn leave(&mut self, now: Time, place: u32) {
        let Some(sender) = self.senders.take(place) else {
            return;
        };
        self.places.remove(&sender.key);
        let tenant = sender.key.0;
        if let Some(count) = self.tenants.get_mut(&tenant) {
            *count -= 1;
            if *count == 0 {
                self.tenants.remove(&tenant);
            }
        }
        self.tell(now, tenant);
    }

    /// Takes the first packet of a message, of a group's incast if it is of one. Returns its
    /// sender's place.
    pub(super) fn begin(&mut self, now: Time, key: (Tenant, HostId), group: Option<Group>) -> u32 {
        let place = self.join(now, key);
        let announced = group.is_some_and(|group| self.has_begun(group, key.1));
        if let Some(sender) = self.senders.get_mut(place) {
            sender.messages += 1;
            sender.announced -= u32::from(announced && sender.announced > 0);
        }
        place
    }

    /// Finds the oldest incast of a group for which a host has not sent yet.
    fn waits_for(&self, group: Group, host: HostId) -> Option<usize> {
        let waits = |incast: &Incast| incast.group == group && incast.waiting.contains(&host);
        self.incasts.iter().position(waits)
    }

    /// Notes that a sender of an incast has sent. Returns true if another one told of it before.
    fn has_begun(&mut self, group: Group, host: HostId) -> bool {
        let Some(at) = self.waits_for(group, host) else {
            return false;
        };
        let waiting = &mut self.incasts[at].waiting;
        waiting.retain(|other| *other != host);
        if waiting.is_empty() {
            self.incasts.remove(at);
        }
        true
    }

    /// Takes the list of an incast's senders, which came with the message of `from`. It is that of
    /// an open incast which waits for `from`; otherwise another incast of the group began.
    pub(super) fn announce(
        &mut self,
        now: Time,
        group: Group,
        from: HostId,
        senders: impl Iterator<Item = HostId>,
    ) {
        let open = self.incasts.iter().filter(|incast| incast.group == group);
        if !self.config.look_ahead
            || open.count() >= MAX_OPEN
            || self.waits_for(group, from).is_some()
        {
            return;
        }
        let mut waiting: Vec<HostId> = senders.filter(|host| *host != from).collect();
        waiting.sort_unstable();
        waiting.dedup();
        for host in &waiting {
            let place = self.join(now, (group.0, *host));
            if let Some(sender) = self.senders.get_mut(place) {
                sender.announced += 1;
                sender.last = now;
            }
        }
        if !waiting.is_empty() {
            self.incasts.push(Incast {
                group,
                told: now,
                waiting,
            });
        }
    }

    /// Takes a packet of a message. Returns the place of its sender, which has joined again if it
    /// was taken for dead.
    #[inline]
    pub(super) fn on_data(
        &mut self,
        now: Time,
        place: u32,
        key: (Tenant, HostId),
        wire_bytes: u16,
        marked: bool,
    ) -> u32 {
        if now >= self.check_at {
            self.expire(now);
        }
        self.take_told(now);
        self.bytes += u64::from(wire_bytes);
        if self.arrivals.len() > self.config.measured_packets {
            self.arrivals.pop_front();
        }
        self.arrivals.push_back((now, self.bytes));
        if marked {
            self.marked_at = Some(now);
        }
        self.congestion = match self.marked_at {
            Some(at) if now <= at + self.config.quiet => {
                if self.is_full(now) {
                    Congestion::Receiver
                } else {
                    Congestion::Elsewhere
                }
            }
            _ => Congestion::None,
        };
        match self
            .senders
            .get_mut(place)
            .filter(|sender| sender.key == key)
        {
            Some(sender) => {
                sender.last = now;
                place
            }
            None => self.begin(now, key, None),
        }
    }

    /// Returns true if the last packets came at the line's rate.
    fn is_full(&self, now: Time) -> bool {
        let Some((since, before)) = self.arrivals.front() else {
            return false;
        };
        let full = self.arrivals.len() > self.config.measured_packets;
        let bits = (self.bytes - before) as f64 * 8.0;
        let line = self.line_bps * now.since(*since).as_secs_f64();
        full && bits >= self.config.full_share * line
    }

    /// Takes the last byte of a message.
    pub(super) fn end(&mut self, now: Time, place: u32, key: (Tenant, HostId)) {
        let sender = self.senders.get_mut(place);
        if let Some(sender) = sender.filter(|sender| sender.key == key) {
            sender.messages = sender.messages.saturating_sub(1);
            if sender.messages == 0 && sender.announced == 0 {
                self.leave(now, place);
            }
        }
    }

    /// Takes senders for dead that have been silent for too long, and forgets their incasts.
    fn expire(&mut self, now: Time) {
        let idle = self.config.idle_time_out;
        let dead: Vec<u32> = (0..self.senders.places())
            .filter(|place| {
                let sender = self.senders.get(*place);
                sender.is_some_and(|sender| now >= sender.last + idle)
            })
            .collect();
        dead.into_iter().for_each(|place| self.leave(now, place));
        self.incasts.retain(|incast| now < incast.told + idle);
        let left = (0..self.senders.places()).filter_map(|place| self.senders.get(place));
        let first = left.map(|sender| sender.last + idle).min();
        self.check_at = first.unwrap_or(Time::MAX);
    }

    /// Returns the number by which a message's sender divides the line's rate, for a message of the
    /// sender in this place.
    #[inline]
    pub(super) fn share(&self, place: u32) -> u16 {
        if let Some(told) = self.config.told {
            return told;
        }
        if self.congestion == Congestion::Elsewhere {
            return 1;
        }
        let Some(sender) = self.senders.get(place) else {
            return 1;
        };
        let of_tenant = self.told_tenants.get(&sender.key.0).copied().unwrap_or(1);
        let parts = of_tenant * self.told_tenants.len().max(1) as u32;
        let share = parts.saturating_mul(sender.messages.max(1));
        u16::try_from(share.max(1)).unwrap_or(u16::MAX)
    }

    /// Returns true if senders are to hear of marks.
    #[inline]
    pub(super) fn tells_marks(&self) -> bool {
        self.congestion == Congestion::Elsewhere
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LINE_BPS: u64 = 40_000_000_000;
    /// Time of a full packet on the line.
    const PACKET: Span = Span::from_ns(300);

    fn config() -> DasrConfig {
        DasrConfig {
            idle_time_out: Span::from_ms(2_000),
            full_share: 0.95,
            measured_packets: 15,
            quiet: Span::from_us(12),
            look_ahead: true,
            set_delay: Span::ZERO,
            tenants: false,
            told: None,
        }
    }

    fn receiver() -> Dasr {
        Dasr::new(config(), LINE_BPS)
    }

    fn key(host: u32) -> (Tenant, HostId) {
        (0, HostId(host))
    }

    /// A set that software maintains (§V-A) is told after its delay, begins and ends alike.
    #[test]
    fn acknowledgements_follow_software_after_its_delay() {
        let delay = Span::from_us(16);
        let config = DasrConfig {
            set_delay: delay,
            ..config()
        };
        let mut dasr = Dasr::new(config, LINE_BPS);
        let places = [1, 2].map(|host| dasr.begin(Time::ZERO, key(host), None));
        let told_at = |dasr: &mut Dasr, at: Time| {
            dasr.on_data(at, places[0], key(1), 1_500, false);
            dasr.share(places[0])
        };
        let due = Time::ZERO + delay;
        assert_eq!(dasr.active(), 2);
        assert_eq!(told_at(&mut dasr, Time(due.0 - 1)), 1);
        assert_eq!(told_at(&mut dasr, due), 2);
        dasr.end(due, places[1], key(2));
        assert_eq!(dasr.active(), 1);
        assert_eq!(told_at(&mut dasr, Time((due + delay).0 - 1)), 2);
        assert_eq!(told_at(&mut dasr, due + delay), 1);
    }

    /// The begins and ends of fig. 4: a sender counts once, from its first message's begin to its
    /// last one's end.
    #[test]
    fn a_sender_counts_once_while_it_has_a_message() {
        let mut dasr = receiver();
        let a = dasr.begin(Time::ZERO, key(1), None);
        assert_eq!((dasr.active(), dasr.share(a)), (1, 1));
        let b = dasr.begin(Time::ZERO, key(2), None);
        assert_eq!((dasr.active(), dasr.share(a), dasr.share(b)), (2, 2, 2));
        assert_eq!(dasr.begin(Time::ZERO, key(1), None), a);
        // Two senders; each of the first one's two messages gets a quarter.
        assert_eq!((dasr.active(), dasr.share(a), dasr.share(b)), (2, 4, 2));
        dasr.end(Time::ZERO, a, key(1));
        assert_eq!((dasr.active(), dasr.share(a)), (2, 2));
        dasr.end(Time::ZERO, a, key(1));
        assert_eq!((dasr.active(), dasr.share(b)), (1, 1));
        dasr.end(Time::ZERO, b, key(2));
        assert_eq!(dasr.active(), 0);
    }

    /// Marks at full throughput are the receiver's own (fig. 5), others are not; both are over a
    /// while after the last mark.
    #[test]
    fn the_throughput_tells_where_congestion_is() {
        for (gap, congestion, share) in [
            (PACKET, Congestion::Receiver, 2),
            (PACKET * 2, Congestion::Elsewhere, 1),
        ] {
            let mut dasr = receiver();
            let place = dasr.begin(Time::ZERO, key(1), None);
            dasr.begin(Time::ZERO, key(2), None);
            let mut now = Time::ZERO;
            for _ in 0..20 {
                now += gap;
                dasr.on_data(now, place, key(1), 1_500, false);
                assert_eq!(dasr.congestion(), Congestion::None);
                assert_eq!(dasr.share(place), 2, "it apportions before any mark");
            }
            now += gap;
            dasr.on_data(now, place, key(1), 1_500, true);
            assert_eq!((dasr.congestion(), dasr.share(place)), (congestion, share));
            assert_eq!(dasr.tells_marks(), congestion == Congestion::Elsewhere);
            let later = now + Span::from_us(12);
            dasr.on_data(later, place, key(1), 1_500, false);
            assert_ne!(dasr.congestion(), Congestion::None);
            dasr.on_data(later + Span::from_ps(1), place, key(1), 1_500, false);
            assert_eq!(dasr.congestion(), Congestion::None);
        }
    }

    /// A receiver whose throughput falls while marks still come is congested elsewhere, too: the
    /// second step of §III-C; and back.
    #[test]
    fn throughput_moves_the_state_while_marks_last() {
        let mut dasr = receiver();
        let place = dasr.begin(Time::ZERO, key(1), None);
        let mut now = Time::ZERO;
        let mut run = |dasr: &mut Dasr, gap: Span| {
            for _ in 0..16 {
                now += gap;
                dasr.on_data(now, place, key(1), 1_500, true);
            }
            dasr.congestion()
        };
        assert_eq!(run(&mut dasr, PACKET), Congestion::Receiver);
        assert_eq!(run(&mut dasr, PACKET * 3), Congestion::Elsewhere);
        assert_eq!(run(&mut dasr, PACKET), Congestion::Receiver);
    }

    /// One message of an incast is enough for all of its senders to count (§III-D), each once,
    /// until each has sent.
    #[test]
    fn a_list_counts_the_senders_that_are_still_to_come() {
        let mut dasr = receiver();
        let incast = (0, 3);
        let group = [1, 2, 3, 4].map(HostId);
        let long = dasr.begin(Time::ZERO, key(9), None);
        let mut places = Vec::new();
        for host in group {
            dasr.announce(Time::ZERO, incast, host, group.into_iter());
            places.push(dasr.begin(Time::ZERO, (0, host), Some(incast)));
            assert_eq!((dasr.active(), dasr.share(long)), (5, 5), "{host:?}");
            // Short messages end before the others begin; a sender does not come back.
            if host.0 < 3 {
                dasr.end(Time::ZERO, *places.last().unwrap(), (0, host));
                break;
            }
        }
        // The others still count; the first one has left.
        assert_eq!(dasr.active(), 4);
        for host in [2, 3, 4] {
            dasr.announce(Time::ZERO, incast, HostId(host), group.into_iter());
            let place = dasr.begin(Time::ZERO, key(host), Some(incast));
            dasr.end(Time::ZERO, place, key(host));
        }
        assert_eq!((dasr.active(), dasr.share(long)), (1, 1));
        assert!(dasr.incasts.is_empty());
    }

    /// Two incasts of one group are told apart by who has sent: a host that sends again begins the
    /// next one, and one that is late is of the first. Lists without end take no memory.
    #[test]
    fn a_group_may_begin_again_before_all_have_sent() {
        let mut dasr = receiver();
        let group = [1, 2, 3].map(HostId);
        let send = |dasr: &mut Dasr, host: u32| {
            dasr.announce(Time::ZERO, (0, 1), HostId(host), group.into_iter());
            dasr.begin(Time::ZERO, key(host), Some((0, 1)))
        };
        let first = [send(&mut dasr, 1), send(&mut dasr, 2)];
        dasr.end(Time::ZERO, first[0], key(1));
        dasr.end(Time::ZERO, first[1], key(2));
        assert_eq!(dasr.active(), 1, "the third is to come");
        let again = send(&mut dasr, 1);
        assert_eq!(dasr.active(), 3, "the second, too, and the third twice");
        let late = send(&mut dasr, 3);
        dasr.end(Time::ZERO, late, key(3));
        dasr.end(Time::ZERO, again, key(1));
        assert_eq!(dasr.active(), 2);
        for host in [2, 3] {
            let place = send(&mut dasr, host);
            dasr.end(Time::ZERO, place, key(host));
        }
        assert_eq!((dasr.active(), dasr.incasts.len()), (0, 0));
        for _ in 0..1_000 {
            send(&mut dasr, 1);
        }
        assert_eq!((dasr.active(), dasr.incasts.len()), (3, MAX_OPEN));
    }

    /// Senders that die, or never existed, count for the time-out and no longer (§III-E).
    #[test]
    fn the_silent_are_taken_for_dead() {
        let mut dasr = receiver();
        let incast = (0, 1);
        dasr.announce(Time::ZERO, incast, HostId(1), (1..=20).map(HostId));
        let place = dasr.begin(Time::ZERO, key(1), Some(incast));
        assert_eq!(dasr.share(place), 20);
        let before = Time::from_ms(1_999);
        dasr.on_data(before, place, key(1), 1_500, false);
        assert_eq!(dasr.share(place), 20);
        dasr.on_data(Time::from_ms(2_000), place, key(1), 1_500, false);
        assert_eq!((dasr.share(place), dasr.incasts.len()), (1, 0));
        // One that was taken for dead and goes on joins again.
        let other = dasr.begin(Time::from_ms(2_000), key(2), None);
        let later = Time::from_ms(4_100);
        dasr.on_data(later, place, key(1), 1_500, false);
        assert_eq!(dasr.active(), 1);
        let again = dasr.on_data(later, other, key(2), 1_500, false);
        assert_eq!((dasr.active(), dasr.share(again)), (2, 2));
    }

    /// Claims of one tenant's senders leave the others' part as it is (§III-E).
    #[test]
    fn tenants_share_the_line_whatever_their_senders_are() {
        let mut dasr = Dasr::new(
            DasrConfig {
                tenants: true,
                ..config()
            },
            LINE_BPS,
        );
        let honest = dasr.begin(Time::ZERO, (dasr.tenant(1), HostId(1)), None);
        let incast = (2, 1);
        dasr.announce(Time::ZERO, incast, HostId(2), (2..=200).map(HostId));
        let liar = dasr.begin(Time::ZERO, (dasr.tenant(2), HostId(2)), Some(incast));
        assert_eq!((dasr.share(honest), dasr.share(liar)), (2, 2 * 199));
    }

    /// A list is what it was, and garbage is no panic.
    #[test]
    fn lists_are_read_as_written() {
        let hosts = [0, 7, 65_536].map(HostId);
        let mut list = Vec::new();
        list_of(&hosts, &mut list);
        assert_eq!(hosts_of(&list).collect::<Vec<_>>(), hosts);
        assert_eq!(wire_bytes(20), 40, "§III-D: 40 bytes for 20 senders");
        assert_eq!(hosts_of(&list[..7]).count(), 1);
    }

    proptest! {
        /// After any history the count is that of the hosts with messages under way, each share is
        /// at least 1, and the parts of all messages together are at most the line.
        #[test]
        fn the_count_is_that_of_the_hosts_with_messages(
            steps in prop::collection::vec((0..6_u32, 0..4_u32), 0..200),
        ) {
            let mut dasr = receiver();
            let mut under_way: Vec<(u32, u32)> = Vec::new();
            let mut now = Time::ZERO;
            for (host, what) in steps {
                now += Span::from_us(1);
                let nth = under_way.iter().position(|(other, _)| *other == host);
                match (what, nth) {
                    (0, _) => under_way.push((host, dasr.begin(now, key(host), None))),
                    (1, Some(at)) => {
                        let (_, place) = under_way.swap_remove(at);
                        dasr.end(now, place, key(host));
                    }
                    (_, Some(at)) => {
                        let place = under_way[at].1;
                        prop_assert_eq!(dasr.on_data(now, place, key(host), 1_500, what == 3), place);
                    }
                    _ => {}
                }
                let mut hosts: Vec<u32> = under_way.iter().map(|(host, _)| *host).collect();
                hosts.sort_unstable();
                hosts.dedup();
                prop_assert_eq!(dasr.active(), hosts.len());
                if dasr.congestion() != Congestion::Elsewhere {
                    let parts = under_way.iter().map(|(_, place)| 1.0 / f64::from(dasr.share(*place)));
                    prop_assert!(parts.sum::<f64>() <= 1.0 + 1e-9);
                }
            }
        }
    }
}
