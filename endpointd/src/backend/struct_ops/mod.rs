//! Pacing by a TCP congestion control, written in BPF around the kernel's cubic
//! (`bpf/struct_ops.bpf.c`).
//!
//! | module | contents |
//! |---|---|
//! | `skel` | the generated skeleton |
//! | `load` | kernel checks, loading, choice of the congestion control's name |
//! | `lift_pin` | a pinned program, by which the next daemon lifts a killed one's maxima |
//! | `names` | names and constants that `load` and `take_over` share with the program |
//! | `table` | memory shared with the program: rates are plain stores |
//! | `take_over` | a namespace's default and its existing sockets, there and back |
//! | `pods` | the same for the namespaces of pods |
//! | `socket_pass` | passes over all namespaces' sockets, a namespace at a time |
//! | `event_sequencer` | event sequences per connection, repaired after losses and races |
//!
//! When the daemon is killed, sockets and the namespace's default keep the program alive; leases
//! run out, and it is plain cubic. The next daemon takes those sockets over. Only one thing is
//! pinned: the program that lifts maxima.
//!
//! A lapsed lease is never revived: rates carry a generation, and the first grant or renewal after
//! a lapse starts a new one.

mod event_sequencer;
mod lift_pin;
mod load;
mod names;
mod pods;
mod socket_pass;
mod table;
mod take_over;

include!(concat!(env!("OUT_DIR"), "/struct_ops.rs"));

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

use libbpf_rs::{Link, MapCore, MapFlags};

use self::event_sequencer::EventSequencer;
use self::lift_pin::LiftPin;
use self::load::RegisteredProgram;
pub use self::load::TxStart;
pub(super) use self::names::NAME_PREFIX;
use self::pods::{Pods, TakeOver};
use self::skel::StructOpsSkel;
use self::socket_pass::SocketPass;
use self::table::{GlobalWords, MappedSlots, SlotState};
use self::take_over::Settings;
use super::namespaces::own_inode;
use super::pass_rest::PassRest;
use super::ring::EventRing;
use super::sysctls::Sysctls;
use super::{
    BackendConfig, BackendError, BackendKind, BackendStats, Conn, FlowEvent, PacingBackend,
    SlotIndex, Usage,
};
use crate::clock::now_ns;

/// The struct_ops back end.
pub struct StructOps {
    // Dropped in this order: the registration before the program, the mappings before the maps.
    registration: Option<Link>,
    first_write: Option<Link>,
    ring: EventRing,
    slots: MappedSlots,
    globals: GlobalWords,
    skel: StructOpsSkel<'static>,
    name: String,
    /// Settings of the namespace before, while ours are in force.
    original: Option<Settings>,
    sysctls: Sysctls,
    pods: Pods,
    lift_pin: LiftPin,
    sequencer: EventSequencer,
    raw: Vec<FlowEvent>,
    events_lost: u64,
    generation: u32,
    /// Latest expiry ever granted: past it, every rate is dead.
    granted_until_ns: u64,
    /// Pass over the sockets that is under way, time of the next one, and the count of sockets that
    /// had left under a maximum at the last one.
    pass: Option<SocketPass>,
    next_pass_ns: u64,
    left_capped: u64,
    rest: PassRest,
}

/// Interval of passes over all sockets,
const PASS_EVERY_NS: u64 = 5_000_000_000;
/// and the inverse of the share of time that these may take.
const PASS_SHARE: u64 = 500;
/// Shortest rest between passes for sockets that leave under a maximum.
const LEFT_PAUSE_NS: u64 = 100_000_000;

impl std::fmt::Debug for StructOps {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("StructOps")
            .field("name", &self.name)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl StructOps {
    /// Loads and registers the congestion control. With `config.take_over`, makes it the default of
    /// the calling thread's network namespace and switches the existing sockets to it.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`] when the kernel cannot run it, with the reason.
    pub fn open(config: &BackendConfig) -> Result<Self, BackendError> {
        let sysctls = Sysctls::below(&config.procfs);
        // Before the sockets are taken over, which then have their own maxima.
        let lift_pin = LiftPin::open(&config.instance);
        let found = take_over::find_settings(&sysctls, lift_pin.earlier().is_some())?;
        let RegisteredProgram {
            mut skel,
            registration,
            first_write,
            name,
        } = load::load(config, &sysctls, &found)?;
        let ring = EventRing::new(&skel.maps.events)?;
        let slots = MappedSlots::map(skel.maps.slots.as_fd(), config.max_flows)?;
        let data = skel
            .maps
            .bss_data
            .as_deref_mut()
            .ok_or_else(|| BackendError::Unavailable {
                mechanism: "struct_ops",
                reason: "the program's data is not mapped".to_owned(),
            })?;
        let globals = table::global_words(data);
        let mut backend = Self {
            registration: Some(registration),
            first_write,
            ring,
            slots,
            globals,
            skel,
            name,
            original: None,
            pods: Pods::new(config, own_inode()?, sysctls.clone()),
            sysctls,
            lift_pin,
            sequencer: EventSequencer::new(config.max_flows),
            raw: Vec::new(),
            events_lost: 0,
            generation: 1,
            granted_until_ns: 0,
            pass: None,
            next_pass_ns: now_ns() + PASS_EVERY_NS,
            left_capped: 0,
            rest: PassRest::default(),
        };
        // Without the pin, pacing works.
        if let Err(error) = backend.lift_pin.replace(&backend.skel.progs.rw_lift) {
            tracing::warn!(%error, "nothing is left for the next daemon");
        }
        // Tags of fresh slots are 0, so generation 0 would be theirs.
        backend.globals.generation().store(1, Ordering::Release);
        let observing = u64::from(config.observe);
        backend
            .globals
            .observing()
            .store(observing, Ordering::Release);
        if config.take_over {
            // The default first: sockets that are made during the pass then have the congestion
            // control, too.
            let ours = found.original.taken_over(&backend.name, config.observe);
            backend.original = Some(found.original);
            ours.apply(&backend.sysctls)?;
            take_over::for_all_sockets(&backend.skel.progs.rw_take_over, None)?;
            let failed = backend.globals.switch_failed().swap(0, Ordering::Relaxed);
            if failed > 0 {
                tracing::warn!(failed, "sockets could not be taken over");
            }
        }
        Ok(backend)
    }

    /// Loads and registers the congestion control under a name of its own and removes it again, to
    /// learn if this kernel can run it. Touches no socket.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`] with the reason.
    pub fn probe() -> Result<(), BackendError> {
        let config = BackendConfig {
            // At most 8 characters, and unique among the probes that run.
            instance: format!("p{}", std::process::id() % 10_000_000),
            max_flows: 1,
            min_flowlet_bytes: 1,
            max_burst_ns: 0,
            cgroup: None,
            device: None,
            take_over: false,
            network_namespaces: Vec::new(),
            procfs: "/proc".into(),
            observe: false,
        };
        let sysctls = Sysctls::below(&config.procfs);
        let found = take_over::find_settings(&sysctls, false)?;
        load::load(&config, &sysctls, &found).map(drop)
    }

    /// Returns the hook by which this kernel reports a transmission into an empty pipe.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`] when it has none of the hooks that the program knows.
    pub fn tx_start() -> Result<TxStart, BackendError> {
        load::tx_start()
    }

    /// Returns the congestion control's name in this life.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns true if this kernel tells when a flowlet's first byte is written.
    #[must_use]
    pub fn traces_writes() -> bool {
        load::traces_writes()
    }

    /// Returns true if the time of a flowlet's first write is known. Otherwise its first
    /// transmission stands in.
    #[must_use]
    pub fn sees_first_write(&self) -> bool {
        self.first_write.is_some()
    }

    /// Starts a generation if every rate is dead, so that none of them is revived.
    fn grant_until(&mut self, expires_ns: u64) {
        if now_ns() >= self.granted_until_ns {
            self.next_generation();
        }
        self.granted_until_ns = self.granted_until_ns.max(expires_ns);
    }

    fn next_generation(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.globals
            .generation()
            .store(u64::from(self.generation), Ordering::Release);
    }

    /// Returns a slot that was taken from an idle connection to the kernel's free list.
    fn release_slot(&self, slot: SlotIndex) -> Result<(), BackendError> {
        self.globals.connections().fetch_sub(1, Ordering::Relaxed);
        self.skel
            .maps
            .free_slots
            .update(&[], &slot.0.to_ne_bytes(), MapFlags::ANY)
            .map_err(|error| BackendError::bpf("give a slot back", &error))
    }

    /// Continues a pass over all sockets, or begins one: one namespace a call. A pass lifts the
    /// maxima of lapsed leases on sockets that rest or have left the congestion control. It takes
    /// back slots whose sockets ended without the program's notice.
    fn pass_over_sockets(&mut self, out: &mut Vec<FlowEvent>) -> Result<(), BackendError> {
        let mut pass = match self.pass.take() {
            Some(pass) => pass,
            None => {
                self.left_capped = self.globals.left_capped().load(Ordering::Relaxed);
                // Slots are marked with the pass's number: one with an older mark has no socket any
                // more.
                let number = self.globals.pass().fetch_add(1, Ordering::SeqCst) + 1;
                SocketPass::new(number, self.pods.namespaces())
            }
        };
        if !pass.step(&self.skel.progs.rw_look_over) {
            self.pass = Some(pass);
            return Ok(());
        }
        self.next_pass_ns =
            pass.begun_ns() + PASS_EVERY_NS.max(pass.took_ns().saturating_mul(PASS_SHARE));
        self.rest.begin(now_ns(), pass.took_ns(), LEFT_PAUSE_NS);
        let number = pass.finish()?;
        let now_ns = now_ns();
        // Slots from `next_fresh` on were never used.
        let fresh = self.globals.next_fresh().load(Ordering::SeqCst);
        for slot in 0..u32::try_from(fresh)
            .unwrap_or(u32::MAX)
            .min(self.slots.len())
        {
            if let Some(conn) = self.slots.reclaim_unmet(SlotIndex(slot), number) {
                self.release_slot(conn.slot)?;
                self.sequencer.close(conn, now_ns);
            }
        }
        self.sequencer.take_pending(out);
        Ok(())
    }

    /// Returns true if sockets have left under a maximum since the last pass began.
    fn any_left(&self) -> bool {
        self.globals.left_capped().load(Ordering::Relaxed) != self.left_capped
    }

    /// Takes over pods' namespaces that have come, and forgets those that have gone.
    fn follow_pods(&mut self, now_ns: u64) -> Result<(), BackendError> {
        // Without take-over the sockets are another's to choose.
        let Some(node) = &self.original else {
            return Ok(());
        };
        if self.pods.next_ns().is_none_or(|at| at > now_ns) {
            return Ok(());
        }
        let take_over = TakeOver {
            node,
            name: &self.name,
            observing: self.globals.observing().load(Ordering::Relaxed) != 0,
            map: &self.skel.maps.pods,
            earlier: self.lift_pin.earlier(),
            program: &self.skel.progs.rw_take_over,
        };
        let followed = self.pods.follow(now_ns, &take_over);
        let failed = self.globals.switch_failed().swap(0, Ordering::Relaxed);
        if failed > 0 {
            tracing::warn!(failed, "sockets of a pod could not be taken over");
        }
        followed
    }

    /// Reads the slots of all tracked connections for the events that were lost.
    fn reconcile(&mut self, at_ns: u64, out: &mut Vec<FlowEvent>) {
        let slots = &self.slots;
        self.sequencer
            .reconcile(at_ns, out, |conn| match slots.owner_of(conn.slot) {
                Some((use_count, Some(state)))
                    if use_count == conn.use_count && state != SlotState::Free =>
                {
                    // An idle time without an event shows in the usage: it must not become an event
                    // here.
                    let silent = slots.usage(conn).is_some_and(|usage| usage.rests_ns > 0);
                    Some(state == SlotState::Idle && !silent)
                }
                _ => None,
            });
    }
}

impl PacingBackend for StructOps {
    fn kind(&self) -> BackendKind {
        BackendKind::StructOps
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.ring.fd()
    }

    fn poll_events(&mut self, now_ns: u64, out: &mut Vec<FlowEvent>) -> Result<(), BackendError> {
        self.sequencer.take_pending(out);
        let drained = self.ring.drain(&mut self.raw);
        for event in self.raw.drain(..) {
            if let Some(revived) = self.sequencer.admit(event, out) {
                self.slots.set_ended(revived, false);
            }
        }
        // Read after the ring was drained: events queued before a loss have been applied.
        let lost = self.globals.events_lost().load(Ordering::Relaxed);
        if lost != self.events_lost {
            self.events_lost = lost;
            self.reconcile(now_ns, out);
        }
        // A socket that left under a maximum stays slow until a pass lifts it: the interval is too
        // long. Any application can leave as often as it likes, so these passes rest as well.
        let left = self.rest.is_over(now_ns) && self.any_left();
        let followed = self.follow_pods(now_ns);
        let passed = if self.pass.is_some() || now_ns >= self.next_pass_ns || left {
            self.pass_over_sockets(out)
        } else {
            Ok(())
        };
        drained.and(followed).and(passed)
    }

    fn next_poll_ns(&self) -> Option<u64> {
        if self.sequencer.has_pending() || self.pass.is_some() {
            return Some(0);
        }
        // Nothing else is left to find on an idle host: nothing has a slot, and no lease holds.
        let busy = self.globals.connections().load(Ordering::Relaxed) > 0;
        let left = self.any_left().then_some(self.rest.until_ns());
        let pods = self.original.as_ref().and_then(|_| self.pods.next_ns());
        busy.then_some(self.next_pass_ns)
            .into_iter()
            .chain(left)
            .chain(pods)
            .min()
    }

    fn set_rate(&mut self, conn: Conn, rate_bps: u64, expires_ns: u64) -> Result<(), BackendError> {
        if !self.sequencer.is_current(conn) {
            return Ok(());
        }
        // Less than one byte per second is no rate.
        if rate_bps < 8 {
            self.slots.withdraw(conn.slot);
            return Ok(());
        }
        self.grant_until(expires_ns);
        // A rate for an ended flowlet resumes it: the kernel must report its next idle time again.
        if self.sequencer.set_ended(conn, false) {
            self.slots.set_ended(conn, false);
        }
        self.slots
            .publish(conn, self.generation, rate_bps / 8, expires_ns);
        Ok(())
    }

    fn renew(&mut self, expires_ns: u64) -> Result<(), BackendError> {
        self.grant_until(expires_ns);
        self.globals
            // One store renews all: the kernel takes the later of this and a slot's own expiry.
            .expires_ns()
            .store(expires_ns, Ordering::Release);
        Ok(())
    }

    fn observe(&mut self, observing: bool) -> Result<(), BackendError> {
        self.next_generation();
        self.globals
            .observing()
            .store(u64::from(observing), Ordering::Release);
        let Some(original) = &self.original else {
            return Ok(());
        };
        let pods = self.pods.apply_bursts(&self.name, observing);
        original
            .apply_bursts(&self.sysctls, &self.name, observing)
            .and(pods)
    }

    fn clear(&mut self, conn: Conn) -> Result<(), BackendError> {
        if !self.sequencer.is_current(conn) {
            return Ok(());
        }
        self.slots.withdraw(conn.slot);
        self.slots.set_ended(conn, true);
        self.sequencer.set_ended(conn, true);
        // An active flowlet keeps its slot. The kernel sees the mark when the flowlet turns idle,
        // and frees the slot then.
        if !self.slots.reclaim(conn) {
            return Ok(());
        }
        self.sequencer.close(conn, now_ns());
        self.release_slot(conn.slot)
    }

    fn clear_all(&mut self) -> Result<(), BackendError> {
        self.next_generation();
        Ok(())
    }

    fn usage(&mut self, _now_ns: u64, out: &mut Vec<Usage>) {
        let slots = &self.slots;
        out.extend(
            self.sequencer
                .running()
                .filter_map(|conn| slots.usage(conn)),
        );
    }

    fn watch(&mut self, conn: Conn) {
        if self.sequencer.is_current(conn) {
            self.slots.watch(conn);
        }
    }

    fn stats(&self) -> BackendStats {
        let read = |word: &std::sync::atomic::AtomicU64| word.load(Ordering::Relaxed);
        BackendStats {
            connections: read(self.globals.connections()),
            table_full: read(self.globals.table_full()),
            events_lost: read(self.globals.events_lost()),
            adopted: read(self.globals.adopted()),
            expired: read(self.globals.expired()),
            windows_bounded: read(self.globals.windows_bounded()),
            socket_passes: read(self.globals.pass()),
            pods: self.pods.namespaces().count() as u64,
        }
    }

    fn shut_down(&mut self) -> Result<(), BackendError> {
        self.next_generation();
        let mut result = Ok(());
        if let Some(original) = self.original.take() {
            // The default first: no socket is made with our congestion control behind the pass.
            result = original.give_back(&self.sysctls, &self.name);
            let program = &self.skel.progs.rw_give_back;
            let walked = take_over::for_all_sockets(program, None);
            let walked = self.pods.give_back(&self.name, program).and(walked);
            let failed = self.globals.switch_failed().swap(0, Ordering::Relaxed);
            result = result.and(walked);
            if failed > 0 && result.is_ok() {
                result = Err(BackendError::System {
                    what: format!("give {failed} sockets back"),
                    source: std::io::Error::other("the kernel refused"),
                });
            }
        }
        self.first_write = None;
        self.registration = None;
        result.and(self.lift_pin.remove())
    }
}

impl Drop for StructOps {
    fn drop(&mut self) {
        if let Err(error) = self.shut_down() {
            tracing::warn!("{error}");
        }
    }
}
