//! `[transport]`: the schemes of a plan, each run by itself.

use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use super::source::{PlanError, Source, Table};
use super::values::Rate;

/// The values of `name`.
pub const NAMES: [&str; 2] = ["constant", "fixed-window"];

/// A scheme with its parameters.
#[derive(Clone, PartialEq, Debug)]
pub enum Scheme {
    /// Every flow sends at one rate.
    Constant {
        /// The rate on the link, in bit/s.
        rate_bps: u64,
    },
    /// Every flow keeps so many packets under way; losses are not repaired.
    FixedWindow {
        /// The packets.
        packets: u32,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Constant {
    rate: Rate,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FixedWindow {
    packets: Spanned<u32>,
}

/// Reads a transport table: its label and its scheme.
pub(super) fn read<'a>(
    source: &Source<'a>,
    mut table: Table<'a>,
    span: Range<usize>,
) -> Result<(String, Scheme), PlanError> {
    let (name, _) = source.choice(&mut table, span.clone(), "name", &NAMES)?;
    let scheme = if name == "constant" {
        let t: Constant = source.section(table, span)?;
        Scheme::Constant { rate_bps: t.rate.0 }
    } else {
        let t: FixedWindow = source.section(table, span)?;
        if *t.packets.get_ref() == 0 {
            return Err(source.error(
                Some(t.packets.span()),
                "a window of 0 packets sends nothing",
            ));
        }
        Scheme::FixedWindow {
            packets: *t.packets.get_ref(),
        }
    };
    Ok((name.to_owned(), scheme))
}
