//! A run: partitions of the fabric, the workload's flows, and what concerns the whole fabric.

mod books;
pub(crate) mod census;
pub(crate) mod core;
mod mail;
mod partition;
pub(crate) mod prefetch;
pub(crate) mod scheduler;
mod threads;
pub(crate) mod timers;
pub(crate) mod watchdog;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::{ControlFlow, DerefMut};
use std::sync::Arc;

use ratewright_topology::{HostId, LinkId, Topology};

use self::books::Books;
pub use self::core::Change;
use self::core::{Chance, Core};
use self::mail::{Mailbox, exchange};
use self::partition::{Partition, Pause};
use self::scheduler::{Scheduler, Window};
pub use self::watchdog::{Deadlock, PauseStorm, PausedClass};
use crate::ext::Extensions;
use crate::flow::{FlowId, FlowSpec, FlowStore, PacketCount};
use crate::host::nic::Nic;
use crate::host::{Side, Timer};
use crate::net::port::MIN_RATE_BPS;
use crate::net::queue::SharedState;
use crate::net::regions::Regions;
use crate::net::{Fabric, FabricConfig, FabricError};
use crate::packet::PacketSlab;
use crate::results::{Accounts, FlowSink, RunResults, SchemeResults, Series};
use crate::time::{Span, Time};
use crate::transport::{NO_SLOT, SharedByHosts as _, Transport};
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
    /// Number of threads that simulate the fabric, at most; 0 is 1. Results do not depend on it, as
    /// they do not on regions. A scheme whose hosts share state has one thread, and so has a fabric
    /// that is a single region.
    pub threads: usize,
    /// Groups of senders that applications know, by number from 1 on: see [`FlowSpec::group`].
    pub groups: Arc<[Vec<HostId>]>,
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
    /// Nothing that ports hold back will ever be sent: see [`RunResults::deadlock`].
    Deadlock,
    /// A pause lasts too long: see [`RunResults::storms`].
    PauseStorm,
}

/// Events between two calls of the progress callback. Where regions take turns, it is called at the
/// end of the window.
const PROGRESS_EVERY: u64 = 1 << 16;

/// A global event. Those of one moment happen in the order of the variants, before all other
/// events.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum GlobalEvent {
    /// The network changes (index into the list of changes).
    Change(u32),
    /// Series are sampled.
    Sample,
}

/// Flows of the workload that have not begun.
struct Workload<A> {
    arrivals: A,
    /// The next flow.
    next: Option<FlowSpec>,
    /// Flows that were drawn before it.
    drawn: u32,
    hosts: u32,
}

impl<A: Arrivals> Workload<A> {
    /// Draws the next flow and checks it.
    fn advance(&mut self) -> Result<Option<FlowSpec>, FabricError> {
        let drawn = self.next.take();
        self.drawn += u32::from(drawn.is_some());
        let Some(spec) = self.arrivals.next_flow() else {
            return Ok(drawn);
        };
        let (src, dst, flow) = (spec.src, spec.dst, self.drawn);
        if src == dst || src.0 >= self.hosts || dst.0 >= self.hosts {
            let last = self.hosts.saturating_sub(1);
            return Err(FabricError::BadFlow {
                flow,
                src,
                dst,
                last,
            });
        }
        // Flows are drawn up to the present only; an earlier start would be in the past.
        if drawn.is_some_and(|drawn| spec.start < drawn.start) {
            return Err(FabricError::OutOfOrder { flow });
        }
        self.next = Some(spec);
        Ok(drawn)
    }

    /// Gives the flows that start before `until` to all partitions.
    fn draw<'a, T: Transport>(
        &mut self,
        until: Time,
        partitions: &mut [impl DerefMut<Target = &'a mut Partition<T>>],
    ) -> Result<(), FabricError> {
        while self.next.is_some_and(|spec| spec.start < until) {
            let Some(spec) = self.advance()? else { break };
            for partition in &mut *partitions {
                partition.add_flow(&spec);
            }
        }
        Ok(())
    }
}

/// A simulation run.
pub struct Sim<T: Transport, A> {
    partitions: Vec<Partition<T>>,
    workload: Workload<A>,
    changes: Vec<Change>,
    global_events: BinaryHeap<Reverse<(Time, GlobalEvent)>>,
    /// Global events so far.
    globals: u64,
    has_begun: bool,
    warm_up: Option<Time>,
    /// Interval at which deadlocks and storms of pauses are looked for, if any class can be paused,
    /// and the next time. That is no global event: it leaves a run idle, and counts nowhere.
    watchdog: Option<(Span, Time)>,
    books: Books,
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
        let lossless = config.fabric.shared_buffer.and_then(|b| b.lossless);
        for (_, change) in &config.changes {
            check_change(&topology, *change)?;
            let of_links = matches!(change, Change::Link { .. } | Change::Switch { .. });
            match change {
                Change::Pause { host, .. } if lossless.is_none() => {
                    return Err(FabricError::Pause(*host));
                }
                _ if of_links && !config.fabric.routes.is_empty() => {
                    return Err(FabricError::RouteFails);
                }
                _ => {}
            }
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
        let (shared, mut endpoints) = transport.start(nodes);
        // Regions are exact only if hosts share no state.
        let regions = shared
            .divide()
            .and_then(|_| Regions::new(&topology, &config.fabric, config.regions, config.threads));
        let firsts = regions.as_ref().map_or(vec![0], Regions::first_hosts);
        let mut shares = vec![shared];
        while shares.len() < firsts.len() {
            shares.extend(shares[0].divide());
        }
        let topologies = std::iter::repeat_n(topology, firsts.len());
        let mut partitions = Vec::with_capacity(firsts.len());
        // The last one first: its hosts are those at the end of the list.
        for (number, topology) in (0..firsts.len()).rev().zip(topologies) {
            partitions.push(Partition {
                core: Core::new(&config, topology, regions.as_ref(), number)?,
                shared: shares.swap_remove(number),
                endpoints: endpoints.split_off(firsts[number] as usize),
                first: firsts[number],
            });
        }
        partitions.reverse();
        let mut global_events = BinaryHeap::new();
        for (i, (at, _)) in config.changes.iter().enumerate() {
            global_events.push(Reverse((*at, GlobalEvent::Change(i as u32))));
        }
        let series = config
            .sample_every
            .filter(|e| *e > Span::ZERO)
            .map(|every| {
                global_events.push(Reverse((Time::ZERO + every, GlobalEvent::Sample)));
                Series::new(every, config.sampled_flows, config.watched)
            });
        Ok(Self {
            partitions,
            workload: Workload {
                arrivals,
                next: None,
                drawn: 0,
                hosts,
            },
            changes: config.changes.into_iter().map(|c| c.1).collect(),
            global_events,
            globals: 0,
            has_begun: false,
            warm_up: Some(config.warm_up).filter(|w| *w > Time::ZERO),
            watchdog: lossless
                .map(|l| l.watchdog)
                .filter(|every| *every > Span::ZERO)
                .map(|every| (every, Time::ZERO + every)),
            books: Books::new(series),
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
            self.workload.advance()?;
            self.partitions.iter_mut().for_each(Partition::begin);
        }
        if let Some(warm_up) = self.warm_up.filter(|w| *w <= end) {
            let ended = self.run_to(warm_up, &mut progress)?;
            if ended == EndReason::Stopped {
                return Ok(ended);
            }
            self.set_now(warm_up);
            self.end_warm_up();
        }
        self.run_to(end, &mut progress)
    }

    /// Ends the warm-up now. Queue means, maxima and histograms begin anew, and results count
    /// drops, marks, packets of ports and retransmissions from here on. Queues keep their packets.
    pub fn end_warm_up(&mut self) {
        self.warm_up = None;
        self.settle();
        self.books.end_warm_up(&cores(&self.partitions));
        for Partition { core, .. } in &mut self.partitions {
            let now = core.now;
            for port in &mut core.fabric.ports {
                port.reset_averages(now);
            }
            for switch in &mut core.fabric.switches {
                if let Some(mmu) = &mut switch.mmu {
                    mmu.reset_max();
                }
                if let Some(deflector) = &mut switch.deflector {
                    deflector.reset_counts();
                }
            }
        }
    }

    /// Advances all ports to the present: they are lazy, and their counters those of their last
    /// event.
    fn settle(&mut self) {
        for partition in &mut self.partitions {
            partition.core.settle();
        }
    }

    fn set_now(&mut self, now: Time) {
        for partition in &mut self.partitions {
            partition.core.now = now;
        }
    }

    fn next_global(&self) -> Option<Time> {
        self.global_events.peek().map(|next| next.0.0)
    }

    /// Returns the time of the next global event, or that of the watchdog before it.
    fn next_halt(&self) -> Option<Time> {
        let watchdog = self.watchdog.map(|(_, at)| at);
        self.next_global().into_iter().chain(watchdog).min()
    }

    /// Looks for deadlocks and storms, and says why the run ends there.
    fn watch(&mut self, now: Time) -> Option<EndReason> {
        let (every, at) = self.watchdog.as_mut()?;
        let every = *every;
        *at = now + every;
        if !watchdog::is_paused_since(&cores(&self.partitions), now) {
            return None;
        }
        self.settle();
        let cores = cores(&self.partitions);
        let is_long = now.0 >= every.0 && watchdog::is_paused_since(&cores, Time(now.0 - every.0));
        match watchdog::deadlock(&cores) {
            Some(_) => Some(EndReason::Deadlock),
            None => is_long.then_some(EndReason::PauseStorm),
        }
    }

    /// Returns true if nothing is pending.
    fn is_idle(&self) -> bool {
        let is_idle = |Partition { core, .. }: &Partition<T>| {
            core.scheduler.is_empty() && core.mailbox.is_empty()
        };
        self.workload.next.is_none()
            && self.global_events.is_empty()
            && self.partitions.iter().all(is_idle)
    }

    fn run_to(
        &mut self,
        end: Time,
        progress: &mut impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<EndReason, FabricError> {
        let after = Time(end.0.saturating_add(1));
        loop {
            let halt = self.next_halt();
            let until = halt.map_or(after, |halt| halt.min(after));
            // Windows are moved so that one ends exactly at the global event: then all regions have
            // the same time.
            for partition in &mut self.partitions {
                partition.core.scheduler.align(until);
            }
            let ended = if self.partitions.len() > 1 {
                self.windows_until(until, progress)?
            } else {
                self.events_until(until, progress)?
            };
            if ended == EndReason::Stopped {
                return Ok(ended);
            }
            // Global events see a fabric in which all earlier events have happened, in every
            // region.
            for partition in &mut self.partitions {
                partition.core.scheduler.settle(until);
            }
            if until == after || self.is_idle() {
                break;
            }
            self.set_now(until);
            if self.watchdog.is_some_and(|(_, at)| at == until)
                && let Some(ended) = self.watch(until)
            {
                return Ok(ended);
            }
            if self.next_global() != Some(until) {
                continue;
            }
            for Partition { core, .. } in &mut self.partitions {
                core.latest = until;
            }
            while self.next_global() == Some(until)
                && let Some(global) = self.global_events.pop()
            {
                self.handle_global(global.0.1);
            }
        }
        if self.is_idle() {
            let latest = self.partitions.iter().map(|p| p.core.latest).max();
            self.set_now(latest.unwrap_or_default());
            self.settle();
            let deadlock = watchdog::deadlock(&cores(&self.partitions));
            return Ok(deadlock.map_or(EndReason::Idle, |_| EndReason::Deadlock));
        }
        self.set_now(end);
        Ok(EndReason::TimeUp)
    }

    /// Handles the events before `until`, which is a global event's time or the end, on this
    /// thread.
    fn events_until(
        &mut self,
        until: Time,
        progress: &mut impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<EndReason, FabricError> {
        let globals = self.globals;
        let Self {
            partitions,
            workload,
            books,
            ..
        } = self;
        let mut partition = &mut partitions[0];
        let mut pause_at = partition.core.events + PROGRESS_EVERY;
        // Window after which the progress is reported: the run may stop there and its results be
        // read, for which all regions must have the same time.
        let mut window: Option<Window> = None;
        loop {
            let next = workload.next.map(|spec| spec.start);
            let arrivals = next.filter(|start| *start < until);
            let last = match arrivals {
                Some(at) => partition.core.scheduler.limit_of_arrivals(at),
                None => partition.core.scheduler.limit(until),
            };
            let limit = window.map_or(last, |window| last.min(window.limit));
            match partition.run(limit, pause_at) {
                Pause::Retirement => books.retire(&mut [&mut partition.core]),
                Pause::Events => {
                    pause_at = partition.core.events + PROGRESS_EVERY;
                    partition.core.review_prefetching();
                    window = partition.core.scheduler.end_of_window();
                    if window.is_none()
                        && progress(Progress::of(&[&partition.core], globals)).is_break()
                    {
                        return Ok(EndReason::Stopped);
                    }
                }
                Pause::Limit => {
                    if let Some(Window { ends, .. }) = window.take() {
                        partition.core.now = ends;
                        partition.core.scheduler.settle(ends);
                        if progress(Progress::of(&[&partition.core], globals)).is_break() {
                            return Ok(EndReason::Stopped);
                        }
                    } else if let Some(at) = arrivals {
                        let Window { ends, .. } = partition.core.scheduler.window_of(at);
                        workload.draw(ends, &mut [&mut partition])?;
                    } else {
                        return Ok(EndReason::TimeUp);
                    }
                }
            }
        }
    }

    /// Handles the events before `until` on a thread for each partition.
    fn windows_until(
        &mut self,
        until: Time,
        progress: &mut impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<EndReason, FabricError> {
        let globals = self.globals;
        let Self {
            partitions,
            workload,
            books,
            ..
        } = self;
        for partition in &mut *partitions {
            // Global events may have put packets onto wires that leave the partition.
            partition.core.export(partition.core.scheduler.done());
        }
        let events = |cores: &[&mut Core]| cores.iter().map(|core| core.events).sum::<u64>();
        let mut pause_at = partitions.iter().map(|p| p.core.events).sum::<u64>() + PROGRESS_EVERY;
        let mut window: Option<Window> = None;
        let mut ended = Ok(EndReason::TimeUp);
        threads::simulate(partitions, |partitions| {
            let mut cores: Vec<_> = partitions.iter_mut().map(|p| &mut p.core).collect();
            exchange(&mut cores);
            books.retire(&mut cores);
            if let Some(Window { ends, .. }) = window
                && events(&cores) >= pause_at
            {
                pause_at = events(&cores) + PROGRESS_EVERY;
                for core in &mut cores {
                    core.now = ends;
                    core.scheduler.settle(ends);
                }
                let cores: Vec<&Core> = cores.iter().map(|core| &**core).collect();
                if progress(Progress::of(&cores, globals)).is_break() {
                    ended = Ok(EndReason::Stopped);
                }
            }
            let pending = cores
                .iter_mut()
                .flat_map(|core| [core.scheduler.next_at(), core.mailbox.next_at()]);
            let drawn = workload.next.map(|spec| spec.start);
            let next = pending.flatten().chain(drawn).min();
            let next = next.filter(|at| *at < until && matches!(ended, Ok(EndReason::TimeUp)));
            window = next.map(|at| cores[0].scheduler.window_of(at));
            match &window {
                Some(Window { ends, .. }) => {
                    if let Err(error) = workload.draw(*ends, partitions) {
                        ended = Err(error);
                        window = None;
                    }
                }
                // What is under way is on its wires when others look.
                None => cores.into_iter().for_each(Core::import),
            }
            window
        });
        ended
    }

    fn handle_global(&mut self, global: GlobalEvent) {
        self.globals += 1;
        match global {
            GlobalEvent::Change(index) => {
                let change = self.changes[index as usize];
                for partition in &mut self.partitions {
                    partition.core.change(change);
                    partition.pull_all();
                }
            }
            GlobalEvent::Sample => self.sample(),
        }
    }

    fn sample(&mut self) {
        self.settle();
        let every = self.books.sample(&cores(&self.partitions));
        // The last event of all: sampling goes on while anything else does.
        if let Some(every) = every
            && !self.is_idle()
        {
            let next = self.partitions[0].core.now + every;
            self.global_events
                .push(Reverse((next, GlobalEvent::Sample)));
        }
    }

    /// Returns the progress of the run.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress::of(&cores(&self.partitions), self.globals)
    }

    /// Returns what the hosts share.
    #[must_use]
    pub fn shared(&self) -> &T::Shared {
        &self.partitions[0].shared
    }

    /// Iterates over the endpoints of all hosts, and of the allocator's node behind them.
    pub fn endpoints(&self) -> impl Iterator<Item = &T::Endpoint> {
        self.partitions.iter().flat_map(|p| &p.endpoints)
    }

    /// Returns the endpoint that sends a flow, and the slot of the flow there; `None` before the
    /// flow has begun and once its sender has forgotten it.
    #[must_use]
    pub fn sender_of(&self, flow: FlowId) -> Option<(&T::Endpoint, u32)> {
        let flows = &self.partitions[0].core.shared.flows;
        if !flows.is_active(flow) {
            return None;
        }
        let host = flows.spec(flow).src;
        let partition = self.partitions.iter().find(|p| p.has(host))?;
        let slot = partition.core.shared.flows.slot(flow, Side::Sender);
        let endpoint = partition
            .endpoints
            .get((host.0 - partition.first) as usize)?;
        (slot != NO_SLOT).then_some((endpoint, slot))
    }

    /// Returns the number of regions that take turns; 1 where the whole fabric is simulated at
    /// once.
    pub fn regions(&self) -> usize {
        let core = &self.partitions[0].core;
        core.regions.as_ref().map_or(1, Regions::len)
    }

    /// Returns the number of threads that simulate the fabric.
    pub fn threads(&self) -> usize {
        self.partitions.len()
    }

    /// Returns the samples so far, if the run takes any.
    #[must_use]
    pub fn series(&self) -> Option<&Series> {
        self.books.series.as_ref()
    }

    /// Hands the results of flows that retire to a function, and keeps none. Their order is that in
    /// which they retire, which regions and threads may change.
    pub fn stream_flows(&mut self, sink: FlowSink) {
        self.books.stream(sink);
    }

    /// Returns the scheme's own counters, by name.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, f64)> {
        T::summary(self.shared(), &self.endpoints().collect::<Vec<_>>())
    }

    /// Returns the results so far.
    pub fn results(&mut self) -> RunResults {
        self.settle();
        let partitions = self.partitions.iter_mut();
        let mut all: Vec<_> = partitions.map(|p| &mut p.core).collect();
        self.books.retire(&mut all);
        let cores = cores(&self.partitions);
        let accounts = Accounts {
            retired: self.books.retired.kept(),
            before: &self.books.before,
            series: self.books.series.as_ref(),
            violation: self.books.violation,
            globals: self.globals,
            watchdog: self.watchdog.map(|(every, _)| every),
        };
        let endpoints: Vec<&T::Endpoint> = self.endpoints().collect();
        let scheme = SchemeResults {
            counters: self.counters(),
            findings: T::findings(self.shared(), &endpoints),
            check: T::check(self.shared(), &endpoints),
        };
        RunResults::new(&cores, accounts, scheme)
    }
}

fn cores<T: Transport>(partitions: &[Partition<T>]) -> Vec<&Core> {
    partitions.iter().map(|p| &p.core).collect()
}

impl Progress {
    /// Adds up the progress of all partitions, after so many global events.
    fn of(cores: &[&Core], globals: u64) -> Self {
        let sum = |of: fn(&Core) -> u64| cores.iter().map(|core| of(core)).sum();
        Self {
            now: cores[0].now,
            started: cores[0].shared.flows.len() as u64,
            completed: sum(|core| core.completed),
            packet_hops: sum(|core| core.packet_hops),
            events: sum(|core| core.events) + globals,
        }
    }
}

impl Core {
    /// Makes the state of a partition at time 0.
    fn new(
        config: &Config,
        topology: Topology,
        regions: Option<&Regions>,
        partition: usize,
    ) -> Result<Self, FabricError> {
        let mut fabric = Fabric::new(&topology, &config.fabric, config.seed)?;
        if let Some(regions) = regions {
            regions.mark(&mut fabric.ports, partition);
        }
        let partitions = regions.map_or(1, Regions::partitions);
        let hosts = topology.hosts().len() as u32;
        let nodes = hosts + u32::from(config.fabric.allocator.is_some());
        Ok(Self {
            now: Time::ZERO,
            latest: Time::ZERO,
            scheduler: Scheduler::new(regions.map(|r| (r.lookahead, r.len()))),
            shared: SharedState {
                packets: PacketSlab::default(),
                extensions: Extensions::default(),
                flows: if partitions > 1 {
                    FlowStore::of_partition()
                } else {
                    FlowStore::default()
                },
            },
            fabric,
            timers: timers::Timers::default(),
            chance: Chance::new(config.seed, u64::from(hosts) + 1, config.fabric.spraying),
            nics: vec![Nic::default(); nodes as usize],
            former: Vec::new(),
            woken: false,
            poked: Vec::new(),
            framing: config.fabric.framing,
            groups: Arc::clone(&config.groups),
            allocator: config.fabric.allocator.map(|_| HostId(hosts)),
            symmetric: topology.ecmp().symmetric,
            topology,
            regions: regions.cloned(),
            events: 0,
            packet_hops: 0,
            completed: 0,
            no_route: PacketCount::default(),
            prefetcher: prefetch::Prefetcher::default(),
            mailbox: Mailbox::new(partitions),
            census: None,
        })
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
        Change::Pause { host, .. } => {
            return if host.index() < topology.hosts().len() {
                Ok(())
            } else {
                Err(FabricError::UnknownHost(host))
            };
        }
        Change::Link { link, .. } | Change::Rate { link, .. } => link,
    };
    if link.index() < topology.links().len() {
        Ok(())
    } else {
        Err(FabricError::UnknownLink(link))
    }
}
