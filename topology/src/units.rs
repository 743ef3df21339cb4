//! Text form of capacities and delays, such as `"10Gbit/s"` and `"2us"`.
//!
//! Reading is strict on purpose. The unit is required, and its case matters (`Mbit/s` is not
//! `mbit/s`). A value that is no whole number of bits per second or nanoseconds is refused.

/// Reason why a capacity or delay cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UnitError {
    /// The text is not a number followed by a known unit.
    #[error("{text:?} is not a {quantity}; write a number and one of {units}, such as {example:?}")]
    Syntax {
        /// Text at fault.
        text: String,
        /// `capacity` or `delay`.
        quantity: &'static str,
        /// The units that are known.
        units: &'static str,
        /// A text that would be right.
        example: &'static str,
    },
    /// The value is too fine for the base unit.
    #[error("{text:?} is not a whole number of {base}")]
    TooFine {
        /// Text at fault.
        text: String,
        /// The base unit.
        base: &'static str,
    },
    /// The value does not fit.
    #[error("{text:?} is more than {max}")]
    TooLarge {
        /// Text at fault.
        text: String,
        /// The largest value.
        max: &'static str,
    },
}

const CAPACITY_UNITS: [(&str, u64); 5] = [
    ("bit/s", 1),
    ("kbit/s", 1_000),
    ("Mbit/s", 1_000_000),
    ("Gbit/s", 1_000_000_000),
    ("Tbit/s", 1_000_000_000_000),
];

const DELAY_UNITS: [(&str, u64); 4] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
];

/// The largest capacity of one link: 1 Pbit/s.
pub const MAX_CAPACITY_BPS: u64 = 1_000_000_000_000_000;

/// The largest delay of one link: 10 s.
pub const MAX_DELAY_NS: u64 = 10_000_000_000;

/// The largest duration: 1,000 s.
pub const MAX_DURATION_NS: u64 = 1_000_000_000_000;

/// Reads a capacity such as `"10Gbit/s"`, `"2.5 Gbit/s"` or `"500Mbit/s"` as bit/s.
///
/// # Errors
/// If the text is no capacity, no whole number of bit/s, or above [`MAX_CAPACITY_BPS`].
pub fn parse_capacity_bps(text: &str) -> Result<u64, UnitError> {
    let value = parse(text, &CAPACITY_UNITS, "bit/s")?.ok_or_else(|| UnitError::Syntax {
        text: text.into(),
        quantity: "capacity",
        units: "bit/s, kbit/s, Mbit/s, Gbit/s, Tbit/s",
        example: "10Gbit/s",
    })?;
    if value > MAX_CAPACITY_BPS {
        return Err(UnitError::TooLarge {
            text: text.into(),
            max: "1000Tbit/s",
        });
    }
    Ok(value)
}

/// Reads a delay such as `"2us"`, `"1.5 us"` or `"500ns"` as nanoseconds.
///
/// # Errors
/// If the text is no delay, no whole number of nanoseconds, or above [`MAX_DELAY_NS`].
pub fn parse_delay_ns(text: &str) -> Result<u64, UnitError> {
    // Sums of a path's delays stay far from overflow.
    parse_ns(text, "delay", (MAX_DELAY_NS, "10s"))
}

/// Reads a duration, which is written like a delay, as nanoseconds.
///
/// # Errors
/// If the text is no duration, no whole number of nanoseconds, or above [`MAX_DURATION_NS`].
pub fn parse_duration_ns(text: &str) -> Result<u64, UnitError> {
    parse_ns(text, "duration", (MAX_DURATION_NS, "1000s"))
}

fn parse_ns(
    text: &str,
    quantity: &'static str,
    (max_ns, max): (u64, &'static str),
) -> Result<u64, UnitError> {
    let value = parse(text, &DELAY_UNITS, "nanoseconds")?.ok_or_else(|| UnitError::Syntax {
        text: text.into(),
        quantity,
        units: "ns, us, ms, s",
        example: "2us",
    })?;
    if value > max_ns {
        return Err(UnitError::TooLarge {
            text: text.into(),
            max,
        });
    }
    Ok(value)
}

/// Writes a capacity so that [`parse_capacity_bps`] reads the same value.
#[must_use]
pub fn format_capacity_bps(capacity_bps: u64) -> String {
    format(capacity_bps, &CAPACITY_UNITS)
}

/// Writes a delay so that [`parse_delay_ns`] reads the same value.
#[must_use]
pub fn format_delay_ns(delay_ns: u64) -> String {
    format(delay_ns, &DELAY_UNITS)
}

/// Parses `digits [. digits] [space] unit`; `Ok(None)` means that the text is not in this grammar.
fn parse(text: &str, units: &[(&str, u64)], base: &'static str) -> Result<Option<u64>, UnitError> {
    let number_len = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, rest) = text.split_at(number_len);
    let unit = rest.strip_prefix(' ').unwrap_or(rest);
    let Some(&(_, scale)) = units.iter().find(|(name, _)| *name == unit) else {
        return Ok(None);
    };
    let (whole, fraction) = match number.split_once('.') {
        None => (number, None),
        Some((whole, fraction)) => (whole, Some(fraction)),
    };
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !fraction.is_none_or(digits) {
        return Ok(None);
    }
    let too_large = || UnitError::TooLarge {
        text: text.into(),
        max: "18446744073709551615 in the base unit",
    };
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let mut value = whole.checked_mul(scale).ok_or_else(too_large)?;
    // Decimal arithmetic: a float would round values such as 0.1 Tbit/s.
    let mut place = scale;
    for digit in fraction.unwrap_or("").bytes().map(|b| u64::from(b - b'0')) {
        // The next decimal place would be a fraction of the base unit; zeros there do no harm.
        if digit != 0 && (place < 10 || !place.is_multiple_of(10)) {
            return Err(UnitError::TooFine {
                text: text.into(),
                base,
            });
        }
        place /= 10;
        value = value.checked_add(digit * place).ok_or_else(too_large)?;
    }
    Ok(Some(value))
}

/// Writes a value in the largest unit in which it has at most three decimals.
fn format(value: u64, units: &[(&str, u64)]) -> String {
    let (name, scale) = units
        .iter()
        .rev()
        .find(|(_, scale)| value >= *scale && value.is_multiple_of(scale.div_ceil(1_000)))
        .copied()
        .unwrap_or(units[0]);
    let (whole, rest) = (value / scale, value % scale);
    if rest == 0 {
        return format!("{whole}{name}");
    }
    let thousandths = rest / (scale / 1_000);
    let decimals = format!("{thousandths:03}");
    format!("{whole}.{}{name}", decimals.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (text, bps) in [
            ("10Gbit/s", 10_000_000_000),
            ("10 Gbit/s", 10_000_000_000),
            ("2.5Gbit/s", 2_500_000_000),
            ("500Mbit/s", 500_000_000),
            ("64kbit/s", 64_000),
            ("1bit/s", 1),
            ("0.001kbit/s", 1),
            ("1000Tbit/s", MAX_CAPACITY_BPS),
        ] {
            assert_eq!(parse_capacity_bps(text), Ok(bps), "{text}");
        }
        for (text, ns) in [
            ("2us", 2_000),
            ("1.5 us", 1_500),
            ("0ns", 0),
            ("10ms", 10_000_000),
            ("1s", 1_000_000_000),
        ] {
            assert_eq!(parse_delay_ns(text), Ok(ns), "{text}");
        }
    }

    #[test]
    fn refuses_the_rest() {
        for text in [
            "",
            "10",
            "Gbit/s",
            "10G",
            "10gbit/s",
            "10 Gbps",
            "-1Gbit/s",
            "1e3Mbit/s",
            "1.Gbit/s",
            ".5Gbit/s",
            "1.2.3Gbit/s",
            "10  Gbit/s",
            "10Gbit/s ",
        ] {
            assert!(
                matches!(parse_capacity_bps(text), Err(UnitError::Syntax { .. })),
                "{text:?}"
            );
        }
        assert!(matches!(
            parse_capacity_bps("0.5bit/s"),
            Err(UnitError::TooFine { .. })
        ));
        // A zero before the digit that is too fine changes nothing.
        assert!(matches!(
            parse_capacity_bps("1.05bit/s"),
            Err(UnitError::TooFine { .. })
        ));
        assert!(matches!(
            parse_delay_ns("0.0001us"),
            Err(UnitError::TooFine { .. })
        ));
        assert!(matches!(
            parse_capacity_bps("1001Tbit/s"),
            Err(UnitError::TooLarge { .. })
        ));
        assert!(matches!(
            parse_capacity_bps("99999999999999999999bit/s"),
            Err(UnitError::TooLarge { .. })
        ));
        assert!(matches!(
            parse_delay_ns("11s"),
            Err(UnitError::TooLarge { .. })
        ));
    }

    #[test]
    fn writes_the_largest_readable_unit() {
        assert_eq!(format_capacity_bps(10_000_000_000), "10Gbit/s");
        assert_eq!(format_capacity_bps(2_500_000_000), "2.5Gbit/s");
        assert_eq!(format_capacity_bps(1_234_567), "1234.567kbit/s");
        assert_eq!(format_capacity_bps(1_234_567_891), "1234567.891kbit/s");
        assert_eq!(format_capacity_bps(0), "0bit/s");
        assert_eq!(format_delay_ns(1_500), "1.5us");
        assert_eq!(format_delay_ns(0), "0ns");
    }

    proptest::proptest! {
        #[test]
        fn what_is_written_reads_back(value in 0..=MAX_CAPACITY_BPS, delay in 0..=MAX_DELAY_NS) {
            proptest::prop_assert_eq!(parse_capacity_bps(&format_capacity_bps(value)), Ok(value));
            proptest::prop_assert_eq!(parse_delay_ns(&format_delay_ns(delay)), Ok(delay));
        }
    }
}
