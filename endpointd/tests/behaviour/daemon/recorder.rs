//! A pacing back end without a kernel: the test supplies events and reads the recorded calls.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::eventfd::{EfdFlags, EventFd};
use ratewright_endpointd::backend::{
    BackendError, BackendKind, BackendStats, Conn, FlowEvent, FlowEventKind, PacingBackend, Usage,
};
use ratewright_endpointd::clock;

use super::SharedCell;

#[derive(Debug, Default)]
pub struct Calls {
    waiting: VecDeque<FlowEvent>,
    /// Rate and expiry of paced slots.
    pub paced: BTreeMap<u32, (u64, u64)>,
    /// Rates that were set so far.
    pub rates: u32,
    pub cleared: Vec<u32>,
    /// Usage that the kernel would report.
    pub usages: Vec<Usage>,
    /// Slots that are watched for their limit.
    pub watched: Vec<u32>,
    pub observes: Vec<bool>,
    pub clear_alls: u32,
    pub renewals: u32,
    /// The largest expiry that a renewal brought.
    pub renewed_to_ns: u64,
    pub shut_down: bool,
    /// Makes `clear_all` fail.
    pub refuse_clear_all: bool,
    /// Makes `shut_down` fail.
    pub refuse_shut_down: bool,
}

/// The back end as the daemon sees it.
pub struct Recorder {
    calls: SharedCell<Calls>,
    event_fd: std::rc::Rc<EventFd>,
}

/// The back end as the test controls it.
#[derive(Clone)]
pub struct BackendScript {
    pub calls: SharedCell<Calls>,
    event_fd: std::rc::Rc<EventFd>,
}

pub fn recorder() -> (Recorder, BackendScript) {
    let event_fd =
        EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).unwrap();
    let (calls, event_fd) = (SharedCell::<Calls>::default(), std::rc::Rc::new(event_fd));
    let script = BackendScript {
        calls: calls.clone(),
        event_fd: event_fd.clone(),
    };
    (Recorder { calls, event_fd }, script)
}

impl BackendScript {
    pub fn event(&self, conn: Conn, kind: FlowEventKind) {
        self.calls.borrow_mut().waiting.push_back(FlowEvent {
            conn,
            at_ns: clock::now_ns(),
            kind,
        });
        self.event_fd.write(1).unwrap();
    }

    pub fn rate_of(&self, slot: u32) -> Option<u64> {
        self.calls
            .borrow()
            .paced
            .get(&slot)
            .map(|(rate_bps, _)| *rate_bps)
    }
}

impl PacingBackend for Recorder {
    fn kind(&self) -> BackendKind {
        BackendKind::SockOps
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.event_fd.as_fd()
    }

    fn poll_events(&mut self, _now_ns: u64, out: &mut Vec<FlowEvent>) -> Result<(), BackendError> {
        // Fails if nothing waits, since the descriptor does not block.
        let _ = self.event_fd.read();
        out.extend(self.calls.borrow_mut().waiting.drain(..));
        Ok(())
    }

    fn next_poll_ns(&self) -> Option<u64> {
        None
    }

    fn set_rate(&mut self, conn: Conn, rate_bps: u64, expires_ns: u64) -> Result<(), BackendError> {
        assert!(
            expires_ns > clock::now_ns(),
            "a rate that has expired already"
        );
        let mut calls = self.calls.borrow_mut();
        calls.rates += 1;
        calls.paced.insert(conn.slot.0, (rate_bps, expires_ns));
        Ok(())
    }

    fn renew(&mut self, expires_ns: u64) -> Result<(), BackendError> {
        let mut calls = self.calls.borrow_mut();
        calls.renewals += 1;
        calls.renewed_to_ns = calls.renewed_to_ns.max(expires_ns);
        // A lapsed lease stays lapsed, as the trait promises.
        let now_ns = clock::now_ns();
        for (_, expiry) in calls.paced.values_mut() {
            if *expiry > now_ns {
                *expiry = expires_ns;
            }
        }
        Ok(())
    }

    fn clear(&mut self, conn: Conn) -> Result<(), BackendError> {
        let mut calls = self.calls.borrow_mut();
        calls.paced.remove(&conn.slot.0);
        calls.cleared.push(conn.slot.0);
        Ok(())
    }

    fn clear_all(&mut self) -> Result<(), BackendError> {
        let mut calls = self.calls.borrow_mut();
        calls.clear_alls += 1;
        if calls.refuse_clear_all {
            return Err(BackendError::System {
                what: "clear".to_owned(),
                source: std::io::Error::other("the test says so"),
            });
        }
        calls.paced.clear();
        Ok(())
    }

    fn observe(&mut self, observing: bool) -> Result<(), BackendError> {
        self.calls.borrow_mut().observes.push(observing);
        Ok(())
    }

    fn usage(&mut self, _now_ns: u64, out: &mut Vec<Usage>) {
        out.extend(self.calls.borrow().usages.iter());
    }

    fn watch(&mut self, conn: Conn) {
        self.calls.borrow_mut().watched.push(conn.slot.0);
    }

    fn stats(&self) -> BackendStats {
        BackendStats {
            adopted: 3,
            ..BackendStats::default()
        }
    }

    fn shut_down(&mut self) -> Result<(), BackendError> {
        let mut calls = self.calls.borrow_mut();
        calls.paced.clear();
        calls.shut_down = true;
        if calls.refuse_shut_down {
            return Err(BackendError::System {
                what: "give back, says the test".to_owned(),
                source: std::io::ErrorKind::PermissionDenied.into(),
            });
        }
        Ok(())
    }
}
