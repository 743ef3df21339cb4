//! Settings of the feeds and their bounds.

use ratewright_proto::telemetry::SyncTerms;

/// Settings of the feeds. [`Default`] has every reading on, within the default bounds.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedsConfig {
    /// Receiver counts have an effect.
    pub receivers: bool,
    /// Credit has an effect.
    pub credit: bool,
    /// In-band telemetry of links has an effect.
    pub int: bool,
    /// Links that their hosts share with traffic which nobody paces get headroom by these hosts'
    /// word about the users of their own links.
    pub shared: bool,
    /// Largest part of a link's told capacity that the check of what it carries takes away; 0:
    /// links that carry less are only named.
    pub max_lowering: f64,
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
    /// Change of a link's load, in shares of its bandwidth, from which a host tells it that tells a
    /// state; 0: hosts repeat their measurements.
    pub state_hysteresis: f64,
    /// Change of a link's load, in shares of its capacity, below which the engine is told nothing.
    pub hysteresis: f64,
}

impl Default for FeedsConfig {
    fn default() -> Self {
        Self {
            receivers: true,
            credit: true,
            int: true,
            shared: true,
            max_lowering: 0.5,
            interval_ns: 10_000_000,
            fresh_ns: 40_000_000,
            max_age_ns: 100_000_000,
            max_delay_ns: 1_000_000,
            max_share: 0.5,
            external_share: 0.9,
            state_hysteresis: 0.01,
            hysteresis: 0.01,
        }
    }
}

impl FeedsConfig {
    /// Returns true if this takes a kind of readings that `before` refused.
    #[must_use]
    pub fn takes_more_than(&self, before: &Self) -> bool {
        (self.receivers && !before.receivers)
            || (self.credit && !before.credit)
            || (self.int && !before.int)
    }

    /// Returns the terms on which hosts tell a state, if they may. Measured once in an interval and
    /// held up for a little, the word that all stands comes before the state begins to fade.
    #[must_use]
    pub fn sync_terms(&self) -> Option<SyncTerms> {
        let before_ns = self.interval_ns / 2 * 3;
        let repeat_ns = self.fresh_ns.saturating_sub(before_ns);
        (self.state_hysteresis > 0.0).then_some(SyncTerms {
            hysteresis: self.state_hysteresis,
            repeat_ns: repeat_ns.max(self.interval_ns / 2).max(1),
        })
    }
}
