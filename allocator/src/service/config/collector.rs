//! Table `[feeds.collector]`: a collector of switches, and what it may tell of.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use ratewright_topology::Topology;

use super::check::Checker;
use super::error::ConfigError;
use super::raw::{RawCollector, RawInterface};
use crate::feeds::gnmic::SwitchInterface;

/// Maximum number of interfaces.
const MAX_INTERFACES: usize = 65_536;

/// Collector of switches, which sends gnmic's events in UDP datagrams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectorConfig {
    /// UDP address that takes them.
    pub listen: SocketAddr,
    /// Addresses that may send them.
    pub sources: Vec<IpAddr>,
    /// Interfaces that they may tell of.
    pub interfaces: Vec<SwitchInterface>,
}

impl CollectorConfig {
    /// Returns the first interface without a link in the topology.
    #[must_use]
    pub fn without_link(&self, topology: &Topology) -> Option<&SwitchInterface> {
        let mut interfaces = self.interfaces.iter();
        interfaces.find(|interface| interface.link(topology).is_none())
    }
}

pub(super) fn checked(
    check: &Checker<'_>,
    raw: RawCollector,
) -> Result<CollectorConfig, ConfigError> {
    let listen = check.need(
        raw.listen,
        "feeds.collector.listen",
        r#"the UDP address that takes events, such as listen = "10.0.0.1:7610""#,
    )?;
    let sources = check.need(
        raw.sources,
        "feeds.collector.sources",
        r#"the addresses that may send events, such as sources = ["10.0.0.9"]"#,
    )?;
    let addresses: Result<Vec<IpAddr>, _> =
        sources.get_ref().iter().map(|text| text.parse()).collect();
    let addresses = addresses
        .ok()
        .filter(|addresses| !addresses.is_empty())
        .ok_or_else(|| {
            check.wrong(
                "feeds.collector.sources",
                &sources,
                r#"must be IP addresses, such as ["10.0.0.9", "2001:db8::9"]"#,
            )
        })?;
    if let Some(beyond) = raw.interface.get(MAX_INTERFACES) {
        let expected = format!("must be at most {MAX_INTERFACES} interfaces");
        return Err(check.wrong("feeds.collector.interface", beyond, expected));
    }
    let mut known = BTreeSet::new();
    let mut interfaces = Vec::new();
    for entry in raw.interface {
        let span = entry.span();
        let interface = interface(check, entry.into_inner())?;
        if !known.insert((interface.target.clone(), interface.name.clone())) {
            let twice = toml::Spanned::new(span, ());
            return Err(check.wrong(
                "feeds.collector.interface",
                &twice,
                "must name each interface of a target once",
            ));
        }
        interfaces.push(interface);
    }
    Ok(CollectorConfig {
        listen: check.socket_address("feeds.collector.listen", &listen)?,
        sources: addresses,
        interfaces,
    })
}

fn interface(check: &Checker<'_>, raw: RawInterface) -> Result<SwitchInterface, ConfigError> {
    let need = |field, key: &str, expected: &str| {
        let key = format!("feeds.collector.interface.{key}");
        check
            .need(field, &key, expected)
            .map(toml::Spanned::into_inner)
    };
    Ok(SwitchInterface {
        target: need(
            raw.target,
            "target",
            r#"the switch's name at gnmic, such as target = "leaf1""#,
        )?,
        name: need(
            raw.name,
            "name",
            r#"the interface, such as name = "Ethernet1/1""#,
        )?,
        from: need(
            raw.from,
            "from",
            r#"the node of the topology that sends, such as from = "leaf1""#,
        )?,
        to: need(
            raw.to,
            "to",
            r#"the node of the topology that receives, such as to = "h1""#,
        )?,
    })
}
