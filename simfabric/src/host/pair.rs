//! Two schemes on one host, which share its interface.
//!
//! A [`Pair`] is a transport whose endpoints have two parts, each the endpoint of a scheme with its
//! own slots, timers and random numbers. A flow belongs to one of them, by its workload, its class
//! or its sender ([`Split`]), and so do its packets. Each part acts as if it were alone, but for
//! the link, which both get in turns ([`Turns`]).
//!
//! Any two schemes make a pair, so a part's types are erased: [`Part`].

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Endpoint, HostSet, Measured, Pull, Timer};
use crate::control::link_check::LinkFinding;
use crate::flow::{FlowId, FlowSpec};
use crate::net::Notice;
use crate::packet::Packet;
use crate::transport::{BrokenInvariant, Context, SharedByHosts, Transport};

/// Rule by which flows belong to the second of two schemes; all others are of the first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Split {
    /// Flows of these workloads.
    Workloads(Vec<u16>),
    /// Flows that ask for one of these classes.
    Classes(Vec<u8>),
    /// Flows that these hosts send. On such a host the first scheme only receives.
    Hosts(HostSet),
}

impl Split {
    /// Returns the number of the part that a flow belongs to.
    fn part_of(&self, spec: &FlowSpec) -> usize {
        usize::from(match self {
            Self::Workloads(labels) => labels.contains(&spec.label),
            Self::Classes(classes) => classes.contains(&spec.class),
            Self::Hosts(hosts) => hosts.contains(spec.src),
        })
    }
}

/// Order in which two schemes send on a host's link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Turns {
    /// The one that has sent fewer bytes since both had some: half of the link each.
    #[default]
    Fair,
    /// The first one as long as it has packets.
    First,
    /// The second one as long as it has packets.
    Second,
}

/// Parameters of a pair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PairConfig {
    /// Flows of the second scheme.
    pub split: Split,
    /// Order on a host's link.
    pub turns: Turns,
    /// Number of the part, 0 or 1, that packets without a flow belong to: that with the allocator.
    pub without_flow: usize,
}

/// State that the hosts of a scheme share, of any type.
#[derive(Debug)]
pub struct AnyShared {
    state: Box<dyn Any + Send>,
    divide: fn(&dyn Any) -> Option<AnyShared>,
}

impl AnyShared {
    fn new<S: SharedByHosts + 'static>(state: S) -> Self {
        Self {
            state: Box::new(state),
            divide: |state| Some(Self::new(state.downcast_ref::<S>()?.divide()?)),
        }
    }
}

impl SharedByHosts for AnyShared {
    fn divide(&self) -> Option<Self> {
        (self.divide)(&*self.state)
    }
}

/// State that the hosts of a pair share: that of both parts.
#[derive(Debug)]
pub struct PairShared([AnyShared; 2]);

impl SharedByHosts for PairShared {
    fn divide(&self) -> Option<Self> {
        let [first, second] = &self.0;
        Some(Self([first.divide()?, second.divide()?]))
    }
}

/// An endpoint that finds its shared state by its type.
#[derive(Debug)]
struct Erased<E>(E);

impl<E: Endpoint + 'static> Erased<E>
where
    E::Shared: 'static,
{
    /// Lets the endpoint act on its own shared state.
    #[inline]
    fn act<R>(
        &mut self,
        cx: &mut Context<'_, AnyShared>,
        act: impl FnOnce(&mut E, &mut Context<'_, E::Shared>) -> R,
    ) -> R {
        let shared = cx.shared.state.downcast_mut();
        let mut cx = Context {
            core: cx.core,
            shared: shared.expect("a part's shared state is of the part's type"),
            host: cx.host,
            part: cx.part,
        };
        act(&mut self.0, &mut cx)
    }
}

impl<E: Endpoint + 'static> Endpoint for Erased<E>
where
    E::Shared: 'static,
{
    type Shared = AnyShared;

    fn on_begin(&mut self, cx: &mut Context<'_, AnyShared>) {
        self.act(cx, E::on_begin);
    }

    fn on_start(&mut self, cx: &mut Context<'_, AnyShared>, flow: FlowId) {
        self.act(cx, |endpoint, cx| endpoint.on_start(cx, flow));
    }

    fn on_stop(&mut self, cx: &mut Context<'_, AnyShared>, flow: FlowId) {
        self.act(cx, |endpoint, cx| endpoint.on_stop(cx, flow));
    }

    fn on_packet(&mut self, cx: &mut Context<'_, AnyShared>, packet: &mut Packet) {
        self.act(cx, |endpoint, cx| endpoint.on_packet(cx, packet));
    }

    fn on_timer(&mut self, cx: &mut Context<'_, AnyShared>, timer: Timer) {
        self.act(cx, |endpoint, cx| endpoint.on_timer(cx, timer));
    }

    fn on_poke(&mut self, cx: &mut Context<'_, AnyShared>) {
        self.act(cx, E::on_poke);
    }

    fn pull(&mut self, cx: &mut Context<'_, AnyShared>) -> Pull {
        self.act(cx, E::pull)
    }

    fn measure(&self, measured: &mut Measured) {
        self.0.measure(measured);
    }

    fn on_measured(&mut self, cx: &mut Context<'_, AnyShared>, measured: Measured) {
        self.act(cx, |endpoint, cx| endpoint.on_measured(cx, measured));
    }

    fn rate_bps(&self, slot: u32) -> Option<f64> {
        self.0.rate_bps(slot)
    }
}

/// An endpoint of any type that can be found out again.
trait AnyEndpoint: Endpoint<Shared = AnyShared> + Any + Send {}

impl<E: Endpoint<Shared = AnyShared> + Any + Send> AnyEndpoint for E {}

/// Counters of a scheme, from what its hosts share and from its endpoints.
type Summary = fn(&AnyShared, &[&dyn Any]) -> Vec<(&'static str, f64)>;

/// Links that the check of a scheme's allocator named, likewise.
type Findings = fn(&AnyShared, &[&dyn Any]) -> Vec<LinkFinding>;

/// Check of a scheme's invariants, likewise.
type Check = fn(&AnyShared, &[&dyn Any]) -> Result<(), BrokenInvariant>;

/// The endpoints of a scheme, their type erased.
struct Fleet {
    shared: AnyShared,
    endpoints: Vec<Box<dyn AnyEndpoint>>,
}

/// One of two schemes of a pair, its type erased.
pub struct Part {
    start: Box<dyn FnOnce(u32) -> Fleet>,
    summary: Summary,
    findings: Findings,
    check: Check,
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Part").finish_non_exhaustive()
    }
}

impl Part {
    /// Erases the type of a scheme.
    pub fn new<T: Transport>(transport: T) -> Self
    where
        T::Shared: 'static,
        T::Endpoint: 'static,
    {
        let start = |nodes| {
            let (shared, endpoints) = transport.start(nodes);
            let endpoints = endpoints.into_iter().map(Erased);
            Fleet {
                shared: AnyShared::new(shared),
                endpoints: endpoints
                    .map(|e| Box::new(e) as Box<dyn AnyEndpoint>)
                    .collect(),
            }
        };
        Self {
            start: Box::new(start),
            summary: |shared, endpoints| {
                let own = endpoints.iter().filter_map(|e| e.downcast_ref());
                let own: Vec<&T::Endpoint> = own.map(|Erased(endpoint)| endpoint).collect();
                let shared = shared.state.downcast_ref();
                shared.map_or_else(Vec::new, |shared| T::summary(shared, &own))
            },
            findings: |shared, endpoints| {
                let own = endpoints.iter().filter_map(|e| e.downcast_ref());
                let own: Vec<&T::Endpoint> = own.map(|Erased(endpoint)| endpoint).collect();
                let shared = shared.state.downcast_ref();
                shared.map_or_else(Vec::new, |shared| T::findings(shared, &own))
            },
            check: |shared, endpoints| {
                let own = endpoints.iter().filter_map(|e| e.downcast_ref());
                let own: Vec<&T::Endpoint> = own.map(|Erased(endpoint)| endpoint).collect();
                let shared = shared.state.downcast_ref();
                shared.map_or(Ok(()), |shared| T::check(shared, &own))
            },
        }
    }
}

/// Two schemes on every host.
#[derive(Debug)]
pub struct Pair {
    parts: [Part; 2],
    config: PairConfig,
}

impl Pair {
    /// Puts two schemes on every host.
    #[must_use]
    pub fn new(parts: [Part; 2], config: PairConfig) -> Self {
        Self { parts, config }
    }
}

impl Transport for Pair {
    type Shared = PairShared;
    type Endpoint = PairHost;

    fn start(self, nodes: u32) -> (PairShared, Vec<PairHost>) {
        let summaries = self.parts.each_ref().map(|part| part.summary);
        let findings = self.parts.each_ref().map(|part| part.findings);
        let checks = self.parts.each_ref().map(|part| part.check);
        let [first, second] = self.parts.map(|part| (part.start)(nodes));
        let config = Arc::new(self.config);
        let hosts = first.endpoints.into_iter().zip(second.endpoints);
        let hosts = hosts.map(|(first, second)| PairHost {
            parts: [first, second],
            sent_bytes: [0; 2],
            config: Arc::clone(&config),
            summaries,
            findings,
            checks,
        });
        (PairShared([first.shared, second.shared]), hosts.collect())
    }

    /// Counters of both; those of one name are added up.
    fn summary(shared: &PairShared, hosts: &[&PairHost]) -> Vec<(&'static str, f64)> {
        let mut all: Vec<(&'static str, f64)> = Vec::new();
        let Some(summaries) = hosts.first().map(|host| host.summaries) else {
            return all;
        };
        for (part, summary) in summaries.iter().enumerate() {
            let endpoints = hosts.iter().map(|host| &*host.parts[part] as &dyn Any);
            let endpoints: Vec<&dyn Any> = endpoints.collect();
            for (name, value) in summary(&shared.0[part], &endpoints) {
                match all.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, sum)) => *sum += value,
                    None => all.push((name, value)),
                }
            }
        }
        all
    }

    /// Those of both, in the order of time.
    fn findings(shared: &PairShared, hosts: &[&PairHost]) -> Vec<LinkFinding> {
        let Some(findings) = hosts.first().map(|host| host.findings) else {
            return Vec::new();
        };
        let mut all = Vec::new();
        for (part, findings) in findings.iter().enumerate() {
            let endpoints = hosts.iter().map(|host| &*host.parts[part] as &dyn Any);
            let endpoints: Vec<&dyn Any> = endpoints.collect();
            all.extend(findings(&shared.0[part], &endpoints));
        }
        all.sort_by_key(|finding| finding.named);
        all
    }

    fn check(shared: &PairShared, hosts: &[&PairHost]) -> Result<(), BrokenInvariant> {
        let Some(checks) = hosts.first().map(|host| host.checks) else {
            return Ok(());
        };
        for (part, check) in checks.iter().enumerate() {
            let endpoints = hosts.iter().map(|host| &*host.parts[part] as &dyn Any);
            check(&shared.0[part], &endpoints.collect::<Vec<_>>())?;
        }
        Ok(())
    }
}

/// Two schemes at one host.
pub struct PairHost {
    parts: [Box<dyn AnyEndpoint>; 2],
    /// Bytes on the link that each has sent. Who had none when it could send is not owed any.
    sent_bytes: [u64; 2],
    config: Arc<PairConfig>,
    summaries: [Summary; 2],
    findings: [Findings; 2],
    checks: [Check; 2],
}

impl fmt::Debug for PairHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PairHost")
            .field("sent_bytes", &self.sent_bytes)
            .finish_non_exhaustive()
    }
}

impl PairHost {
    /// Bit of a timer's kind, and of a slot, that names the part.
    pub(crate) const KIND_BIT: u32 = 7;
    pub(crate) const SLOT_BIT: u32 = 31;

    /// Lets a part act.
    #[inline]
    fn act<R>(
        &mut self,
        part: usize,
        cx: &mut Context<'_, PairShared>,
        act: impl FnOnce(&mut dyn AnyEndpoint, &mut Context<'_, AnyShared>) -> R,
    ) -> R {
        let mut cx = Context {
            core: cx.core,
            shared: &mut cx.shared.0[part],
            host: cx.host,
            part: part as u8,
        };
        act(&mut *self.parts[part], &mut cx)
    }

    /// Returns the part that a packet belongs to.
    #[inline]
    fn part_of(&self, cx: &Context<'_, PairShared>, packet: &Packet) -> usize {
        // A switch's notice tells of a flow that may be over, and is nobody's then.
        let flow = Notice::of(packet).map_or(packet.flow, |notice| notice.flow);
        let spec = cx.find_flow(flow);
        spec.map_or(self.config.without_flow, |spec| {
            self.config.split.part_of(spec)
        })
    }
}

impl Endpoint for PairHost {
    type Shared = PairShared;

    fn on_begin(&mut self, cx: &mut Context<'_, PairShared>) {
        for part in 0..2 {
            self.act(part, cx, |endpoint, cx| endpoint.on_begin(cx));
        }
    }

    fn on_start(&mut self, cx: &mut Context<'_, PairShared>, flow: FlowId) {
        let part = self.config.split.part_of(cx.flow(flow));
        self.act(part, cx, |endpoint, cx| endpoint.on_start(cx, flow));
    }

    fn on_stop(&mut self, cx: &mut Context<'_, PairShared>, flow: FlowId) {
        let part = self.config.split.part_of(cx.flow(flow));
        self.act(part, cx, |endpoint, cx| endpoint.on_stop(cx, flow));
    }

    fn on_packet(&mut self, cx: &mut Context<'_, PairShared>, packet: &mut Packet) {
        let part = self.part_of(cx, packet);
        self.act(part, cx, |endpoint, cx| endpoint.on_packet(cx, packet));
    }

    fn on_timer(&mut self, cx: &mut Context<'_, PairShared>, timer: Timer) {
        let part = usize::from(timer.kind >> Self::KIND_BIT);
        let kind = timer.kind & !(1 << Self::KIND_BIT);
        if kind == Timer::MEASURE {
            let mut measured = Measured::at(timer);
            self.measure(&mut measured);
            return self.act(part, cx, |endpoint, cx| endpoint.on_measured(cx, measured));
        }
        let timer = Timer { kind, ..timer };
        self.act(part, cx, |endpoint, cx| endpoint.on_timer(cx, timer));
    }

    fn measure(&self, measured: &mut Measured) {
        self.parts.iter().for_each(|part| part.measure(measured));
    }

    fn on_poke(&mut self, cx: &mut Context<'_, PairShared>) {
        for part in 0..2 {
            self.act(part, cx, |endpoint, cx| endpoint.on_poke(cx));
        }
    }

    fn pull(&mut self, cx: &mut Context<'_, PairShared>) -> Pull {
        let first = match self.config.turns {
            Turns::Fair => usize::from(self.sent_bytes[1] < self.sent_bytes[0]),
            Turns::First => 0,
            Turns::Second => 1,
        };
        let mut wait = Pull::Nothing;
        for part in [first, 1 - first] {
            match self.act(part, cx, |endpoint, cx| endpoint.pull(cx)) {
                Pull::Packet(packet) | Pull::Last(packet) => {
                    self.sent_bytes[part] += u64::from(packet.wire_bytes);
                    if part != first {
                        let least = self.sent_bytes[part];
                        self.sent_bytes[first] = self.sent_bytes[first].max(least);
                    }
                    // The other may have more, whatever this one says.
                    return Pull::Packet(packet);
                }
                Pull::At(at) => {
                    wait = match wait {
                        Pull::At(other) => Pull::At(at.min(other)),
                        _ => Pull::At(at),
                    };
                }
                Pull::Nothing => {}
            }
        }
        wait
    }

    fn rate_bps(&self, slot: u32) -> Option<f64> {
        let part = (slot >> Self::SLOT_BIT) as usize;
        self.parts[part].rate_bps(slot & !(1 << Self::SLOT_BIT))
    }
}
