//! Application of rates at this host: by the daemon's configuration and the allocator's order.

use super::{FlowAction, FlowTable};

/// Application of the allocator's rates at this host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PacingState {
    /// Rates are applied.
    #[default]
    Pace,
    /// Rates are got and compared with what plain TCP achieves. None is applied.
    Observe,
    /// Rates are not even looked at: the kill switch.
    Release,
}

impl PacingState {
    /// Combines the configuration with the allocator's order: the more careful one holds.
    #[must_use]
    pub fn of(configured_observe: bool, released: bool, observes: bool) -> Self {
        match (released, observes) {
            (true, true) => Self::Observe,
            // The kill switch is one for an observer, too: no rate comes then.
            (true, false) => Self::Release,
            (false, _) if configured_observe => Self::Observe,
            (false, _) => Self::Pace,
        }
    }
}

impl FlowTable {
    /// Returns the state.
    #[must_use]
    pub fn pacing_state(&self) -> PacingState {
        self.state
    }

    /// Returns true if rates are applied.
    #[must_use]
    pub fn paces(&self) -> bool {
        self.state == PacingState::Pace
    }

    /// Changes the state. A change takes all rates away; the session repeats those that hold.
    pub fn set_pacing_state(&mut self, state: PacingState) {
        if state == self.state {
            return;
        }
        // A released host has no rates.
        if std::mem::replace(&mut self.state, state) != PacingState::Release {
            self.withdraw_all();
        }
        // Released, a back end stays as it was: the kill switch has nothing to wait for.
        let observes = match state {
            PacingState::Pace => false,
            PacingState::Observe => true,
            PacingState::Release => return,
        };
        if self.backend_observes != observes {
            self.backend_observes = observes;
            self.actions.push_back(FlowAction::Observe(observes));
        }
    }

    /// Begins in `state`, which the back end was opened for.
    pub fn begin_in(&mut self, state: PacingState) {
        self.state = state;
        self.backend_observes = state == PacingState::Observe;
    }
}
