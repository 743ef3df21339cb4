//! The event loop.

pub(crate) mod core;
pub(crate) mod prefetch;
pub(crate) mod scheduler;
pub(crate) mod timers;

use std::ops::ControlFlow;

use ratewright_topology::{HostId, LinkId, Topology};

pub use self::core::Change;
use self::core::{Chance, Core};
use self::scheduler::{GlobalEvent, Scheduler};
use crate::event::Event;
use crate::ext::Extensions;
use crate::flow::{FlowId, FlowSpec, FlowStore, PacketCount};
use crate::host::nic::Nic;
use crate::host::{Endpoint, Pull, Side, Timer};
use crate::net::port::MIN_RATE_BPS;
use crate::net::queue::SharedState;
use crate::net::regions::Regions;
use crate::net::{Fabric, FabricConfig, FabricError};
use crate::packet::PacketSlab;
use crate::results::{FlowResult, FlowSink, RetiredFlows, RunResults, Series, WarmUpCounts};
use crate::time::{Span, Time};
use crate::transport::{Context, NO_SLOT, SharedByHosts as _, Transport};
use crate::workload::Arrivals;

/// Settings of a run beside topology, workload and transport.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Config {
    /// Seed of all random numbers.
    pub seed: u64,
    /// Queues, delays, framing, the allocator's links.
    pub fabric: FabricConfig,
    /// Changes of the network, in any order.
    pub changes: Vec<(Time, Change)>,
    /// Interval at which the goodput of flows and the queues of `watched` are sampled.
    pub sample_every: Option<Span>,
    /// Number of flows that are sampled, from the first on.
    pub sampled_flows: u32,
    /// Ports whose queue length is sampled.
    pub watched: Vec<LinkId>,
    /// End of the warm-up, where it is known before the run: see [`Sim::end_warm_up`].
    pub warm_up: Time,
    /// Number of regions that take turns, at most; `None` leaves it to the fabric's size. Results
    /// do not depend on it, but for [`RunResults::events`] and [`RunResults::packets_high_water`].
    pub regions: Option<usize>,
}

/// Progress of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Simulated time.
    pub now: Time,
    /// Flows that began.
    pub started: u64,
    /// Flows that completed.
    pub completed: u64,
    /// Packet-hops: packets that left a queue onto a link and arrived at its end.
    pub packet_hops: u64,
    /// Events handled.
    pub events: u64,
}

/// Reason for the end of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndReason {
    /// No event is left.
    Idle,
    /// The end time is reached.
    TimeUp,
    /// The progress callback stopped it.
    Stopped,
}

/// Events between two calls of the progress callback. Where regions take turns, it is called at the
/// end of the window.
const PROGRESS_EVERY: u64 = 1 << 16;

/// A simulation run.
pub struct Sim<T: Transport, A> {
    core: Core,
    /// State that the hosts share.
    shared: T::Shared,
    /// Endpoints of the hosts, and of the allocator's node behind them.
    endpoints: Vec<T::Endpoint>,
    arrivals: A,
    /// Next flow of the workload, which has not begun.
    next_flow: Option<FlowSpec>,
    /// Start of the flow that was drawn last, to check the order.
    last_start: Time,
    changes: Vec<Change>,
    events: u64,
    has_begun: bool,
    warm_up: Option<Time>,
    /// Counts that results leave out.
    before: WarmUpCounts,
}

impl<T: Transport, A: Arrivals> Sim<T, A> {
    /// Makes a run at time 0.
    ///
    /// # Errors
    /// If the configuration does not fit the topology.
    pub fn new(
        config: Config,
        topology: Topology,
        arrivals: A,
        transport: T,
    ) -> Result<Self, FabricError> {
        let mut fabric = Fabric::new(&topology, &config.fabric, config.seed)?;
        for (_, change) in &config.changes {
            check_change(&topology, *change)?;
        }
        if let Some(link) = config
            .watched
            .iter()
            .find(|l| l.index() >= topology.links().len())
        {
            return Err(FabricError::UnknownLink(*link));
        }
        let hosts = topology.hosts().len() as u32;
        let nodes = hosts + u32::from(config.fabric.allocator.is_some());
        if nodes > Timer::LAST_HOST {
            return Err(FabricError::TooManyHosts { hosts });
        }
        let (shared, endpoints) = transport.start(nodes);
        // Regions are exact only if hosts share no state.
        let regions = shared
            .divide()
            .and_then(|_| Regions::new(&topology, &config.fabric, config.regions));
        if let Some(regions) = &regions {
            regions.mark(&mut fabric.ports);
        }
        let mut scheduler = Scheduler::new(regions.as_ref().map(|r| (r.lookahead, r.len())));
        for (i, (at, _)) in config.changes.iter().enumerate() {
            scheduler.push_global(*at, GlobalEvent::Change(i as u32));
        }
        let series = config
            .sample_every
            .filter(|e| *e > Span::ZERO)
            .map(|every| {
                scheduler.push_global(Time::ZERO + every, GlobalEvent::Sample);
                Series::new(every, config.sampled_flows, config.watched)
            });
        let core = Core {
            now: Time::ZERO,
            latest: Time::ZERO,
            scheduler,
            regions,
            shared: SharedState {
                packets: PacketSlab::default(),
                extensions: Extensions::default(),
                flows: FlowStore::default(),
            },
            fabric,
            timers: timers::Timers::default(),
            chance: Chance::new(config.seed, u64::from(hosts) + 1, config.fabric.spraying),
            nics: vec![Nic::default(); nodes as usize],
            woken: false,
            poked: Vec::new(),
            framing: config.fabric.framing,
            allocator: config.fabric.allocator.map(|_| HostId(hosts)),
            symmetric: topology.ecmp().symmetric,
            topology,
            packet_hops: 0,
            completed: 0,
            no_route: PacketCount::default(),
            series,
            retired: RetiredFlows::default(),
            prefetcher: prefetch::Prefetcher::default(),
        };
        Ok(Self {
            core,
            shared,
            endpoints,
            arrivals,
            next_flow: None,
            last_start: Time::ZERO,
            changes: config.changes.into_iter().map(|c| c.1).collect(),
            events: 0,
            has_begun: false,
            warm_up: Some(config.warm_up).filter(|w| *w > Time::ZERO),
            before: WarmUpCounts::default(),
        })
    }

    /// Runs until `end`, or until no event is left.
    ///
    /// # Errors
    /// If the workload's flows are out of order or lead nowhere.
    pub fn run_until(&mut self, end: Time) -> Result<EndReason, FabricError> {
        self.run_with(end, |_| ControlFlow::Continue(()))
    }

    /// Runs until `end` and reports its progress every 65,536 events. The callback may stop the
    /// run, which can be continued.
    ///
    /// # Errors
    /// If the workload's flows are out of order or lead nowhere.
    pub fn run_with(
        &mut self,
        end: Time,
        mut progress: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<EndReason, FabricError> {
        if !self.has_begun {
            self.has_begun = true;
            self.next_arrival()?;
            if let Some(spec) = &self.next_flow {
                self.core.scheduler.fetch_arrivals_at(spec.start);
            }
            for host in 0..self.endpoints.len() as u32 {
                let region = self.core.region_of(HostId(host));
                self.core.scheduler.set_region(region);
                self.call(HostId(host), Endpoint::on_begin);
            }
        }
        if let Some(warm_up) = self.warm_up.filter(|w| *w <= end) {
            let ended = self.run_to(warm_up, &mut progress)?;
            if ended == EndReason::Stopped {
                return Ok(ended);
            }
            self.core.now = warm_up;
            self.end_warm_up();
        }
        self.run_to(end, &mut progress)
    }

    /// Ends the warm-up now. Queue means, maxima and histograms begin anew, and results count
    /// drops, marks, packets of ports and retransmissions from here on. Queues keep their packets.
    pub fn end_warm_up(&mut self) {
        self.warm_up = None;
        self.core.settle();
        self.before = WarmUpCounts::new(&self.core);
        let now = self.core.now;
        for port in &mut self.core.fabric.ports {
            port.reset_averages(now);
        }
        for switch in &mut self.core.fabric.switches {
            if let Some(mmu) = &mut switch.mmu {
                mmu.reset_max();
            }
        }
    }

    fn run_to(
        &mut self,
        end: Time,
        progress: &mut impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<EndReason, FabricError> {
        let after = Time(end.0.saturating_add(1));
        loop {
            let global = self.core.scheduler.next_global();
            let until = global.map_or(after, |global| global.min(after));
            // Windows are moved so that one ends exactly at the global event: then all regions have
            // the same time.
            self.core.scheduler.align(until);
            if self.events_until(until, progress)? == EndReason::Stopped {
                return Ok(EndReason::Stopped);
            }
            if self.core.scheduler.next_global().is_some_and(|b| b < until) {
                // A flow that was drawn during these events stops before `until`.
                continue;
            }
            // Global events see a fabric in which all earlier events have happened, in every
            // region.
            self.core.scheduler.settle(until);
            if until == after {
                break;
            }
            self.core.now = until;
            self.core.latest = until;
            while let Some(global) = self.core.scheduler.pop_global(until) {
                self.handle_global(global);
            }
        }
        if self.core.scheduler.is_empty() {
            self.core.now = self.core.latest;
            return Ok(EndReason::Idle);
        }
        self.core.now = end;
        Ok(EndReason::TimeUp)
    }

    /// Handles the events before `until`, which is a global event's time or the end. Returns early
    /// if a new global event comes before it.
    fn events_until(
        &mut self,
        until: Time,
        progress: &mut impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<EndReason, FabricError> {
        let mut call_at = self.events + PROGRESS_EVERY;
        let mut call_at_end_of_window = None;
        let last = self.core.scheduler.limit(until);
        let mut limit = last;
        loop {
            let Some((at, event)) = self.core.scheduler.pop(limit) else {
                // The run may stop here and its results be read, for which all regions must have
                // the same time.
                if let Some(now) = call_at_end_of_window.take() {
                    self.core.now = now;
                    self.core.scheduler.settle(now);
                    if progress(self.progress()).is_break() {
                        return Ok(EndReason::Stopped);
                    }
                }
                if limit == last {
                    return Ok(EndReason::TimeUp);
                }
                limit = last;
                continue;
            };
            if self.core.scheduler.region_changed() {
                self.core.on_region_change(self.events);
            }
            if self.core.prefetcher.on {
                self.core.prefetch_ahead(&self.endpoints);
            }
            if event == Event::Arrivals {
                // A drawn flow may stop before `until`: that is a new global event, and the caller
                // must align the windows to it.
                self.arrivals(at)?;
                if self.core.scheduler.next_global().is_some_and(|b| b < until) {
                    return Ok(EndReason::TimeUp);
                }
                continue;
            }
            self.handle(at, event);
            if self.core.shared.flows.has_ready() {
                self.retire_flows();
            }
            if self.events >= call_at {
                call_at = self.events + PROGRESS_EVERY;
                self.core.review_prefetching();
                if let Some((ends, of_window)) = self.core.scheduler.end_of_window() {
                    call_at_end_of_window = Some(ends);
                    limit = of_window.min(last);
                } else if progress(self.progress()).is_break() {
                    return Ok(EndReason::Stopped);
                }
            }
        }
    }

    #[inline]
    fn handle(&mut self, at: Time, event: Event) {
        debug_assert!(
            at >= self.core.now || self.core.scheduler.uses_windows(),
            "time goes forward"
        );
        self.core.now = at;
        self.core.latest = self.core.latest.max(at);
        self.events += 1;
        match event {
            Event::Port(index) => {
                if let Some((host, id)) = self.core.port_event(index) {
                    let mut packet = self.core.take_packet(id);
                    self.call(host, |endpoint, cx| endpoint.on_packet(cx, &mut packet));
                    // What the host did not take goes with the packet.
                    self.core.shared.extensions.discard(&mut packet);
                }
            }
            Event::Departure(index) => self.core.departure_event(index),
            Event::Tick(index) => self.core.tick_event(index),
            Event::Pause(index) => {
                self.core.pause_event(index);
                // Its endpoint may have held back packets of the class that is open again.
                if let Some(host) = self.core.host_of(index) {
                    self.pull(host);
                    self.serve_poked();
                }
            }
            Event::Timer(index) => {
                if let Some(token) = self.core.timer_event(index) {
                    let (host, timer) = Timer::of(token);
                    self.call(host, |endpoint, cx| endpoint.on_timer(cx, timer));
                }
            }
            Event::Start(flow) => {
                let flow = FlowId(flow);
                let host = self.core.shared.flows.spec(flow).src;
                self.call(host, |endpoint, cx| endpoint.on_start(cx, flow));
            }
            Event::Stop(flow) => {
                let flow = FlowId(flow);
                if self.core.shared.flows.is_active(flow) {
                    let host = self.core.shared.flows.spec(flow).src;
                    self.call(host, |endpoint, cx| endpoint.on_stop(cx, flow));
                }
            }
            Event::Pull(host) => {
                if self.core.pull_is_due(HostId(host)) {
                    self.pull(HostId(host));
                    self.serve_poked();
                }
            }
            // Handled by `events_until`, since drawing flows may fail.
            Event::Arrivals => {}
        }
    }

    fn handle_global(&mut self, global: GlobalEvent) {
        self.events += 1;
        match global {
            GlobalEvent::Change(index) => {
                self.core.change(self.changes[index as usize]);
                // Interfaces that were paused, and such as wait for a link of another rate.
                for host in 0..self.endpoints.len() as u32 {
                    let region = self.core.region_of(HostId(host));
                    self.core.scheduler.set_region(region);
                    self.pull(HostId(host));
                }
            }
            GlobalEvent::Sample => self.sample(),
        }
    }

    /// Lets an endpoint act, and then those that it poked, and asks for their packets.
    #[inline]
    fn call(
        &mut self,
        host: HostId,
        act: impl FnOnce(&mut T::Endpoint, &mut Context<'_, T::Shared>),
    ) {
        let Some(endpoint) = self.endpoints.get_mut(host.index()) else {
            return;
        };
        let mut cx = Context {
            core: &mut self.core,
            shared: &mut self.shared,
            host,
            part: 0,
        };
        act(endpoint, &mut cx);
        if std::mem::take(&mut self.core.woken) && self.core.wakes_nic(host) {
            self.pull(host);
        }
        self.serve_poked();
    }

    /// Lets the endpoints act that another one poked.
    #[inline]
    fn serve_poked(&mut self) {
        while let Some(poked) = self.core.poked.pop() {
            self.call(poked, Endpoint::on_poke);
        }
    }

    /// Sends a host's next packet if its link is free, and schedules the next question.
    #[inline]
    fn pull(&mut self, host: HostId) {
        let free_at = self.core.nic_free_at(host);
        if free_at > self.core.now {
            self.core.nic_is_busy(host, free_at);
            return self.core.pull_at(host, free_at);
        }
        let mut cx = Context {
            core: &mut self.core,
            shared: &mut self.shared,
            host,
            part: 0,
        };
        let pulled = self.endpoints[host.index()].pull(&mut cx);
        // What the endpoint answers now says whether there is more.
        self.core.woken = false;
        let next = match pulled {
            Pull::Packet(packet) => self.core.send_pulled(host, packet),
            Pull::Last(packet) => {
                self.core.send_pulled(host, packet);
                Time::MAX
            }
            Pull::At(at) => at.max(self.core.now),
            Pull::Nothing => Time::MAX,
        };
        self.core.pull_at(host, next);
    }

    /// Retires the flows of which nothing is left.
    #[inline(never)]
    fn retire_flows(&mut self) {
        while let Some((flow, spec, progress)) = self.core.shared.flows.retire() {
            if let Some(series) = &mut self.core.series {
                series.retire(flow, progress.delivered_bytes);
            }
            let result = FlowResult::new(flow, &spec, &progress);
            self.core.retired.take(result);
        }
    }

    fn sample(&mut self) {
        if let Some(mut series) = self.core.series.take() {
            // Ports are lazy: a queue is that of its port's last event until the port is advanced.
            self.core.settle();
            series.sample(&self.core);
            // The last event of all: sampling goes on while anything else does.
            if !self.core.scheduler.is_empty() {
                let next = self.core.now + series.every();
                self.core.scheduler.push_global(next, GlobalEvent::Sample);
            }
            self.core.series = Some(series);
        }
    }

    /// Draws the next flow from the workload and checks it.
    fn next_arrival(&mut self) -> Result<(), FabricError> {
        let Some(spec) = self.arrivals.next_flow() else {
            return Ok(());
        };
        let flow = self.core.shared.flows.len() as u32;
        let hosts = self.core.topology.hosts().len() as u32;
        if spec.src == spec.dst || spec.src.0 >= hosts || spec.dst.0 >= hosts {
            let (src, dst) = (spec.src, spec.dst);
            return Err(FabricError::BadFlow {
                flow,
                src,
                dst,
                last: hosts.saturating_sub(1),
            });
        }
        // The scheduler draws flows up to the present only; an earlier start would be in the past.
        if spec.start < self.last_start {
            return Err(FabricError::OutOfOrder { flow });
        }
        self.last_start = spec.start;
        self.next_flow = Some(spec);
        Ok(())
    }

    /// Starts the flows that begin now, or within the window that begins now: schedules their
    /// starts and stops.
    fn arrivals(&mut self, now: Time) -> Result<(), FabricError> {
        let until = self.core.scheduler.arrivals_until(now);
        while let Some(spec) = self.next_flow.take_if(|spec| spec.start < until) {
            let flow = self.core.shared.flows.push(spec);
            let region = self.core.regions.as_ref();
            let region = region.map_or(0, |r| r.of_host(spec.src.0));
            self.core.scheduler.set_region(region);
            self.core
                .scheduler
                .push(spec.start, region, Event::Start(flow.0));
            if spec.stop < Time::MAX {
                // Not before it has begun.
                let stop = spec.stop.max(Time(spec.start.0 + 1));
                self.core.scheduler.push(stop, region, Event::Stop(flow.0));
            }
            self.next_arrival()?;
        }
        if let Some(spec) = &self.next_flow {
            self.core.scheduler.fetch_arrivals_at(spec.start);
        }
        Ok(())
    }

    /// Returns the progress of the run.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress {
            now: self.core.now,
            started: self.core.shared.flows.len() as u64,
            completed: self.core.completed,
            packet_hops: self.core.packet_hops,
            events: self.events,
        }
    }

    /// Returns what the hosts share.
    #[must_use]
    pub fn shared(&self) -> &T::Shared {
        &self.shared
    }

    /// Returns the endpoints of all hosts, and of the allocator's node behind them.
    #[must_use]
    pub fn endpoints(&self) -> &[T::Endpoint] {
        &self.endpoints
    }

    /// Returns the endpoint that sends a flow, and the slot of the flow there; `None` before the
    /// flow has begun and once its sender has forgotten it.
    #[must_use]
    pub fn sender_of(&self, flow: FlowId) -> Option<(&T::Endpoint, u32)> {
        let flows = &self.core.shared.flows;
        if !flows.is_active(flow) {
            return None;
        }
        let slot = flows.slot(flow, Side::Sender);
        let endpoint = self.endpoints.get(flows.spec(flow).src.index())?;
        (slot != NO_SLOT).then_some((endpoint, slot))
    }

    /// Returns the number of regions that take turns; 1 where the whole fabric is simulated at
    /// once.
    pub fn regions(&self) -> usize {
        self.core.regions.as_ref().map_or(1, Regions::len)
    }

    /// Returns the samples so far, if the run takes any.
    #[must_use]
    pub fn series(&self) -> Option<&Series> {
        self.core.series.as_ref()
    }

    /// Hands the results of flows that retire to a function, and keeps none. Their order is that in
    /// which they retire, which regions may change.
    pub fn stream_flows(&mut self, mut sink: FlowSink) {
        self.core.retired.kept().iter().for_each(&mut sink);
        self.core.retired = RetiredFlows::Streamed(sink);
    }

    /// Returns the scheme's own counters, by name.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, f64)> {
        T::summary(&self.shared, &self.endpoints.iter().collect::<Vec<_>>())
    }

    /// Returns the results so far.
    pub fn results(&mut self) -> RunResults {
        self.core.settle();
        self.retire_flows();
        let summary = self.counters();
        RunResults::new(&self.core, &self.before, self.events, summary)
    }
}

fn check_change(topology: &Topology, change: Change) -> Result<(), FabricError> {
    let link = match change {
        Change::Switch { switch, .. } => {
            return if switch.index() < topology.switches().len() {
                Ok(())
            } else {
                Err(FabricError::UnknownSwitch(switch))
            };
        }
        Change::Rate { rate_bps, .. } if rate_bps < MIN_RATE_BPS => {
            return Err(FabricError::TooSlow { rate_bps });
        }
        Change::Link { link, .. } | Change::Rate { link, .. } => link,
    };
    if link.index() < topology.links().len() {
        Ok(())
    } else {
        Err(FabricError::UnknownLink(link))
    }
}
