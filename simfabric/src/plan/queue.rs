//! `[queue]` and `[nic_queue]`: the queue disciplines of a plan.

use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;
use toml::de::DeValue;

use super::source::{self, PlanError, Source, TomlTable};
use crate::QueueConfig;
use crate::net::queue::{
    ClassConfig, CodelConfig, MAX_CLASSES, QueueLimit, RedConfig, Service, ShaperConfig, XcpConfig,
};
use crate::units::Delay;

/// The values of `discipline`.
pub const DISCIPLINES: [&str; 8] = [
    "drop-tail",
    "ecn-threshold",
    "codel",
    "sfq-codel",
    "red",
    "pfabric",
    "xcp",
    "classes",
];

/// Length of pFabric's queue in bytes, unless the plan has one.
const PFABRIC_BYTES: u64 = 36_864;

/// Keys of `drop-tail` and of `pfabric`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DropTailTable {
    limit_packets: Option<Spanned<u32>>,
    limit_bytes: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EcnThresholdTable {
    mark_packets: Option<Spanned<u32>>,
    mark_bytes: Option<Spanned<u64>>,
    limit_packets: Option<Spanned<u32>>,
    limit_bytes: Option<Spanned<u64>>,
}

/// Keys of `codel` and of `sfq-codel`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CodelTable {
    target: Option<Delay>,
    interval: Option<Delay>,
    ecn: Option<bool>,
    limit_packets: Option<Spanned<u32>>,
    limit_bytes: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RedTable {
    min_packets: Spanned<f64>,
    max_packets: Spanned<f64>,
    max_probability: Option<Spanned<f64>>,
    weight: Option<Spanned<f64>>,
    ecn: Option<bool>,
    limit_packets: Option<Spanned<u32>>,
    limit_bytes: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct XcpTable {
    first_interval: Option<Delay>,
    idle_interval: Option<Delay>,
    least_interval: Option<Delay>,
    limit_packets: Option<Spanned<u32>>,
    limit_bytes: Option<Spanned<u64>>,
}

/// A share above 0 and at most 1.
fn share(source: &Source<'_>, given: Option<&Spanned<f64>>, usual: f64) -> Result<f64, PlanError> {
    match given {
        None => Ok(usual),
        Some(value) if *value.get_ref() > 0.0 && *value.get_ref() <= 1.0 => Ok(*value.get_ref()),
        Some(value) => Err(source.error(Some(value.span()), "it must be above 0 and at most 1")),
    }
}

/// A RED queue from its keys.
fn red(source: &Source<'_>, t: RedTable, packet_bytes: u16) -> Result<QueueConfig, PlanError> {
    let usual = RedConfig::default();
    // Written so that NaN fails, too: it is neither above nor below anything.
    let (min, max) = (*t.min_packets.get_ref(), *t.max_packets.get_ref());
    if !(min >= 0.0 && max > min && max.is_finite()) {
        let message = "`max_packets` must be above `min_packets`, which must not be below 0";
        return Err(source.error(Some(t.max_packets.span()), message));
    }
    let control = RedConfig {
        min_packets: min,
        max_packets: max,
        max_probability: share(source, t.max_probability.as_ref(), usual.max_probability)?,
        weight: share(source, t.weight.as_ref(), usual.weight)?,
        ecn: t.ecn.unwrap_or(usual.ecn),
    };
    let limit = limit(source, t.limit_packets, t.limit_bytes, packet_bytes)?.unwrap_or_default();
    Ok(QueueConfig::Red { control, limit })
}

/// A length in packets or bytes; `None` where neither is given.
fn length(
    source: &Source<'_>,
    packets: Option<Spanned<u32>>,
    bytes: Option<Spanned<u64>>,
) -> Result<Option<QueueLimit>, PlanError> {
    match (packets, bytes) {
        (None, None) => Ok(None),
        (Some(p), None) if *p.get_ref() > 0 => Ok(Some(QueueLimit::Packets(*p.get_ref()))),
        (None, Some(b)) if *b.get_ref() > 0 => Ok(Some(QueueLimit::Bytes(*b.get_ref()))),
        (Some(p), None) => Err(source.error(Some(p.span()), "a queue's length must not be 0")),
        (None, Some(b)) => Err(source.error(Some(b.span()), "a queue's length must not be 0")),
        (Some(_), Some(b)) => {
            let message = "a length is given in packets and in bytes; keep one";
            Err(source.error(Some(b.span()), message))
        }
    }
}

/// Capacity of a queue, at least a packet of `packet_bytes`: a shorter queue would drop everything.
fn limit(
    source: &Source<'_>,
    packets: Option<Spanned<u32>>,
    bytes: Option<Spanned<u64>>,
    packet_bytes: u16,
) -> Result<Option<QueueLimit>, PlanError> {
    let span = bytes.as_ref().map(Spanned::span);
    let limit = length(source, packets, bytes)?;
    match limit {
        Some(QueueLimit::Bytes(bytes)) => holds_a_packet(source, span, bytes, packet_bytes)?,
        Some(QueueLimit::Packets(_) | QueueLimit::Unlimited) | None => {}
    }
    Ok(limit)
}

/// Refuses a capacity of less than a packet.
pub(super) fn holds_a_packet(
    source: &Source<'_>,
    at: Option<Range<usize>>,
    bytes: u64,
    packet_bytes: u16,
) -> Result<(), PlanError> {
    if bytes >= u64::from(packet_bytes) {
        return Ok(());
    }
    let message = format!(
        "{bytes} bytes hold no packet, and all would be dropped: one takes {packet_bytes} bytes on a link"
    );
    Err(source.error(at, message))
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
                share: share(source, Some(&t.share), 1.0)?,
                burst_bytes: t.burst_bytes.unwrap_or(0),
            })
        }
    };
    // A queue's own reader, so that errors within a class name their own place.
    let queue = read(source, table, span.clone(), packet_bytes)?;
    match queue {
        // XCP computes with all traffic of a link; classes within classes have no order.
        QueueConfig::Xcp { .. } | QueueConfig::Classes(_) => {
            let message = "the queue of a class cannot be xcp or classes";
            Err(source.error(Some(span), message))
        }
        queue => Ok(ClassConfig {
            queue,
            service,
            shaper,
        }),
    }
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
    let (kind, _) = source.choice(&mut table, span.clone(), "discipline", &DISCIPLINES)?;
    if kind == "drop-tail" {
        let t: DropTailTable = source.section(table, span)?;
        let limit =
            limit(source, t.limit_packets, t.limit_bytes, packet_bytes)?.unwrap_or_default();
        return Ok(QueueConfig::DropTail { limit });
    }
    match kind {
        "codel" | "sfq-codel" => {
            let t: CodelTable = source.section(table, span)?;
            let usual = CodelConfig::default();
            let control = CodelConfig {
                target: t.target.map_or(usual.target, |d| d.0),
                interval: t.interval.map_or(usual.interval, |d| d.0),
                ecn: t.ecn.unwrap_or(usual.ecn),
            };
            let limit =
                limit(source, t.limit_packets, t.limit_bytes, packet_bytes)?.unwrap_or_default();
            return Ok(if kind == "codel" {
                QueueConfig::Codel { control, limit }
            } else {
                QueueConfig::SfqCodel { control, limit }
            });
        }
        "classes" => return classes(source, table, span, packet_bytes),
        "red" => return red(source, source.section(table, span)?, packet_bytes),
        "pfabric" => {
            let t: DropTailTable = source.section(table, span.clone())?;
            let limit = match limit(source, t.limit_packets, t.limit_bytes, packet_bytes)? {
                Some(limit) => limit,
                None => {
                    // The default is for packets of 1,500 bytes; a plan may have larger ones.
                    holds_a_packet(source, Some(span), PFABRIC_BYTES, packet_bytes)?;
                    QueueLimit::Bytes(PFABRIC_BYTES)
                }
            };
            return Ok(QueueConfig::PFabric { limit });
        }
        "xcp" => {
            let t: XcpTable = source.section(table, span)?;
            let usual = XcpConfig::default();
            let control = XcpConfig {
                first_interval: t.first_interval.map_or(usual.first_interval, |d| d.0),
                idle_interval: t.idle_interval.map(|d| d.0).or(usual.idle_interval),
                least_interval: t.least_interval.map_or(usual.least_interval, |d| d.0),
                ..usual
            };
            let limit =
                limit(source, t.limit_packets, t.limit_bytes, packet_bytes)?.unwrap_or_default();
            return Ok(QueueConfig::Xcp { control, limit });
        }
        _ => {}
    }
    let t: EcnThresholdTable = source.section(table, span.clone())?;
    // A threshold may be below a packet, which marks all; only the limit must hold one.
    let mark_at = length(source, t.mark_packets, t.mark_bytes)?.ok_or_else(|| {
        source.error(
            Some(span),
            "the threshold is missing; add `mark_packets` or `mark_bytes`",
        )
    })?;
    let limit = limit(source, t.limit_packets, t.limit_bytes, packet_bytes)?.unwrap_or_default();
    Ok(QueueConfig::EcnThreshold { mark_at, limit })
}
