//! The event loop.

pub(crate) mod ahead;
pub(crate) mod core;
pub(crate) mod timers;

use std::ops::ControlFlow;

use rand::{RngExt as _, SeedableRng as _};
use ratewright_topology::{HostId, LinkId, Topology};

pub use self::core::Change;
use self::core::Core;
use crate::SimRng;
use crate::event::{Event, EventQueue};
use crate::ext::Extensions;
use crate::flow::{Count, FlowId, FlowSpec, FlowTable};
use crate::net::port::MIN_RATE_BPS;
use crate::net::queue::Shared;
use crate::net::{Fabric, FabricConfig, FabricError};
use crate::packet::PacketSlab;
use crate::records::{Records, Series};
use crate::time::{Span, Time};
use crate::transport::{Context, Transport};
use crate::workload::Arrivals;

/// What a run needs beside topology, workload and transport.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Config {
    /// Seed of everything random.
    pub seed: u64,
    /// Queues, delays, framing, the allocator's links.
    pub fabric: FabricConfig,
    /// Changes of the network, in any order.
    pub changes: Vec<(Time, Change)>,
    /// Samples the goodput of every flow (and the queues of `watched`) at this interval.
    pub sample_every: Option<Span>,
    /// How many flows, the first ones, are sampled.
    pub sampled_flows: u32,
    /// Ports whose queue length is sampled.
    pub watched: Vec<LinkId>,
    /// Until when queue means, maxima and histograms are not counted.
    pub warm_up: Time,
}

/// How far a run got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The simulated time.
    pub now: Time,
    /// Flows that began.
    pub started: u64,
    /// Flows that completed.
    pub completed: u64,
    /// Packets that left a queue onto a link and arrived at its end.
    pub packet_hops: u64,
    /// Events handled.
    pub events: u64,
}

/// Why a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// Nothing is left to happen.
    Idle,
    /// The time is over.
    TimeUp,
    /// The progress callback stopped it.
    Stopped,
}

/// Events between two calls of the progress callback.
const PROGRESS_EVERY: u64 = 1 << 16;

/// A run.
#[derive(Debug)]
pub struct Sim<T, A> {
    core: Core,
    transport: T,
    arrivals: A,
    /// The next flow.
    pending: Option<FlowSpec>,
    changes: Vec<Change>,
    stops: Vec<FlowId>,
    events: u64,
    begun: bool,
    warm_up: Option<Time>,
}

impl<T: Transport, A: Arrivals> Sim<T, A> {
    /// A run at its beginning.
    ///
    /// # Errors
    /// If the configuration does not fit the topology.
    pub fn new(
        config: Config,
        topology: Topology,
        arrivals: A,
        transport: T,
    ) -> Result<Self, FabricError> {
        let fabric = Fabric::new(&topology, &config.fabric)?;
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
        let mut events = EventQueue::default();
        for (i, (at, _)) in config.changes.iter().enumerate() {
            events.push(*at, Event::Change(i as u32));
        }
        let series = config
            .sample_every
            .filter(|e| *e > Span::ZERO)
            .map(|every| {
                events.push(Time::ZERO + every, Event::Sample);
                Series::new(every, config.sampled_flows, config.watched)
            });
        let core = Core {
            now: Time::ZERO,
            events,
            shared: Shared {
                packets: PacketSlab::default(),
                extensions: Extensions::default(),
                flows: FlowTable::default(),
                rng: SimRng::seed_from_u64(config.seed),
            },
            fabric,
            timers: timers::Timers::default(),
            framing: config.fabric.framing,
            allocator: config
                .fabric
                .allocator
                .map(|_| HostId(topology.hosts().len() as u32)),
            symmetric: topology.ecmp().symmetric,
            topology,
            packet_hops: 0,
            completed: 0,
            no_route: Count::default(),
            series,
            ahead: ahead::Ahead::default(),
        };
        Ok(Self {
            core,
            transport,
            arrivals,
            pending: None,
            changes: config.changes.into_iter().map(|c| c.1).collect(),
            stops: Vec::new(),
            events: 0,
            begun: false,
            warm_up: Some(config.warm_up).filter(|w| *w > Time::ZERO),
        })
    }

    /// Runs until a time, or until nothing is left to happen.
    ///
    /// # Errors
    /// If the workload's flows are out of order or lead nowhere.
    pub fn run_until(&mut self, end: Time) -> Result<Ended, FabricError> {
        self.run_with(end, |_| ControlFlow::Continue(()))
    }

    /// Runs until a time, and says every 65,536 events how far it got; the callback may stop the
    /// run, which can be continued.
    ///
    /// # Errors
    /// If the workload's flows are out of order or lead nowhere.
    pub fn run_with(
        &mut self,
        end: Time,
        mut progress: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Ended, FabricError> {
        if !self.begun {
            self.begun = true;
            self.next_arrival()?;
            self.transport.on_begin(&mut Context {
                core: &mut self.core,
            });
        }
        if let Some(warm_up) = self.warm_up.filter(|w| *w <= end) {
            let ended = self.steps(warm_up, &mut progress)?;
            if ended == Ended::Stopped {
                return Ok(ended);
            }
            self.warm_up = None;
            self.core.settle();
            for port in &mut self.core.fabric.ports {
                port.stats.begin_again(warm_up);
            }
        }
        self.steps(end, &mut progress)
    }

    fn steps(
        &mut self,
        end: Time,
        progress: &mut impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Ended, FabricError> {
        let mut call_at = self.events + PROGRESS_EVERY;
        while let Some((at, event)) = self.core.events.pop_until(end) {
            if self.core.ahead.on {
                self.core.fetch_ahead(&self.transport);
            }
            self.step(at, event)?;
            if self.events >= call_at {
                call_at = self.events + PROGRESS_EVERY;
                self.core.review_fetching();
                if progress(self.progress()).is_break() {
                    return Ok(Ended::Stopped);
                }
            }
        }
        if self.core.events.is_empty() {
            return Ok(Ended::Idle);
        }
        self.core.now = end;
        Ok(Ended::TimeUp)
    }

    #[inline]
    fn step(&mut self, at: Time, event: Event) -> Result<(), FabricError> {
        debug_assert!(at >= self.core.now, "time goes forward");
        self.core.now = at;
        self.events += 1;
        match event {
            Event::Port(index) => {
                if let Some((host, packet)) = self.core.port_event(index) {
                    self.transport.on_packet(
                        &mut Context {
                            core: &mut self.core,
                        },
                        host,
                        packet,
                    );
                }
            }
            Event::Departure(index) => self.core.departure_event(index),
            Event::Timer(index) => {
                if let Some(token) = self.core.timer_event(index) {
                    self.transport.on_timer(
                        &mut Context {
                            core: &mut self.core,
                        },
                        token,
                    );
                }
            }
            Event::Arrival => self.arrival()?,
            Event::Stop(index) => {
                let flow = self.stops[index as usize];
                self.transport.on_stop(
                    &mut Context {
                        core: &mut self.core,
                    },
                    flow,
                );
            }
            Event::Change(index) => self.core.change(self.changes[index as usize]),
            Event::Sample => self.sample(),
        }
        Ok(())
    }

    fn sample(&mut self) {
        if let Some(mut series) = self.core.series.take() {
            self.core.settle();
            series.sample(&self.core);
            // The last event of all: sampling goes on while anything else does.
            if !self.core.events.is_empty() {
                self.core
                    .events
                    .push(self.core.now + series.every(), Event::Sample);
            }
            self.core.series = Some(series);
        }
    }

    /// Fetches the next flow from the workload and schedules its beginning.
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
        if spec.start < self.core.now {
            return Err(FabricError::OutOfOrder { flow });
        }
        self.pending = Some(spec);
        self.core.events.push(spec.start, Event::Arrival);
        Ok(())
    }

    fn arrival(&mut self) -> Result<(), FabricError> {
        let Some(mut spec) = self.pending.take() else {
            return Ok(());
        };
        if spec.path_hash == 0 {
            spec.path_hash = self.core.shared.rng.random();
        }
        let flow = self.core.shared.flows.push(spec);
        if spec.stop < Time::MAX {
            self.core.events.push(
                spec.stop.max(self.core.now),
                Event::Stop(self.stops.len() as u32),
            );
            self.stops.push(flow);
        }
        self.next_arrival()?;
        self.transport.on_start(
            &mut Context {
                core: &mut self.core,
            },
            flow,
        );
        Ok(())
    }

    /// How far the run got.
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

    /// The transport, for its own results.
    #[must_use]
    pub fn transport(&self) -> &T {
        &self.transport
    }

    /// What the run has left behind so far.
    pub fn records(&mut self) -> Records {
        self.core.settle();
        Records::new(&self.core, self.events, self.transport.summary())
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
        Change::Link { link, .. } | Change::Rate { link, .. } | Change::Pause { link, .. } => link,
    };
    if link.index() < topology.links().len() {
        Ok(())
    } else {
        Err(FabricError::UnknownLink(link))
    }
}
