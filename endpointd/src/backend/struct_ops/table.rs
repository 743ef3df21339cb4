//! Memory shared with the kernel program: the slot table and the global words.
//!
//! A rate is published with a few plain stores and no system call. The layouts are those of `struct
//! rw_slot` and `struct rw_shared` in `bpf/cc_state.h`.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::backend::struct_ops::skel::types;
use crate::backend::{BackendError, Conn, SlotIndex, Usage};

/// State of a slot, the low half of its owner word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum SlotState {
    /// The slot has no user.
    Free = 0,
    /// Its flowlet has unacknowledged data.
    Active = 1,
    /// Its flowlet has no unacknowledged data.
    Idle = 2,
}

/// Composes the owner word: use count above, state below.
fn owner_word(use_count: u32, state: SlotState) -> u64 {
    u64::from(use_count) << 32 | u64::from(state as u32)
}

/// Slot table of the program, mapped into this process.
#[derive(Debug)]
pub(super) struct MappedSlots {
    base: NonNull<types::rw_slot>,
    slots: u32,
}

const _: () = assert!(size_of::<types::rw_slot>() == 128);

impl MappedSlots {
    /// Maps the table of `slots` entries behind the map's descriptor.
    pub(super) fn map(fd: BorrowedFd<'_>, slots: u32) -> Result<Self, BackendError> {
        let bytes = slots as usize * size_of::<types::rw_slot>();
        // SAFETY: a new shared mapping of a BPF array map of at least `bytes` bytes; the kernel
        // keeps the map alive while it is mapped.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(BackendError::System {
                what: "map the flow table".to_owned(),
                source: std::io::Error::last_os_error(),
            });
        }
        let base = NonNull::new(base.cast()).expect("mmap without MAP_FIXED is never at 0");
        Ok(Self { base, slots })
    }

    /// Returns the number of slots.
    pub(super) fn len(&self) -> u32 {
        self.slots
    }

    /// Returns one word of a slot, `None` beyond the table.
    fn word(
        &self,
        slot: SlotIndex,
        field: fn(*mut types::rw_slot) -> *mut u64,
    ) -> Option<&AtomicU64> {
        if slot.0 >= self.slots {
            return None;
        }
        // SAFETY: inside the mapping, 8-byte aligned, mapped as long as `self` lives, and accessed
        // by both sides as a whole word only.
        Some(unsafe { AtomicU64::from_ptr(field(self.base.as_ptr().add(slot.0 as usize))) })
    }

    fn owner(&self, slot: SlotIndex) -> Option<&AtomicU64> {
        // SAFETY: `field` is called with a pointer to a slot inside the mapping.
        self.word(slot, |slot| unsafe { &raw mut (*slot).owner })
    }

    fn tag(&self, slot: SlotIndex) -> Option<&AtomicU64> {
        // SAFETY: as for `owner`.
        self.word(slot, |slot| unsafe { &raw mut (*slot).tag })
    }

    fn ended(&self, slot: SlotIndex) -> Option<&AtomicU64> {
        // SAFETY: as for `owner`.
        self.word(slot, |slot| unsafe { &raw mut (*slot).ended })
    }

    /// Publishes a rate. The tag comes last, so that the kernel never joins one connection's tag
    /// with another's rate.
    pub(super) fn publish(
        &self,
        conn: Conn,
        generation: u32,
        rate_bytes_per_s: u64,
        expires_ns: u64,
    ) {
        // SAFETY: as for `owner`.
        let rate = self.word(conn.slot, |slot| unsafe {
            &raw mut (*slot).rate_bytes_per_s
        });
        // SAFETY: as for `owner`.
        let expires = self.word(conn.slot, |slot| unsafe { &raw mut (*slot).expires_ns });
        let (Some(rate), Some(expires), Some(tag)) = (rate, expires, self.tag(conn.slot)) else {
            return;
        };
        rate.store(rate_bytes_per_s, Ordering::Release);
        expires.store(expires_ns, Ordering::Release);
        tag.store(
            u64::from(conn.use_count) << 32 | u64::from(generation),
            Ordering::Release,
        );
    }

    /// Takes the rate away.
    pub(super) fn withdraw(&self, slot: SlotIndex) {
        if let Some(tag) = self.tag(slot) {
            tag.store(0, Ordering::Release);
        }
    }

    /// Marks in the slot whether the daemon has ended the connection's flowlet.
    pub(super) fn set_ended(&self, conn: Conn, ended: bool) {
        if let Some(word) = self.ended(conn.slot) {
            let value = if ended {
                u64::from(conn.use_count) << 32 | 1
            } else {
                0
            };
            word.store(value, Ordering::SeqCst);
        }
    }

    /// Asks the kernel for one report when the rate limits the connection.
    pub(super) fn watch(&self, conn: Conn) {
        // SAFETY: as for `owner`.
        if let Some(word) = self.word(conn.slot, |slot| unsafe { &raw mut (*slot).watched }) {
            word.store(u64::from(conn.use_count) << 32 | 1, Ordering::Release);
        }
    }

    /// Reads the kernel's last record of the connection's use, if it has the slot.
    pub(super) fn usage(&self, conn: Conn) -> Option<Usage> {
        let read = |field: fn(*mut types::rw_slot) -> *mut u64| {
            self.word(conn.slot, field)
                .map(|word| word.load(Ordering::Acquire))
        };
        // SAFETY: as for `owner`.
        let sent_bytes = read(|slot| unsafe { &raw mut (*slot).sent_bytes })?;
        // SAFETY: as above.
        let acked_bytes = read(|slot| unsafe { &raw mut (*slot).acked_bytes })?;
        // SAFETY: as above.
        let limited_ns = read(|slot| unsafe { &raw mut (*slot).limited_ns })?;
        // SAFETY: as above.
        let rests_ns = read(|slot| unsafe { &raw mut (*slot).rests_ns })?;
        // The owner is read last: if it is still this connection, so was all that was read before.
        let (use_count, _) = self.owner_of(conn.slot)?;
        (use_count == conn.use_count).then_some(Usage {
            conn,
            sent_bytes,
            acked_bytes,
            limited_ns,
            rests_ns,
        })
    }

    /// Takes the slot of a connection that the newest pass over all sockets, number `pass`, has not
    /// met: the socket ended without the program's notice. Returns the connection.
    pub(super) fn reclaim_unmet(&self, slot: SlotIndex, pass: u64) -> Option<Conn> {
        // SAFETY: as for `owner`.
        let met = self.word(slot, |slot| unsafe { &raw mut (*slot).met_pass })?;
        let (use_count, state) = self.owner_of(slot)?;
        let state = state.filter(|state| *state != SlotState::Free)?;
        if met.load(Ordering::Acquire) >= pass {
            return None;
        }
        let conn = Conn { slot, use_count };
        self.swap_to_free(conn, state).then_some(conn)
    }

    fn swap_to_free(&self, conn: Conn, from: SlotState) -> bool {
        // The next user gets another use count: handles of this one are stale from here on.
        let next = conn.use_count.wrapping_add(1);
        self.owner(conn.slot).is_some_and(|owner| {
            owner
                .compare_exchange(
                    owner_word(conn.use_count, from),
                    owner_word(next, SlotState::Free),
                    Ordering::SeqCst,
                    Ordering::SeqCst,
                )
                .is_ok()
        })
    }

    /// Returns the slot's use count, and its state (`None` for one that this version does not
    /// know).
    pub(super) fn owner_of(&self, slot: SlotIndex) -> Option<(u32, Option<SlotState>)> {
        let word = self.owner(slot)?.load(Ordering::SeqCst);
        let state = match word as u32 {
            0 => Some(SlotState::Free),
            1 => Some(SlotState::Active),
            2 => Some(SlotState::Idle),
            _ => None,
        };
        Some(((word >> 32) as u32, state))
    }

    /// Takes the slot from an idle connection; false if it is not idle, or has another user.
    pub(super) fn reclaim(&self, conn: Conn) -> bool {
        self.swap_to_free(conn, SlotState::Idle)
    }
}

impl Drop for MappedSlots {
    fn drop(&mut self) {
        let bytes = self.slots as usize * size_of::<types::rw_slot>();
        // SAFETY: unmaps what `map` mapped; no reference into it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), bytes) };
    }
}

/// The program's global words.
#[derive(Debug, Clone, Copy)]
pub(super) struct GlobalWords {
    base: NonNull<types::rw_shared>,
}

macro_rules! words {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        impl GlobalWords {
            $($(#[$doc])*
            pub(super) fn $name(&self) -> &AtomicU64 {
                // SAFETY: `new`'s contract; 8-byte aligned and accessed as a whole word only.
                unsafe { AtomicU64::from_ptr(&raw mut (*self.base.as_ptr()).$name) }
            })+
        }
    };
}

words! {
    /// Expiry that all rates of the current generation have at least.
    expires_ns,
    /// Current generation; rates of other ones are void.
    generation,
    /// Slots in use.
    connections,
    /// Flowlets that found no slot.
    table_full,
    /// Events that the ring did not take.
    events_lost,
    /// Established connections that were taken over.
    adopted,
    /// Leases that ran out.
    expired,
    /// Sockets that could not be switched.
    switch_failed,
    /// Impossible congestion windows and thresholds that were corrected.
    windows_bounded,
    /// First slot that was never used.
    next_fresh,
    /// Number of the daemon's passes over the sockets.
    pass,
    /// Sockets that left the congestion control under a maximum of ours.
    left_capped,
    /// Not 0: no rate is in force, and use counts without one.
    observing,
}

/// Returns the words in the skeleton's mapped data section. They stay mapped as long as the
/// skeleton lives, and the back end drops both together.
pub(super) fn global_words(data: &mut types::bss) -> GlobalWords {
    GlobalWords {
        base: NonNull::from(&mut data.shared),
    }
}
