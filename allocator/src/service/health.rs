//! Liveness and readiness: latches that the parts of the service set.

use std::sync::atomic::{AtomicBool, Ordering};

/// What has to be true before the service takes hosts, and what must not be.
#[derive(Debug, Default)]
pub struct Health {
    listening: AtomicBool,
    topology_loaded: AtomicBool,
    engine_running: AtomicBool,
    engine_died: AtomicBool,
    stopping: AtomicBool,
}

impl Health {
    /// The QUIC endpoint is bound.
    pub fn set_listening(&self) {
        self.listening.store(true, Ordering::Release);
    }

    /// A topology is loaded.
    pub fn set_topology_loaded(&self) {
        self.topology_loaded.store(true, Ordering::Release);
    }

    /// The engine thread runs.
    pub fn set_engine_running(&self) {
        self.engine_running.store(true, Ordering::Release);
    }

    /// The engine thread ended without having been asked to.
    pub fn set_engine_died(&self) {
        self.engine_died.store(true, Ordering::Release);
    }

    /// Whether the engine thread ended without having been asked to.
    pub fn engine_died(&self) -> bool {
        self.engine_died.load(Ordering::Acquire)
    }

    /// The service shuts down.
    pub fn set_stopping(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// What is missing before the service is ready; empty when it is.
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
