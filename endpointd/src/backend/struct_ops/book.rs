//! Which connections the daemon was told of, and what it is yet to be told.
//!
//! The kernel and the daemon may end a flowlet at the same moment, and the ring buffer may
//! overflow; the book turns what arrives into a sequence that always makes sense to the daemon:
//! per connection one `Start`, then `Idle` and `Resume` in turn, then one `Close`. A connection
//! whose flowlet the daemon had ended when its backlog came back starts anew.

use crate::backend::{Conn, FlowEvent, FlowEventKind, FlowFacts};

/// A connection that the daemon knows.
#[derive(Debug)]
struct Known {
    use_count: u32,
    facts: FlowFacts,
    idle: bool,
    /// The daemon has ended the flowlet; it hears of it again when the backlog comes back.
    ended: bool,
}

/// All connections that the daemon knows, by slot.
#[derive(Debug)]
pub(super) struct Book {
    known: Vec<Option<Box<Known>>>,
    pending: Vec<FlowEvent>,
}

impl Book {
    /// A book of `slots` slots.
    pub(super) fn new(slots: u32) -> Self {
        let mut known = Vec::new();
        known.resize_with(slots as usize, || None);
        Self {
            known,
            pending: Vec::new(),
        }
    }

    fn find(&mut self, conn: Conn) -> Option<&mut Known> {
        self.known
            .get_mut(conn.slot.0 as usize)?
            .as_deref_mut()
            .filter(|known| known.use_count == conn.use_count)
    }

    /// Whether `conn` is the present user of its slot.
    pub(super) fn knows(&self, conn: Conn) -> bool {
        self.known
            .get(conn.slot.0 as usize)
            .and_then(|known| known.as_deref())
            .is_some_and(|known| known.use_count == conn.use_count)
    }

    /// Notes that the daemon has ended (or taken up) the flowlet; whether that is news.
    pub(super) fn set_ended(&mut self, conn: Conn, ended: bool) -> bool {
        self.find(conn)
            .is_some_and(|known| std::mem::replace(&mut known.ended, ended) != ended)
    }

    /// The connection lost its slot: the daemon hears of it with the next poll.
    pub(super) fn close(&mut self, conn: Conn, at_ns: u64) {
        if self.find(conn).is_some() {
            self.known[conn.slot.0 as usize] = None;
            self.pending.push(FlowEvent {
                conn,
                at_ns,
                kind: FlowEventKind::Close,
            });
        }
    }

    /// The connections whose flowlets the daemon has not ended.
    pub(super) fn running(&self) -> impl Iterator<Item = Conn> + '_ {
        (0u32..).zip(&self.known).filter_map(|(slot, known)| {
            let known = known.as_deref().filter(|known| !known.ended)?;
            Some(Conn {
                slot: crate::backend::Slot(slot),
                use_count: known.use_count,
            })
        })
    }

    /// Whether events wait here.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Moves the events that wait here.
    pub(super) fn take_pending(&mut self, out: &mut Vec<FlowEvent>) {
        out.append(&mut self.pending);
    }

    /// Passes a kernel event on in the form that makes sense now. Returns the connection whose end
    /// must be revoked in the kernel, if its backlog came back after the daemon had ended it.
    pub(super) fn admit(&mut self, event: FlowEvent, out: &mut Vec<FlowEvent>) -> Option<Conn> {
        let conn = event.conn;
        match &event.kind {
            FlowEventKind::Start(facts) => {
                let entry = self.known.get_mut(conn.slot.0 as usize)?;
                if let Some(old) = entry.take() {
                    // Its close was lost.
                    let conn = Conn {
                        use_count: old.use_count,
                        ..conn
                    };
                    out.push(FlowEvent {
                        conn,
                        at_ns: event.at_ns,
                        kind: FlowEventKind::Close,
                    });
                }
                *entry = Some(Box::new(Known {
                    use_count: conn.use_count,
                    facts: facts.clone(),
                    idle: false,
                    ended: false,
                }));
                out.push(event);
            }
            FlowEventKind::Idle => {
                if let Some(known) = self.find(conn).filter(|known| !known.idle) {
                    known.idle = true;
                    if !known.ended {
                        out.push(event);
                    }
                }
            }
            FlowEventKind::Resume => {
                let known = self.find(conn)?;
                let idle = std::mem::replace(&mut known.idle, false);
                if std::mem::replace(&mut known.ended, false) {
                    let kind = FlowEventKind::Start(known.facts.clone());
                    out.push(FlowEvent { kind, ..event });
                    return Some(conn);
                }
                if idle {
                    out.push(event);
                }
            }
            FlowEventKind::Close => {
                if self.find(conn).is_some() {
                    self.known[conn.slot.0 as usize] = None;
                    out.push(event);
                }
            }
            FlowEventKind::FirstPaced { .. } | FlowEventKind::Limited => {
                if self.find(conn).is_some() {
                    out.push(event);
                }
            }
        }
        None
    }

    /// After a loss of events: `idle_now` reads from the kernel whether a connection is idle, and
    /// `None` if its slot has passed on.
    pub(super) fn reconcile(
        &mut self,
        at_ns: u64,
        out: &mut Vec<FlowEvent>,
        idle_now: impl Fn(Conn) -> Option<bool>,
    ) {
        for (slot, entry) in (0u32..).zip(&mut self.known) {
            let Some(known) = entry else { continue };
            let conn = Conn {
                slot: crate::backend::Slot(slot),
                use_count: known.use_count,
            };
            let kind = match idle_now(conn) {
                None => FlowEventKind::Close,
                Some(idle) if idle == known.idle || known.ended => continue,
                Some(true) => FlowEventKind::Idle,
                Some(false) => FlowEventKind::Resume,
            };
            match kind {
                FlowEventKind::Close => *entry = None,
                _ => known.idle = kind == FlowEventKind::Idle,
            }
            out.push(FlowEvent { conn, at_ns, kind });
        }
    }
}

#[cfg(test)]
#[path = "book_tests.rs"]
mod tests;
