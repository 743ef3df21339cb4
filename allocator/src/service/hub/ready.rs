//! Sessions that have something to send, or whose timeout has changed.

use super::session::{Session, Sessions};

/// A session that has something to send or whose timeout has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadySession {
    /// The session.
    pub id: u32,
    /// Its datagram does not wait behind later rates.
    pub urgent: bool,
}

/// Ready sessions, each listed once but for those that also wait for a first rate.
#[derive(Debug, Default)]
pub(super) struct ReadySessions {
    /// Those with a flow that waits for its first rate.
    first: Vec<u32>,
    later: Vec<u32>,
}

impl ReadySessions {
    /// Lists a session, once.
    pub(super) fn mark(&mut self, session: &mut Session) {
        if !std::mem::replace(&mut session.is_ready, true) {
            self.later.push(session.id);
        }
    }

    /// Lists a session ahead of those whose flows all have rates: users feel a flowlet's wait for
    /// its first rate, and each host served earlier adds to it.
    pub(super) fn mark_first(&mut self, session: &mut Session) {
        session.is_ready = true;
        self.first.push(session.id);
    }

    /// Moves the sessions to `ready`, those with a flow that waits for its first rate first.
    pub(super) fn drain(
        &mut self,
        now_ns: u64,
        sessions: &mut Sessions,
        ready: &mut Vec<ReadySession>,
    ) {
        let mut take = |list: &mut Vec<u32>, first: bool| {
            ready.extend(list.drain(..).filter_map(|id| {
                // A session that ended after it became ready is skipped: its number is not used
                // again soon.
                let session = sessions.get_mut(id)?;
                let urgent = first || session.proto.must_send_now(now_ns);
                std::mem::take(&mut session.is_ready).then_some(ReadySession { id, urgent })
            }));
        };
        // A session may stand in both lists. The first one clears its flag, so it leaves only once.
        take(&mut self.first, true);
        take(&mut self.later, false);
    }
}
