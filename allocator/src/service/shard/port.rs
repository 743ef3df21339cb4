//! How a shard's thread is woken, and how it waits for what carries its datagrams.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use ratewright_common::udp::PacketPort;

/// Empty rounds from which on a thread that need not keep its core lets others run between two.
const PATIENCE: u32 = 256;

/// Has a shard's thread look at its queue.
#[derive(Debug)]
pub(super) struct Kick {
    event: EventFd,
    /// There is something in the queue that the thread has not looked at.
    due: AtomicBool,
    /// The thread looks at `due` all the time and need not be woken.
    spins: bool,
    stop: AtomicBool,
    /// The thread has ended: kicks are in vain.
    gone: AtomicBool,
}

impl Kick {
    pub(super) fn new(spins: bool) -> io::Result<Self> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        Ok(Self {
            event: EventFd::from_value_and_flags(0, flags)?,
            due: AtomicBool::new(false),
            spins,
            stop: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        })
    }

    /// Has the thread look at its queue, in which something was put before.
    pub(super) fn kick(&self) {
        if !self.due.swap(true, Ordering::AcqRel) && !self.spins {
            self.wake();
        }
    }

    /// Has the thread end.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
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

    /// Whether there is something in the queue; from now on another kick wakes anew. A plain load
    /// first, since a spinning thread asks all the time.
    pub(super) fn take(&self) -> bool {
        self.due.load(Ordering::Relaxed) && self.due.swap(false, Ordering::AcqRel)
    }
}

/// How a shard's thread waits for its port.
#[derive(Debug)]
pub(super) struct Waiter {
    spins: Spins,
    idle: u32,
}

/// Whether a thread sleeps while there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spins {
    /// It sleeps. Only for ports with a descriptor.
    No,
    /// It never sleeps, but lets others run when it has had nothing to do for a while.
    Yields,
    /// It keeps its core.
    Busy,
}

impl Waiter {
    pub(super) fn new(spins: Spins) -> Self {
        Self { spins, idle: 0 }
    }

    /// There was something to do.
    pub(super) fn busy(&mut self) {
        self.idle = 0;
    }

    /// Waits until there may be something to receive, or the kick, or, if the last batch is not gone
    /// yet, until more of it can be sent.
    pub(super) fn wait(&mut self, port: &impl PacketPort, kick: &Kick, batch_left: bool) {
        let spins = match port.descriptor() {
            // A busy thread sleeps too while the kernel's buffer is full.
            Some(socket) if self.spins == Spins::No || batch_left => {
                let mut interest = PollFlags::POLLIN;
                if batch_left {
                    interest |= PollFlags::POLLOUT;
                }
                let mut descriptors = [
                    PollFd::new(socket, interest),
                    PollFd::new(kick.event.as_fd(), PollFlags::POLLIN),
                ];
                // An interrupted wait is as good as a wake-up.
                let _ = poll(&mut descriptors, PollTimeout::NONE);
                let _ = kick.event.read();
                return;
            }
            Some(_) => self.spins,
            None if self.spins == Spins::Busy => Spins::Busy,
            None => Spins::Yields,
        };
        self.idle = self.idle.saturating_add(1);
        if spins == Spins::Busy || self.idle < PATIENCE {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}
