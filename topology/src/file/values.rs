//! Values with their own text form: capacities, delays, prefixes.

use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::de::{Deserialize, Deserializer, Error, Visitor};

use crate::units::{MAX_CAPACITY_BPS, parse_capacity_bps, parse_delay_ns};

/// Value that is written as a string.
pub(super) trait TextValue: Sized {
    /// Completion of the message "expected …".
    const EXPECTED: &'static str;
    fn read(text: &str) -> Result<Self, String>;
}

struct TextVisitor<T>(PhantomData<T>);

impl<T: TextValue> Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        T::read(text).map_err(E::custom)
    }
}

macro_rules! deserialize_text {
    ($($name:ty),*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(TextVisitor(PhantomData))
            }
        }
    )*};
}

deserialize_text!(Capacity, Delay, Prefix, Base<Ipv4Net>, Base<Ipv6Net>);

/// `"10Gbit/s"`, in bit/s, not zero.
#[derive(Clone, Copy)]
pub(super) struct Capacity(pub(super) u64);

impl TextValue for Capacity {
    const EXPECTED: &'static str =
        "a capacity with its unit, such as \"10Gbit/s\" or \"500Mbit/s\"";

    fn read(text: &str) -> Result<Self, String> {
        match parse_capacity_bps(text) {
            Ok(0) => Err("the capacity of a link is at least 1bit/s; list a link that carries nothing under [[failed]]".into()),
            Ok(capacity_bps) => Ok(Self(capacity_bps)),
            Err(e) => Err(e.to_string()),
        }
    }
}

/// `"2us"`, in nanoseconds.
#[derive(Clone, Copy)]
pub(super) struct Delay(pub(super) u64);

impl TextValue for Delay {
    const EXPECTED: &'static str = "a delay with its unit, such as \"2us\" or \"500ns\"";

    fn read(text: &str) -> Result<Self, String> {
        parse_delay_ns(text).map(Self).map_err(|e| e.to_string())
    }
}

/// `"10.0.0.1"` or `"10.0.0.0/24"`, IPv4 or IPv6.
#[derive(Clone, Copy)]
pub(super) struct Prefix(pub(super) IpNet);

impl TextValue for Prefix {
    const EXPECTED: &'static str = "an IP prefix, such as \"10.0.1.0/24\" or \"fd00::1\"";

    fn read(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self(IpNet::from(address)));
        }
        read_net::<IpNet>(text).map(Self)
    }
}

/// The base of generated addresses, or `"none"`.
#[derive(Clone, Copy)]
pub(super) struct Base<N>(pub(super) Option<N>);

impl TextValue for Base<Ipv4Net> {
    const EXPECTED: &'static str = "an IPv4 prefix such as \"10.0.0.0/8\", or \"none\"";

    fn read(text: &str) -> Result<Self, String> {
        if text == "none" {
            Ok(Self(None))
        } else {
            read_net(text).map(|net| Self(Some(net)))
        }
    }
}

impl TextValue for Base<Ipv6Net> {
    const EXPECTED: &'static str = "an IPv6 prefix such as \"fd00::/48\", or \"none\"";

    fn read(text: &str) -> Result<Self, String> {
        if text == "none" {
            Ok(Self(None))
        } else {
            read_net(text).map(|net| Self(Some(net)))
        }
    }
}

trait Net: std::str::FromStr + Copy + PartialEq + fmt::Display {
    const EXAMPLE: &'static str;
    fn truncated(self) -> Self;
}

impl Net for IpNet {
    const EXAMPLE: &'static str =
        "an IP prefix; write one such as \"10.0.1.0/24\", \"10.0.1.7\" or \"fd00:1::/64\"";
    fn truncated(self) -> Self {
        self.trunc()
    }
}

impl Net for Ipv4Net {
    const EXAMPLE: &'static str = "an IPv4 prefix; write one such as \"10.0.0.0/8\", or \"none\"";
    fn truncated(self) -> Self {
        self.trunc()
    }
}

impl Net for Ipv6Net {
    const EXAMPLE: &'static str = "an IPv6 prefix; write one such as \"fd00::/48\", or \"none\"";
    fn truncated(self) -> Self {
        self.trunc()
    }
}

fn read_net<N: Net>(text: &str) -> Result<N, String> {
    let net: N = text
        .parse()
        .map_err(|_| format!("{text:?} is not {}", N::EXAMPLE))?;
    // Probably a host's address with its network's length; guessing would hide the mistake.
    if net != net.truncated() {
        return Err(format!(
            "{text:?} has bits set beyond the prefix length; write \"{}\"",
            net.truncated()
        ));
    }
    Ok(net)
}

/// A capacity as a number of `UNIT_BPS`, in bit/s, not zero.
#[derive(Clone, Copy)]
pub(super) struct Scaled<const UNIT_BPS: u64>(pub(super) u64);

impl<'de, const UNIT_BPS: u64> Deserialize<'de> for Scaled<UNIT_BPS> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScaledVisitor)
    }
}

struct ScaledVisitor<const UNIT_BPS: u64>;

impl<const UNIT_BPS: u64> Visitor<'_> for ScaledVisitor<UNIT_BPS> {
    type Value = Scaled<UNIT_BPS>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, such as 10 or 2.5")
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        // Exact up to 2^53, far above every capacity in these units.
        self.visit_f64(value as f64)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        // Decimal fractions are not exact in binary; rounding restores whole bit/s.
        let capacity_bps = (value * UNIT_BPS as f64).round();
        if (1.0..=MAX_CAPACITY_BPS as f64).contains(&capacity_bps) {
            Ok(Scaled(capacity_bps as u64))
        } else {
            Err(E::custom(format!(
                "the capacity {value} is out of range; it must be between 1 bit/s and 1000 Tbit/s"
            )))
        }
    }
}
