//! The file's shape for serde: every key optional, every value with its position in the text.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

/// An optional value with its position in the text.
pub(super) type Field<T> = Option<Spanned<T>>;

// Unknown fields are errors in every table: a misspelt key must not become a silent default.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawConfig {
    pub(super) listen: Field<String>,
    pub(super) admin: Field<String>,
    pub(super) topology: Field<String>,
    pub(super) log: Field<String>,
    #[serde(default)]
    pub(super) tls: RawTls,
    #[serde(default)]
    pub(super) allocation: RawAllocation,
    #[serde(default)]
    pub(super) transport: RawTransport,
    #[serde(default)]
    pub(super) limits: RawLimits,
    #[serde(default)]
    pub(super) trust: RawTrust,
    #[serde(default)]
    pub(super) rollout: RawRollout,
    pub(super) audit: Field<String>,
    #[serde(default)]
    pub(super) class: Vec<Spanned<RawClass>>,
    #[serde(default)]
    pub(super) feeds: RawFeeds,
    #[serde(default)]
    pub(super) membership: RawMembership,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTls {
    pub(super) ca: Field<String>,
    pub(super) cert: Field<String>,
    pub(super) key: Field<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAllocation {
    pub(super) engine: Field<String>,
    pub(super) blocks: Field<u32>,
    pub(super) workers: Field<usize>,
    pub(super) interval_us: Field<u64>,
    pub(super) back_to_back: Field<bool>,
    pub(super) gamma: Field<f64>,
    pub(super) threshold: Field<f64>,
    pub(super) mice_reserve: Field<f64>,
    pub(super) external_share: Field<f64>,
    pub(super) lease_ms: Field<u64>,
    pub(super) update_interval_us: Field<u64>,
    pub(super) ack_delay_ms: Field<u64>,
    pub(super) liveness_ms: Field<u64>,
    pub(super) start_grace_ms: Field<u64>,
    pub(super) pin_core: Field<usize>,
    pub(super) start_released: Field<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFeeds {
    pub(super) receivers: Field<bool>,
    pub(super) credit: Field<bool>,
    pub(super) int: Field<bool>,
    pub(super) shared: Field<bool>,
    pub(super) max_lowering: Field<f64>,
    pub(super) interval_ms: Field<u64>,
    pub(super) fresh_ms: Field<u64>,
    pub(super) max_age_ms: Field<u64>,
    pub(super) max_delay_us: Field<u64>,
    pub(super) max_share: Field<f64>,
    pub(super) state_hysteresis: Field<f64>,
    pub(super) hysteresis: Field<f64>,
    pub(super) collector: Option<RawCollector>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCollector {
    pub(super) listen: Field<String>,
    pub(super) sources: Field<Vec<String>>,
    #[serde(default)]
    pub(super) interface: Vec<Spanned<RawInterface>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawInterface {
    pub(super) target: Field<String>,
    pub(super) name: Field<String>,
    pub(super) from: Field<String>,
    pub(super) to: Field<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMembership {
    pub(super) join: Field<bool>,
    pub(super) grace_s: Field<u64>,
    pub(super) racks: Option<BTreeMap<String, Spanned<String>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTransport {
    pub(super) hot: Field<String>,
    pub(super) shards: Field<u16>,
    pub(super) udp_port: Field<u16>,
    pub(super) cipher: Field<String>,
    pub(super) busy_poll: Field<bool>,
    pub(super) control_dscp: Field<i64>,
    pub(super) dpdk: Option<Spanned<RawDpdk>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawDpdk {
    pub(super) eal: Field<Vec<String>>,
    pub(super) port: Field<u16>,
    pub(super) interface: Field<String>,
    pub(super) gateway: Field<String>,
    pub(super) mac: Field<String>,
    pub(super) descriptors: Field<u16>,
    pub(super) buffers: Field<u32>,
    pub(super) neighbours: Field<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLimits {
    pub(super) max_sessions: Field<u64>,
    pub(super) max_flows_per_session: Field<u64>,
    pub(super) max_flows: Field<u64>,
    pub(super) max_starts_per_s: Field<u64>,
    pub(super) max_total_starts_per_s: Field<u64>,
    pub(super) max_demand_changes_per_s: Field<u64>,
    pub(super) max_datagrams_per_s: Field<u64>,
    pub(super) max_control_bytes_per_s: Field<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTrust {
    pub(super) allow: Option<Vec<String>>,
    pub(super) deny_certificates: Option<Vec<Spanned<String>>>,
    pub(super) relays: Option<BTreeMap<String, Vec<Spanned<String>>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRollout {
    pub(super) percent: Field<f64>,
    pub(super) salt: Field<String>,
    pub(super) hosts: Option<Vec<Spanned<String>>>,
    pub(super) racks: Option<Vec<String>>,
    pub(super) exclude: Option<Vec<Spanned<String>>>,
    pub(super) others: Field<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawClass {
    pub(super) id: Field<u64>,
    pub(super) name: Field<String>,
    pub(super) utility: Field<String>,
    pub(super) alpha: Field<f64>,
    pub(super) reference_bps: Field<u64>,
    pub(super) weight: Field<f64>,
    pub(super) max_rate_bps: Field<u64>,
    pub(super) demand: Field<String>,
}
