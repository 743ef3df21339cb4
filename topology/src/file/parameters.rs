//! The table `[parameters]` of each kind.

use ipnet::{Ipv4Net, Ipv6Net};
use serde::Deserialize;

use super::values::{Base, Capacity, Delay};
use crate::addressing::Addressing;
use crate::ecmp::EcmpConfig;
use crate::parameters::{BigSwitch, FatTree, Parameters, ThreeTierClos, TwoTierClos};

/// Error of a key that is missing, or that excludes another.
pub(super) struct ParameterError {
    pub(super) key: &'static str,
    pub(super) message: String,
}

impl ParameterError {
    fn missing(key: &'static str, example: &str) -> Self {
        let message =
            format!("`{key}` is missing in [parameters]; add it, such as {key} = {example}");
        Self { key, message }
    }
}

pub(super) trait ParameterTable {
    /// Required keys, for a message.
    const REQUIRED: &'static str;
    fn into_parameters(self, ecmp: EcmpConfig) -> Result<Parameters, ParameterError>;
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BigSwitchTable {
    racks: Option<u32>,
    hosts_per_rack: Option<u32>,
    rack_sizes: Option<Vec<u32>>,
    spare_hosts: Option<u32>,
    host_capacity: Option<Capacity>,
    host_delay: Option<Delay>,
    ipv4_base: Option<Base<Ipv4Net>>,
    ipv6_base: Option<Base<Ipv6Net>>,
}

impl ParameterTable for BigSwitchTable {
    const REQUIRED: &'static str = "`racks`, `hosts_per_rack` or `rack_sizes`, and `host_capacity`";

    fn into_parameters(self, ecmp: EcmpConfig) -> Result<Parameters, ParameterError> {
        let defaults = BigSwitch::default();
        Ok(Parameters::BigSwitch(BigSwitch {
            racks: count(self.racks, "racks")?,
            hosts_per_rack: hosts_per_rack(self.hosts_per_rack, self.rack_sizes.as_deref())?,
            rack_sizes: self.rack_sizes.unwrap_or_default(),
            spare_hosts: self.spare_hosts.unwrap_or(0),
            host_capacity_bps: capacity(self.host_capacity, "host_capacity")?,
            host_delay_ns: delay(self.host_delay, defaults.host_delay_ns),
            addressing: addressing(self.ipv4_base, self.ipv6_base),
            ecmp,
        }))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TwoTierTable {
    racks: Option<u32>,
    hosts_per_rack: Option<u32>,
    rack_sizes: Option<Vec<u32>>,
    spare_hosts: Option<u32>,
    spines: Option<u32>,
    host_capacity: Option<Capacity>,
    fabric_capacity: Option<Capacity>,
    host_delay: Option<Delay>,
    fabric_delay: Option<Delay>,
    ipv4_base: Option<Base<Ipv4Net>>,
    ipv6_base: Option<Base<Ipv6Net>>,
}

impl ParameterTable for TwoTierTable {
    const REQUIRED: &'static str = "`racks`, `hosts_per_rack` or `rack_sizes`, `spines`, `host_capacity` and `fabric_capacity`";

    fn into_parameters(self, ecmp: EcmpConfig) -> Result<Parameters, ParameterError> {
        let defaults = TwoTierClos::default();
        Ok(Parameters::TwoTierClos(TwoTierClos {
            racks: count(self.racks, "racks")?,
            hosts_per_rack: hosts_per_rack(self.hosts_per_rack, self.rack_sizes.as_deref())?,
            rack_sizes: self.rack_sizes.unwrap_or_default(),
            spare_hosts: self.spare_hosts.unwrap_or(0),
            spines: count(self.spines, "spines")?,
            host_capacity_bps: capacity(self.host_capacity, "host_capacity")?,
            fabric_capacity_bps: capacity(self.fabric_capacity, "fabric_capacity")?,
            host_delay_ns: delay(self.host_delay, defaults.host_delay_ns),
            fabric_delay_ns: delay(self.fabric_delay, defaults.fabric_delay_ns),
            addressing: addressing(self.ipv4_base, self.ipv6_base),
            ecmp,
        }))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FatTreeTable {
    k: Option<u32>,
    capacity: Option<Capacity>,
    delay: Option<Delay>,
    ipv4_base: Option<Base<Ipv4Net>>,
    ipv6_base: Option<Base<Ipv6Net>>,
}

impl ParameterTable for FatTreeTable {
    const REQUIRED: &'static str = "`k` and `capacity`";

    fn into_parameters(self, ecmp: EcmpConfig) -> Result<Parameters, ParameterError> {
        Ok(Parameters::FatTree(FatTree {
            k: count(self.k, "k")?,
            capacity_bps: capacity(self.capacity, "capacity")?,
            delay_ns: delay(self.delay, FatTree::default().delay_ns),
            addressing: addressing(self.ipv4_base, self.ipv6_base),
            ecmp,
        }))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ThreeTierTable {
    pods: Option<u32>,
    racks_per_pod: Option<u32>,
    hosts_per_rack: Option<u32>,
    rack_sizes: Option<Vec<u32>>,
    spare_hosts: Option<u32>,
    aggs_per_pod: Option<u32>,
    cores: Option<u32>,
    host_capacity: Option<Capacity>,
    fabric_capacity: Option<Capacity>,
    core_capacity: Option<Capacity>,
    host_delay: Option<Delay>,
    fabric_delay: Option<Delay>,
    core_delay: Option<Delay>,
    ipv4_base: Option<Base<Ipv4Net>>,
    ipv6_base: Option<Base<Ipv6Net>>,
}

impl ParameterTable for ThreeTierTable {
    const REQUIRED: &'static str = "`pods`, `racks_per_pod`, `hosts_per_rack` or `rack_sizes`, `aggs_per_pod`, `cores`, `host_capacity`, `fabric_capacity` and `core_capacity`";

    fn into_parameters(self, ecmp: EcmpConfig) -> Result<Parameters, ParameterError> {
        let defaults = ThreeTierClos::default();
        Ok(Parameters::ThreeTierClos(ThreeTierClos {
            pods: count(self.pods, "pods")?,
            racks_per_pod: count(self.racks_per_pod, "racks_per_pod")?,
            hosts_per_rack: hosts_per_rack(self.hosts_per_rack, self.rack_sizes.as_deref())?,
            rack_sizes: self.rack_sizes.unwrap_or_default(),
            spare_hosts: self.spare_hosts.unwrap_or(0),
            aggs_per_pod: count(self.aggs_per_pod, "aggs_per_pod")?,
            cores: count(self.cores, "cores")?,
            host_capacity_bps: capacity(self.host_capacity, "host_capacity")?,
            fabric_capacity_bps: capacity(self.fabric_capacity, "fabric_capacity")?,
            core_capacity_bps: capacity(self.core_capacity, "core_capacity")?,
            host_delay_ns: delay(self.host_delay, defaults.host_delay_ns),
            fabric_delay_ns: delay(self.fabric_delay, defaults.fabric_delay_ns),
            core_delay_ns: delay(self.core_delay, defaults.core_delay_ns),
            addressing: addressing(self.ipv4_base, self.ipv6_base),
            ecmp,
        }))
    }
}

fn count(value: Option<u32>, key: &'static str) -> Result<u32, ParameterError> {
    value.ok_or_else(|| ParameterError::missing(key, "4"))
}

fn capacity(value: Option<Capacity>, key: &'static str) -> Result<u64, ParameterError> {
    value
        .map(|c| c.0)
        .ok_or_else(|| ParameterError::missing(key, "\"10Gbit/s\""))
}

/// Reads `hosts_per_rack`, which is required unless `rack_sizes` is given and excluded by it.
fn hosts_per_rack(value: Option<u32>, rack_sizes: Option<&[u32]>) -> Result<u32, ParameterError> {
    match (value, rack_sizes) {
        (Some(_), Some(_)) => Err(ParameterError {
            key: "hosts_per_rack",
            message: "`hosts_per_rack` and `rack_sizes` are both given; keep one of them".into(),
        }),
        // The builder keeps the maximum beside a list, so equal networks compare equal.
        (None, Some(sizes)) => Ok(sizes.iter().copied().max().unwrap_or(0)),
        (value, _) => count(value, "hosts_per_rack"),
    }
}

fn delay(value: Option<Delay>, default_ns: u64) -> u64 {
    value.map_or(default_ns, |d| d.0)
}

fn addressing(ipv4_base: Option<Base<Ipv4Net>>, ipv6_base: Option<Base<Ipv6Net>>) -> Addressing {
    let defaults = Addressing::default();
    Addressing {
        ipv4_base: ipv4_base.map_or(defaults.ipv4_base, |b| b.0),
        ipv6_base: ipv6_base.map_or(defaults.ipv6_base, |b| b.0),
    }
}
