//! Which session speaks for a host.
//!
//! One host has one session. A newer incarnation of its daemon, or a newer
//! connection of the same incarnation, takes over at once; anything older is
//! turned away for as long as the session that it would replace is alive.

use std::collections::BTreeMap;

use crate::control::{Refusal, RefusalCode};

/// What a host's Hello says about its age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// The daemon's incarnation.
    pub incarnation: u64,
    /// The connection attempt within the incarnation.
    pub attempt: u64,
}

#[derive(Debug, Clone, Copy)]
struct Holder {
    session: u32,
    claim: Claim,
    heard_ns: u64,
}

/// The registry's answer to a Hello.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The host had no session: accept.
    Accept,
    /// Accept, and end the older session with [`superseded`].
    Supersede {
        /// The session to end.
        session: u32,
    },
    /// Refuse with this.
    Refuse(Refusal),
}

/// What to tell a session that another has replaced.
pub fn superseded() -> Refusal {
    Refusal {
        code: RefusalCode::Superseded,
        reason: "a newer daemon or connection of this host has taken over".to_owned(),
        retry: false,
    }
}

/// The hosts that have a session.
#[derive(Debug)]
pub struct Registry {
    liveness_ns: u64,
    holders: BTreeMap<u32, Holder>,
}

impl Registry {
    /// An empty registry; a session that was not heard for `liveness_ns` is
    /// taken for dead.
    pub fn new(liveness_ns: u64) -> Self {
        Self {
            liveness_ns,
            holders: BTreeMap::new(),
        }
    }

    /// Decides on `session`, which claims to speak for `host`, and registers
    /// it unless it is refused.
    pub fn register(&mut self, now_ns: u64, host: u32, session: u32, claim: Claim) -> Decision {
        let decision = match self.holders.get(&host) {
            None => Decision::Accept,
            Some(holder) => {
                let silent_ns = now_ns.saturating_sub(holder.heard_ns);
                if claim <= holder.claim && silent_ns < self.liveness_ns {
                    return Decision::Refuse(duplicate(holder, claim, silent_ns));
                }
                Decision::Supersede {
                    session: holder.session,
                }
            }
        };
        let holder = Holder {
            session,
            claim,
            heard_ns: now_ns,
        };
        self.holders.insert(host, holder);
        decision
    }

    /// Something valid arrived from `host` over `session`.
    pub fn heard(&mut self, now_ns: u64, host: u32, session: u32) {
        if let Some(holder) = self.holders.get_mut(&host)
            && holder.session == session
        {
            holder.heard_ns = holder.heard_ns.max(now_ns);
        }
    }

    /// `session` is over. A session that has replaced it stays.
    pub fn remove(&mut self, host: u32, session: u32) {
        if self
            .holders
            .get(&host)
            .is_some_and(|h| h.session == session)
        {
            self.holders.remove(&host);
        }
    }

    /// The session that speaks for `host`.
    pub fn session_of(&self, host: u32) -> Option<u32> {
        self.holders.get(&host).map(|holder| holder.session)
    }

    /// Hosts that have a session.
    pub fn len(&self) -> usize {
        self.holders.len()
    }

    /// Whether no host has a session.
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }
}

fn duplicate(holder: &Holder, claim: Claim, silent_ns: u64) -> Refusal {
    Refusal {
        code: RefusalCode::DuplicateHost,
        reason: format!(
            "another session of this host is alive (incarnation {}, heard {} ms ago; this one is \
             incarnation {})",
            holder.claim.incarnation,
            silent_ns / 1_000_000,
            claim.incarnation,
        ),
        retry: true,
    }
}

#[cfg(test)]
mod tests;
