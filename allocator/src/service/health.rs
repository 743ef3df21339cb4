//! Liveness and readiness: latches that the parts of the service set.

use std::sync::atomic::{AtomicBool, Ordering};

/// Conditions for taking hosts.
#[derive(Debug, Default)]
pub struct Health {
    listening: AtomicBool,
    topology_loaded: AtomicBool,
    engine_running: AtomicBool,
    engine_died: AtomicBool,
    stopping: AtomicBool,
}

impl Health {
    /// Records that the QUIC endpoint is bound.
    pub fn set_listening(&self) {
        self.listening.store(true, Ordering::Release);
    }

    /// Records that a topology is loaded.
    pub fn set_topology_loaded(&self) {
        self.topology_loaded.store(true, Ordering::Release);
    }

    /// Records that the engine thread runs.
    pub fn set_engine_running(&self) {
        self.engine_running.store(true, Ordering::Release);
    }

    /// Records that the engine thread ended without a request.
    pub fn set_engine_died(&self) {
        self.engine_died.store(true, Ordering::Release);
    }

    /// True if the engine thread ended without a request.
    pub fn engine_died(&self) -> bool {
        self.engine_died.load(Ordering::Acquire)
    }

    /// Records that the service shuts down.
    pub fn set_stopping(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Lists the conditions that are not met; empty if the service is ready.
    pub fn not_ready(&self) -> Vec<&'static str> {
        let mut missing = Vec::new();
        if !self.listening.load(Ordering::Acquire) {
            missing.push("not listening");
        }
        if !self.topology_loaded.load(Ordering::Acquire) {
            missing.push("no topology");
        }
        if !self.engine_running.load(Ordering::Acquire) {
            missing.push("engine not running");
        }
        if self.engine_died() {
            missing.push("engine died");
        }
        if self.stopping.load(Ordering::Acquire) {
            missing.push("shutting down");
        }
        missing
    }
}
