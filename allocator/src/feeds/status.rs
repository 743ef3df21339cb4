//! Figures of the feeds for operators.

use std::collections::BTreeMap;

use serde::Serialize;

/// Weight of a new value in the running means.
const MEAN_WEIGHT: f64 = 1.0 / 64.0;

/// Kind of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Feed {
    /// Receiver counts.
    Receivers,
    /// Credit.
    Credit,
    /// In-band telemetry of links.
    Int,
}

impl Feed {
    /// All feeds.
    pub const ALL: [Self; 3] = [Self::Receivers, Self::Credit, Self::Int];

    /// Label in metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Receivers => "receivers",
            Self::Credit => "credit",
            Self::Int => "int",
        }
    }
}

/// Reason for which an entry of a message was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refused {
    /// The reporter may not tell of this host, link or flow.
    NotOfReporter,
    /// No such host or link is in the topology.
    Unknown,
    /// The measurement was older than the maximum when it arrived.
    TooOld,
    /// The reading is switched off.
    Off,
    /// The reporter tells of too many pairs.
    TooMany,
    /// The reporter cannot tell managed traffic apart, and the engine's loads are not known.
    Unobserved,
}

impl Refused {
    /// Label in metrics.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::NotOfReporter => "not_of_reporter",
            Self::Unknown => "unknown",
            Self::TooOld => "too_old",
            Self::Off => "off",
            Self::TooMany => "too_many",
            Self::Unobserved => "unobserved",
        }
    }
}

/// Figures of one feed.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct FeedStatus {
    /// The feed has an effect.
    pub on: bool,
    /// Entries taken since the start.
    pub taken: u64,
    /// Entries refused since the start, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Mean age of the measurements when they arrived, in nanoseconds.
    pub mean_age_ns: f64,
    /// Mean difference between what the feed led to expect of a link's external traffic and what
    /// was measured next, as a share of the link's capacity.
    pub mean_error: f64,
    /// Capacity that the feed takes from scheduled flows at most, over all links, in bit/s.
    pub moved_bps: f64,
}

impl FeedStatus {
    pub(super) fn aged(&mut self, age_ns: u64) {
        #[allow(clippy::cast_precision_loss, reason = "ages are far below 2^53 ns")]
        let age_ns = age_ns as f64;
        self.taken += 1;
        self.mean_age_ns += MEAN_WEIGHT * (age_ns - self.mean_age_ns);
    }

    pub(super) fn erred(&mut self, error: f64) {
        self.mean_error += MEAN_WEIGHT * (error - self.mean_error);
    }

    pub(super) fn refused(&mut self, reason: Refused) {
        *self.refused.entry(reason.reason()).or_insert(0) += 1;
    }
}

/// Figures of all feeds.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct FeedsStatus {
    /// Figures by feed.
    pub feeds: BTreeMap<&'static str, FeedStatus>,
    /// Contradictions between two readings, by the reading that did not stand.
    pub contradictions: BTreeMap<&'static str, u64>,
    /// Links on which a feed has an effect.
    pub links: u64,
    /// Flows whose demand credit bounds.
    pub flows: u64,
}

/// Effect of the feeds on one link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct LinkEffect {
    /// Capacity withheld, in bit/s.
    pub load_bps: f64,
    /// Weight of the dummy flow, in flows.
    pub flows: f64,
    /// Maximum rate of the dummy flow, in bit/s.
    pub demand_bps: f64,
    /// Feed that gave the dummy flow its weight, if there is one.
    pub weighed_by: Option<Feed>,
    /// External load measured on the link, in bit/s.
    pub external_bps: f64,
    /// Time of the newest measurement by the allocator's clock, in nanoseconds.
    pub newest_ns: u64,
    /// Time of the oldest measurement that still has a part in it.
    pub oldest_ns: u64,
}

impl LinkEffect {
    /// Returns the capacity that a feed takes at most, in bit/s.
    pub(super) fn moved_bps(&self, feed: Feed) -> f64 {
        let load_bps = if feed == Feed::Int {
            self.load_bps
        } else {
            0.0
        };
        let dummy_bps = if self.weighed_by == Some(feed) {
            self.demand_bps
        } else {
            0.0
        };
        load_bps + dummy_bps
    }
}
