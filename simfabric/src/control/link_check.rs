//! Findings of the production's check of told capacities in a run.
//!
//! The hub checks words that simulated hosts tell by the daemon's own meter. Simulated hosts have
//! no addresses and keep their congestion control: no host is named.

use std::collections::BTreeMap;

use ratewright_allocator::link_check::{LinkCheckConfig, LinkEvidence};
use ratewright_allocator::service::hub::Hub;
use ratewright_topology::LinkId;
use serde::{Deserialize, Serialize};

use crate::time::Time;

/// Settings of the check, and of what hosts tell for it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckSettings {
    /// Largest part of a told capacity that measured carriage takes away; 0: links are only named.
    pub max_lowering: f64,
    /// Interfaces tell the rate of the link from their host as their speed. Otherwise they tell
    /// none, as virtual ones.
    pub speeds: bool,
}

impl Default for CheckSettings {
    fn default() -> Self {
        Self {
            max_lowering: LinkCheckConfig::default().max_lowering,
            speeds: false,
        }
    }
}

/// A link that the check named.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkFinding {
    /// The link.
    pub link: LinkId,
    /// Evidence at the time at which it was named, with its state.
    pub evidence: LinkEvidence,
    /// That time.
    pub named: Time,
    /// Time at which the state was taken back; `None` if it stands.
    pub taken_back: Option<Time>,
    /// Least capacity to which the link was lowered meanwhile, in bit/s; `None` if it was not.
    pub lowered_bps: Option<f64>,
}

/// Findings of a run.
#[derive(Debug, Default)]
pub(super) struct Findings {
    all: Vec<LinkFinding>,
    /// Indices of those that stand, by link.
    standing: BTreeMap<LinkId, usize>,
}

impl Findings {
    /// Returns all findings, in the order of time.
    pub(super) fn all(&self) -> &[LinkFinding] {
        &self.all
    }

    /// Notes what the hub names now.
    pub(super) fn note(&mut self, now_ns: u64, hub: &Hub) {
        let named: BTreeMap<_, _> = hub.network().named_links().collect();
        let all = &mut self.all;
        self.standing.retain(|link, at| {
            let finding = &mut all[*at];
            let stands = named.get(link) == Some(&finding.evidence.state);
            if !stands {
                finding.taken_back = Some(Time::from_ns(now_ns));
            }
            stands
        });
        for link in named.into_keys() {
            let at = *self.standing.entry(link).or_insert_with(|| {
                all.push(LinkFinding {
                    link,
                    evidence: hub.report().link_evidence(link),
                    named: Time::from_ns(now_ns),
                    taken_back: None,
                    lowered_bps: None,
                });
                all.len() - 1
            });
            if let Some(bps) = hub.network().lowered_bps(link) {
                let least_bps = all[at].lowered_bps.map_or(bps, |least| least.min(bps));
                all[at].lowered_bps = Some(least_bps);
            }
        }
    }
}
