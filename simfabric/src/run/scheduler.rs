//! What is to come, and in which order it is taken: through the whole fabric in the order of time,
//! or in windows, [region](crate::net::regions) by region.
//!
//! A window is as long as the regions' lookahead. In the event queue, an event's time is made of
//! the number of its window, its region, and its time within the window, so that the queue itself
//! goes through the regions of a window one after the other. What a region sends to another is for
//! a later window.
//!
//! Events of one moment happen in the order in which they were scheduled as long as the whole
//! fabric goes through time at once, as in other simulators. Regions have no such order in common.
//! Where they take turns, events of one moment happen by kind; packets that arrive, in the order of
//! their ports; timers in the order in which they were set, which is a matter of one host. Events
//! of different places at one moment do not touch each other, so that results are those of the
//! whole fabric with the same order.
//!
//! *Barriers* concern the whole fabric: samples, changes of the network, flows that are stopped,
//! and the end of a run. All regions have to have come to the same time then, so the windows are
//! moved such that one of them ends there.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::event::{Event, EventQueue, FLOW_BITS, ORDER_BITS};
use crate::time::{Span, Time};

/// What concerns the whole fabric. Of one moment, what stands first here happens first, and all of
/// it before everything else.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum GlobalEvent {
    /// The network changes (index into the list of changes).
    Change(u32),
    /// A flow's application stops.
    Stop(u32),
    /// Series are sampled.
    Sample,
}

/// No region: what happens now concerns all of them.
const ALL: u32 = u32::MAX;

/// Bits of an order that timers are told apart by; three are for the kind.
const TIMER_BITS: u32 = ORDER_BITS - 3;

/// The present window, and how times are mapped.
#[derive(Clone, Copy, Debug)]
struct Windows {
    /// Picoseconds of a window.
    length: u64,
    /// Added to times, so that windows begin at multiples of their length; not 0, not more than
    /// that.
    shift: u64,
    /// Bits of a time within a window, and of a region.
    offset_bits: u32,
    region_bits: u32,
    /// The present window, and when it began, shifted.
    number: u64,
    began: u64,
    /// The latest time that can be told, shifted. Events beyond are scheduled for then: the length
    /// of days, which no run reaches.
    latest: u64,
}

impl Windows {
    fn new(lookahead: Span, regions: usize) -> Self {
        let length = lookahead.0.max(1);
        let offset_bits = u64::BITS - (length - 1).leading_zeros();
        let region_bits = usize::BITS - (regions - 1).leading_zeros();
        let windows = 1_u64 << (63 - offset_bits - region_bits);
        Self {
            length,
            shift: length,
            offset_bits,
            region_bits,
            number: 1,
            began: length,
            latest: (length * windows).min(1 << 62),
        }
    }

    #[inline]
    fn key(&self, at: Time, region: u32) -> Time {
        let at = at.0.saturating_add(self.shift).min(self.latest);
        let since = at.wrapping_sub(self.began);
        let (number, offset) = if since < self.length {
            (self.number, since)
        } else if since.wrapping_sub(self.length) < self.length {
            (self.number + 1, since - self.length)
        } else {
            (at / self.length, at % self.length)
        };
        Time((number << self.region_bits | u64::from(region)) << self.offset_bits | offset)
    }

    /// A window's number, a region, and the time within the window.
    #[inline]
    fn parts(&self, key: Time) -> (u64, u32, u64) {
        let slot = key.0 >> self.offset_bits;
        (
            slot >> self.region_bits,
            slot as u32 & ((1 << self.region_bits) - 1),
            key.0 & ((1 << self.offset_bits) - 1),
        )
    }

    /// When a window begins; the first ones do before time 0.
    fn time_of(&self, number: u64) -> Time {
        Time((number * self.length).saturating_sub(self.shift))
    }
}

/// Events and barriers to come.
#[derive(Debug)]
pub(crate) struct Scheduler {
    queue: EventQueue,
    windows: Option<Windows>,
    global_events: BinaryHeap<Reverse<(Time, GlobalEvent)>>,
    /// When flows are fetched from the workload next.
    arrivals_at: Option<Time>,
    /// The region of what happens now.
    region: u32,
    /// Whether events of one moment happen by kind and place, and not in the order of scheduling.
    by_place: bool,
    /// Events, or timers by place, that were scheduled. The queue takes 36 and 33 bits of it; after
    /// 69 and 8.6 · 10⁹ two of one picosecond may swap, the same way in every run.
    scheduled: u64,
    /// Until when everything has happened in all regions.
    done: Time,
    /// Whether another region, or the same one in another window, has come to its turn.
    region_changed: bool,
}

impl Scheduler {
    /// Nothing to come, in so many regions; events of one moment by kind and place, or as
    /// scheduled.
    pub(crate) fn new(regions: Option<(Span, usize)>, by_place: bool) -> Self {
        debug_assert!(
            by_place || regions.is_none(),
            "regions know no common order"
        );
        let windows = regions.map(|(lookahead, regions)| Windows::new(lookahead, regions));
        Self {
            queue: EventQueue::default(),
            windows,
            global_events: BinaryHeap::new(),
            arrivals_at: None,
            region: ALL,
            by_place,
            scheduled: 0,
            done: Time::ZERO,
            region_changed: false,
        }
    }

    /// Whether regions take turns.
    #[inline]
    pub(crate) fn uses_windows(&self) -> bool {
        self.windows.is_some()
    }

    /// The region of what happens now.
    #[inline]
    pub(crate) fn region(&self) -> u32 {
        self.region
    }

    /// What happens now is in this region.
    pub(crate) fn set_region(&mut self, region: u32) {
        self.region = region;
    }

    /// Until when everything has happened everywhere: a region may rely on no more of what others
    /// did.
    #[inline]
    pub(crate) fn settled_until(&self, now: Time) -> Time {
        match &self.windows {
            Some(windows) => windows.time_of(windows.number).max(self.done),
            None => now,
        }
    }

    /// Where an event is among those of its moment. Flows begin first if that is a matter of
    /// scheduling.
    #[inline]
    fn order(&mut self, event: Event) -> u64 {
        if self.by_place {
            self.order_by_place(event)
        } else if let Event::Start(_) = event {
            0
        } else {
            self.scheduled += 1;
            (1 << FLOW_BITS) + self.scheduled
        }
    }

    #[inline(always)]
    fn order_by_place(&mut self, event: Event) -> u64 {
        let kind = match event {
            Event::Arrivals => 0,
            Event::Departure(_) => 1,
            Event::Port(_) => 2,
            Event::Start(_) => 3,
            Event::Timer(_) => {
                self.scheduled += 1;
                return 4 << TIMER_BITS | self.scheduled & ((1 << TIMER_BITS) - 1);
            }
        };
        kind << TIMER_BITS
    }

    /// Schedules what happens in a region.
    #[inline(always)]
    pub(crate) fn push(&mut self, at: Time, region: u32, event: Event) {
        if self.by_place {
            return self.push_by_place(at, region, event);
        }
        let order = self.order(event);
        self.queue.push(at, order, event);
    }

    #[inline(always)]
    fn push_by_place(&mut self, at: Time, region: u32, event: Event) {
        let order = self.order_by_place(event);
        let Some(windows) = &self.windows else {
            return self.queue.push(at, order, event);
        };
        let key = windows.key(at, region);
        debug_assert!(
            region == self.region || self.region == ALL || windows.parts(key).0 > windows.number,
            "{event:?} at {at:?} is for a later window"
        );
        self.queue.push(key, order, event);
    }

    /// Schedules what happens in the present region.
    #[inline(never)]
    pub(crate) fn push_here(&mut self, at: Time, event: Event) {
        debug_assert!(
            self.windows.is_none() || self.region != ALL,
            "{event:?} is of a region"
        );
        self.push(at, self.region, event);
    }

    /// Has the flows from this time on fetched: before anything else of the window in which it is.
    pub(crate) fn fetch_arrivals_at(&mut self, at: Time) {
        self.arrivals_at = Some(at);
        let order = self.order(Event::Arrivals);
        match &self.windows {
            None => self.queue.push(at, order, Event::Arrivals),
            Some(windows) => {
                let (number, _, _) = windows.parts(windows.key(at, 0));
                let first = number << (windows.region_bits + windows.offset_bits);
                self.queue.push(Time(first), order, Event::Arrivals);
            }
        }
    }

    /// Until when, itself excluded, flows are to be fetched now.
    pub(crate) fn arrivals_until(&mut self, now: Time) -> Time {
        self.arrivals_at = None;
        match &self.windows {
            None => Time(now.0 + 1),
            Some(windows) => windows.time_of(windows.number + 1),
        }
    }

    /// Schedules what concerns the whole fabric.
    pub(crate) fn push_global(&mut self, at: Time, event: GlobalEvent) {
        self.global_events.push(Reverse((at, event)));
    }

    /// When the next barrier is.
    #[inline]
    pub(crate) fn next_global(&self) -> Option<Time> {
        self.global_events.peek().map(|b| b.0.0)
    }

    /// All that was to happen before this time has.
    pub(crate) fn settle(&mut self, at: Time) {
        self.done = self.done.max(at);
        self.region = ALL;
    }

    /// Takes the next barrier of this time.
    pub(crate) fn pop_global(&mut self, at: Time) -> Option<GlobalEvent> {
        self.next_global().filter(|next| *next == at)?;
        self.global_events.pop().map(|b| b.0.1)
    }

    /// Moves the windows so that one ends at this time.
    pub(crate) fn align(&mut self, at: Time) {
        let Some(old) = self.windows else { return };
        let shift = old.length - at.0 % old.length;
        if shift == old.shift {
            return;
        }
        let number = (self.done.0 + shift) / old.length;
        let new = Windows {
            shift,
            number,
            began: number * old.length,
            ..old
        };
        self.windows = Some(new);
        let arrivals_at = self.arrivals_at;
        let now = new.key(self.done, 0);
        self.queue.reschedule(now, |event, key| {
            if event == Event::Arrivals {
                let at = arrivals_at.unwrap_or(Time::MAX);
                let (number, _, _) = new.parts(new.key(at, 0));
                return Time(number << (new.region_bits + new.offset_bits));
            }
            let (number, region, offset) = old.parts(key);
            new.key(Time(number * old.length + offset - old.shift), region)
        });
    }

    /// For [`pop`](Self::pop): the events before a time that a window ends at.
    pub(crate) fn limit(&self, before: Time) -> PopLimit {
        PopLimit(match &self.windows {
            None => before.0.saturating_sub(1),
            Some(windows) if before.0 >= windows.latest - windows.shift => u64::MAX,
            Some(windows) => windows.key(before, 0).0 - 1,
        })
    }

    /// For [`pop`](Self::pop): the events of the present window.
    pub(crate) fn end_of_window(&self) -> Option<(Time, PopLimit)> {
        let windows = self.windows.as_ref()?;
        let next = windows.number + 1;
        let limit = (next << (windows.region_bits + windows.offset_bits)) - 1;
        Some((windows.time_of(next), PopLimit(limit)))
    }

    /// Takes the next event.
    #[inline(always)]
    pub(crate) fn pop(&mut self, limit: PopLimit) -> Option<(Time, Event)> {
        let (key, event) = self.queue.pop_until(Time(limit.0))?;
        if self.windows.is_none() {
            return Some((key, event));
        }
        Some((self.time_of(key), event))
    }

    /// The time that a key of the present window or a later one stands for. That window, and the
    /// region, come to their turn.
    #[inline(never)]
    fn time_of(&mut self, key: Time) -> Time {
        let Some(windows) = &mut self.windows else {
            return key;
        };
        let (number, region, offset) = windows.parts(key);
        if number != windows.number || region != self.region {
            windows.number = number;
            windows.began = number * windows.length;
            self.region = region;
            self.region_changed = true;
        }
        Time((windows.began + offset).saturating_sub(windows.shift))
    }

    /// Whether a region has come to its turn since this was asked last.
    #[inline]
    pub(crate) fn region_changed(&mut self) -> bool {
        let region_changed = self.region_changed;
        if region_changed {
            self.region_changed = false;
        }
        region_changed
    }

    /// Whether [`upcoming`](Self::upcoming) is going to be asked for.
    pub(crate) fn set_lookahead(&mut self, on: bool) {
        self.queue.set_lookahead(on);
    }

    /// What happens `ahead` events after the next, if that is known and nothing comes between.
    #[inline]
    pub(crate) fn upcoming(&self, ahead: usize) -> Option<Event> {
        self.queue.upcoming(ahead)
    }

    /// Whether nothing is to come.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.global_events.is_empty()
    }
}

/// Until where events are taken from the queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct PopLimit(u64);
