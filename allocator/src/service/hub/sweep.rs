//! A walk over all flows, a few at a time, after the network has changed or the engine is another one.
//!
//! What fails or comes back changes hash groups, so any flow between the racks that a switch serves may take
//! another path. Nothing but the flows themselves says which: a list of flows by link would cost every start
//! and end more than a walk costs in all. So all are looked at, at most so many in one go
//! [`Hub::sweep`], and in between datagrams are taken, leases renewed, and rates told.
//!
//! A walk that is under way when the network changes again goes on to its end and then once more over what it
//! had left behind, so changes that keep coming keep no flow from being looked at.

use std::collections::{BTreeSet, VecDeque};

use ratewright_topology::LinkId;
use rustc_hash::FxHashSet;

use crate::engine::{EngineEvent, FlowKey};

use super::session::Placement;
use super::{Hub, flows};

/// Engine events from which on nothing is added by a walk until the engine has taken some.
const MAX_EVENTS: usize = 1 << 13;

/// Links that carry nothing any more are known to the engine after this long, even if flows that have to leave
/// them are yet to be looked at.
const DEAD_LINK_DELAY_NS: u64 = 200_000_000;

/// How far a walk has got.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Sessions that are yet to be walked over; the first may be in part.
    sessions: VecDeque<u32>,
    /// Where to go on in the first of them.
    next_slot: u32,
    /// So many of them hold flows that the engine may not know at all.
    sessions_to_place: usize,
    /// Links that carry nothing from now on. The engine hears of them after the flows that had to leave, so that no
    /// flow stands on a dead link while there is a way around it.
    dead_links: BTreeSet<LinkId>,
    /// When it hears of them in any case.
    dead_links_due_ns: u64,
}

impl Sweep {
    fn is_idle(&self) -> bool {
        self.sessions.is_empty() && self.dead_links.is_empty()
    }

    /// Everything is to be looked at that was not yet since now.
    fn extend(&mut self, all: impl Iterator<Item = u32>) {
        let waits: FxHashSet<u32> = self.sessions.iter().copied().collect();
        let begun = (self.next_slot > 0).then(|| self.sessions.front().copied());
        self.sessions.extend(all.filter(|id| !waits.contains(id)));
        self.sessions.extend(begun.flatten());
    }
}

impl Hub {
    /// Whether [`sweep`](Self::sweep) has something to do now.
    pub fn can_sweep(&self) -> bool {
        !self.sweep.is_idle() && self.engine_events.len() < MAX_EVENTS
    }

    /// The engine is a new one that does not know all flows yet: what it has told so far gives some of them too much.
    pub fn is_restarting(&self) -> bool {
        self.sweep.sessions_to_place > 0
    }

    /// The network has changed and not all flows have been looked at since.
    pub fn is_rerouting(&self) -> bool {
        !self.sweep.is_idle()
    }

    /// Looks at so many slots of flow tables at most. True if there is more to do.
    pub fn sweep(&mut self, now_ns: u64, max: usize) -> bool {
        let mut left = max;
        while left > 0 && self.can_sweep() {
            let Some(&id) = self.sweep.sessions.front() else {
                break;
            };
            left -= 1;
            let from = self.sweep.next_slot;
            let end = self.sessions.get(&id).map_or(0, |s| s.flows.slots());
            let room = u32::try_from(left.min(MAX_EVENTS)).unwrap_or(u32::MAX);
            let until = end.min(from.saturating_add(room));
            for slot in from..until {
                self.revisit(now_ns, id, slot);
            }
            left -= until.saturating_sub(from) as usize;
            if until < end {
                self.sweep.next_slot = until;
            } else {
                self.sweep.sessions.pop_front();
                self.sweep.next_slot = 0;
                self.sweep.sessions_to_place = self.sweep.sessions_to_place.saturating_sub(1);
            }
        }
        if self.sweep.sessions.is_empty() || self.sweep.dead_links_due_ns <= now_ns {
            for link in std::mem::take(&mut self.sweep.dead_links) {
                self.push_capacity(link);
            }
        }
        !self.sweep.is_idle()
    }

    /// Finds out where the flow on a slot stands from now on.
    fn revisit(&mut self, now_ns: u64, id: u32, slot: u32) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let (Some(&flow), Some(peer)) = (session.flows.get(slot), &session.peer) else {
            return;
        };
        if flow.is_allocated_by(self.engine) {
            self.counts.paths += 1;
            if let Ok(path) = flows::links(&self.topology, peer.host, &flow.record) {
                if session.flows.path(slot) != path.as_slice() {
                    session.flows.set_path(slot, path.clone());
                    self.counts.reroutes += 1;
                    let key = FlowKey::new(id, flow.id().0);
                    self.engine_events
                        .push_back(EngineEvent::Reroute { key, links: path });
                }
                return;
            }
        }
        self.place(now_ns, id, &flow.record, true);
        if let Some(now) = self.sessions.get_mut(&id)
            && let Some(now) = now.flows.get_mut(slot)
            && (flow.placement, now.placement) == (Placement::Allocated, Placement::Allocated)
        {
            // It has a rate, if an older one, and is no more urgent than others.
            now.has_rate = flow.has_rate;
        }
    }

    /// Has all flows looked at. The engine is told of the links that carry nothing any more when that is done.
    pub(super) fn sweep_again(
        &mut self,
        now_ns: u64,
        dead_links: impl IntoIterator<Item = LinkId>,
    ) {
        let sweep = &mut self.sweep;
        sweep.extend(self.sessions.keys().copied());
        if sweep.dead_links.is_empty() {
            sweep.dead_links_due_ns = now_ns + DEAD_LINK_DELAY_NS;
        }
        sweep.dead_links.extend(dead_links);
    }

    /// Has all flows put before an engine that knows none.
    pub(super) fn sweep_for_new_engine(&mut self) {
        self.engine = self.engine.wrapping_add(1);
        let sessions: VecDeque<u32> = self.sessions.keys().copied().collect();
        self.sweep = Sweep {
            sessions_to_place: sessions.len(),
            sessions,
            ..Sweep::default()
        };
    }

    /// Tells the engine what a link has for flows now.
    pub(super) fn push_capacity(&mut self, link: LinkId) {
        let capacity_bps = self.capacity_of(link);
        self.engine_events.push_back(EngineEvent::Capacity {
            link: link.0,
            capacity_bps,
        });
    }
}
