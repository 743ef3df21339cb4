//! Wake-ups and waits of a thread with a port.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use arrayvec::ArrayVec;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::{TimeSpec, TimeValLike};
use ratewright_io::sched::LEAST_SLEEP_NS;
use ratewright_io::udp::PacketPort;

/// Empty rounds after which a thread that may yield does so.
const YIELD_AFTER_ROUNDS: u32 = 256;

/// Time that a thread spins before it sleeps. A wake-up costs it and its waker tens of
/// microseconds.
const SPIN_NS: u64 = 200_000;

const LONGEST_SLEEP_NS: u64 = 3_600_000_000_000;

/// Waker of a thread with a port.
#[derive(Debug)]
pub(super) struct ThreadWaker {
    event: EventFd,
    /// The queue has entries that the thread has not seen.
    due: AtomicBool,
    /// The thread sleeps, or is about to, and needs the event. A thread that spins reads `due` all
    /// the time.
    sleeps: AtomicBool,
    stop: AtomicBool,
}

impl ThreadWaker {
    pub(super) fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        Ok(Self {
            event: EventFd::from_value_and_flags(0, flags)?,
            due: AtomicBool::new(false),
            sleeps: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        })
    }

    /// Wakes the thread, for whose queue the caller has added an entry.
    pub(super) fn wake(&self) {
        // As `sleep` does, this writes one flag before it reads the other. So either this sees that
        // the thread sleeps, or the thread sees that something is due.
        if !self.due.swap(true, Ordering::SeqCst) && self.sleeps.load(Ordering::SeqCst) {
            self.signal();
        }
    }

    /// Makes the thread end.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.signal();
    }

    fn signal(&self) {
        // Fails only if the count is at its limit, and then the thread wakes anyway.
        let _ = self.event.write(1);
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Sleeps until `socket` is readable (or, with `writable`, writable), a wake-up comes, or
    /// `pause_ns` has passed.
    fn sleep(&self, socket: Option<BorrowedFd<'_>>, writable: bool, pause_ns: Option<u64>) {
        // Declared before `due` is read; see `wake`.
        self.sleeps.store(true, Ordering::SeqCst);
        if !self.due.load(Ordering::SeqCst) && !self.stopped() {
            let mut descriptors: ArrayVec<PollFd<'_>, 2> = ArrayVec::new();
            descriptors.push(PollFd::new(self.event.as_fd(), PollFlags::POLLIN));
            if let Some(socket) = socket {
                let mut interest = PollFlags::POLLIN;
                interest.set(PollFlags::POLLOUT, writable);
                descriptors.push(PollFd::new(socket, interest));
            }
            let pause = pause_ns.map(|ns| TimeSpec::nanoseconds(ns.min(LONGEST_SLEEP_NS) as i64));
            // An interrupted wait counts as a wake-up.
            let _ = ppoll(&mut descriptors, pause, None);
            // Resets the event, or the next sleep would end at once.
            let _ = self.event.read();
        }
        self.sleeps.store(false, Ordering::SeqCst);
    }

    /// Returns whether the queue has new entries, and clears the flag. A plain load comes first,
    /// since a spinning thread calls this all the time.
    pub(super) fn take(&self) -> bool {
        self.due.load(Ordering::Relaxed) && self.due.swap(false, Ordering::AcqRel)
    }
}

/// Wait of a thread for its port.
#[derive(Debug)]
pub(super) struct IdleWait {
    policy: IdlePolicy,
    idle: u32,
    /// Time of the last task.
    busy_ns: u64,
}

/// Behaviour of an idle thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IdlePolicy {
    /// Sleeps when nothing has come for [`SPIN_NS`]. Only for ports with a descriptor.
    Sleep,
    /// Never sleeps, but yields its core when it has been idle for a while.
    Yield,
    /// Never sleeps and keeps its core.
    Spin,
}

impl IdleWait {
    pub(super) fn new(policy: IdlePolicy) -> Self {
        Self {
            policy,
            idle: 0,
            busy_ns: 0,
        }
    }

    /// Records that there was a task.
    pub(super) fn busy(&mut self, now_ns: u64) {
        self.idle = 0;
        self.busy_ns = now_ns;
    }

    /// Waits until a datagram may have come, a wake-up comes, `until_ns` has come, or, with
    /// `batch_left`, the port may take more. May return earlier.
    pub(super) fn wait(
        &mut self,
        port: Option<&impl PacketPort>,
        waker: &ThreadWaker,
        now_ns: u64,
        until_ns: Option<u64>,
        batch_left: bool,
    ) {
        let pause_ns = until_ns.map(|until_ns| until_ns.saturating_sub(now_ns));
        let descriptor = port.map(PacketPort::descriptor);
        let policy = match descriptor {
            // Without a port only wake-ups can come.
            None => IdlePolicy::Sleep,
            // Such a port wakes no sleeper.
            Some(None) if self.policy == IdlePolicy::Sleep => IdlePolicy::Yield,
            Some(_) => self.policy,
        };
        // Shortly after a task the next one is likely, and a shorter sleep than LEAST_SLEEP_NS
        // overruns.
        let expected = now_ns.saturating_sub(self.busy_ns) < SPIN_NS
            || pause_ns.is_some_and(|pause_ns| pause_ns < LEAST_SLEEP_NS);
        // A busy thread sleeps too while the kernel's buffer is full.
        let sleeps = (policy == IdlePolicy::Sleep && !expected) || batch_left;
        if sleeps && let Some(descriptor) = descriptor.map_or(Some(None), |socket| socket.map(Some))
        {
            waker.sleep(descriptor, batch_left, pause_ns);
            return;
        }
        self.idle = self.idle.saturating_add(1);
        // Polling without need must not take a core that others want. With thousands of hosts,
        // connecting ones need it for their handshakes.
        match policy {
            IdlePolicy::Spin => std::hint::spin_loop(),
            IdlePolicy::Yield if self.idle < YIELD_AFTER_ROUNDS => std::hint::spin_loop(),
            IdlePolicy::Yield | IdlePolicy::Sleep => std::thread::yield_now(),
        }
    }
}
