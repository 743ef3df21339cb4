//! The interface's end of pulling: when it asks its endpoint for the next packet.

use ratewright_topology::HostId;

use crate::event::Event;
use crate::packet::Packet;
use crate::run::core::Core;
use crate::time::Time;

/// State of a host's interface beside its port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nic {
    /// Time at which it asks its endpoint; [`Time::MAX`]: not before the endpoint wakes it.
    pull_at: Time,
    /// Time until which its link is known to be busy: asking before is in vain.
    busy_until: Time,
}

impl Default for Nic {
    fn default() -> Self {
        Self {
            pull_at: Time::MAX,
            busy_until: Time::ZERO,
        }
    }
}

impl Core {
    /// Returns true if the event of a pull at this host is the one that the interface waits for.
    /// Earlier pulls leave events behind that no longer count.
    #[inline]
    pub(crate) fn pull_is_due(&mut self, host: HostId) -> bool {
        let nic = &mut self.nics[host.index()];
        let due = nic.pull_at == self.now;
        if due {
            nic.pull_at = Time::MAX;
        }
        due
    }

    /// Handles the wake-up by an endpoint. Returns true if the link may be free; otherwise the
    /// interface asks when it is, or later in this moment, and its port need not be looked at.
    #[inline]
    pub(crate) fn wakes_nic(&mut self, host: HostId) -> bool {
        let Nic {
            pull_at,
            busy_until,
        } = self.nics[host.index()];
        if pull_at == self.now {
            return false;
        }
        if self.now < busy_until {
            self.pull_at(host, busy_until);
            return false;
        }
        true
    }

    /// Notes that a host's link is busy until then.
    #[inline]
    pub(crate) fn nic_is_busy(&mut self, host: HostId, until: Time) {
        self.nics[host.index()].busy_until = until;
    }

    /// Schedules the interface's next question to its endpoint.
    #[inline]
    pub(crate) fn pull_at(&mut self, host: HostId, at: Time) {
        let nic = &mut self.nics[host.index()];
        if nic.pull_at != at {
            nic.pull_at = at;
            if at < Time::MAX {
                self.scheduler.push_here(at, Event::Pull(host.0));
            }
        }
    }

    /// Returns the time at which a host's link is free for data: now, or when it is worth while to
    /// ask again.
    #[inline]
    pub(crate) fn nic_free_at(&mut self, host: HostId) -> Time {
        let Some(index) = self.fabric.routes.host_uplink(host.0) else {
            return Time::MAX;
        };
        let port = &mut self.fabric.ports[index as usize];
        port.advance(self.now, &mut self.shared, &mut self.fabric.switches);
        let free_at = port.free_at();
        // Past departures that were simulated just now may have put packets on an empty wire.
        if port.needs_scheduling() {
            self.schedule(index);
        }
        free_at.max(self.now)
    }

    /// Sends a packet that the interface pulled. Returns the time at which its link is free again.
    #[inline]
    pub(crate) fn send_pulled(&mut self, host: HostId, packet: Packet) -> Time {
        let wire_bytes = packet.wire_bytes;
        self.send(host, packet);
        let Some(index) = self.fabric.routes.host_uplink(host.0) else {
            return Time::MAX;
        };
        let port = &self.fabric.ports[index as usize];
        // A link that is down takes no time and drops at once; its host sends at the link's rate
        // all the same.
        let link_is_free = self.now + port.serialisation(wire_bytes);
        let free_at = port.free_at().max(link_is_free);
        self.nic_is_busy(host, free_at);
        free_at
    }
}
