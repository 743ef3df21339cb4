//! `[queue]` and `[nic_queue]`: the queue disciplines of a plan.

use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;
use toml::de::DeValue;

use super::source::{self, PlanError, Source, TomlTable};
use crate::QueueConfig;
use crate::net::queue::{ClassConfig, DISCIPLINES, MAX_CLASSES, Service, ShaperConfig};

/// Name of the scheduler in `discipline`: above the disciplines, and not among them.
const CLASSES: &str = "classes";

/// Returns the values of `discipline`.
#[must_use]
pub fn disciplines() -> Vec<&'static str> {
    let names = DISCIPLINES.iter().map(|entry| entry.name);
    names.chain([CLASSES]).collect()
}

/// A share above 0 and at most 1.
fn share(source: &Source<'_>, given: &Spanned<f64>) -> Result<f64, PlanError> {
    let share = *given.get_ref();
    if share > 0.0 && share <= 1.0 {
        return Ok(share);
    }
    Err(source.error(Some(given.span()), "it must be above 0 and at most 1"))
}

/// `shaper` of a class.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ShaperTable {
    share: Spanned<f64>,
    burst_bytes: Option<u32>,
}

/// One class: the keys of its queue, with `weight` and `shaper`.
fn class<'a>(
    source: &Source<'a>,
    mut table: TomlTable<'a>,
    span: Range<usize>,
    packet_bytes: u16,
) -> Result<ClassConfig, PlanError> {
    let service = match source::take(&mut table, "weight") {
        None => Service::Strict,
        Some(value) => {
            let weight = match value.get_ref() {
                DeValue::Integer(i) => u16::from_str_radix(i.as_str(), i.radix()).ok(),
                _ => None,
            };
            let wrong = || source.error(Some(value.span()), "`weight` must be from 1 to 65535");
            Service::Weighted(weight.filter(|w| *w > 0).ok_or_else(wrong)?)
        }
    };
    let shaper = match source::take(&mut table, "shaper") {
        None => None,
        Some(value) => {
            let (table, at) = source.table("shaper", value)?;
            let t: ShaperTable = source.section(table, at)?;
            Some(ShaperConfig {
                share: share(source, &t.share)?,
                burst_bytes: t.burst_bytes.unwrap_or(0),
            })
        }
    };
    // A queue's own reader, so that errors within a class name their own place.
    let queue = read(source, table, span.clone(), packet_bytes)?;
    if !queue.can_be_of_a_class() {
        let message = format!("the queue of a class cannot be {}", queue.discipline());
        return Err(source.error(Some(span), message));
    }
    Ok(ClassConfig {
        queue,
        service,
        shaper,
    })
}

/// A queue of classes from its keys.
fn classes<'a>(
    source: &Source<'a>,
    mut table: TomlTable<'a>,
    span: Range<usize>,
    packet_bytes: u16,
) -> Result<QueueConfig, PlanError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Rest {}
    let value = source::take(&mut table, "classes").ok_or_else(|| {
        let message = "`classes` is missing; it has a table for each class";
        source.error(Some(span.clone()), message)
    })?;
    let Rest {} = source.section(table, span)?;
    let at = value.span();
    let tables = source.tables("classes", value)?;
    if tables.len() > MAX_CLASSES {
        return Err(source.error(Some(at), "there are 1 to 8 classes"));
    }
    let classes = tables.into_iter();
    let classes = classes.map(|(table, at)| class(source, table, at, packet_bytes));
    Ok(QueueConfig::Classes(classes.collect::<Result<_, _>>()?))
}

/// Reads a queue table. A full packet takes `packet_bytes` on a link.
pub(super) fn read<'a>(
    source: &Source<'a>,
    mut table: TomlTable<'a>,
    span: Range<usize>,
    packet_bytes: u16,
) -> Result<QueueConfig, PlanError> {
    let (name, _) = source.choice(&mut table, span.clone(), "discipline", &disciplines())?;
    let Some(entry) = DISCIPLINES.iter().find(|entry| entry.name == name) else {
        return classes(source, table, span, packet_bytes);
    };
    let (given, places) = source.parameters(table, &span)?;
    (entry.read)(&given, packet_bytes).map_err(|error| places.error(source, error))
}
