//! Integer picoseconds since a run began.
//!
//! A byte lasts 80 ps at 100 Gbit/s and 20 ps at 400 Gbit/s, so that every serialisation time of
//! the usual rates is exact; 64 bits of picoseconds are 213 days.

use std::fmt;
use std::ops::{Add, AddAssign, Div, Mul, Sub};

const PS_PER_NS: u64 = 1_000;
const PS_PER_US: u64 = 1_000_000;
const PS_PER_MS: u64 = 1_000_000_000;
const PS_PER_S: u64 = 1_000_000_000_000;

macro_rules! units {
    ($name:ident, $doc:literal) => {
        impl $name {
            #[doc = concat!($doc, " given in picoseconds.")]
            #[must_use]
            pub const fn from_ps(ps: u64) -> Self {
                Self(ps)
            }

            #[doc = concat!($doc, " given in nanoseconds; saturates.")]
            #[must_use]
            pub const fn from_ns(ns: u64) -> Self {
                Self(ns.saturating_mul(PS_PER_NS))
            }

            #[doc = concat!($doc, " given in microseconds; saturates.")]
            #[must_use]
            pub const fn from_us(us: u64) -> Self {
                Self(us.saturating_mul(PS_PER_US))
            }

            #[doc = concat!($doc, " given in milliseconds; saturates.")]
            #[must_use]
            pub const fn from_ms(ms: u64) -> Self {
                Self(ms.saturating_mul(PS_PER_MS))
            }

            #[doc = concat!($doc, " given in seconds, rounded to the nearest picosecond; negative values and NaN give 0, too large ones the maximum.")]
            #[must_use]
            pub fn from_secs_f64(seconds: f64) -> Self {
                // The cast saturates: negative values and NaN become 0 and large ones the maximum,
                // as documented.
                Self((seconds * PS_PER_S as f64).round() as u64)
            }

            /// Returns picoseconds.
            #[must_use]
            pub const fn as_ps(self) -> u64 {
                self.0
            }

            /// Returns nanoseconds, rounded down.
            #[must_use]
            pub const fn as_ns(self) -> u64 {
                self.0 / PS_PER_NS
            }

            /// Returns microseconds.
            #[must_use]
            pub fn as_us_f64(self) -> f64 {
                self.0 as f64 / PS_PER_US as f64
            }

            /// Returns seconds.
            #[must_use]
            pub fn as_secs_f64(self) -> f64 {
                self.0 as f64 / PS_PER_S as f64
            }
        }

        impl fmt::Display for $name {
            /// Writes microseconds with all six decimals, so that different times never look equal.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}.{:06} us", self.0 / PS_PER_US, self.0 % PS_PER_US)
            }
        }
    };
}

/// A moment: picoseconds since the run began.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(pub u64);

/// A length of time in picoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Span(pub u64);

units!(Time, "The moment");
units!(Span, "The span");

impl Time {
    /// The beginning of the run.
    pub const ZERO: Self = Self(0);
    /// Later than every moment of a run: "never".
    pub const MAX: Self = Self(u64::MAX);

    /// Returns the time since `earlier`; zero if that lies ahead.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    /// Zero span.
    pub const ZERO: Self = Self(0);
    /// Longer than every run.
    pub const MAX: Self = Self(u64::MAX);

    /// Multiplies by a factor and rounds to the nearest picosecond; saturates at both ends.
    #[must_use]
    pub fn mul_f64(self, factor: f64) -> Self {
        Self((self.0 as f64 * factor).round() as u64)
    }

    /// Subtracts `other`; zero if that is longer.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add<Span> for Time {
    type Output = Self;
    /// Saturates: "never" stays "never".
    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl AddAssign<Span> for Time {
    fn add_assign(&mut self, span: Span) {
        *self = *self + span;
    }
}

impl Sub<Span> for Time {
    type Output = Self;
    /// Saturates at the beginning of the run.
    fn sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl Add for Span {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Span {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Mul<u64> for Span {
    type Output = Self;
    fn mul(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }
}

impl Div<u64> for Span {
    type Output = Self;
    fn div(self, divisor: u64) -> Self {
        Self(self.0 / divisor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_agree() {
        assert_eq!(Time::from_ms(3), Time::from_us(3_000));
        assert_eq!(Span::from_us(7), Span::from_ns(7_000));
        assert_eq!(Span::from_secs_f64(1.5e-6), Span::from_ns(1_500));
        assert_eq!(Time::from_ps(1_234_567).as_ns(), 1_234);
    }

    #[test]
    fn never_stays_never_and_the_past_ends_at_zero() {
        assert_eq!(Time::MAX + Span::from_us(1), Time::MAX);
        assert_eq!(Time::from_ns(5) - Span::from_us(1), Time::ZERO);
        assert_eq!(Time::from_ns(5).since(Time::from_ns(6)), Span::ZERO);
        assert_eq!(Span::from_secs_f64(-1.0), Span::ZERO);
    }

    #[test]
    fn text_shows_every_picosecond() {
        assert_eq!(Time::from_ps(1_000_001).to_string(), "1.000001 us");
    }
}
