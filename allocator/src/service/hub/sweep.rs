//! Sweep: a pass over all flows in slices, after the network has changed or the engine was
//! replaced.
//!
//! A failure or repair changes hash groups, so any flow between the racks that a switch serves may
//! take another path. Only the flows themselves say which. A list of flows by link would cost every
//! start and end more than all sweeps together. So a sweep visits every flow, a bounded number in
//! one go ([`Hub::sweep`]). In between the service takes datagrams, renews leases and sends rates.
//!
//! If the network changes during a sweep, the sweep runs to its end and then once more over the
//! flows that it had already passed. Changes that keep coming therefore leave no flow unvisited.
//!
//! Flows that found the allocator's table full are visited again once it has room.

use std::collections::{BTreeSet, VecDeque};

use ratewright_topology::LinkId;
use rustc_hash::FxHashSet;

use crate::engine::EngineEvent;

use super::{Hub, flows, network};

/// Backlog of engine events at which a sweep pauses until the engine has taken some.
const MAX_EVENTS: usize = 1 << 13;

/// Maximum delay until the engine learns of a dead link, even if flows on it are still to be
/// visited.
const DEAD_LINK_DELAY_NS: u64 = 200_000_000;

/// Time between two looks whether there is room for flows that wait for it.
const ROOM_INTERVAL_NS: u64 = 100_000_000;

/// Progress of a sweep.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Sessions still to be visited; the first may be in part.
    sessions: VecDeque<u32>,
    /// Next slot of the first session.
    next_slot: u32,
    /// Sessions of these, from the front, whose flows a new engine does not have yet.
    sessions_to_place: usize,
    /// Links that carry nothing from now on. The engine learns of them after the flows that had to
    /// leave, so that no flow stands on a dead link while another path is usable.
    dead_links: BTreeSet<LinkId>,
    /// Time at which the engine learns of the dead links in any case.
    dead_links_due_ns: u64,
    /// Time of the last look whether there is room for flows that wait for it.
    room_ns: u64,
    /// Position of the session that comes first once there is room.
    room_turn: usize,
}

impl Sweep {
    fn is_idle(&self) -> bool {
        self.sessions.is_empty() && self.dead_links.is_empty()
    }

    /// Adds all sessions that are not yet queued. The one that is half visited is queued once more.
    fn extend(&mut self, all: impl Iterator<Item = u32>) {
        let waits: FxHashSet<u32> = self.sessions.iter().copied().collect();
        // Flows below `next_slot` were visited before this change.
        let begun = (self.next_slot > 0).then(|| self.sessions.front().copied());
        self.sessions.extend(all.filter(|id| !waits.contains(id)));
        self.sessions.extend(begun.flatten());
    }
}

impl Hub {
    /// True if [`sweep`](Self::sweep) has something to do and the engine's backlog has room.
    pub fn can_sweep(&self) -> bool {
        !self.flows.sweep.is_idle() && self.engine_events.len() < MAX_EVENTS
    }

    /// True while a new engine does not have all flows: its rates so far give some flows too much.
    pub fn is_restarting(&self) -> bool {
        self.flows.sweep.sessions_to_place > 0
    }

    /// True while a sweep is under way.
    pub fn is_rerouting(&self) -> bool {
        !self.flows.sweep.is_idle()
    }

    /// Visits at most `max` slots of flow tables. True if more remain.
    pub fn sweep(&mut self, now_ns: u64, max: usize) -> bool {
        let mut left = max;
        while left > 0 && self.can_sweep() {
            let Some(&id) = self.flows.sweep.sessions.front() else {
                break;
            };
            // A session without flows costs one slot, so that many of them do not make a slice
            // long.
            left -= 1;
            let from = self.flows.sweep.next_slot;
            let position = self.sessions.position(id);
            let end = position.map_or(0, |position| self.sessions[position].proto.slots());
            // One flow adds at most one event, so the backlog stays below twice MAX_EVENTS.
            let room = u32::try_from(left.min(MAX_EVENTS)).unwrap_or(u32::MAX);
            let until = end.min(from.saturating_add(room));
            if let Some(position) = position {
                (from..until).for_each(|slot| self.revisit(now_ns, position, slot));
            }
            left -= until.saturating_sub(from) as usize;
            if until < end {
                self.flows.sweep.next_slot = until;
            } else {
                self.flows.sweep.sessions.pop_front();
                self.flows.sweep.next_slot = 0;
                // `sweep_for_new_engine` counts the sessions of its time, and later ones are queued
                // behind them, so they are exactly the first ones to finish.
                self.flows.sweep.sessions_to_place =
                    self.flows.sweep.sessions_to_place.saturating_sub(1);
            }
        }
        // The delay bounds how long the engine allocates to a link that is gone, however many flows
        // remain.
        if self.flows.sweep.sessions.is_empty() || self.flows.sweep.dead_links_due_ns <= now_ns {
            for link in std::mem::take(&mut self.flows.sweep.dead_links) {
                self.push_capacity(link);
            }
        }
        !self.flows.sweep.is_idle()
    }

    /// Renews the path and the placement of the flow on a slot.
    fn revisit(&mut self, now_ns: u64, position: usize, slot: u32) {
        let session = &mut self.sessions[position];
        let (Some((record, flow)), Some(peer)) = (session.flow(slot), &session.peer) else {
            return;
        };
        if let Some(number) = flow.number_in(self.flows.engine_number) {
            self.counts.paths += 1;
            if let Ok(path) = flows::links(&self.network.topology, peer.host, &record) {
                // Most flows keep their path: comparing costs far less than an event that the
                // engine must apply.
                if session.flows.path(slot) != path.as_slice() {
                    if let Some(kind) = flow.counted {
                        let before = session.flows.path(slot);
                        self.network.shared.remove(now_ns, before, kind);
                        self.network.shared.add(now_ns, &path, kind, peer.host);
                    }
                    session.flows.set_path(slot, path.clone());
                    self.counts.reroutes += 1;
                    self.engine_events.push_back(EngineEvent::Reroute {
                        number,
                        links: path,
                    });
                }
                self.recount(now_ns, position, slot);
                return;
            }
        }
        self.place(now_ns, position, &record, true);
        if let Some(now) = self.sessions[position].proto.state_mut(record.flow())
            && flow.is_allocated()
            && now.is_allocated()
        {
            // It has a rate, if an older one, and is no more urgent than others.
            now.has_rate = flow.has_rate;
        }
    }

    /// Starts a sweep for a change of the network. The engine learns of `dead_links` at its end.
    pub(super) fn sweep_again(
        &mut self,
        now_ns: u64,
        dead_links: impl IntoIterator<Item = LinkId>,
    ) {
        let sweep = &mut self.flows.sweep;
        sweep.extend(self.sessions.numbers());
        // The first dead link sets the time; later ones must not push it back.
        if sweep.dead_links.is_empty() {
            sweep.dead_links_due_ns = now_ns + DEAD_LINK_DELAY_NS;
        }
        sweep.dead_links.extend(dead_links);
    }

    /// Starts a sweep over the flows of these sessions.
    pub(super) fn sweep_sessions(&mut self, ids: Vec<u32>) {
        if !ids.is_empty() {
            self.flows.sweep.extend(ids.into_iter());
        }
    }

    /// Returns the time of the next [`give_room`](Self::give_room); `None` if no flow waits.
    pub(super) fn next_room_ns(&self) -> Option<u64> {
        let waits = self.flows.tallies.awaiting_room > 0;
        waits.then(|| self.flows.sweep.room_ns.saturating_add(ROOM_INTERVAL_NS))
    }

    /// Starts a sweep over sessions whose flows wait for room, in turn and as many as there is room
    /// for. O(sessions).
    pub(super) fn give_room(&mut self, now_ns: u64) {
        if (self.next_room_ns()).is_none_or(|due_ns| due_ns > now_ns) {
            return;
        }
        self.flows.sweep.room_ns = now_ns;
        let mut room =
            (self.settings.limits.max_flows).saturating_sub(self.flows.tallies.allocated);
        // A sweep that is under way may come by them.
        if room == 0 || self.is_rerouting() {
            return;
        }
        let turn = self.flows.sweep.room_turn;
        let end = self.sessions.positions();
        let mut ids = Vec::new();
        for position in (turn..end).chain(0..turn.min(end)) {
            let session = self.sessions.at(position);
            let Some(session) = session.filter(|session| session.awaiting_room > 0) else {
                continue;
            };
            ids.push(session.id);
            self.flows.sweep.room_turn = position + 1;
            room = room.saturating_sub(session.awaiting_room);
            if room == 0 {
                break;
            }
        }
        self.sweep_sessions(ids);
    }

    /// Starts a sweep that hands all flows to an engine that has none.
    pub(super) fn sweep_for_new_engine(&mut self) {
        self.flows.engine_number = self.flows.engine_number.wrapping_add(1);
        self.flows
            .numbers
            .restart(network::link_count(&self.network.topology));
        let sessions: VecDeque<u32> = self.sessions.numbers().collect();
        // Dead links of a former sweep are dropped: the new engine gets all capacities from
        // `restart_flows`.
        self.flows.sweep = Sweep {
            sessions_to_place: sessions.len(),
            sessions,
            ..Sweep::default()
        };
    }

    /// Sends a link's present capacity for flows to the engine.
    pub(super) fn push_capacity(&mut self, link: LinkId) {
        let capacity_bps = self.network.engine_capacity_bps(link);
        self.engine_events.push_back(EngineEvent::Capacity {
            link: link.0,
            capacity_bps,
        });
    }
}
