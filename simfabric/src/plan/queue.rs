//! `[queue]` and `[nic_queue]`: the queue disciplines of a plan.

use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use super::source::{PlanError, Source, Table};
use crate::QueueConfig;
use crate::net::queue::Limit;

/// The values of `discipline`.
pub(super) const DISCIPLINES: [&str; 2] = ["drop-tail", "ecn-threshold"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DropTail {
    limit_packets: Option<Spanned<u32>>,
    limit_bytes: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EcnThreshold {
    mark_packets: Option<Spanned<u32>>,
    mark_bytes: Option<Spanned<u64>>,
    limit_packets: Option<Spanned<u32>>,
    limit_bytes: Option<Spanned<u64>>,
}

/// A length in packets or bytes; `None` where neither is given.
fn limit(
    source: &Source<'_>,
    packets: Option<Spanned<u32>>,
    bytes: Option<Spanned<u64>>,
) -> Result<Option<Limit>, PlanError> {
    match (packets, bytes) {
        (None, None) => Ok(None),
        (Some(p), None) if *p.get_ref() > 0 => Ok(Some(Limit::Packets(*p.get_ref()))),
        (None, Some(b)) if *b.get_ref() > 0 => Ok(Some(Limit::Bytes(*b.get_ref()))),
        (Some(p), None) => Err(source.error(Some(p.span()), "a queue's length must not be 0")),
        (None, Some(b)) => Err(source.error(Some(b.span()), "a queue's length must not be 0")),
        (Some(_), Some(b)) => {
            let message = "a length is given in packets and in bytes; keep one";
            Err(source.error(Some(b.span()), message))
        }
    }
}

/// Reads a queue table.
pub(super) fn read<'a>(
    source: &Source<'a>,
    mut table: Table<'a>,
    span: Range<usize>,
) -> Result<QueueConfig, PlanError> {
    let (kind, _) = source.choice(&mut table, span.clone(), "discipline", &DISCIPLINES)?;
    if kind == "drop-tail" {
        let t: DropTail = source.section(table, span)?;
        let limit = limit(source, t.limit_packets, t.limit_bytes)?.unwrap_or_default();
        return Ok(QueueConfig::DropTail { limit });
    }
    let t: EcnThreshold = source.section(table, span.clone())?;
    let mark_at = limit(source, t.mark_packets, t.mark_bytes)?.ok_or_else(|| {
        source.error(
            Some(span),
            "the threshold is missing; add `mark_packets` or `mark_bytes`",
        )
    })?;
    let limit = limit(source, t.limit_packets, t.limit_bytes)?.unwrap_or_default();
    Ok(QueueConfig::EcnThreshold { mark_at, limit })
}
