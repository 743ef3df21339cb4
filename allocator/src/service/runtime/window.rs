//! Congestion controller of control connections: a fixed window.
//!
//! Control traffic is a small share of a link (flowtune §5.3: about 1 %). It shares its bottleneck
//! with the traffic that it regulates, and the protocol itself limits it: per flow only the newest
//! state is sent, and lost state is sent again with exponential back-off. A loss-driven window
//! would delay rate updates exactly when queues overflow and new rates are needed most.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use quinn::congestion::{Controller, ControllerFactory};

/// Builds [`ControlWindow`]s.
#[derive(Debug, Clone, Copy)]
pub struct ControlWindowConfig {
    /// Ack-eliciting bytes that may be in flight.
    pub window_bytes: u64,
}

impl ControllerFactory for ControlWindowConfig {
    fn build(self: Arc<Self>, _now: Instant, _current_mtu: u16) -> Box<dyn Controller> {
        Box::new(ControlWindow {
            window_bytes: self.window_bytes,
        })
    }
}

/// Congestion window that no event changes.
#[derive(Debug, Clone, Copy)]
pub struct ControlWindow {
    window_bytes: u64,
}

impl Controller for ControlWindow {
    fn on_congestion_event(
        &mut self,
        _now: Instant,
        _sent: Instant,
        _persistent: bool,
        _lost_bytes: u64,
    ) {
    }

    fn on_mtu_update(&mut self, _new_mtu: u16) {}

    fn window(&self) -> u64 {
        self.window_bytes
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(*self)
    }

    fn initial_window(&self) -> u64 {
        self.window_bytes
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
