//! Parameters with a text form of their own: rates and times.

use std::marker::PhantomData;

use ratewright_topology::units::{
    format_capacity_bps, format_delay_ns, parse_capacity_bps, parse_duration_ns,
};
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::ser::{Serialize, Serializer};

use crate::Span;
use crate::net::port::MIN_RATE_BPS;

/// `"10Gbit/s"`, in bit/s, not 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate(pub u64);

/// A link's rate, in bit/s, at least [`MIN_RATE_BPS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkRate(pub u64);

/// `"10us"`, in whole nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delay(pub Span);

impl Delay {
    /// Makes a delay of whole nanoseconds.
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        Self(Span::from_ns(ns))
    }

    /// Makes a delay of whole microseconds.
    #[must_use]
    pub const fn from_us(us: u64) -> Self {
        Self(Span::from_us(us))
    }

    /// Makes a delay of whole milliseconds.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Self {
        Self(Span::from_ms(ms))
    }

    /// Returns nanoseconds.
    #[must_use]
    pub const fn ns(self) -> u64 {
        self.0.as_ns()
    }
}

/// A value with a text form.
trait TextValue: Sized {
    const EXPECTED: &'static str;
    fn read(text: &str) -> Result<Self, String>;
}

impl TextValue for Rate {
    const EXPECTED: &'static str = "a rate with its unit, such as \"10Gbit/s\" or \"500Mbit/s\"";

    fn read(text: &str) -> Result<Self, String> {
        match parse_capacity_bps(text) {
            Ok(0) => Err("a rate must not be 0".to_owned()),
            Ok(bps) => Ok(Self(bps)),
            Err(e) => Err(e.to_string()),
        }
    }
}

impl TextValue for LinkRate {
    const EXPECTED: &'static str = Rate::EXPECTED;

    fn read(text: &str) -> Result<Self, String> {
        let Rate(bps) = Rate::read(text)?;
        // On a slower link the transmission time of a packet would overflow.
        if bps < MIN_RATE_BPS {
            return Err(format!("{text:?} is too slow: links have at least 1Mbit/s"));
        }
        Ok(Self(bps))
    }
}

impl TextValue for Delay {
    const EXPECTED: &'static str = "a time with its unit, such as \"10us\" or \"200ms\"";

    fn read(text: &str) -> Result<Self, String> {
        let ns = parse_duration_ns(text).map_err(|e| e.to_string())?;
        Ok(Self(Span::from_ns(ns)))
    }
}

/// Reads a [`TextValue`] from a string, and from nothing else.
struct TextVisitor<T>(PhantomData<T>);

impl<T: TextValue> Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        T::read(text).map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor(PhantomData))
    }
}

impl<'de> Deserialize<'de> for LinkRate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor(PhantomData))
    }
}

impl<'de> Deserialize<'de> for Delay {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor(PhantomData))
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_capacity_bps(self.0))
    }
}

impl Serialize for LinkRate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_capacity_bps(self.0))
    }
}

impl Serialize for Delay {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_delay_ns(self.ns()))
    }
}
