//! Members: hosts that the topology file does not name. They join at run time by their
//! certificates, on spare places, and leave when they have had no session for a while.
//!
//! ```text
//!  spare ─Hello─► member ─session ends─► absent ─grace─► resting ─rest─► spare
//!                   ▲                      │
//!                   └──────── Hello ───────┘
//! ```
//!
//! A place rests until no host can speak of its former holder any more: hosts hear of departures
//! within [`SPREAD_NS`], and what they sent before arrives within the liveness time.
//!
//! Changes are collected and told to sessions in slices, as frames that all sessions share. A
//! session that has missed more than [`MAX_LOG`] of them is told of all members.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use bytes::Bytes;
use ipnet::IpNet;
use ratewright_proto::control::{ControlMessage, HostInfo, Members, Refusal, RefusalCode};
use ratewright_proto::server::registry::Registry;
use ratewright_topology::{Host, HostId, PlaceError, RackId, Tenure, Topology};

use super::HubSettings;
use super::session::{Session, Sessions};
use crate::service::config::MembershipConfig;
use crate::service::status::ServiceCounts;
use crate::service::tls::PeerCertificate;

/// Time for which changes are collected before hosts are told of them.
const SPREAD_NS: u64 = 200_000_000;
/// Sessions that one call tells of changes.
const TOLD_AT_ONCE: usize = 256;
/// Members that one call lets go.
const LEAVE_AT_ONCE: usize = 64;
/// Frames of changes that are kept for sessions that lag.
const MAX_LOG: usize = 64;
/// Hosts of one frame: with their longest names and all addresses it stays below a frame's bound.
const HOSTS_PER_FRAME: usize = 500;
/// Most addresses and prefixes of a member.
const MAX_ADDRESSES: usize = 16;

/// Members, and what sessions have been told of them.
#[derive(Debug, Default)]
pub(super) struct Membership {
    /// Members without a session, with the time from which they have had none.
    absent: BTreeMap<HostId, u64>,
    /// Times at which absent members leave, earliest first. An entry holds if `absent` agrees.
    leaving: VecDeque<(u64, HostId)>,
    /// Places that nobody may take before their time.
    resting: BTreeMap<HostId, u64>,
    /// Places whose holders have changed since the last frame.
    changed: BTreeSet<HostId>,
    /// Time at which these are told.
    publish_ns: Option<u64>,
    /// Number of the newest frame.
    version: u64,
    /// The newest frames, the last of them is `version`.
    log: VecDeque<Bytes>,
    /// Frames with all members as of `version`, once a session has asked for them.
    whole: Option<Vec<Bytes>>,
    /// Sessions that may not have the newest frame.
    untold: VecDeque<u32>,
    /// Members at present.
    count: u64,
}

/// Returns the rack of an address, by the longest configured prefix. Without any, a network of one
/// rack has no doubt.
fn rack_of(config: &MembershipConfig, topology: &Topology, address: IpAddr) -> Option<RackId> {
    if config.racks.is_empty() {
        return (topology.racks().len() == 1).then(|| topology.racks()[0].id);
    }
    let prefixes = config.racks.iter();
    let matching = prefixes.filter(|(prefix, _)| prefix.contains(&address));
    let (_, rack) = matching.max_by_key(|(prefix, _)| prefix.prefix_len())?;
    topology.rack_by_name(rack)
}

fn refusal(code: RefusalCode, reason: String, retry: bool) -> Refusal {
    Refusal {
        code,
        reason,
        retry,
    }
}

fn not_allowed(reason: String) -> Refusal {
    refusal(RefusalCode::NotAllowed, reason, false)
}

/// Returns the prefixes of a host with these addresses, and with pods in these prefixes.
pub(super) fn prefixes_of(addresses: &[IpAddr], pods: &[IpNet]) -> Vec<IpNet> {
    let own = addresses.iter().copied().map(IpNet::from);
    let mut prefixes: Vec<IpNet> = own.chain(pods.iter().map(IpNet::trunc)).collect();
    prefixes.sort_unstable();
    prefixes.dedup();
    prefixes
}

/// Encodes changes as frames; a message without hosts is one too.
fn frames(replaces: bool, joined: &[HostInfo], left: Vec<u32>) -> Vec<Bytes> {
    let mut messages = vec![Members {
        replaces,
        joined: Vec::new(),
        left,
    }];
    for hosts in joined.chunks(HOSTS_PER_FRAME) {
        match messages.last_mut().filter(|first| first.joined.is_empty()) {
            Some(first) => first.joined = hosts.to_vec(),
            None => messages.push(Members {
                joined: hosts.to_vec(),
                ..Members::default()
            }),
        }
    }
    let frames = messages.into_iter().map(ControlMessage::Members);
    frames
        .filter_map(|message| match message.to_frame() {
            Ok(frame) => Some(frame.into()),
            Err(error) => {
                tracing::error!(%error, "hosts cannot be told of members");
                None
            }
        })
        .collect()
}

fn info(host: &Host) -> HostInfo {
    HostInfo {
        id: host.id.0,
        name: host.name.clone(),
        prefixes: host.prefixes.clone(),
    }
}

/// True if a name is a member's, which its certificate has to place anew.
pub(super) fn is_member(topology: &Topology, host: HostId) -> bool {
    let host = topology.hosts().get(host.index());
    host.is_some_and(|host| host.tenure == Tenure::Member)
}

fn members_of(topology: &Topology) -> impl Iterator<Item = &Host> {
    let hosts = topology.hosts().iter();
    hosts.filter(|host| host.tenure == Tenure::Member)
}

/// Gives the members of a topology their places in its successor, where those are spare and their
/// addresses are nobody's.
pub(super) fn carry_members(topology: &Topology, successor: &mut Topology) {
    for host in members_of(topology) {
        let owner = |prefix: &IpNet| successor.host_by_addr(prefix.addr());
        if host.prefixes.iter().any(|prefix| owner(prefix).is_some()) {
            continue;
        }
        // One without a place is renumbered, which ends its session.
        let _ = successor.take_place(host.id, &host.name, host.prefixes.clone());
    }
}

fn rack_of_all(
    config: &MembershipConfig,
    topology: &Topology,
    addresses: &[IpAddr],
) -> Result<RackId, Refusal> {
    let mut racks = BTreeSet::new();
    for address in addresses {
        let Some(rack) = rack_of(config, topology, *address) else {
            return Err(not_allowed(format!(
                "no rack is configured for {address}: see membership.racks in the allocator's configuration"
            )));
        };
        racks.insert(rack);
    }
    match racks.pop_first() {
        Some(rack) if racks.is_empty() => Ok(rack),
        _ => Err(not_allowed(
            "the certificate's addresses are of several racks".to_owned(),
        )),
    }
}

/// Network whose places members take.
pub(super) struct Places<'a> {
    pub(super) settings: &'a HubSettings,
    pub(super) topology: &'a mut Topology,
    pub(super) counts: &'a mut ServiceCounts,
}

impl Membership {
    /// Finds the place of a host that the topology file does not name, or gives it one.
    ///
    /// # Errors
    /// The refusal that says why it has none.
    pub(super) fn join(
        &mut self,
        now_ns: u64,
        places: &mut Places<'_>,
        name: &str,
        certificate: &PeerCertificate,
        registry: &Registry,
    ) -> Result<HostId, Refusal> {
        let (addresses, pods) = (&certificate.addresses, &certificate.pod_prefixes);
        let topology = &*places.topology;
        if !places.settings.membership.join {
            let hosts = topology.host_count();
            let reason = format!("the topology has no host {name:?} among its {hosts}");
            return Err(refusal(RefusalCode::UnknownHost, reason, false));
        }
        if addresses.is_empty() || addresses.len() + pods.len() > MAX_ADDRESSES {
            return Err(not_allowed(format!(
                "a host that joins needs 1 to {MAX_ADDRESSES} IP addresses, prefixes of pods included, as \
                 subject alternative names of its certificate, which has {} and {}",
                addresses.len(),
                pods.len()
            )));
        }
        let before = topology.host_by_name(name);
        for address in addresses {
            if let Some(owner) = topology.host_by_addr(*address)
                && Some(owner) != before
            {
                let owner = &topology.hosts()[owner.index()].name;
                return Err(not_allowed(format!("{address} belongs to {owner:?}")));
            }
        }
        for prefix in pods {
            if let Some(owner) = topology.overlapping(prefix, before) {
                let owner = &topology.hosts()[owner.index()].name;
                return Err(not_allowed(format!("{prefix} overlaps {owner:?}")));
            }
        }
        let rack = rack_of_all(&places.settings.membership, topology, addresses)?;
        if let Some(place) = before {
            if topology.hosts()[place.index()].rack == rack {
                return Ok(place);
            }
            if registry.session_of(place.0).is_some() {
                let reason = format!("{name:?} has a session with addresses of another rack");
                return Err(refusal(RefusalCode::DuplicateHost, reason, true));
            }
            // It stands elsewhere now, so its links are others.
            self.leave(now_ns, places, place);
        }
        let place = self.spare_place(now_ns, places.topology, rack)?;
        (places.topology)
            .take_place(place, name, prefixes_of(addresses, pods))
            .map_err(|error: PlaceError| not_allowed(error.to_string()))?;
        self.resting.remove(&place);
        self.count += 1;
        places.counts.members_joined += 1;
        self.place_changed(now_ns, place);
        // Until its session is accepted, which may still fail.
        self.note_absent(now_ns, places.settings, places.topology, place);
        Ok(place)
    }

    fn spare_place(
        &self,
        now_ns: u64,
        topology: &Topology,
        rack: RackId,
    ) -> Result<HostId, Refusal> {
        let rack = &topology.racks()[rack.index()];
        let spare = |place: &HostId| {
            let rests = self.resting.get(place);
            topology.hosts()[place.index()].tenure == Tenure::Spare
                && rests.is_none_or(|until_ns| *until_ns <= now_ns)
        };
        rack.host_ids().find(spare).ok_or_else(|| {
            let reason = format!("rack {:?} has no spare place left", rack.name);
            refusal(RefusalCode::TableFull, reason, true)
        })
    }

    /// Notes that a host's session is over, if it is a member.
    pub(super) fn note_absent(
        &mut self,
        now_ns: u64,
        settings: &HubSettings,
        topology: &Topology,
        host: HostId,
    ) {
        if is_member(topology, host) {
            let leaves_ns = now_ns.saturating_add(settings.membership.grace_ns);
            self.absent.insert(host, now_ns);
            self.leaving.push_back((leaves_ns, host));
        }
    }

    /// Notes that a host has a session, under a certificate of these prefixes, if it is a member.
    pub(super) fn note_present(
        &mut self,
        now_ns: u64,
        topology: &mut Topology,
        host: HostId,
        prefixes: Vec<IpNet>,
    ) {
        if is_member(topology, host) {
            self.absent.remove(&host);
            if topology.hosts()[host.index()].prefixes != prefixes {
                topology.set_prefixes(host, prefixes);
                self.place_changed(now_ns, host);
            }
        }
    }

    fn leave(&mut self, now_ns: u64, places: &mut Places<'_>, host: HostId) {
        self.absent.remove(&host);
        if places.topology.free_place(host).is_ok() {
            let rest_ns = SPREAD_NS.saturating_add(places.settings.liveness_ns.saturating_mul(3));
            self.resting.insert(host, now_ns + rest_ns);
            self.count -= 1;
            places.counts.members_left += 1;
            self.place_changed(now_ns, host);
        }
    }

    fn place_changed(&mut self, now_ns: u64, place: HostId) {
        self.changed.insert(place);
        self.publish_ns.get_or_insert(now_ns + SPREAD_NS);
    }

    /// Returns the time of the next [`advance`](Self::advance).
    pub(super) fn next_ns(&self) -> Option<u64> {
        if !self.untold.is_empty() {
            return Some(0);
        }
        let leaves_ns = self.leaving.front().map(|(at_ns, _)| *at_ns);
        [leaves_ns, self.publish_ns].into_iter().flatten().min()
    }

    /// Lets absent members go, and returns sessions that are to be told of changes: a bounded part
    /// of both. `sessions` are all.
    pub(super) fn advance(
        &mut self,
        now_ns: u64,
        places: &mut Places<'_>,
        sessions: &Sessions,
    ) -> Vec<u32> {
        for _ in 0..LEAVE_AT_ONCE {
            let Some((_, host)) = (self.leaving).pop_front_if(|(at_ns, _)| *at_ns <= now_ns) else {
                break;
            };
            let grace_ns = places.settings.membership.grace_ns;
            let since_ns = self.absent.get(&host);
            // One that came back and went again has a later entry.
            if since_ns.is_some_and(|since_ns| since_ns.saturating_add(grace_ns) <= now_ns) {
                self.leave(now_ns, places, host);
            }
        }
        if self.publish_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            self.publish(now_ns, places.topology);
            self.tell_all(sessions);
        }
        let count = self.untold.len().min(TOLD_AT_ONCE);
        self.untold.drain(..count).collect()
    }

    /// Makes the frames of what has changed.
    fn publish(&mut self, now_ns: u64, topology: &Topology) {
        self.publish_ns = None;
        self.resting.retain(|_, until_ns| *until_ns > now_ns);
        let (mut joined, mut left) = (Vec::new(), Vec::new());
        for place in std::mem::take(&mut self.changed) {
            match topology.hosts().get(place.index()) {
                Some(host) if host.tenure == Tenure::Member => joined.push(info(host)),
                Some(_) => left.push(place.0),
                None => {}
            }
        }
        for frame in frames(false, &joined, left) {
            self.version += 1;
            self.log.push_back(frame);
        }
        while self.log.len() > MAX_LOG {
            self.log.pop_front();
        }
        self.whole = None;
    }

    fn tell_all(&mut self, sessions: &Sessions) {
        self.untold.clear();
        self.untold.extend(sessions.numbers());
    }

    /// Sends a session what it has not heard of the members. True if it has something to send now.
    pub(super) fn tell(&mut self, topology: &Topology, session: &mut Session) -> bool {
        let version = self.version;
        let takes = (session.peer.as_ref()).is_some_and(|peer| peer.hello.members);
        if !takes || session.members_version == Some(version) {
            return false;
        }
        let log = self.log.len() as u64;
        let missed = session.members_version.map(|told| version - told);
        let frames: Vec<Bytes> = match missed.filter(|missed| *missed <= log) {
            Some(missed) => {
                let from = (log - missed) as usize;
                self.log.range(from..).cloned().collect()
            }
            None => self.all(topology).to_vec(),
        };
        session.members_version = Some(version);
        for frame in frames {
            // A client that does not read hears of all members when it does again.
            if session.proto.send_members(frame).is_err() {
                session.members_version = None;
                break;
            }
        }
        true
    }

    /// Returns the frames with all members.
    fn all(&mut self, topology: &Topology) -> &[Bytes] {
        self.whole.get_or_insert_with(|| {
            let joined: Vec<HostInfo> = members_of(topology).map(info).collect();
            frames(true, &joined, Vec::new())
        })
    }

    /// Counts the members anew after a change of the topology, and has all sessions told of them.
    pub(super) fn recount(&mut self, topology: &Topology, sessions: &Sessions) {
        self.count = members_of(topology).count() as u64;
        self.absent.retain(|id, _| is_member(topology, *id));
        self.changed.clear();
        self.publish_ns = None;
        // Without a log every session is told of all members.
        self.log.clear();
        self.version += 1;
        self.whole = None;
        self.tell_all(sessions);
    }

    /// Returns the number of members, absent ones included.
    pub(super) fn count(&self) -> u64 {
        self.count
    }
}
