//! Way of the service thread's tasks to the core, which another thread owns.
//!
//! Work goes through a ring with one producer, the service thread, and one consumer, the owner. It
//! is done in order. A task has one piece of work under way at a time and waits for its answer, so
//! that the ring is bounded by the tasks.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use rtrb::{Consumer, Producer, PushError, RingBuffer};
use tokio::sync::oneshot;

use super::idle::ThreadWaker;
use super::service_core::ServiceCore;
use crate::service::clock;

/// Places in the ring: beyond it tasks wait before they hand their work over.
const RING_PLACES: usize = 1 << 12;

/// Work with the core at a time in nanoseconds.
type Work = Box<dyn FnOnce(&mut ServiceCore, u64) + Send>;

/// Handle to the core for tasks of the service thread. Clones share the ring.
#[derive(Clone)]
pub(super) struct CoreHandle(Rc<WorkSender>);

struct WorkSender {
    ring: RefCell<Producer<Work>>,
    /// Wakes the owner.
    owner: Arc<ThreadWaker>,
}

/// The owner's end of the ring.
pub(super) struct WorkReceiver(Consumer<Work>);

impl CoreHandle {
    /// Makes the ring to an owner that `owner` wakes: the handle, and the owner's end.
    pub(super) fn new(owner: Arc<ThreadWaker>) -> (Self, WorkReceiver) {
        let (producer, consumer) = RingBuffer::new(RING_PLACES);
        let ring = RefCell::new(producer);
        let handle = Self(Rc::new(WorkSender { ring, owner }));
        (handle, WorkReceiver(consumer))
    }

    /// Calls `work` with the core and the time on the owner's thread, and returns its result. Never
    /// returns if that thread has ended: the service ends by it.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut ServiceCore, u64) -> T + Send + 'static,
    ) -> T {
        let (reply, answer) = oneshot::channel();
        let mut work: Work = Box::new(move |core, now_ns| drop(reply.send(work(core, now_ns))));
        loop {
            let pushed = self.0.ring.borrow_mut().push(work);
            match pushed {
                Ok(()) => break,
                Err(PushError::Full(back)) => work = back,
            }
            tokio::task::yield_now().await;
        }
        self.0.owner.wake();
        match answer.await {
            Ok(result) => result,
            Err(_) => std::future::pending().await,
        }
    }
}

impl WorkReceiver {
    /// Does at most `most` pieces of work that wait, and returns their number.
    pub(super) fn serve(&mut self, core: &mut ServiceCore, most: usize) -> usize {
        let mut done = 0;
        while done < most
            && let Ok(work) = self.0.pop()
        {
            work(core, clock::now_ns());
            done += 1;
        }
        done
    }
}
