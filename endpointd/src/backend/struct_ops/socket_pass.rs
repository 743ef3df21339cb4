//! A pass over the sockets of the daemon's namespace and of its pods', one namespace at a time.

use libbpf_rs::ProgramMut;

use super::take_over::for_all_sockets;
use crate::backend::BackendError;
use crate::backend::namespaces::Namespace;
use crate::clock::now_ns;

/// A pass that is under way.
pub(super) struct SocketPass {
    number: u64,
    /// Namespaces to come, the last one first; `None` is the daemon's own.
    todo: Vec<Option<Namespace>>,
    begun_ns: u64,
    took_ns: u64,
    failed: Option<BackendError>,
}

impl SocketPass {
    /// Begins the pass `number` over the daemon's own namespace and `pods`.
    pub(super) fn new<'a>(number: u64, pods: impl Iterator<Item = &'a Namespace>) -> Self {
        let mut todo: Vec<_> = pods.cloned().map(Some).collect();
        todo.push(None);
        Self {
            number,
            todo,
            begun_ns: now_ns(),
            took_ns: 0,
            failed: None,
        }
    }

    /// Runs `program` over the next namespace. Returns true if it was the last one.
    pub(super) fn step(&mut self, program: &ProgramMut<'_>) -> bool {
        if let Some(namespace) = self.todo.pop() {
            let begun_ns = now_ns();
            let walked = for_all_sockets(program, namespace.as_ref());
            self.took_ns += now_ns().saturating_sub(begun_ns);
            // A pod that has ended has no sockets that would have been met.
            if namespace.is_none_or(|namespace| namespace.is_there()) {
                self.failed = self.failed.take().or(walked.err());
            }
        }
        self.todo.is_empty()
    }

    /// Returns the time of the beginning.
    pub(super) fn begun_ns(&self) -> u64 {
        self.begun_ns
    }

    /// Returns the time that the steps took.
    pub(super) fn took_ns(&self) -> u64 {
        self.took_ns
    }

    /// Ends the pass. Returns its number.
    ///
    /// # Errors
    /// When sockets that are there may not have been met.
    pub(super) fn finish(self) -> Result<u64, BackendError> {
        self.failed.map_or(Ok(self.number), Err)
    }
}
