//! Settings of the feeds and their bounds.

/// Settings of the feeds. [`Default`] has every reading on, within the default bounds.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedsConfig {
    /// Receiver counts have an effect.
    pub receivers: bool,
    /// Credit has an effect.
    pub credit: bool,
    /// In-band telemetry of links has an effect.
    pub int: bool,
    /// Interval at which reporters send a message, in nanoseconds.
    pub interval_ns: u64,
    /// Age of a measurement at which its effect begins to fade, in nanoseconds.
    pub fresh_ns: u64,
    /// Age of a measurement at which it has no effect any more, in nanoseconds.
    pub max_age_ns: u64,
    /// Maximum time from a change of the rates to a reading that shows it, beyond the interval of
    /// the readings, in nanoseconds. The gain of the loop follows from it.
    pub max_delay_ns: u64,
    /// Maximum share of a link's capacity that measurements together may take.
    pub max_share: f64,
    /// Maximum share of a link's capacity that measurements and operators' reports together may
    /// take.
    pub external_share: f64,
    /// Change of a link's load, in shares of its capacity, below which the engine is told nothing.
    pub hysteresis: f64,
}

impl Default for FeedsConfig {
    fn default() -> Self {
        Self {
            receivers: true,
            credit: true,
            int: true,
            interval_ns: 10_000_000,
            fresh_ns: 40_000_000,
            max_age_ns: 100_000_000,
            max_delay_ns: 1_000_000,
            max_share: 0.5,
            external_share: 0.9,
            hysteresis: 0.01,
        }
    }
}
