//! Registry of the one session that each host has.
//!
//! One host has one session. A newer incarnation of its daemon, or a newer connection of the
//! present incarnation, takes over at once. An older one is refused while the session that it would
//! replace is alive.

use std::collections::BTreeMap;

use crate::control::{Refusal, RefusalCode};

/// Age of a host's Hello, in order of precedence.
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

/// The registry's decision on a Hello.
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

/// Refusal for a session that another has replaced.
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
    /// Makes an empty registry. A session without a datagram for `liveness_ns` counts as dead.
    pub fn new(liveness_ns: u64) -> Self {
        Self {
            liveness_ns,
            holders: BTreeMap::new(),
        }
    }

    /// Decides on the claim of `session` to `host`, and registers the session unless it is refused.
    pub fn register(&mut self, now_ns: u64, host: u32, session: u32, claim: Claim) -> Decision {
        let decision = match self.holders.get(&host) {
            None => Decision::Accept,
            Some(holder) => {
                let silent_ns = now_ns.saturating_sub(holder.heard_ns);
                // An equal claim is not newer: it does not displace a living session.
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

    /// Records that something valid arrived from `host` over `session`.
    pub fn heard(&mut self, now_ns: u64, host: u32, session: u32) {
        if let Some(holder) = self.holders.get_mut(&host)
            // A late word of a replaced session must not keep its successor alive.
            && holder.session == session
        {
            // A report may carry an earlier time than the one before it.
            holder.heard_ns = holder.heard_ns.max(now_ns);
        }
    }

    /// Removes `session`, which is over. A session that has replaced it stays.
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

    /// Returns true if no host has a session.
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
