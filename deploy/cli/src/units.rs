//! Numbers as people read them.

use serde_json::Value;

/// Returns a rate in bit/s with a fitting unit, as `1.25 Gbit/s`.
#[must_use]
pub fn rate(bps: f64) -> String {
    for (unit, size) in [("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)] {
        if bps >= size {
            return format!("{:.2} {unit}", bps / size);
        }
    }
    format!("{bps:.0} bit/s")
}

/// Returns a number of an answer as a rate; `–` where there is none.
#[must_use]
pub fn rate_of(value: &Value) -> String {
    value.as_f64().map_or_else(|| "–".to_owned(), rate)
}

/// Returns a text of an answer, without control characters: names come from other machines.
#[must_use]
pub fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.chars().filter(|c| !c.is_control()).collect(),
        Value::Null => "–".to_owned(),
        other => other.to_string(),
    }
}

/// Returns a share of an answer in percent.
#[must_use]
pub fn percent_of(value: &Value) -> String {
    value
        .as_f64()
        .map_or_else(|| "–".to_owned(), |share| format!("{:.1} %", share * 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_a_fitting_unit() {
        for (bps, text) in [
            (0.0, "0 bit/s"),
            (1_500.0, "1.50 kbit/s"),
            (12_340_000.0, "12.34 Mbit/s"),
            (99e9, "99.00 Gbit/s"),
        ] {
            assert_eq!(rate(bps), text);
        }
    }

    #[test]
    fn a_name_cannot_steer_the_terminal() {
        let name = Value::String("h1\u{1b}[2J\n".to_owned());
        assert_eq!(text_of(&name), "h1[2J");
    }
}
