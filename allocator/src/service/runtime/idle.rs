//! How a shard's thread is woken, and how it waits for what carries its datagrams.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use arrayvec::ArrayVec;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::{TimeSpec, TimeValLike};
use ratewright_io::sched::LEAST_SLEEP_NS;
use ratewright_io::udp::PacketPort;

/// Empty rounds from which on a thread that need not keep its core lets others run between two.
const YIELD_AFTER_ROUNDS: u32 = 256;

/// A thread that may sleep looks for something to do for this long before: a wake-up costs it, and
/// what woke it, tens of microseconds.
const SPIN_NS: u64 = 200_000;

const LONGEST_SLEEP_NS: u64 = 3_600_000_000_000;

/// Has a shard's thread look at its queue.
#[derive(Debug)]
pub(super) struct ThreadWaker {
    event: EventFd,
    /// There is something in the queue that the thread has not looked at.
    due: AtomicBool,
    /// The thread sleeps, or is about to, and has to be woken. A thread that spins looks at `due`
    /// all the time.
    sleeps: AtomicBool,
    stop: AtomicBool,
    /// The thread has ended: kicks are in vain.
    gone: AtomicBool,
}

impl ThreadWaker {
    pub(super) fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        Ok(Self {
            event: EventFd::from_value_and_flags(0, flags)?,
            due: AtomicBool::new(false),
            sleeps: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        })
    }

    /// Has the thread look at its queue, in which something was put before.
    pub(super) fn wake(&self) {
        // As in `sleep`, one is written before the other is read: either this sees that the thread
        // sleeps, or that sees that something is due.
        if !self.due.swap(true, Ordering::SeqCst) && self.sleeps.load(Ordering::SeqCst) {
            self.signal();
        }
    }

    /// Has the thread end.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.signal();
    }

    fn signal(&self) {
        // Fails only when the count is at its limit, and then the thread wakes anyway.
        let _ = self.event.write(1);
    }

    /// The thread has ended.
    pub(super) fn set_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Sleeps until `socket` is readable (or, if asked for, writable), or somebody kicks, or
    /// `pause_ns` is over.
    fn sleep(&self, socket: Option<BorrowedFd<'_>>, writable: bool, pause_ns: Option<u64>) {
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
            // An interrupted wait is as good as a wake-up.
            let _ = ppoll(&mut descriptors, pause, None);
            let _ = self.event.read();
        }
        self.sleeps.store(false, Ordering::SeqCst);
    }

    /// Whether there is something in the queue; from now on another kick wakes anew. A plain load
    /// first, since a spinning thread asks all the time.
    pub(super) fn take(&self) -> bool {
        self.due.load(Ordering::Relaxed) && self.due.swap(false, Ordering::AcqRel)
    }
}

/// How a shard's thread waits for its port.
#[derive(Debug)]
pub(super) struct IdleWait {
    policy: IdlePolicy,
    idle: u32,
    /// When there was last something to do.
    busy_ns: u64,
}

/// Whether a thread sleeps while there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IdlePolicy {
    /// It sleeps when nothing has come for [`SPIN_NS`]. Only for ports with a descriptor.
    Sleep,
    /// It never sleeps, but lets others run when it has had nothing to do for a while.
    Yield,
    /// It keeps its core.
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

    /// There was something to do.
    pub(super) fn busy(&mut self, now_ns: u64) {
        self.idle = 0;
        self.busy_ns = now_ns;
    }

    /// Waits until there may be something to receive, or the kick, or `until_ns` has come, or, if
    /// the last batch is not gone yet, until more of it can be sent. May return before.
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
            // Nothing can come but kicks.
            None => IdlePolicy::Sleep,
            // Nothing wakes who waits for such a port.
            Some(None) if self.policy == IdlePolicy::Sleep => IdlePolicy::Yield,
            Some(_) => self.policy,
        };
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
        // Who looks around without need does so only while nobody else wants the core: with
        // thousands of hosts, those who connect need it for their handshakes.
        match policy {
            IdlePolicy::Spin => std::hint::spin_loop(),
            IdlePolicy::Yield if self.idle < YIELD_AFTER_ROUNDS => std::hint::spin_loop(),
            IdlePolicy::Yield | IdlePolicy::Sleep => std::thread::yield_now(),
        }
    }
}
