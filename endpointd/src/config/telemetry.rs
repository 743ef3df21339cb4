//! `[telemetry]`: measurements for the allocator's feeds.

use serde::Deserialize;

/// `[telemetry]`: measurements for the allocator's feeds.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TelemetryConfig {
    /// Shortest interval of measuring and of messages; 0 turns both off. The allocator may ask for
    /// a longer one.
    pub period_ms: u64,
    /// Interface whose counters are read; the one with the host's address if absent.
    pub device: Option<String>,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            period_ms: 10,
            device: None,
        }
    }
}
