//! Conversion between the checked types and the generated ones.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use ipnet::IpNet;

use super::{
    AccessCapacity, ClassInfo, ControlMessage, Hello, HostInfo, HostsDigest, MAX_LEASE_NS,
    MAX_LIVENESS_NS, MAX_TEXT_BYTES, MIN_LEASE_NS, Members, Refusal, RefusalCode, SealedUdp,
    TopologySnapshot, Welcome,
};
use crate::VERSION;
use crate::error::SessionError;
use crate::records::MAX_SLOTS;
use crate::sealed::Cipher;
use crate::telemetry::SyncTerms;
use crate::wire::{self, control_message::Body};

fn invalid(field: &'static str, problem: impl Into<String>) -> SessionError {
    SessionError::Invalid {
        field,
        problem: problem.into(),
    }
}

fn text(field: &'static str, value: String) -> Result<String, SessionError> {
    if value.len() > MAX_TEXT_BYTES {
        return Err(invalid(
            field,
            format!("{} bytes; the bound is {MAX_TEXT_BYTES}", value.len()),
        ));
    }
    Ok(value)
}

fn duration(
    field: &'static str,
    value_ns: u64,
    bounds_ns: RangeInclusive<u64>,
) -> Result<u64, SessionError> {
    if bounds_ns.contains(&value_ns) {
        return Ok(value_ns);
    }
    let (low_ns, high_ns) = bounds_ns.into_inner();
    Err(invalid(
        field,
        format!("{value_ns} ns is outside {low_ns}..={high_ns}"),
    ))
}

fn slots(field: &'static str, value: u32) -> Result<u32, SessionError> {
    if value > MAX_SLOTS {
        return Err(invalid(
            field,
            format!("{value}; flow ids name {MAX_SLOTS} slots"),
        ));
    }
    Ok(value)
}

impl TryFrom<Body> for ControlMessage {
    type Error = SessionError;

    fn try_from(body: Body) -> Result<Self, SessionError> {
        Ok(match body {
            Body::Hello(hello) => Self::Hello(hello.try_into()?),
            Body::Welcome(welcome) => Self::Welcome(welcome.try_into()?),
            Body::Refused(refused) => Self::Refused(refused.into()),
            Body::Topology(topology) => Self::Topology(topology.try_into()?),
            Body::ReleaseState(state) => Self::ReleaseState {
                released: state.released,
                observe: state.observe,
                next_seq: state.next_seq,
            },
            Body::ReleaseAck(ack) => Self::ReleaseAck {
                released: ack.released,
                paced_flows: ack.paced_flows,
            },
            Body::Telemetry(telemetry) => Self::Telemetry(telemetry.try_into()?),
            Body::Members(members) => Self::Members(members.try_into()?),
        })
    }
}

impl From<&ControlMessage> for Body {
    fn from(message: &ControlMessage) -> Self {
        match message {
            ControlMessage::Hello(hello) => Self::Hello(hello.into()),
            ControlMessage::Welcome(welcome) => Self::Welcome(welcome.into()),
            ControlMessage::Refused(refusal) => Self::Refused(refusal.into()),
            ControlMessage::Topology(topology) => Self::Topology(topology.into()),
            &ControlMessage::ReleaseState {
                released,
                observe,
                next_seq,
            } => Self::ReleaseState(wire::ReleaseState {
                released,
                next_seq,
                observe,
            }),
            &ControlMessage::ReleaseAck {
                released,
                paced_flows,
            } => Self::ReleaseAck(wire::ReleaseAck {
                released,
                paced_flows,
            }),
            ControlMessage::Telemetry(telemetry) => Self::Telemetry(telemetry.into()),
            ControlMessage::Members(members) => Self::Members(members.into()),
        }
    }
}

impl TryFrom<wire::Hello> for Hello {
    type Error = SessionError;

    fn try_from(hello: wire::Hello) -> Result<Self, SessionError> {
        // Another version may give the other fields another meaning: only its number is read.
        if hello.version == u32::from(VERSION) {
            slots("Hello.max_flows", hello.max_flows)?;
            duration(
                "Hello.ack_delay_ns",
                hello.ack_delay_ns,
                0..=MAX_LIVENESS_NS,
            )?;
            if hello.host_name.is_empty() {
                return Err(invalid("Hello.host_name", "empty"));
            }
        }
        Ok(Self {
            version: hello.version,
            host_name: text("Hello.host_name", hello.host_name)?,
            incarnation: hello.incarnation,
            attempt: hello.attempt,
            software: text("Hello.software", hello.software)?,
            max_flows: hello.max_flows,
            ack_delay_ns: hello.ack_delay_ns,
            first_seq: hello.first_seq,
            sealed_udp: hello.sealed_udp,
            // An unreadable digest counts as none: the client receives all hosts.
            known_hosts: digest(&hello.known_hosts),
            members: hello.members,
        })
    }
}

impl From<&Hello> for wire::Hello {
    fn from(hello: &Hello) -> Self {
        Self {
            version: hello.version,
            host_name: hello.host_name.clone(),
            incarnation: hello.incarnation,
            attempt: hello.attempt,
            software: hello.software.clone(),
            max_flows: hello.max_flows,
            ack_delay_ns: hello.ack_delay_ns,
            first_seq: hello.first_seq,
            sealed_udp: hello.sealed_udp,
            known_hosts: digest_bytes(hello.known_hosts),
            members: hello.members,
        }
    }
}

fn digest(bytes: &[u8]) -> Option<HostsDigest> {
    bytes.try_into().ok().map(HostsDigest)
}

fn digest_bytes(digest: Option<HostsDigest>) -> Vec<u8> {
    digest.map_or_else(Vec::new, |digest| digest.0.to_vec())
}

impl TryFrom<wire::Welcome> for Welcome {
    type Error = SessionError;

    fn try_from(welcome: wire::Welcome) -> Result<Self, SessionError> {
        if welcome.version != u32::from(VERSION) {
            return Err(invalid(
                "Welcome.version",
                format!("{}; this side speaks {VERSION}", welcome.version),
            ));
        }
        // Written so that NaN fails the check as well.
        if !(welcome.threshold >= 0.0 && welcome.threshold < 1.0) {
            return Err(invalid(
                "Welcome.threshold",
                format!("{} is not within 0..1", welcome.threshold),
            ));
        }
        let topology = welcome
            .topology
            .ok_or_else(|| invalid("Welcome.topology", "missing"))?
            .try_into()?;
        let classes = welcome
            .classes
            .into_iter()
            .map(|class| {
                // Start records have 7 bits for the class: the eighth marks an explicit path.
                let id = u8::try_from(class.id).ok().filter(|&id| id < 128);
                Ok(ClassInfo {
                    id: id.ok_or_else(|| {
                        invalid("FlowClass.id", format!("{} is not within 0..128", class.id))
                    })?,
                    name: text("FlowClass.name", class.name)?,
                })
            })
            .collect::<Result<_, SessionError>>()?;
        Ok(Self {
            epoch: welcome.epoch,
            session: welcome.session,
            host_id: welcome.host_id,
            // A host paces for as long after its allocator's last word, whoever that was.
            lease_ns: duration(
                "Welcome.lease_ns",
                welcome.lease_ns,
                MIN_LEASE_NS..=MAX_LEASE_NS,
            )?,
            liveness_ns: duration(
                "Welcome.liveness_ns",
                welcome.liveness_ns,
                MIN_LEASE_NS..=MAX_LIVENESS_NS,
            )?,
            max_flows: slots("Welcome.max_flows", welcome.max_flows)?,
            ack_delay_ns: duration(
                "Welcome.ack_delay_ns",
                welcome.ack_delay_ns,
                0..=MAX_LIVENESS_NS,
            )?,
            first_seq: welcome.first_seq,
            released: welcome.released,
            observe: welcome.observe,
            threshold: welcome.threshold,
            topology,
            classes,
            sealed_udp: welcome.sealed_udp.and_then(sealed_udp),
            telemetry_interval_ns: welcome.telemetry_interval_ns,
            telemetry_sync: SyncTerms::from_wire(
                welcome.telemetry_hysteresis,
                welcome.telemetry_repeat_ns,
            )?,
            access: AccessCapacity::new(welcome.uplink_bps, welcome.downlink_bps)
                .with_line_rates(welcome.uplink_line_rate_bps, welcome.downlink_line_rate_bps),
        })
    }
}

impl From<&Welcome> for wire::Welcome {
    fn from(welcome: &Welcome) -> Self {
        Self {
            version: u32::from(VERSION),
            epoch: welcome.epoch,
            session: welcome.session,
            host_id: welcome.host_id,
            lease_ns: welcome.lease_ns,
            liveness_ns: welcome.liveness_ns,
            max_flows: welcome.max_flows,
            ack_delay_ns: welcome.ack_delay_ns,
            first_seq: welcome.first_seq,
            released: welcome.released,
            observe: welcome.observe,
            threshold: welcome.threshold,
            topology: Some((&welcome.topology).into()),
            classes: welcome
                .classes
                .iter()
                .map(|class| wire::FlowClass {
                    id: u32::from(class.id),
                    name: class.name.clone(),
                })
                .collect(),
            sealed_udp: welcome.sealed_udp.map(|udp| wire::SealedUdp {
                port: u32::from(udp.port),
                cipher: udp.cipher.number(),
                ipv4: udp.address.map(|address| address.octets().to_vec()),
            }),
            telemetry_interval_ns: welcome.telemetry_interval_ns,
            telemetry_hysteresis: welcome.telemetry_sync.map_or(0.0, |terms| terms.hysteresis),
            telemetry_repeat_ns: welcome.telemetry_sync.map_or(0, |terms| terms.repeat_ns),
            uplink_bps: welcome.access.uplink_bps,
            downlink_bps: welcome.access.downlink_bps,
            uplink_line_rate_bps: welcome.access.uplink_line_rate_bps,
            downlink_line_rate_bps: welcome.access.downlink_line_rate_bps,
        }
    }
}

/// Converts an offer of sealed datagrams. One that this version cannot use counts as none: QUIC
/// carries the session.
fn sealed_udp(offer: wire::SealedUdp) -> Option<SealedUdp> {
    let address = match offer.ipv4 {
        None => None,
        Some(bytes) => {
            let address = Ipv4Addr::from(<[u8; 4]>::try_from(bytes.as_slice()).ok()?);
            // The client would send to every station of its network.
            let one_station =
                !(address.is_unspecified() || address.is_broadcast() || address.is_multicast());
            Some(one_station.then_some(address)?)
        }
    };
    Some(SealedUdp {
        address,
        port: u16::try_from(offer.port).ok().filter(|&port| port != 0)?,
        cipher: Cipher::from_number(offer.cipher)?,
    })
}

impl TryFrom<wire::Topology> for TopologySnapshot {
    type Error = SessionError;

    fn try_from(topology: wire::Topology) -> Result<Self, SessionError> {
        // A message with both could not say which hosts hold.
        if topology.hosts_known && !topology.hosts.is_empty() {
            return Err(invalid("Topology.hosts_known", "there are hosts beside it"));
        }
        let hosts = topology.hosts.into_iter().map(host_from_wire);
        let hosts = hosts.collect::<Result<_, SessionError>>()?;
        let access = AccessCapacity::new(topology.uplink_bps, topology.downlink_bps)
            .with_line_rates(
                topology.uplink_line_rate_bps,
                topology.downlink_line_rate_bps,
            );
        Ok(Self {
            version: topology.version,
            ecmp_seed: topology.ecmp_seed,
            ecmp_symmetric: topology.ecmp_symmetric,
            hosts,
            digest: digest(&topology.hosts_digest),
            known: topology.hosts_known,
            access: Some(access).filter(|&access| access != AccessCapacity::default()),
        })
    }
}

impl From<&TopologySnapshot> for wire::Topology {
    fn from(topology: &TopologySnapshot) -> Self {
        let access = topology.access.unwrap_or_default();
        Self {
            version: topology.version,
            ecmp_seed: topology.ecmp_seed,
            ecmp_symmetric: topology.ecmp_symmetric,
            hosts: topology.hosts.iter().map(host_to_wire).collect(),
            hosts_digest: digest_bytes(topology.digest),
            hosts_known: topology.known,
            uplink_bps: access.uplink_bps,
            downlink_bps: access.downlink_bps,
            uplink_line_rate_bps: access.uplink_line_rate_bps,
            downlink_line_rate_bps: access.downlink_line_rate_bps,
        }
    }
}

impl TryFrom<wire::Members> for Members {
    type Error = SessionError;

    fn try_from(members: wire::Members) -> Result<Self, SessionError> {
        let joined = members.joined.into_iter().map(host_from_wire);
        Ok(Self {
            replaces: members.replaces,
            joined: joined.collect::<Result<_, SessionError>>()?,
            left: members.left,
        })
    }
}

impl From<&Members> for wire::Members {
    fn from(members: &Members) -> Self {
        Self {
            replaces: members.replaces,
            joined: members.joined.iter().map(host_to_wire).collect(),
            left: members.left.clone(),
        }
    }
}

fn host_from_wire(host: wire::TopologyHost) -> Result<HostInfo, SessionError> {
    let prefixes = host.prefixes.iter().map(prefix_from_wire);
    Ok(HostInfo {
        id: host.id,
        name: text("TopologyHost.name", host.name)?,
        prefixes: prefixes.collect::<Result<_, _>>()?,
    })
}

fn host_to_wire(host: &HostInfo) -> wire::TopologyHost {
    wire::TopologyHost {
        id: host.id,
        name: host.name.clone(),
        prefixes: host.prefixes.iter().map(prefix_to_wire).collect(),
    }
}

fn prefix_from_wire(prefix: &wire::Prefix) -> Result<IpNet, SessionError> {
    let address = if let Ok(octets) = <[u8; 4]>::try_from(prefix.address.as_slice()) {
        IpAddr::V4(Ipv4Addr::from(octets))
    } else if let Ok(octets) = <[u8; 16]>::try_from(prefix.address.as_slice()) {
        IpAddr::V6(Ipv6Addr::from(octets))
    } else {
        return Err(invalid(
            "Prefix.address",
            format!("{} bytes; 4 or 16 are right", prefix.address.len()),
        ));
    };
    u8::try_from(prefix.length)
        .ok()
        // The family's maximum length is checked with the address, which has the family.
        .and_then(|length| IpNet::new(address, length).ok())
        .ok_or_else(|| {
            invalid(
                "Prefix.length",
                format!("{} bits of the address {address}", prefix.length),
            )
        })
}

fn prefix_to_wire(prefix: &IpNet) -> wire::Prefix {
    wire::Prefix {
        address: match prefix.addr() {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        },
        length: u32::from(prefix.prefix_len()),
    }
}

impl From<wire::Refused> for Refusal {
    fn from(refused: wire::Refused) -> Self {
        let mut reason = refused.reason;
        if reason.len() > MAX_TEXT_BYTES {
            // A reason is only for people: cut it at a character instead of refusing the refusal.
            let end = (0..=MAX_TEXT_BYTES)
                .rev()
                .find(|&end| reason.is_char_boundary(end));
            reason.truncate(end.unwrap_or(0));
        }
        Self {
            code: refused.code.into(),
            reason,
            retry: refused.retry,
        }
    }
}

impl From<&Refusal> for wire::Refused {
    fn from(refusal: &Refusal) -> Self {
        Self {
            code: refusal.code.into(),
            reason: refusal.reason.clone(),
            retry: refusal.retry,
        }
    }
}

impl From<i32> for RefusalCode {
    fn from(code: i32) -> Self {
        use wire::RefusalCode as Wire;
        match Wire::try_from(code) {
            Ok(Wire::VersionMismatch) => Self::VersionMismatch,
            Ok(Wire::UnknownHost) => Self::UnknownHost,
            Ok(Wire::DuplicateHost) => Self::DuplicateHost,
            Ok(Wire::CertificateMismatch) => Self::CertificateMismatch,
            Ok(Wire::Draining) => Self::Draining,
            Ok(Wire::TableFull) => Self::TableFull,
            Ok(Wire::Superseded) => Self::Superseded,
            Ok(Wire::ProtocolError) => Self::ProtocolError,
            Ok(Wire::NotAllowed) => Self::NotAllowed,
            // A refusal with an unknown code is still a refusal; its `retry` decides what follows.
            Ok(Wire::Unspecified) | Err(_) => Self::Unknown(code),
        }
    }
}

impl From<RefusalCode> for i32 {
    fn from(code: RefusalCode) -> Self {
        use wire::RefusalCode as Wire;
        let wire = match code {
            RefusalCode::VersionMismatch => Wire::VersionMismatch,
            RefusalCode::UnknownHost => Wire::UnknownHost,
            RefusalCode::DuplicateHost => Wire::DuplicateHost,
            RefusalCode::CertificateMismatch => Wire::CertificateMismatch,
            RefusalCode::Draining => Wire::Draining,
            RefusalCode::TableFull => Wire::TableFull,
            RefusalCode::Superseded => Wire::Superseded,
            RefusalCode::ProtocolError => Wire::ProtocolError,
            RefusalCode::NotAllowed => Wire::NotAllowed,
            RefusalCode::Unknown(code) => return code,
        };
        wire.into()
    }
}

#[cfg(test)]
mod tests;
