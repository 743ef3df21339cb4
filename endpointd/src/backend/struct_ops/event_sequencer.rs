//! Event sequences per connection, repaired after losses and races.
//!
//! The kernel and the daemon may end a flowlet at the same moment, and the ring buffer may
//! overflow. The sequencer turns the arriving events into a valid sequence: per connection one
//! `Start`, then `Idle` and `Resume` in turn, then one `Close`. A backlog that returns after the
//! daemon has ended the flowlet becomes a new `Start`.

use crate::backend::{Conn, FlowEvent, FlowEventKind, FlowFacts};

/// Connection whose start was passed on.
#[derive(Debug)]
struct TrackedConnection {
    use_count: u32,
    facts: FlowFacts,
    idle: bool,
    /// The daemon has ended the flowlet; a new backlog is reported as a start.
    ended: bool,
}

/// Connections whose start was passed on, by slot.
#[derive(Debug)]
pub(super) struct EventSequencer {
    connections: Vec<Option<Box<TrackedConnection>>>,
    pending: Vec<FlowEvent>,
}

impl EventSequencer {
    /// Makes a sequencer for `slots` slots.
    pub(super) fn new(slots: u32) -> Self {
        let mut connections = Vec::new();
        connections.resize_with(slots as usize, || None);
        Self {
            connections,
            pending: Vec::new(),
        }
    }

    fn find(&mut self, conn: Conn) -> Option<&mut TrackedConnection> {
        self.connections
            .get_mut(conn.slot.0 as usize)?
            .as_deref_mut()
            .filter(|connection| connection.use_count == conn.use_count)
    }

    /// Returns true if `conn` is the present user of its slot.
    pub(super) fn is_current(&self, conn: Conn) -> bool {
        self.connections
            .get(conn.slot.0 as usize)
            .and_then(|connection| connection.as_deref())
            .is_some_and(|connection| connection.use_count == conn.use_count)
    }

    /// Stores that the daemon has ended the flowlet, or resumed it. Returns true if that is new.
    pub(super) fn set_ended(&mut self, conn: Conn, ended: bool) -> bool {
        self.find(conn)
            .is_some_and(|connection| std::mem::replace(&mut connection.ended, ended) != ended)
    }

    /// Closes a connection that lost its slot; the event comes with the next poll.
    pub(super) fn close(&mut self, conn: Conn, at_ns: u64) {
        if self.find(conn).is_some() {
            self.connections[conn.slot.0 as usize] = None;
            self.pending.push(FlowEvent {
                conn,
                at_ns,
                kind: FlowEventKind::Close,
            });
        }
    }

    /// Returns the connections whose flowlets the daemon has not ended.
    pub(super) fn running(&self) -> impl Iterator<Item = Conn> + '_ {
        (0u32..)
            .zip(&self.connections)
            .filter_map(|(slot, connection)| {
                let connection = connection
                    .as_deref()
                    .filter(|connection| !connection.ended)?;
                Some(Conn {
                    slot: crate::backend::SlotIndex(slot),
                    use_count: connection.use_count,
                })
            })
    }

    /// Returns true if events wait.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Moves the waiting events to `out`.
    pub(super) fn take_pending(&mut self, out: &mut Vec<FlowEvent>) {
        out.append(&mut self.pending);
    }

    /// Appends a kernel event to `out`, in the form that is valid now. Returns a connection whose
    /// backlog came back after the daemon had ended its flowlet: the kernel's mark of that end must
    /// be revoked.
    pub(super) fn admit(&mut self, event: FlowEvent, out: &mut Vec<FlowEvent>) -> Option<Conn> {
        let conn = event.conn;
        match &event.kind {
            FlowEventKind::Start(facts) => {
                let entry = self.connections.get_mut(conn.slot.0 as usize)?;
                if let Some(old) = entry.take() {
                    // The slot has a new user, so the close of its old one was lost.
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
                *entry = Some(Box::new(TrackedConnection {
                    use_count: conn.use_count,
                    facts: facts.clone(),
                    idle: false,
                    ended: false,
                }));
                out.push(event);
            }
            FlowEventKind::Idle => {
                // A second idle comes after `reconcile` made up the first, which the ring then
                // delivers after all.
                if let Some(connection) = self.find(conn).filter(|connection| !connection.idle) {
                    connection.idle = true;
                    if !connection.ended {
                        out.push(event);
                    }
                }
            }
            FlowEventKind::Resume => {
                let connection = self.find(conn)?;
                let idle = std::mem::replace(&mut connection.idle, false);
                // The kernel sent the resume before it saw the daemon's end: for the daemon this is
                // a new flowlet.
                if std::mem::replace(&mut connection.ended, false) {
                    let kind = FlowEventKind::Start(connection.facts.clone());
                    out.push(FlowEvent { kind, ..event });
                    return Some(conn);
                }
                if idle {
                    out.push(event);
                }
            }
            FlowEventKind::Close => {
                if self.find(conn).is_some() {
                    self.connections[conn.slot.0 as usize] = None;
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

    /// Makes up lost events. `idle_now` reads from the kernel whether a connection is idle, and
    /// returns `None` if its slot has another user.
    pub(super) fn reconcile(
        &mut self,
        at_ns: u64,
        out: &mut Vec<FlowEvent>,
        idle_now: impl Fn(Conn) -> Option<bool>,
    ) {
        for (slot, entry) in (0u32..).zip(&mut self.connections) {
            let Some(connection) = entry else { continue };
            let conn = Conn {
                slot: crate::backend::SlotIndex(slot),
                use_count: connection.use_count,
            };
            let kind = match idle_now(conn) {
                None => FlowEventKind::Close,
                // An ended flowlet has no further events until its backlog returns or its socket
                // closes.
                Some(idle) if idle == connection.idle || connection.ended => continue,
                Some(true) => FlowEventKind::Idle,
                Some(false) => FlowEventKind::Resume,
            };
            match kind {
                FlowEventKind::Close => *entry = None,
                _ => connection.idle = kind == FlowEventKind::Idle,
            }
            out.push(FlowEvent { conn, at_ns, kind });
        }
    }
}

#[cfg(test)]
mod tests;
