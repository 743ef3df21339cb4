//! Table `[rollout]`: the hosts that pace, and what the others do.
//!
//! A host's place is a hash of its name and a salt, between 0 and 100. It paces if its place is
//! below the percentage. So a larger percentage keeps every host of a smaller one, and a restart or
//! a new host moves nobody.

use std::collections::BTreeSet;

use toml::Spanned;

use super::check::Checker;
use super::error::ConfigError;
use super::raw::RawRollout;
use super::trust::HostPattern;

/// Conduct of a host with respect to rates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PacingOrder {
    /// It applies its rates.
    #[default]
    Pace,
    /// It gets rates, compares them with what plain TCP achieves, and applies none.
    Observe,
    /// It gets no rates.
    Release,
}

/// Hosts that pace.
#[derive(Debug, Clone, PartialEq)]
pub struct Rollout {
    /// Share of the hosts that pace, from 0 to 100.
    pub percent: f64,
    /// Text that decides which hosts these are.
    pub salt: String,
    /// Hosts that pace whatever the percentage.
    pub hosts: Vec<HostPattern>,
    /// Racks whose hosts pace whatever the percentage.
    pub racks: BTreeSet<String>,
    /// Hosts that do not pace, whatever else stands here.
    pub exclude: Vec<HostPattern>,
    /// Conduct of all other hosts: observe or release.
    pub others: PacingOrder,
}

impl Default for Rollout {
    fn default() -> Self {
        Self {
            percent: 100.0,
            salt: String::new(),
            hosts: Vec::new(),
            racks: BTreeSet::new(),
            exclude: Vec::new(),
            others: PacingOrder::Observe,
        }
    }
}

impl Rollout {
    /// Returns the conduct of a host in a rack, and the reason in words.
    pub fn order(&self, host: &str, rack: &str) -> (PacingOrder, &'static str) {
        let named = |patterns: &[HostPattern]| patterns.iter().any(|pattern| pattern.matches(host));
        if named(&self.exclude) {
            (self.others, "rollout.exclude names it")
        } else if named(&self.hosts) {
            (PacingOrder::Pace, "rollout.hosts names it")
        } else if self.racks.contains(rack) {
            (PacingOrder::Pace, "rollout.racks names its rack")
        } else if self.percent >= 100.0 || self.place(host) < self.percent {
            (PacingOrder::Pace, "rollout.percent includes it")
        } else {
            (self.others, "rollout.percent does not include it")
        }
    }

    /// Returns a host's place among all, from 0 to below 100.
    #[allow(
        clippy::cast_precision_loss,
        reason = "53 bits of a digest place it finely enough"
    )]
    fn place(&self, host: &str) -> f64 {
        let mut context = ring::digest::Context::new(&ring::digest::SHA256);
        context.update(self.salt.as_bytes());
        // No salt and name give the text of another pair.
        context.update(&[0]);
        context.update(host.as_bytes());
        let digest = context.finish();
        let mut first = [0; 8];
        first.copy_from_slice(&digest.as_ref()[..8]);
        (u64::from_be_bytes(first) >> 11) as f64 / (1_u64 << 53) as f64 * 100.0
    }
}

pub(super) fn checked(check: &Checker<'_>, raw: RawRollout) -> Result<Rollout, ConfigError> {
    let default = Rollout::default();
    let percent = check.within(
        raw.percent,
        default.percent,
        "rollout.percent",
        |percent| (0.0..=100.0).contains(&percent),
        "must be from 0 to 100; 100 is the default",
    )?;
    let patterns = |key: &str, list: Option<Vec<Spanned<String>>>| {
        list.unwrap_or_default()
            .iter()
            .map(|text| {
                HostPattern::parse(text.get_ref()).ok_or_else(|| {
                    let expected = r#"must be a host's name, or the beginning of names with a star behind it, such as "rack7-*""#;
                    check.wrong(key, text, expected)
                })
            })
            .collect::<Result<Vec<_>, _>>()
    };
    let others = match raw.others {
        None => default.others,
        Some(value) => match value.get_ref().as_str() {
            "observe" => PacingOrder::Observe,
            "release" => PacingOrder::Release,
            _ => {
                let expected = r#"must be "observe" or "release""#;
                return Err(check.wrong("rollout.others", &value, expected));
            }
        },
    };
    Ok(Rollout {
        percent,
        salt: raw.salt.map(Spanned::into_inner).unwrap_or_default(),
        hosts: patterns("rollout.hosts", raw.hosts)?,
        racks: raw.racks.unwrap_or_default().into_iter().collect(),
        exclude: patterns("rollout.exclude", raw.exclude)?,
        others,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pacing(rollout: &Rollout) -> BTreeSet<u32> {
        (0..2_000)
            .filter(|host| rollout.order(&format!("h{host}"), "r1").0 == PacingOrder::Pace)
            .collect()
    }

    #[test]
    fn a_larger_percentage_keeps_the_hosts_of_a_smaller_one() {
        let mut rollout = Rollout {
            salt: "2026-11".to_owned(),
            ..Rollout::default()
        };
        let mut before = BTreeSet::new();
        for (percent, least, most) in [
            (0.0, 0, 0),
            (1.0, 5, 40),
            (10.0, 150, 250),
            (50.0, 900, 1_100),
            (100.0, 2_000, 2_000),
        ] {
            rollout.percent = percent;
            let now = pacing(&rollout);
            assert!(
                (least..=most).contains(&now.len()),
                "{percent}: {}",
                now.len()
            );
            assert!(before.is_subset(&now), "{percent}");
            before = now;
        }
    }

    #[test]
    fn another_salt_chooses_other_hosts() {
        let of = |salt: &str| {
            pacing(&Rollout {
                percent: 10.0,
                salt: salt.to_owned(),
                ..Rollout::default()
            })
        };
        assert_eq!(of("a"), of("a"));
        let (a, b) = (of("a"), of("b"));
        assert!(a.intersection(&b).count() < a.len() / 2);
    }

    #[test]
    fn names_come_before_the_percentage_and_exclusions_before_names() {
        let rollout = Rollout {
            percent: 0.0,
            hosts: vec![HostPattern::parse("web-*").expect("a pattern")],
            racks: ["r7".to_owned()].into(),
            exclude: vec![HostPattern::parse("web-9").expect("a pattern")],
            ..Rollout::default()
        };
        for (host, rack, order) in [
            ("web-1", "r1", PacingOrder::Pace),
            ("web-9", "r7", PacingOrder::Observe),
            ("db-1", "r7", PacingOrder::Pace),
            ("db-1", "r1", PacingOrder::Observe),
        ] {
            assert_eq!(rollout.order(host, rack).0, order, "{host} {rack}");
        }
    }
}
