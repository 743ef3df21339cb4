//! The parts of the AWS CLI's output that a topology is made of.
//!
//! Shapes are those of the service model: `DescribeInstanceTopologyResult`,
//! `DescribeInstancesResult`, `DescribeInstanceTypesResult` and `DescribePlacementGroupsResult` of
//! EC2's API 2016-11-15. Members that are not used are skipped.

use std::path::Path;

use anyhow::{Result, anyhow, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::super::read;

/// Output of one command.
pub(super) trait Output: DeserializeOwned {
    /// The command.
    const COMMAND: &'static str;
    fn next_token(&self) -> Option<&str>;
}

macro_rules! outputs {
    ($($name:ident { $list:ident: $item:ty = $json:literal } from $command:literal;)*) => {$(
        #[derive(Debug, Deserialize)]
        pub(super) struct $name {
            #[serde(rename = $json)]
            pub(super) $list: Vec<$item>,
            #[serde(rename = "NextToken")]
            next_token: Option<String>,
        }
        impl Output for $name {
            const COMMAND: &'static str = $command;
            fn next_token(&self) -> Option<&str> {
                self.next_token.as_deref().filter(|token| !token.is_empty())
            }
        }
    )*};
}

outputs! {
    InstanceTopologies { instances: InstanceTopology = "Instances" } from "describe-instance-topology";
    Reservations { reservations: Reservation = "Reservations" } from "describe-instances";
    InstanceTypes { types: InstanceType = "InstanceTypes" } from "describe-instance-types";
    PlacementGroups { groups: PlacementGroup = "PlacementGroups" } from "describe-placement-groups";
}

/// Reads the output of one command.
///
/// # Errors
/// The file cannot be read, is not the output of the command, or ends before the list does.
pub(super) fn load<T: Output>(path: &Path) -> Result<T> {
    let text = read(path)?;
    let output: T = serde_json::from_str(&text).map_err(|error| {
        anyhow!(
            "{} is not the JSON that `aws ec2 {}` prints: {error}",
            path.display(),
            T::COMMAND
        )
    })?;
    if output.next_token().is_some() {
        bail!(
            "{} ends before the list does (it has a NextToken); run `aws ec2 {}` without --max-items and --no-paginate",
            path.display(),
            T::COMMAND
        );
    }
    Ok(output)
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct InstanceTopology {
    pub(super) instance_id: String,
    /// From the top down; null or empty where the type is not supported.
    pub(super) network_nodes: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Reservation {
    #[serde(default)]
    pub(super) instances: Vec<Instance>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Instance {
    pub(super) instance_id: String,
    pub(super) instance_type: String,
    pub(super) state: State,
    #[serde(default)]
    pub(super) placement: Placement,
    #[serde(default)]
    pub(super) network_interfaces: Vec<NetworkInterface>,
    #[serde(default)]
    pub(super) tags: Vec<Tag>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct State {
    pub(super) name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Placement {
    pub(super) availability_zone: Option<String>,
    pub(super) group_name: Option<String>,
    pub(super) partition_number: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Tag {
    pub(super) key: String,
    #[serde(default)]
    pub(super) value: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct NetworkInterface {
    #[serde(default)]
    pub(super) attachment: Attachment,
    pub(super) private_ip_address: Option<String>,
    #[serde(default)]
    pub(super) private_ip_addresses: Vec<PrivateIpAddress>,
    #[serde(default)]
    pub(super) ipv6_addresses: Vec<Ipv6Address>,
    #[serde(default)]
    pub(super) ipv4_prefixes: Vec<Ipv4Prefix>,
    #[serde(default)]
    pub(super) ipv6_prefixes: Vec<Ipv6Prefix>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Attachment {
    #[serde(default)]
    pub(super) network_card_index: u32,
    #[serde(default)]
    pub(super) ena_srd_specification: EnaSrd,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct EnaSrd {
    #[serde(default)]
    pub(super) ena_srd_enabled: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct PrivateIpAddress {
    pub(super) private_ip_address: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Ipv6Address {
    pub(super) ipv6_address: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Ipv4Prefix {
    pub(super) ipv4_prefix: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Ipv6Prefix {
    pub(super) ipv6_prefix: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct InstanceType {
    pub(super) instance_type: String,
    #[serde(default)]
    pub(super) network_info: NetworkInfo,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct NetworkInfo {
    #[serde(default)]
    pub(super) network_cards: Vec<NetworkCard>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct NetworkCard {
    #[serde(default)]
    pub(super) network_card_index: u32,
    #[serde(rename = "BaselineBandwidthInGbps")]
    pub(super) baseline_gbps: Option<f64>,
    #[serde(rename = "PeakBandwidthInGbps")]
    pub(super) peak_gbps: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct PlacementGroup {
    pub(super) group_name: String,
    pub(super) strategy: Option<String>,
}
