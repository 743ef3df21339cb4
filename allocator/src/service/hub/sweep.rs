//! Sweep: a pass over all flows in slices, after the network has changed or the engine was
//! replaced.
//!
//! A failure or repair changes hash groups, so any flow between the racks that a switch serves may
//! take another path. Only the flows themselves say which. A list of flows by link would cost every
//! start and end more than all sweeps together. So a sweep visits every flow, a bounded number in
//! one go ([`Hub::sweep`](super::Hub::sweep)). In between the service takes datagrams, renews
//! leases and sends rates.
//!
//! If the network changes during a sweep, the sweep runs to its end and then once more over the
//! flows that it had already passed. Changes that keep coming therefore leave no flow unvisited.
//!
//! Flows that found the allocator's table full are visited again once it has room.

use std::collections::{BTreeSet, VecDeque};

use ratewright_topology::LinkId;
use rustc_hash::FxHashSet;

use super::session::Sessions;

/// Backlog of engine events at which a sweep pauses until the engine has taken some.
pub(super) const MAX_EVENTS: usize = 1 << 13;

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
    /// True if nothing is left to visit or to tell.
    pub(super) fn is_idle(&self) -> bool {
        self.sessions.is_empty() && self.dead_links.is_empty()
    }

    /// True while a new engine does not have all flows.
    pub(super) fn is_restarting(&self) -> bool {
        self.sessions_to_place > 0
    }

    /// Returns the session that is visited next, and the slot from which on.
    pub(super) fn next(&self) -> Option<(u32, u32)> {
        self.sessions.front().map(|&id| (id, self.next_slot))
    }

    /// Notes that this session was visited up to a slot, or whole.
    pub(super) fn visited(&mut self, until: Option<u32>) {
        if let Some(until) = until {
            self.next_slot = until;
            return;
        }
        self.sessions.pop_front();
        self.next_slot = 0;
        // `restart` counts the sessions of its time, and later ones are queued behind them, so they
        // are exactly the first ones to finish.
        self.sessions_to_place = self.sessions_to_place.saturating_sub(1);
    }

    /// Returns the dead links of which the engine learns now. Their delay bounds how long the
    /// engine allocates to a link that is gone, however many flows remain.
    pub(super) fn take_dead_links(&mut self, now_ns: u64) -> BTreeSet<LinkId> {
        if self.sessions.is_empty() || self.dead_links_due_ns <= now_ns {
            return std::mem::take(&mut self.dead_links);
        }
        BTreeSet::new()
    }

    /// Adds those of these sessions that are not yet queued. If there are any, the one that is half
    /// visited is queued once more.
    pub(super) fn extend(&mut self, ids: &[u32]) {
        if ids.is_empty() {
            return;
        }
        let waits: FxHashSet<u32> = self.sessions.iter().copied().collect();
        // Flows below `next_slot` were visited before this change.
        let begun = (self.next_slot > 0).then(|| self.sessions.front().copied());
        let ids = ids.iter().copied();
        self.sessions.extend(ids.filter(|id| !waits.contains(id)));
        self.sessions.extend(begun.flatten());
    }

    /// Starts a sweep over all sessions for a change of the network. The engine learns of
    /// `dead_links` at its end.
    pub(super) fn again(
        &mut self,
        now_ns: u64,
        all: &[u32],
        dead_links: impl IntoIterator<Item = LinkId>,
    ) {
        self.extend(all);
        // The first dead link sets the time; later ones must not push it back.
        if self.dead_links.is_empty() {
            self.dead_links_due_ns = now_ns + DEAD_LINK_DELAY_NS;
        }
        self.dead_links.extend(dead_links);
    }

    /// Starts a sweep that hands the flows of all sessions to an engine that has none. Dead links
    /// of a former sweep are dropped: the new engine gets all capacities.
    pub(super) fn restart(&mut self, all: impl Iterator<Item = u32>) {
        let sessions: VecDeque<u32> = all.collect();
        *self = Self {
            sessions_to_place: sessions.len(),
            sessions,
            ..Self::default()
        };
    }

    /// Returns the time of the next [`give_room`](Self::give_room).
    pub(super) fn next_room_ns(&self) -> u64 {
        self.room_ns.saturating_add(ROOM_INTERVAL_NS)
    }

    /// Starts a sweep over sessions whose flows wait for room, in turn and as many as there is
    /// `room` for. O(sessions).
    pub(super) fn give_room(&mut self, now_ns: u64, mut room: u32, sessions: &Sessions) {
        self.room_ns = now_ns;
        // A sweep that is under way may come by them.
        if room == 0 || !self.is_idle() {
            return;
        }
        let (turn, end) = (self.room_turn, sessions.positions());
        let mut ids = Vec::new();
        for position in (turn..end).chain(0..turn.min(end)) {
            let session = sessions.at(position);
            let Some(session) = session.filter(|session| session.awaiting_room > 0) else {
                continue;
            };
            ids.push(session.id);
            self.room_turn = position + 1;
            room = room.saturating_sub(session.awaiting_room);
            if room == 0 {
                break;
            }
        }
        self.extend(&ids);
    }
}
