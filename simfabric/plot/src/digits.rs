//! Numbers as people read them.

/// A number with four significant digits.
#[must_use]
pub fn short(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let magnitude = value.abs().log10().floor() as i32;
    // From 10,000 on there are no decimals; values below 5e-10 print as 0.
    let decimals = usize::try_from(3 - magnitude).unwrap_or(0).min(9);
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_four_digits() {
        for (value, text) in [
            (0.0, "0"),
            (1234.56, "1235"),
            (9.637_04, "9.637"),
            (0.000_123_456, "0.0001235"),
            (-2.5, "-2.5"),
            (100.0, "100"),
        ] {
            assert_eq!(short(value), text);
        }
    }
}
