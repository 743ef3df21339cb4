//! Compact codes for rates and weights inside the fixed records.

use std::fmt;

/// Bits of a [`RateCode`]'s mantissa.
const MANTISSA_BITS: u32 = 11;
const MANTISSA_ONE: u64 = 1 << MANTISSA_BITS;
/// The unit of a rate code: one kilobit per second.
const UNIT_BPS: u64 = 1_000;

/// A rate in 16 bits: 5 bits of exponent `e` (high) and 11 bits of mantissa `m`.
///
/// Code 0 is "no rate". Every other code stands for
/// `(2048 + m) · 2^e / 2048` kbit/s, rounded down to whole bits per second,
/// from 1 kbit/s to 4.29 Tbit/s. [`encode`](Self::encode) rounds down, so that
/// the wire never carries more than what was allocated.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RateCode(pub u16);

impl RateCode {
    /// "No rate": nothing is allocated, or (as a demand) nothing is limited.
    pub const NONE: Self = Self(0);
    /// The largest rate that a code can carry.
    pub const MAX: Self = Self(u16::MAX);

    /// The largest code that does not exceed `rate_bps`.
    ///
    /// Below 1 kbit/s there is none, and the result is [`RateCode::NONE`].
    pub const fn encode(rate_bps: u64) -> Self {
        if rate_bps >= Self::MAX.decode() {
            return Self::MAX;
        }
        if rate_bps < UNIT_BPS {
            return Self::NONE;
        }
        let exponent = (rate_bps / UNIT_BPS).ilog2();
        // The largest m with (2048 + m) · 2^e · 1000 / 2048 < rate + 1.
        let scaled = (rate_bps as u128 + 1) * MANTISSA_ONE as u128 - 1;
        let significand = (scaled / ((UNIT_BPS as u128) << exponent)) as u64;
        let mantissa = if significand >= 2 * MANTISSA_ONE {
            MANTISSA_ONE - 1
        } else {
            significand - MANTISSA_ONE
        };
        Self(((exponent << MANTISSA_BITS) | mantissa as u32) as u16)
    }

    /// The rate in bits per second; 0 for [`RateCode::NONE`].
    pub const fn decode(self) -> u64 {
        if self.0 == 0 {
            return 0;
        }
        let exponent = self.0 >> MANTISSA_BITS;
        let significand = MANTISSA_ONE | (self.0 as u64 & (MANTISSA_ONE - 1));
        (((significand * UNIT_BPS) as u128) << exponent >> MANTISSA_BITS) as u64
    }

    /// Returns true for [`RateCode::NONE`].
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Debug for RateCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RateCode({:#06x} = {} bit/s)", self.0, self.decode())
    }
}

/// A weight in 8 bits on a logarithmic scale: `2^((code − 128) / 8)`.
///
/// Neighbouring codes differ by 9 %; the range is 2^−15.875 to 2^15.875.
/// Code 0 stands for "the weight of the flow's class".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct WeightCode(pub u8);

impl WeightCode {
    /// The weight of the flow's class, unchanged.
    pub const CLASS_DEFAULT: Self = Self(0);

    /// The nearest code; values beyond the range, infinities and negative
    /// values go to the nearest end, NaN to [`WeightCode::CLASS_DEFAULT`].
    pub fn encode(weight: f64) -> Self {
        if weight.is_nan() {
            return Self::CLASS_DEFAULT;
        }
        // Zero and negative weights have no logarithm: the smallest positive number takes their
        // place.
        let steps = (weight.max(f64::MIN_POSITIVE).log2() * 8.0).round() + 128.0;
        Self(steps.clamp(1.0, 255.0) as u8)
    }

    /// The factor to multiply the class's weight by: 1 for
    /// [`WeightCode::CLASS_DEFAULT`].
    pub fn decode(self) -> f64 {
        if self.0 == 0 {
            return 1.0;
        }
        ((f64::from(self.0) - 128.0) / 8.0).exp2()
    }
}

impl fmt::Debug for WeightCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WeightCode({} = ×{:.3})", self.0, self.decode())
    }
}

#[cfg(test)]
mod tests;
