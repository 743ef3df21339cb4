//! Words of hosts about their own links, by the daemon's own meter.
//!
//! A flow carries its rate. So the interface of a host counts what the rates of its flows, and of
//! flows to it, add up to. Hosts look at theirs by turns, so that no turn of the sessions' loop is
//! long.

use ratewright_proto::control::AccessCapacity;
use ratewright_proto::telemetry::{AccessUse, AccessUseMeter, Moved, SendQueue, SenderName};

/// Time in which each host has its turn. It is longer than the second over which the meter takes a
/// rate, so that a turn which is a little early counts, too.
const ROUND_NS: u64 = 1_050_000_000;

/// Interface of a host in one direction: bits so far, at a rate that changes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Carriage {
    bits: f64,
    rate_bps: u64,
    since_ns: u64,
}

impl Carriage {
    /// Takes that a flow over it has another rate, in bit/s.
    pub fn change(&mut self, now_ns: u64, before_bps: u64, after_bps: u64) {
        self.advance(now_ns);
        self.rate_bps = (self.rate_bps + after_bps).saturating_sub(before_bps);
    }

    /// Returns the bytes that it has carried so far.
    pub fn bytes(&mut self, now_ns: u64) -> u64 {
        self.advance(now_ns);
        (self.bits / 8.0) as u64
    }

    fn advance(&mut self, now_ns: u64) {
        // A datagram counts from when it was opened, which may be before the last change.
        let passed_ns = now_ns.saturating_sub(self.since_ns);
        self.since_ns += passed_ns;
        self.bits += self.rate_bps as f64 * passed_ns as f64 / 1e9;
    }
}

#[derive(Debug, Default)]
struct HostLinks {
    meter: AccessUseMeter,
    access: AccessCapacity,
}

/// Meters of all hosts of a swarm.
#[derive(Debug)]
pub struct OwnLinks {
    hosts: Vec<HostLinks>,
    /// Speed that each host's interface tells, in bit/s.
    speed_bps: u64,
    /// Host whose turn is next.
    next: usize,
    due_ns: u64,
}

impl OwnLinks {
    /// Makes the meters of so many hosts.
    #[must_use]
    pub fn new(hosts: usize, speed_bps: u64) -> Self {
        Self {
            hosts: std::iter::repeat_with(HostLinks::default)
                .take(hosts)
                .collect(),
            speed_bps,
            next: 0,
            due_ns: 0,
        }
    }

    /// Begins a host's session, in which the allocator told these capacities.
    pub fn begin_session(&mut self, at: usize, access: AccessCapacity) {
        let host = &mut self.hosts[at];
        host.meter.begin_session();
        host.access = access;
    }

    /// Returns the time of the next turn.
    #[must_use]
    pub fn next_ns(&self) -> u64 {
        self.due_ns
    }

    /// Returns the host whose turn it is, if one is due.
    pub fn take_turn(&mut self, now_ns: u64) -> Option<usize> {
        if self.hosts.is_empty() || now_ns < self.due_ns {
            return None;
        }
        let at = self.next;
        self.next = (at + 1) % self.hosts.len();
        self.due_ns = now_ns + ROUND_NS / self.hosts.len() as u64;
        Some(at)
    }

    /// Looks at a host's interface, which has sent and received so many bytes, and at its flows,
    /// which meet congestion to the hosts of these numbers. Returns what the host is to tell.
    pub fn look(
        &mut self,
        now_ns: u64,
        at: usize,
        [sent_bytes, received_bytes]: [u64; 2],
        congested: impl IntoIterator<Item = u32>,
    ) -> Option<AccessUse> {
        let HostLinks { meter, access } = &mut self.hosts[at];
        for host in congested {
            meter.add(&Moved {
                name: SenderName::Host(host),
                received_bytes: 0,
                acked_bytes: 1,
                queue: SendQueue::Congested,
            });
        }
        meter.carry(now_ns, received_bytes, sent_bytes, self.speed_bps);
        // No host knows sockets of its own, and UDP is not judged without counters.
        meter.look(now_ns, None, *access);
        meter.to_tell(now_ns, false)
    }

    /// Notes that a host has told this.
    pub fn told(&mut self, now_ns: u64, at: usize, access_use: AccessUse) {
        self.hosts[at].meter.told(now_ns, access_use);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;
    const GBIT: u64 = 1_000_000_000;

    #[test]
    fn an_interface_has_carried_its_flows_rates_for_their_times() {
        let mut carriage = Carriage::default();
        carriage.change(SECOND_NS, 0, 8_000);
        carriage.change(2 * SECOND_NS, 0, 16_000);
        // What was opened before the last change counts from that on.
        carriage.change(SECOND_NS, 8_000, 0);
        assert_eq!(carriage.bytes(2 * SECOND_NS), 1_000);
        assert_eq!(carriage.bytes(4 * SECOND_NS), 5_000);
    }

    #[test]
    fn each_host_has_a_turn_in_a_round_and_tells_what_its_links_carry() {
        let mut links = OwnLinks::new(4, 10 * GBIT);
        let access = AccessCapacity::new(10 * GBIT, 10 * GBIT);
        (0..4).for_each(|at| links.begin_session(at, access));
        let mut turns = [0; 4];
        let mut newest = AccessUse::default();
        // Ten rounds, of a host that sends 4 Gbit/s and receives 2 Gbit/s.
        for ms in 1..10_500_u64 {
            let now_ns = ms * 1_000_000;
            if let Some(at) = links.take_turn(now_ns) {
                turns[at] += 1;
                let bytes = [4, 2].map(|gbps| gbps * GBIT / 8_000 * ms);
                if let Some(access_use) = links.look(now_ns, at, bytes, []) {
                    links.told(now_ns, at, access_use.clone());
                    newest = access_use;
                }
            }
        }
        assert!(
            turns.iter().all(|turns| (9..=11).contains(turns)),
            "{turns:?}"
        );
        let told =
            [&newest.uplink, &newest.downlink].map(|link| (link.carried_bps, link.speed_bps));
        assert_eq!(
            told,
            [(Some(4 * GBIT), 10 * GBIT), (Some(2 * GBIT), 10 * GBIT)]
        );
    }
}
