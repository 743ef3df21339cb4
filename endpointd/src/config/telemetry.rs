//! `[telemetry]` and `[second_line]`: measurements, and their exchange without an allocator.

use std::net::IpAddr;

use serde::Deserialize;

/// `[telemetry]`: measurements for the allocator's feeds.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TelemetryConfig {
    /// Shortest interval of measuring and of messages; 0 turns both off. The allocator may ask for
    /// a longer one.
    pub period_ms: u64,
    /// Interface whose counters are read; those with the host's addresses if absent.
    pub device: Option<String>,
    /// The allocator is told the speed of the interface's device.
    pub tell_speed: bool,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            period_ms: 10,
            device: None,
            tell_speed: true,
        }
    }
}

/// `[second_line]`: shares from receivers' daemons while the allocator is lost.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SecondLineConfig {
    /// Daemons exchange shares.
    pub enabled: bool,
    /// UDP port of all daemons.
    pub port: u16,
    /// Local address to listen on and to connect from; all if absent.
    pub bind: Option<IpAddr>,
}

impl Default for SecondLineConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            port: 7602,
            bind: None,
        }
    }
}
