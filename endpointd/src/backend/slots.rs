//! Slot table of both back ends (`bpf/slots.h`): rates reach the kernel by plain stores,
//! and reports are followed by connection.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use indexmap::IndexMap;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use rustc_hash::FxBuildHasher;

use super::sys::{MappedArray, Word32, Word64};
use super::{BackendError, BackendStats, Conn, FlowEvent, FlowEventKind, SlotIndex, Usage};

/// Smallest rate that is put in force (`RW_MIN_BYTES_PER_S`).
pub(super) const MIN_BYTES_PER_S: u64 = 16_384;

/// Bytes of the ring of events for each slot: two thirds of an event with its header.
const RING_BYTES_PER_SLOT: u32 = 64;
/// Smallest and largest ring, powers of two: 682 events, and 699,050.
const MIN_RING_BYTES: u32 = 1 << 16;
const MAX_RING_BYTES: u32 = 1 << 26;

/// Size of the ring of events of a table of `slots`: a power of two, and of pages.
pub(super) fn ring_bytes(slots: u32) -> u32 {
    let wanted = slots.saturating_mul(RING_BYTES_PER_SLOT);
    wanted
        .clamp(MIN_RING_BYTES, MAX_RING_BYTES)
        .next_power_of_two()
}

/// `struct rw_slot_rate`: size and member offsets.
const RATE_BYTES: usize = 40;
const RATE_WIRE: Word64 = Word64(0);
const RATE_EXPIRES: Word64 = Word64(8);
const RATE_USE_COUNT: Word32 = Word32(16);
const RATE_CLEARS: Word32 = Word32(20);
const RATE_WATCH: Word64 = Word64(24);
const RATE_TUNNEL: Word32 = Word32(32);
/// `RW_WATCHES`: beside the use count, so that no watch is zero.
const WATCHED: u64 = 1 << 32;

/// `struct rw_slot_state`: size and member offsets.
const STATE_BYTES: usize = 56;
const STATE_LAST: Word64 = Word64(0);
const STATE_USES: Word32 = Word32(8);
const STATE_PHASE: Word32 = Word32(12);
const STATE_SENT: Word64 = Word64(16);
const STATE_ACKED: Word64 = Word64(24);
const STATE_LIMITED: Word64 = Word64(32);
const STATE_CAPPED: Word32 = Word32(40);
const STATE_CONTINUES: Word32 = Word32(44);
const STATE_ROUND_TRIP: Word32 = Word32(48);
const STATE_FRAME: Word32 = Word32(52);

/// `struct rw_slot_counters`: size and member offsets.
const COUNTER_BYTES: usize = 64;
const COUNTER_CONNECTIONS: Word64 = Word64(0);
const COUNTER_TABLE_FULL: Word64 = Word64(8);
const COUNTER_EVENTS_LOST: Word64 = Word64(16);
const COUNTER_ADOPTED: Word64 = Word64(24);
const COUNTER_EXPIRED: Word64 = Word64(32);
const COUNTER_TIMESTAMPS: Word64 = Word64(40);
const COUNTER_OBSERVING: Word64 = Word64(48);
const COUNTER_ALONE: Word64 = Word64(56);

/// `enum rw_phase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotPhase {
    /// No reported flowlet.
    Quiet,
    /// Start or resume was reported.
    Active,
    /// Idle was reported, and the daemon has not ended the flowlet.
    Resting,
    /// A FIN or RST was sent.
    Closing,
    /// The slot has no user.
    Free,
}

impl SlotPhase {
    fn decode(word: u32) -> Self {
        match word {
            1 => Self::Active,
            2 => Self::Resting,
            3 => Self::Closing,
            4 => Self::Free,
            _ => Self::Quiet,
        }
    }

    fn encode(self) -> u32 {
        match self {
            Self::Quiet => 0,
            Self::Active => 1,
            Self::Resting => 2,
            Self::Closing => 3,
            Self::Free => 4,
        }
    }
}

/// State of a slot as the program last wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotState {
    /// Time of the connection's last activity, CLOCK_MONOTONIC nanoseconds.
    pub(super) last_ns: u64,
    /// Phase of its flowlet.
    pub(super) phase: SlotPhase,
    /// Use count of its present user.
    pub(super) use_count: u32,
    /// Last time at which its rate kept it from sending; 0: never.
    pub(super) limited_ns: u64,
    /// Its sender had more to send at `last_ns` (tc_htb).
    pub(super) continues: bool,
    /// Its largest frame at the device (tc_htb); 0: none yet.
    pub(super) frame_bytes: u32,
}

/// A connection whose start was reported.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReportedConnection {
    /// Use count of the slot.
    pub(super) use_count: u32,
    /// The last report was a start or a resume.
    pub(super) active: bool,
    /// A rate was set and neither cleared nor seen expired.
    pub(super) wire_bytes_per_s: Option<u64>,
    /// The daemon ended its flowlet, and no other one was reported since.
    pub(super) ended: bool,
}

impl ReportedConnection {
    fn conn(self, slot: u32) -> Conn {
        Conn {
            slot: SlotIndex(slot),
            use_count: self.use_count,
        }
    }

    /// Makes an event of the connection, which has `slot`, in place of one from the kernel.
    pub(super) fn event(self, slot: u32, at_ns: u64, kind: FlowEventKind) -> FlowEvent {
        FlowEvent {
            conn: self.conn(slot),
            at_ns,
            kind,
        }
    }
}

/// Maps of a back end with a slot table.
pub(super) struct SlotMaps<'maps> {
    /// `struct rw_slot_rate` by slot.
    pub(super) rates: BorrowedFd<'maps>,
    /// `struct rw_slot_state` by slot.
    pub(super) states: BorrowedFd<'maps>,
    /// One `struct rw_slot_counters`.
    pub(super) counters: BorrowedFd<'maps>,
}

/// The slot table, and the connections reported to the daemon.
#[derive(Debug)]
pub(super) struct SlotTable {
    rates: MappedArray,
    states: MappedArray,
    counters: MappedArray,
    slots: u32,
    connections: IndexMap<u32, ReportedConnection, FxBuildHasher>,
    /// Counters as they were when this process began; the kernel's outlive it.
    baseline: BackendStats,
    resynced_lost: u64,
    /// Time of the newest resume or loss, and of the next search for idle reports that are missing.
    last_resume_ns: u64,
    idle_check_ns: Option<u64>,
}

/// Shortest time for which a backlog must be empty to count as an omitted idle report. A program
/// leaves such reports out within 1 ms of the one before (`RW_FLAP_NS`), and the resumes to them.
const UNREPORTED_NS: u64 = 2_000_000;
/// Time from a resume after which an omitted report shows in the slot's state.
const IDLE_CHECK_NS: u64 = 4_000_000;

impl SlotTable {
    /// Maps the table of `slots` entries.
    pub(super) fn new(maps: &SlotMaps<'_>, slots: u32) -> Result<Self, BackendError> {
        let map = |name: &str, map: BorrowedFd<'_>, value: usize, entries: u32| {
            MappedArray::new(map, value, index(entries)).map_err(|source| BackendError::System {
                what: format!("map the BPF array of {name} into the daemon"),
                source,
            })
        };
        let mut table = Self {
            rates: map("rates", maps.rates, RATE_BYTES, slots)?,
            states: map("states", maps.states, STATE_BYTES, slots)?,
            counters: map("counters", maps.counters, COUNTER_BYTES, 1)?,
            slots,
            connections: IndexMap::default(),
            baseline: BackendStats::default(),
            resynced_lost: 0,
            last_resume_ns: 0,
            idle_check_ns: None,
        };
        table.baseline = table.absolute_stats();
        table.resynced_lost = table.baseline.events_lost;
        Ok(table)
    }

    /// Makes every slot of a new table free: fills the queue from which the program takes them.
    pub(super) fn free_all(&self, free: &MapHandle) -> Result<(), BackendError> {
        for slot in 0..self.slots {
            self.set_phase(slot, SlotPhase::Free);
            push_free(free, slot)?;
        }
        Ok(())
    }

    fn set_phase(&self, slot: u32, phase: SlotPhase) {
        self.states
            .u32_at(index(slot) * STATE_BYTES, STATE_PHASE)
            .store(phase.encode(), Ordering::Release);
    }

    /// Tells the program whether use counts without a rate.
    pub(super) fn observe(&self, observing: bool) {
        self.counters
            .u64_at(0, COUNTER_OBSERVING)
            .store(u64::from(observing), Ordering::Release);
    }

    /// Tells the program whether no other product's program may want sockets' callbacks (sock_ops).
    pub(super) fn set_alone(&self, alone: bool) {
        self.counters
            .u64_at(0, COUNTER_ALONE)
            .store(u64::from(alone), Ordering::Release);
    }

    /// Returns the number of slots.
    pub(super) fn slots(&self) -> u32 {
        self.slots
    }

    /// Reads the state of `slot`.
    pub(super) fn state(&self, slot: u32) -> SlotState {
        decode_state(&self.states, slot)
    }

    /// Replaces phase `from` by `to`; false if the program has changed it meanwhile.
    pub(super) fn exchange_phase(&self, slot: u32, from: SlotPhase, to: SlotPhase) -> bool {
        self.states
            .u32_at(index(slot) * STATE_BYTES, STATE_PHASE)
            .compare_exchange(
                from.encode(),
                to.encode(),
                Ordering::AcqRel,
                Ordering::Acquire,
            )
            .is_ok()
    }

    /// Returns the connections that were reported and have not closed, by slot.
    pub(super) fn connections(&self) -> impl Iterator<Item = (u32, ReportedConnection)> + '_ {
        self.connections
            .iter()
            .map(|(slot, connection)| (*slot, *connection))
    }

    /// Returns the connection on `slot` that was reported and has not closed.
    pub(super) fn connection(&self, slot: u32) -> Option<ReportedConnection> {
        self.connections.get(&slot).copied()
    }

    /// Returns true if a reported flowlet runs.
    pub(super) fn any_active(&self) -> bool {
        self.connections
            .values()
            .any(|connection| connection.active)
    }

    /// Returns true if `conn` was reported and is the present user of its slot.
    pub(super) fn is_current(&self, conn: Conn) -> bool {
        self.connection(conn.slot.0).is_some_and(|connection| {
            let state = self.state(conn.slot.0);
            connection.use_count == conn.use_count
                && state.use_count == conn.use_count
                && state.phase != SlotPhase::Free
        })
    }

    fn forget(&mut self, slot: u32) {
        self.unset_rate(slot);
        self.connections.swap_remove(&slot);
    }

    fn unset_rate(&self, slot: u32) {
        self.rates
            .u64_at(index(slot) * RATE_BYTES, RATE_EXPIRES)
            .store(0, Ordering::Release);
    }

    /// Applies an event from the kernel, and appends what follows for the daemon to `out`. Reports
    /// on connections of an earlier daemon are dropped; a lost close is made up.
    pub(super) fn apply(&mut self, event: FlowEvent, out: &mut Vec<FlowEvent>) {
        let Conn {
            slot: SlotIndex(slot),
            use_count,
        } = event.conn;
        if slot >= self.slots {
            return;
        }
        let known = self.connection(slot);
        let same = known.filter(|connection| connection.use_count == use_count);
        match event.kind {
            FlowEventKind::Start(_) => {
                if let (None, Some(old)) = (same, known) {
                    self.forget(slot);
                    out.push(old.event(slot, event.at_ns, FlowEventKind::Close));
                }
                let now = ReportedConnection {
                    use_count,
                    active: true,
                    // A repeated start keeps the connection's rate.
                    wire_bytes_per_s: same.and_then(|connection| connection.wire_bytes_per_s),
                    ended: false,
                };
                self.connections.insert(slot, now);
            }
            _ if same.is_none() => return,
            FlowEventKind::Idle => {
                if !self.set_active(slot, false) {
                    return;
                }
            }
            FlowEventKind::Resume => {
                self.last_resume_ns = event.at_ns;
                self.idle_check_ns
                    .get_or_insert(event.at_ns + IDLE_CHECK_NS);
                if !self.set_active(slot, true) {
                    return;
                }
            }
            FlowEventKind::Close => self.forget(slot),
            FlowEventKind::FirstPaced { .. }
            | FlowEventKind::Limited
            | FlowEventKind::OwnMax(_) => {}
        }
        out.push(event);
    }

    /// Stores whether the flowlet on `slot` runs by the last report; false if that was known
    /// before.
    fn set_active(&mut self, slot: u32, active: bool) -> bool {
        self.connections
            .get_mut(&slot)
            .is_some_and(|connection| std::mem::replace(&mut connection.active, active) != active)
    }

    /// Returns the time at which [`SlotTable::report_omitted_idles`] is due.
    pub(super) fn next_idle_check_ns(&self) -> Option<u64> {
        self.idle_check_ns
    }

    /// Reports the idle times that the program left out because a socket's backlog came and went
    /// quickly, and those that found the ring full.
    pub(super) fn report_omitted_idles(&mut self, now_ns: u64, out: &mut Vec<FlowEvent>) {
        if self
            .idle_check_ns
            .is_none_or(|idle_check_ns| now_ns < idle_check_ns)
        {
            return;
        }
        let again = self.last_resume_ns.saturating_add(IDLE_CHECK_NS) > now_ns;
        self.idle_check_ns = again.then_some(now_ns + IDLE_CHECK_NS);
        for (slot, connection) in &mut self.connections {
            let state = decode_state(&self.states, *slot);
            if connection.active
                && state.use_count == connection.use_count
                && matches!(state.phase, SlotPhase::Resting | SlotPhase::Quiet)
                && state.last_ns.saturating_add(UNREPORTED_NS) < now_ns
            {
                connection.active = false;
                out.push(connection.event(*slot, state.last_ns, FlowEventKind::Idle));
            }
        }
    }

    /// Compares the reported connections with the kernel's state after events were lost: reports
    /// those that are gone, and makes [`SlotTable::report_omitted_idles`] due.
    pub(super) fn resync(&mut self, now_ns: u64, out: &mut Vec<FlowEvent>) {
        // Reading every state costs a pass over the table: only a loss makes it necessary.
        let lost = self.counter(COUNTER_EVENTS_LOST);
        if lost == self.resynced_lost {
            return;
        }
        self.resynced_lost = lost;
        let gone: Vec<(u32, ReportedConnection)> = self
            .connections()
            .filter(|(slot, connection)| !self.is_current(connection.conn(*slot)))
            .collect();
        for (slot, connection) in gone {
            self.forget(slot);
            out.push(connection.event(slot, now_ns, FlowEventKind::Close));
        }
        // A pause that has just begun may end without a report. Ends are searched for now, and once
        // more when those pauses show.
        self.last_resume_ns = now_ns;
        self.idle_check_ns = Some(now_ns);
    }

    /// Tells the program what tunnels add to each frame of `slot`'s connection.
    pub(super) fn set_tunnel_bytes(&self, slot: u32, bytes: u16) {
        self.rates
            .u32_at(index(slot) * RATE_BYTES, RATE_TUNNEL)
            .store(u32::from(bytes), Ordering::Release);
    }

    /// Sets a rate; false if `conn` is stale. A rate of zero is none.
    pub(super) fn set_rate(&mut self, conn: Conn, wire_bytes_per_s: u64, expires_ns: u64) -> bool {
        if !self.is_current(conn) {
            return false;
        }
        let slot = conn.slot.0;
        let base = index(slot) * RATE_BYTES;
        // An expiry of 0 is how the program knows that there is no rate.
        let expires = if wire_bytes_per_s == 0 { 0 } else { expires_ns };
        let owner = self.rates.u32_at(base, RATE_USE_COUNT);
        if owner.load(Ordering::Acquire) != conn.use_count {
            // The earlier connection's expiry must not meet this one's rate.
            self.rates
                .u64_at(base, RATE_EXPIRES)
                .store(0, Ordering::Release);
            owner.store(conn.use_count, Ordering::Release);
        }
        self.rates
            .u64_at(base, RATE_WIRE)
            .store(wire_bytes_per_s, Ordering::Release);
        // The expiry last: a program that reads between the stores never joins it with the old
        // rate.
        self.rates
            .u64_at(base, RATE_EXPIRES)
            .store(expires, Ordering::Release);
        if let Some(connection) = self.connections.get_mut(&slot) {
            connection.wire_bytes_per_s = (expires != 0).then_some(wire_bytes_per_s);
        }
        true
    }

    /// Moves the expiry of every rate that has not run out.
    pub(super) fn renew(&mut self, now_ns: u64, expires_ns: u64) {
        for (slot, connection) in &mut self.connections {
            if connection.wire_bytes_per_s.is_none() {
                continue;
            }
            let expiry = self.rates.u64_at(index(*slot) * RATE_BYTES, RATE_EXPIRES);
            // A lapsed lease stays lapsed: the socket is plain TCP by now, and a rate would come
            // back unasked.
            if expiry.load(Ordering::Acquire) > now_ns {
                expiry.store(expires_ns, Ordering::Release);
            } else {
                connection.wire_bytes_per_s = None;
            }
        }
    }

    /// Takes the rate of `conn` away and ends its flowlet; false if `conn` is stale.
    pub(super) fn clear(&mut self, conn: Conn) -> bool {
        let current = self.is_current(conn);
        if current {
            self.clear_slot(conn.slot.0);
        }
        current
    }

    fn clear_slot(&mut self, slot: u32) {
        self.unset_rate(slot);
        self.rates
            .u32_at(index(slot) * RATE_BYTES, RATE_CLEARS)
            // The program compares this count: a backlog that returns is a new flowlet, not a
            // resume.
            .fetch_add(1, Ordering::AcqRel);
        if let Some(connection) = self.connections.get_mut(&slot) {
            connection.wire_bytes_per_s = None;
            connection.ended = true;
        }
    }

    /// Forgets the rates whose lease has run out, and returns their slots.
    pub(super) fn forget_lapsed(&mut self, now_ns: u64) -> Vec<u32> {
        let mut lapsed = Vec::new();
        for (slot, connection) in &mut self.connections {
            if connection.wire_bytes_per_s.is_some() && !rate_holds(&self.rates, *slot, now_ns) {
                connection.wire_bytes_per_s = None;
                lapsed.push(*slot);
            }
        }
        lapsed
    }

    /// Returns true if only a pass over the sockets can correct something. This is a maximum that
    /// outlived its lease on an idle socket, or the slot of a connection that has been quiet for
    /// `quiet_ns` since its flowlet ended.
    pub(super) fn needs_socket_walk(&self, now_ns: u64, quiet_ns: u64) -> bool {
        self.connections.iter().any(|(slot, connection)| {
            let capped = || {
                let word = self.states.u32_at(index(*slot) * STATE_BYTES, STATE_CAPPED);
                word.load(Ordering::Acquire) != 0 && !rate_holds(&self.rates, *slot, now_ns)
            };
            let quiet = || self.state(*slot).last_ns.saturating_add(quiet_ns) < now_ns;
            (connection.ended && !connection.active && quiet()) || capped()
        })
    }

    /// Appends the use of every connection with a running flowlet and a rate.
    pub(super) fn usage(&self, out: &mut Vec<Usage>) {
        let observing = self
            .counters
            .u64_at(0, COUNTER_OBSERVING)
            .load(Ordering::Relaxed)
            != 0;
        for (slot, connection) in &self.connections {
            let state = self.state(*slot);
            if !connection.active
                || (connection.wire_bytes_per_s.is_none() && !observing)
                || state.use_count != connection.use_count
            {
                continue;
            }
            let word = |member: Word64| {
                let word = self.states.u64_at(index(*slot) * STATE_BYTES, member);
                word.load(Ordering::Acquire)
            };
            out.push(Usage {
                conn: connection.conn(*slot),
                sent_bytes: word(STATE_SENT),
                acked_bytes: word(STATE_ACKED),
                limited_ns: state.limited_ns,
                round_trip_ns: u64::from(
                    self.states
                        .u32_at(index(*slot) * STATE_BYTES, STATE_ROUND_TRIP)
                        .load(Ordering::Acquire),
                ) * 1_000,
            });
        }
    }

    /// Asks the program for one report when `conn` is limited by its rate; a stale `conn` is
    /// ignored.
    pub(super) fn watch(&self, conn: Conn) {
        if self.is_current(conn) {
            self.rates
                .u64_at(index(conn.slot.0) * RATE_BYTES, RATE_WATCH)
                .store(WATCHED | u64::from(conn.use_count), Ordering::Release);
        }
    }

    /// Returns true if `conn` was asked about by [`watch`](Self::watch), and not limited since.
    pub(super) fn is_watched(&self, conn: Conn) -> bool {
        let watch = self
            .rates
            .u64_at(index(conn.slot.0) * RATE_BYTES, RATE_WATCH)
            .load(Ordering::Acquire);
        watch == WATCHED | u64::from(conn.use_count)
    }

    /// Takes every rate away, those of an earlier daemon included.
    pub(super) fn clear_all(&mut self) {
        // All slots, not only the reported ones: an adopted table may hold rates of connections
        // that have not been reported to this daemon.
        for slot in 0..self.slots {
            if self
                .rates
                .u64_at(index(slot) * RATE_BYTES, RATE_EXPIRES)
                .load(Ordering::Acquire)
                != 0
            {
                self.clear_slot(slot);
            }
        }
    }

    fn counter(&self, word: Word64) -> u64 {
        self.counters.u64_at(0, word).load(Ordering::Relaxed)
    }

    /// Returns true if a socket accepted the transmit timestamp flag.
    pub(super) fn has_timestamps(&self) -> bool {
        self.counter(COUNTER_TIMESTAMPS) != 0
    }

    /// Counts one connection less, after user space took a slot back.
    pub(super) fn count_released(&self) {
        self.counters
            .u64_at(0, COUNTER_CONNECTIONS)
            .fetch_sub(1, Ordering::Relaxed);
    }

    fn absolute_stats(&self) -> BackendStats {
        BackendStats {
            connections: self.counter(COUNTER_CONNECTIONS),
            table_full: self.counter(COUNTER_TABLE_FULL),
            events_lost: self.counter(COUNTER_EVENTS_LOST),
            adopted: self.counter(COUNTER_ADOPTED),
            expired: self.counter(COUNTER_EXPIRED),
            ..BackendStats::default()
        }
    }

    /// Returns the counters since this process began.
    pub(super) fn stats(&self) -> BackendStats {
        let now = self.absolute_stats();
        BackendStats {
            connections: now.connections,
            // Pinned counters outlive daemons; these count from the start of this one.
            table_full: now.table_full.wrapping_sub(self.baseline.table_full),
            events_lost: now.events_lost.wrapping_sub(self.baseline.events_lost),
            adopted: now.adopted.wrapping_sub(self.baseline.adopted),
            expired: now.expired.wrapping_sub(self.baseline.expired),
            ..now
        }
    }
}

/// Returns true if the lease of the slot's rate holds.
fn rate_holds(rates: &MappedArray, slot: u32, now_ns: u64) -> bool {
    let expiry = rates.u64_at(index(slot) * RATE_BYTES, RATE_EXPIRES);
    expiry.load(Ordering::Acquire) > now_ns
}

fn decode_state(states: &MappedArray, slot: u32) -> SlotState {
    let base = index(slot) * STATE_BYTES;
    SlotState {
        last_ns: states.u64_at(base, STATE_LAST).load(Ordering::Acquire),
        phase: SlotPhase::decode(states.u32_at(base, STATE_PHASE).load(Ordering::Acquire)),
        use_count: states
            .u32_at(base, STATE_USES)
            .load(Ordering::Acquire)
            // `uses` counts the present user, the use count only those before it.
            .wrapping_sub(1),
        limited_ns: states.u64_at(base, STATE_LIMITED).load(Ordering::Acquire),
        continues: states.u32_at(base, STATE_CONTINUES).load(Ordering::Acquire) != 0,
        frame_bytes: states.u32_at(base, STATE_FRAME).load(Ordering::Acquire),
    }
}

/// Converts a slot number, which is below 2^20, to an index.
pub(super) fn index(slot: u32) -> usize {
    usize::try_from(slot).expect("32 bits fit")
}

/// Appends `slot` to the queue of free slots.
pub(super) fn push_free(free: &MapHandle, slot: u32) -> Result<(), BackendError> {
    free.update(&[], &slot.to_ne_bytes(), MapFlags::ANY)
        .map_err(|error| BackendError::bpf("give a slot back to the flow table", &error))
}

/// Makes a function that adds the attempted operation to a system error.
pub(super) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> BackendError {
    let what = what.into();
    move |source| BackendError::System { what, source }
}

#[cfg(test)]
mod tests;
