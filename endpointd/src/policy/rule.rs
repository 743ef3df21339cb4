//! One `[[policy]]` rule as it stands in the configuration.

use std::path::PathBuf;

use serde::Deserialize;

/// A `[[policy]]` table.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RuleConfig {
    /// Sockets of this cgroup and of those below it.
    pub cgroup: Option<PathBuf>,
    /// Source port, or a range.
    pub src_port: Option<PortRange>,
    /// Destination port, or a range.
    pub dst_port: Option<PortRange>,
    /// DSCP.
    pub dscp: Option<u8>,
    /// `SO_MARK`.
    pub mark: Option<MarkMatch>,
    /// The allocator's class.
    pub class: Option<ClassRef>,
    /// Weight within the class.
    pub weight: Option<f64>,
    /// Cap, in Mbit/s.
    pub max_rate_mbps: Option<f64>,
    /// Leave the flow to plain TCP.
    pub bypass: bool,
}

/// Defect of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleProblem {
    /// The key within the rule.
    pub key: &'static str,
    /// Description of the defect, and of a right value.
    pub problem: String,
}

impl RuleConfig {
    /// Checks the values.
    ///
    /// # Errors
    /// With the key that is wrong.
    pub fn check(&self) -> Result<(), RuleProblem> {
        let bad = |key, problem: String| Err(RuleProblem { key, problem });
        if let Some(dscp) = self.dscp
            && dscp > 63
        {
            return bad("dscp", format!("{dscp} is outside 0..=63"));
        }
        if let Some(ClassRef::Id(id)) = self.class
            && id > 127
        {
            return bad("class", format!("{id} is outside 0..=127"));
        }
        // Inside the span of the wire's weight code, 2^-15.875 to 2^15.875.
        if let Some(weight) = self.weight
            && !(0.001..=10_000.0).contains(&weight)
        {
            return bad("weight", format!("{weight} is outside 0.001..=10000"));
        }
        if let Some(rate) = self.max_rate_mbps
            && !(0.1..=10_000_000.0).contains(&rate)
        {
            return bad("max_rate_mbps", format!("{rate} is outside 0.1..=10000000"));
        }
        if self.bypass
            && (self.class.is_some() || self.weight.is_some() || self.max_rate_mbps.is_some())
        {
            return bad(
                "bypass",
                "a flow that is left alone has no class, weight or max_rate_mbps".into(),
            );
        }
        if self
            .cgroup
            .as_ref()
            .is_some_and(|path| path.as_os_str().is_empty())
        {
            return bad("cgroup", "must be a path below the cgroup v2 mount".into());
        }
        Ok(())
    }

    /// Returns true if the rule has no condition.
    #[must_use]
    pub fn matches_everything(&self) -> bool {
        self.cgroup.is_none()
            && self.src_port.is_none()
            && self.dst_port.is_none()
            && self.dscp.is_none()
            && self.mark.is_none()
    }

    /// The cap in bit/s.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // checked: 0.1 to 10^7 Mbit/s
    pub fn max_rate_bps(&self) -> Option<u64> {
        self.max_rate_mbps.map(|rate| (rate * 1e6) as u64)
    }
}

/// A class of the allocator, by number or by the name that the allocator gives it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "toml::Value")]
pub enum ClassRef {
    /// By number.
    Id(u8),
    /// By name.
    Name(String),
}

impl TryFrom<toml::Value> for ClassRef {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<Self, String> {
        let wrong = || format!("`{value}` is not a class: write its number (0 to 127) or its name");
        match &value {
            toml::Value::Integer(id) => u8::try_from(*id).map(Self::Id).map_err(|_| wrong()),
            toml::Value::String(name) if !name.is_empty() => Ok(Self::Name(name.clone())),
            _ => Err(wrong()),
        }
    }
}

/// Ports, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "toml::Value")]
pub struct PortRange {
    /// The first port.
    pub first: u16,
    /// The last port.
    pub last: u16,
}

impl PortRange {
    /// Returns true if `port` lies in the range.
    #[must_use]
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl TryFrom<toml::Value> for PortRange {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<Self, String> {
        let range = match &value {
            toml::Value::Integer(port) => u16::try_from(*port).ok().map(|port| (port, port)),
            toml::Value::String(text) => text.split_once('-').and_then(|(first, last)| {
                Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
            }),
            _ => None,
        };
        match range {
            Some((first, last)) if first > 0 && first <= last => Ok(Self { first, last }),
            _ => Err(format!(
                "{value} is not a port: write 1 to 65535, or a range such as \"5000-5100\""
            )),
        }
    }
}

/// A socket mark, with the bits that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "toml::Value")]
pub struct MarkMatch {
    /// Value of the masked mark.
    pub value: u32,
    /// Bits that count.
    pub mask: u32,
}

impl MarkMatch {
    /// Returns true if `mark` has the value under the mask.
    #[must_use]
    pub fn matches(self, mark: u32) -> bool {
        mark & self.mask == self.value
    }
}

impl TryFrom<toml::Value> for MarkMatch {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<Self, String> {
        let parsed = match &value {
            toml::Value::Integer(mark) => u32::try_from(*mark).ok().map(|mark| (mark, u32::MAX)),
            toml::Value::String(text) => match text.split_once('/') {
                Some((mark, mask)) => number(mark).zip(number(mask)),
                None => number(text).map(|mark| (mark, u32::MAX)),
            },
            _ => None,
        };
        match parsed {
            // A value with bits outside its mask would match no mark at all, which is surely a
            // mistake.
            Some((value, mask)) if value & !mask == 0 => Ok(Self { value, mask }),
            Some(_) => Err(format!(
                "{value} can never match: the value has bits outside the mask"
            )),
            None => Err(format!(
                "{value} is not a mark: write a number, or \"value/mask\" such as \"0x10/0xf0\""
            )),
        }
    }
}

fn number(text: &str) -> Option<u32> {
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}
