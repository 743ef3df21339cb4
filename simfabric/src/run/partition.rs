//! A partition of the fabric with its hosts, and its event loop. A run on one thread has one
//! partition, of all hosts.

use ratewright_topology::HostId;

use crate::event::Event;
use crate::flow::{FlowId, FlowSpec};
use crate::host::{Endpoint, Pull, Timer};
use crate::run::core::Core;
use crate::run::scheduler::{PopLimit, Window};
use crate::time::Time;
use crate::transport::{Context, Transport};

/// Reason that the event loop of a partition returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pause {
    /// The limit is reached.
    Limit,
    /// Flows can retire.
    Retirement,
    /// There were so many events.
    Events,
}

/// A partition of a run.
pub(crate) struct Partition<T: Transport> {
    pub(crate) core: Core,
    /// State that the hosts share.
    pub(crate) shared: T::Shared,
    /// Endpoints of the partition's hosts, and of the allocator's node behind them.
    pub(crate) endpoints: Vec<T::Endpoint>,
    /// The first of its hosts.
    pub(crate) first: u32,
}

impl<T: Transport> Partition<T> {
    /// Iterates over the numbers of the partition's hosts.
    fn hosts(&self) -> impl Iterator<Item = HostId> + use<T> {
        (self.first..self.first + self.endpoints.len() as u32).map(HostId)
    }

    /// Returns true if a host is of this partition.
    pub(crate) fn has(&self, host: HostId) -> bool {
        (host.0.wrapping_sub(self.first) as usize) < self.endpoints.len()
    }

    /// Lets all endpoints begin.
    pub(crate) fn begin(&mut self) {
        for host in self.hosts() {
            let region = self.core.region_of(host);
            self.core.scheduler.set_region(region);
            self.call(host, Endpoint::on_begin);
        }
    }

    /// Lets all interfaces ask for packets, after a change of the network: those that were paused,
    /// and such as wait for a link of another rate.
    pub(crate) fn pull_all(&mut self) {
        for host in self.hosts() {
            let region = self.core.region_of(host);
            self.core.scheduler.set_region(region);
            self.pull(host);
        }
    }

    /// Takes a flow into the books, and schedules its start and stop if its sender is of this
    /// partition.
    pub(crate) fn add_flow(&mut self, spec: &FlowSpec) {
        let flow = self.core.shared.flows.push(*spec);
        if !self.has(spec.src) {
            return;
        }
        let region = self.core.region_of(spec.src);
        let scheduler = &mut self.core.scheduler;
        scheduler.set_region(region);
        scheduler.push(spec.start, region, Event::Start(flow.0));
        if spec.stop < Time::MAX {
            // Not before it has begun.
            let stop = spec.stop.max(Time(spec.start.0 + 1));
            scheduler.push(stop, region, Event::Stop(flow.0));
        }
    }

    /// Simulates a window: takes what the others sent before it, and leaves what they get after it.
    pub(crate) fn simulate(&mut self, window: Window) {
        self.core.import();
        self.run(window.limit, u64::MAX);
        self.core.export(window.ends);
        self.core.review_prefetching();
    }

    /// Handles events until a limit, until flows can retire, or until there were `events` events in
    /// all.
    pub(crate) fn run(&mut self, limit: PopLimit, events: u64) -> Pause {
        loop {
            let Some((at, event)) = self.core.scheduler.pop(limit) else {
                return Pause::Limit;
            };
            if self.core.scheduler.region_changed() {
                self.core.on_region_change();
            }
            if self.core.prefetcher.on {
                self.core.prefetch_ahead(&self.endpoints, self.first);
            }
            self.handle(at, event);
            if self.core.shared.flows.has_ready() {
                return Pause::Retirement;
            }
            if self.core.events >= events {
                return Pause::Events;
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
        self.core.events += 1;
        if let Event::Port(index) = event {
            if let Some((host, id)) = self.core.port_event(index) {
                let mut packet = self.core.take_packet(id);
                self.call(host, |endpoint, cx| endpoint.on_packet(cx, &mut packet));
                // What the host did not take goes with the packet.
                self.core.shared.extensions.discard(&mut packet);
            }
        } else {
            self.handle_other(event);
        }
    }

    /// Handles an event that is not a port's.
    #[inline(never)]
    fn handle_other(&mut self, event: Event) {
        match event {
            Event::Port(_) => {}
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
        }
    }

    /// Lets an endpoint act, and then those that it poked, and asks for their packets.
    #[inline]
    fn call(
        &mut self,
        host: HostId,
        act: impl FnOnce(&mut T::Endpoint, &mut Context<'_, T::Shared>),
    ) {
        let place = host.0.wrapping_sub(self.first) as usize;
        let Some(endpoint) = self.endpoints.get_mut(place) else {
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
        let pulled = self.endpoints[(host.0 - self.first) as usize].pull(&mut cx);
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
}
