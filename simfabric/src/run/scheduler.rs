//! The event scheduler: pending events, taken in order of time, or in windows,
//! [region](crate::net::regions) by region.
//!
//! A window is as long as the regions' lookahead. An event's key in the queue consists of the
//! number of its window, its region, and its time within the window. The queue itself therefore
//! goes through the regions of a window one after the other. A packet to another region is for a
//! later window.
//!
//! Events of one moment happen by kind; arrivals of packets in the order of their ports; timers in
//! the order in which their host set them. Regions know no common order of scheduling, but they do
//! know this one. Events of different places at one moment do not affect each other, so that
//! results are the same with any number of regions.
//!
//! *Global events* concern the whole fabric: samples, changes of the network, and the end of a run.
//! All regions must have reached the same time then, so the windows are shifted until one ends
//! there.

use crate::event::{Event, EventQueue, ORDER_BITS};
use crate::time::{Span, Time};

/// Region of an event that concerns all regions.
const ALL: u32 = u32::MAX;

/// Bits that order timers; those above put them after all other events of their moment but pulls.
const TIMER_BITS: u32 = ORDER_BITS - 2;

/// The present window, and the mapping of times to keys.
#[derive(Clone, Copy, Debug)]
struct Windows {
    /// Picoseconds of a window.
    length: u64,
    /// Offset that aligns windows with multiples of their length; from 1 more than that length to
    /// twice that, so that no window has number 0.
    shift: u64,
    /// Bits of a time within a window, and of a region's number.
    offset_bits: u32,
    region_bits: u32,
    /// Number of the present window, and its shifted begin.
    number: u64,
    began: u64,
    /// Latest shifted time that a key can hold. Later events are scheduled for then: after days,
    /// which no run reaches.
    latest: u64,
}

impl Windows {
    fn new(lookahead: Span, regions: usize) -> Self {
        let length = lookahead.0.max(1);
        let offset_bits = u64::BITS - (length - 1).leading_zeros();
        let region_bits = usize::BITS - (regions - 1).leading_zeros();
        // One bit is left over, so that no key comes near `Time::MAX`.
        let windows = 1_u64 << (63 - offset_bits - region_bits);
        Self {
            length,
            shift: 2 * length,
            offset_bits,
            region_bits,
            number: 2,
            began: 2 * length,
            latest: (length * windows).min(1 << 62),
        }
    }

    #[inline]
    fn key(&self, at: Time, region: u32) -> Time {
        let at = at.0.saturating_add(self.shift).min(self.latest);
        let since = at.wrapping_sub(self.began);
        // Nearly all events are for this window or the next one: two subtractions then take the
        // place of two divisions.
        let (number, offset) = if since < self.length {
            (self.number, since)
        } else if since.wrapping_sub(self.length) < self.length {
            (self.number + 1, since - self.length)
        } else {
            (at / self.length, at % self.length)
        };
        Time((number << self.region_bits | u64::from(region)) << self.offset_bits | offset)
    }

    /// Splits a key into window number, region, and time within the window.
    #[inline]
    fn parts(&self, key: Time) -> (u64, u32, u64) {
        let slot = key.0 >> self.offset_bits;
        (
            slot >> self.region_bits,
            slot as u32 & ((1 << self.region_bits) - 1),
            key.0 & ((1 << self.offset_bits) - 1),
        )
    }

    /// Returns the number of the window that holds a time.
    fn number_of(&self, at: Time) -> u64 {
        self.parts(self.key(at, 0)).0
    }

    /// Returns the least key of a window.
    fn first_key(&self, number: u64) -> u64 {
        number << (self.region_bits + self.offset_bits)
    }

    fn window(&self, number: u64) -> Window {
        Window {
            ends: self.time_of(number + 1),
            limit: PopLimit(self.first_key(number + 1) - 1),
        }
    }

    /// Returns the time at which a window begins; 0 for those that begin earlier.
    fn time_of(&self, number: u64) -> Time {
        Time((number * self.length).saturating_sub(self.shift))
    }
}

/// Pending events.
#[derive(Debug)]
pub(crate) struct Scheduler {
    queue: EventQueue,
    windows: Option<Windows>,
    /// Region of the present event.
    region: u32,
    /// Number of timers scheduled. The queue uses [`TIMER_BITS`] of it: after 17 · 10⁹ of them, two
    /// of one picosecond may swap, alike in every run.
    timers: u64,
    /// Time before which all events of all regions have happened.
    done: Time,
    /// True if the region or the window has changed since the last query.
    region_changed: bool,
}

impl Scheduler {
    /// Makes a scheduler without events, for regions with their lookahead, or for the whole fabric.
    pub(crate) fn new(regions: Option<(Span, usize)>) -> Self {
        let windows = regions.map(|(lookahead, regions)| Windows::new(lookahead, regions));
        Self {
            queue: EventQueue::default(),
            windows,
            region: ALL,
            timers: 0,
            done: Time::ZERO,
            region_changed: false,
        }
    }

    /// Returns true if regions take turns.
    #[inline]
    pub(crate) fn uses_windows(&self) -> bool {
        self.windows.is_some()
    }

    /// Returns the region of the present event.
    #[inline]
    pub(crate) fn region(&self) -> u32 {
        self.region
    }

    /// Sets the region of the present event.
    pub(crate) fn set_region(&mut self, region: u32) {
        self.region = region;
    }

    /// Returns the time before which all events have happened in all regions. A region may rely on
    /// nothing later that another one did.
    #[inline]
    pub(crate) fn settled_until(&self, now: Time) -> Time {
        match &self.windows {
            Some(windows) => windows.time_of(windows.number).max(self.done),
            None => now,
        }
    }

    /// Returns the order of an event among those of its moment; of one order, kind and index
    /// decide.
    #[inline(always)]
    fn order(&mut self, event: Event) -> u64 {
        match event {
            Event::Timer(_) => {
                self.timers += 1;
                // Timers of one moment have no place to go by; the order in which their host set
                // them is the same with any number of regions.
                1 << TIMER_BITS | self.timers & ((1 << TIMER_BITS) - 1)
            }
            // Last of all: an interface asks when everything else of the moment has happened.
            Event::Pull(_) => 2 << TIMER_BITS,
            _ => 0,
        }
    }

    /// Schedules an event of a region.
    #[inline(always)]
    pub(crate) fn push(&mut self, at: Time, region: u32, event: Event) {
        let order = self.order(event);
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

    /// Schedules an event of the present region.
    #[inline(never)]
    pub(crate) fn push_here(&mut self, at: Time, event: Event) {
        debug_assert!(
            self.windows.is_none() || self.region != ALL,
            "{event:?} is of a region"
        );
        self.push(at, self.region, event);
    }

    /// Returns the limit for [`pop`](Self::pop) that stops before the flows are drawn of which the
    /// next one starts at `at`: before all else of that moment, or of the window that holds it.
    pub(crate) fn limit_of_arrivals(&self, at: Time) -> PopLimit {
        match &self.windows {
            None => self.limit(at),
            Some(windows) => PopLimit(windows.first_key(windows.number_of(at)) - 1),
        }
    }

    /// Returns the time before which all events of all regions have happened.
    pub(crate) fn done(&self) -> Time {
        self.done
    }

    /// Declares that all events before `at` have happened.
    pub(crate) fn settle(&mut self, at: Time) {
        self.done = self.done.max(at);
        self.region = ALL;
    }

    /// Shifts the windows so that one ends at `at`.
    pub(crate) fn align(&mut self, at: Time) {
        let Some(old) = self.windows else { return };
        let shift = 2 * old.length - at.0 % old.length;
        if shift == old.shift {
            return;
        }
        // All events before `done` have happened, so the window that holds it is the present one.
        let number = (self.done.0 + shift) / old.length;
        let new = Windows {
            shift,
            number,
            began: number * old.length,
            ..old
        };
        self.windows = Some(new);
        let now = new.key(self.done, 0);
        self.queue.reschedule(now, |key| {
            let (number, region, offset) = old.parts(key);
            new.key(Time(number * old.length + offset - old.shift), region)
        });
    }

    /// Returns the limit for [`pop`](Self::pop) that stops before `before`, where a window ends.
    pub(crate) fn limit(&self, before: Time) -> PopLimit {
        PopLimit(match &self.windows {
            None => before.0.saturating_sub(1),
            // Keys saturate at `latest`, so that a limit computed from one would exclude events
            // there.
            Some(windows) if before.0 >= windows.latest - windows.shift => u64::MAX,
            Some(windows) => windows.key(before, 0).0 - 1,
        })
    }

    /// Returns the present window.
    pub(crate) fn end_of_window(&self) -> Option<Window> {
        let windows = self.windows.as_ref()?;
        Some(windows.window(windows.number))
    }

    /// Returns the window that holds `at`; that moment alone where there are no windows.
    pub(crate) fn window_of(&self, at: Time) -> Window {
        match &self.windows {
            None => Window {
                ends: Time(at.0 + 1),
                limit: self.limit(Time(at.0 + 1)),
            },
            Some(windows) => windows.window(windows.number_of(at)),
        }
    }

    /// Returns the time of the next event, or of the begin of its window.
    pub(crate) fn next_at(&mut self) -> Option<Time> {
        let key = self.queue.next_at()?;
        Some(match &self.windows {
            None => key,
            Some(windows) => windows.time_of(windows.parts(key).0),
        })
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

    /// Converts the key of the present window or a later one into a time, and makes its window and
    /// region the present ones.
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

    /// Returns true if the region or window has changed since the last call.
    #[inline]
    pub(crate) fn region_changed(&mut self) -> bool {
        let region_changed = self.region_changed;
        if region_changed {
            self.region_changed = false;
        }
        region_changed
    }

    /// Switches [`upcoming`](Self::upcoming) on or off.
    pub(crate) fn set_lookahead(&mut self, on: bool) {
        self.queue.set_lookahead(on);
    }

    /// Returns the event that follows `ahead` events after the next, if the queue has sorted that
    /// far.
    #[inline]
    pub(crate) fn upcoming(&self, ahead: usize) -> Option<Event> {
        self.queue.upcoming(ahead)
    }

    /// Returns true if nothing is pending.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// Largest key of an event that [`Scheduler::pop`] takes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct PopLimit(u64);

/// A window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// Time at which it ends.
    pub(crate) ends: Time,
    /// Limit for [`Scheduler::pop`] that stops there.
    pub(crate) limit: PopLimit,
}
