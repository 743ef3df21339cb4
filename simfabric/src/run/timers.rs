//! Timers of transports, which are cancelled and postponed without a change of the event queue.

use crate::cache::prefetch;
use crate::time::Time;

/// Handle of a timer that was set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimerId {
    index: u32,
    generation: u32,
}

#[derive(Clone, Copy, Debug)]
struct TimerSlot {
    token: u64,
    /// Time at which the timer fires; [`Time::MAX`] if it was cancelled.
    deadline: Time,
    /// Time of its event in the queue, which is not later.
    event_at: Time,
    generation: u32,
}

/// Outcome of a timer's event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TimerOutcome {
    /// The timer fires, with its token.
    Token(u64),
    /// The timer was postponed to this time.
    Later(Time),
    /// The timer was cancelled.
    Nothing,
}

/// All timers.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    slots: Vec<TimerSlot>,
    free: Vec<u32>,
}

impl Timers {
    /// Sets a timer; the caller schedules its event.
    pub(crate) fn set(&mut self, at: Time, token: u64) -> TimerId {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            let generation = slot.generation;
            *slot = TimerSlot {
                token,
                deadline: at,
                event_at: at,
                generation,
            };
            TimerId { index, generation }
        } else {
            let index = self.slots.len() as u32;
            self.slots.push(TimerSlot {
                token,
                deadline: at,
                event_at: at,
                generation: 0,
            });
            TimerId {
                index,
                generation: 0,
            }
        }
    }

    fn live(&mut self, timer: TimerId) -> Option<&mut TimerSlot> {
        self.slots
            .get_mut(timer.index as usize)
            // The slot may belong to a later timer by now.
            .filter(|s| s.generation == timer.generation && s.deadline != Time::MAX)
    }

    pub(crate) fn cancel(&mut self, timer: TimerId) -> bool {
        // The slot is not freed before its event has come: the event still names it.
        self.live(timer)
            .map(|slot| slot.deadline = Time::MAX)
            .is_some()
    }

    /// Postpones a timer in place. If the new time is before its event, the timer is cancelled
    /// instead and its token returned: the caller sets another timer.
    pub(crate) fn postpone(&mut self, timer: TimerId, at: Time) -> Option<Result<(), u64>> {
        let slot = self.live(timer)?;
        // `Time::MAX` marks a cancelled timer, so it is no deadline to move to.
        if at >= slot.event_at && at != Time::MAX {
            slot.deadline = at;
            Some(Ok(()))
        } else {
            slot.deadline = Time::MAX;
            Some(Err(slot.token))
        }
    }

    /// Prefetches a timer.
    #[inline]
    pub(crate) fn prefetch(&self, index: u32) {
        if let Some(slot) = self.slots.get(index as usize) {
            prefetch::<TimerSlot, 1>(slot);
        }
    }

    /// Handles the event of a timer.
    pub(crate) fn fire(&mut self, index: u32, now: Time) -> TimerOutcome {
        let slot = &mut self.slots[index as usize];
        if slot.deadline != Time::MAX && slot.deadline > now {
            slot.event_at = slot.deadline;
            return TimerOutcome::Later(slot.deadline);
        }
        let fired = if slot.deadline == Time::MAX {
            TimerOutcome::Nothing
        } else {
            TimerOutcome::Token(slot.token)
        };
        slot.deadline = Time::MAX;
        // A new generation, so that the old handle does not match the timer that gets this slot.
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        fired
    }
}

impl TimerId {
    pub(crate) const fn index(self) -> u32 {
        self.index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_fires_once_at_its_last_deadline() {
        let mut timers = Timers::default();
        let timer = timers.set(Time(10), 7);
        assert_eq!(timers.postpone(timer, Time(30)), Some(Ok(())));
        assert_eq!(timers.postpone(timer, Time(20)), Some(Ok(())));
        assert_eq!(
            timers.fire(timer.index(), Time(10)),
            TimerOutcome::Later(Time(20))
        );
        assert_eq!(timers.fire(timer.index(), Time(20)), TimerOutcome::Token(7));
        assert!(!timers.cancel(timer));
        assert_eq!(timers.postpone(timer, Time(40)), None);
    }

    #[test]
    fn an_earlier_deadline_needs_another_event() {
        let mut timers = Timers::default();
        let timer = timers.set(Time(10), 7);
        assert_eq!(timers.postpone(timer, Time(5)), Some(Err(7)));
        assert_eq!(timers.fire(timer.index(), Time(10)), TimerOutcome::Nothing);
    }

    #[test]
    fn a_cancelled_timers_place_does_not_answer_to_its_old_id() {
        let mut timers = Timers::default();
        let old = timers.set(Time(10), 1);
        assert!(timers.cancel(old));
        assert!(!timers.cancel(old));
        assert_eq!(timers.fire(old.index(), Time(10)), TimerOutcome::Nothing);
        let new = timers.set(Time(20), 2);
        assert_eq!(new.index(), old.index());
        assert!(!timers.cancel(old));
        assert_eq!(timers.fire(new.index(), Time(20)), TimerOutcome::Token(2));
    }
}
