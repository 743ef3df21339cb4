//! `[transport]` with its queues: those of the plan, or its own.

use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use super::scheme::{self, SchemeConfig};
use super::source::{self, PlanError, Source};
use super::{Section, queue};
use crate::net::buffer::SharedBuffer;
use crate::net::{FabricConfig, QueueConfig};

/// A transport of a plan: one scheme over its queues.
#[derive(Clone, Debug)]
pub struct PlannedTransport {
    /// Name of its results, unique within the plan.
    pub label: String,
    /// The scheme with its parameters.
    pub scheme: SchemeConfig,
    /// The fabric with its queues; delays and framing are those of all transports.
    pub fabric: FabricConfig,
}

impl PlannedTransport {
    /// The label as part of a file's name.
    #[must_use]
    pub fn file_name(&self) -> String {
        // Letters beyond ASCII are replaced, too: file systems differ in their forms of them.
        let keep = |c: char| {
            if c.is_ascii_alphanumeric() || "-_.".contains(c) {
                c
            } else {
                '-'
            }
        };
        self.label.chars().map(keep).collect()
    }
}

/// `shared_buffer` of `[queue]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BufferTable {
    bytes: Spanned<u64>,
    alpha: Spanned<f64>,
}

/// Reads `[queue]` and `[nic_queue]`, of the plan or of one transport, into the fabric. A table
/// that is not given leaves the fabric's queues as they are.
pub(super) fn read_queues<'a>(
    source: &Source<'a>,
    queue: Option<Section<'a>>,
    nic_queue: Option<Section<'a>>,
    fabric: &mut FabricConfig,
) -> Result<(), PlanError> {
    let packet_bytes = fabric.framing.wire_bytes(fabric.framing.mss_bytes);
    if let Some((mut table, span)) = queue {
        // Taken out first: the rest of the table is the queue's, which refuses unknown keys.
        // Without the key, a transport's own queue has no shared buffer, even if the plan's has
        // one.
        fabric.shared_buffer = source::take(&mut table, "shared_buffer")
            .map(|value| {
                let (table, span) = source.table("shared_buffer", value)?;
                shared_buffer(source, &source.section(table, span)?, packet_bytes)
            })
            .transpose()?;
        fabric.edge = queue::read(source, table, span, packet_bytes)?;
        fabric.core = fabric.edge.clone();
    }
    if let Some((table, span)) = nic_queue {
        fabric.nic = queue::read(source, table, span, packet_bytes)?;
    }
    Ok(())
}

/// Checks a shared buffer.
fn shared_buffer(
    source: &Source<'_>,
    t: &BufferTable,
    packet_bytes: u16,
) -> Result<SharedBuffer, PlanError> {
    queue::holds_a_packet(
        source,
        Some(t.bytes.span()),
        *t.bytes.get_ref(),
        packet_bytes,
    )?;
    if !(*t.alpha.get_ref() > 0.0 && t.alpha.get_ref().is_finite()) {
        return Err(source.error(Some(t.alpha.span()), "`alpha` must be above 0"));
    }
    Ok(SharedBuffer {
        bytes: *t.bytes.get_ref(),
        alpha: *t.alpha.get_ref(),
    })
}

/// Reads the transports of a plan. `fabric` has the plan's queues, for transports without their
/// own.
pub(super) fn read<'a>(
    source: &Source<'a>,
    tables: Vec<Section<'a>>,
    fabric: &FabricConfig,
) -> Result<Vec<PlannedTransport>, PlanError> {
    let mut transports: Vec<PlannedTransport> = Vec::new();
    for (mut table, span) in tables {
        let label = match source::take(&mut table, "label") {
            None => None,
            Some(value) => {
                let text = value.get_ref().as_str().filter(|text| !text.is_empty());
                let wrong =
                    || source.error(Some(value.span()), "`label` must be a text, not empty");
                Some(text.ok_or_else(wrong)?.to_owned())
            }
        };
        let mut own = |key: &str| {
            source::take(&mut table, key)
                .map(|value| source.table(key, value))
                .transpose()
        };
        let (queue, nic_queue) = (own("queue")?, own("nic_queue")?);
        let mut fabric = fabric.clone();
        read_queues(source, queue, nic_queue, &mut fabric)?;
        let (name, scheme) = scheme::read(source, table, span.clone())?;
        check_queues(source, &scheme, &fabric, &span)?;
        // Different priorities mean nothing in a queue without classes.
        if let SchemeConfig::Flowtune { config, .. } = &scheme
            && config.data_priority != config.control_priority
        {
            for queue in [&mut fabric.edge, &mut fabric.core, &mut fabric.nic] {
                control_first(source, queue, &span)?;
            }
        }
        let transport = PlannedTransport {
            label: label.unwrap_or(name),
            scheme,
            fabric,
        };
        // Labels that differ may still be one file name; the second would overwrite the first.
        let file = transport.file_name();
        if let Some(other) = transports.iter().find(|other| other.file_name() == file) {
            let (one, two) = (&other.label, &transport.label);
            let message = if one == two {
                format!("there are two transports {two:?}; give one a `label`")
            } else {
                format!("the results of {one:?} and {two:?} would be one file, flows-{file}.csv")
            };
            return Err(source.error(Some(span), message));
        }
        transports.push(transport);
    }
    Ok(transports)
}

/// Turns a queue without classes into two classes of its kind, one for control packets and one for
/// data.
fn control_first(
    source: &Source<'_>,
    queue: &mut QueueConfig,
    span: &Range<usize>,
) -> Result<(), PlanError> {
    match queue {
        QueueConfig::StrictPriority { .. } => {}
        QueueConfig::Xcp { .. } => {
            // XCP's queue computes with all that passes the link; in two classes each would grant
            // the whole link.
            let message = "`control_first` needs queues with classes, which xcp cannot be";
            return Err(source.error(Some(span.clone()), message));
        }
        _ => {
            let each = Box::new(queue.clone());
            *queue = QueueConfig::StrictPriority { classes: 2, each };
        }
    }
    Ok(())
}

/// Refuses XCP and pFabric over other queues: half of these schemes is in the switches.
fn check_queues(
    source: &Source<'_>,
    scheme: &SchemeConfig,
    fabric: &FabricConfig,
    span: &Range<usize>,
) -> Result<(), PlanError> {
    // Classes have queues of one kind. Edge and core are of one table, so the edge stands for both.
    let each = match &fabric.edge {
        QueueConfig::StrictPriority { each, .. } => each,
        edge => edge,
    };
    let needed = match (scheme, each) {
        (SchemeConfig::Xcp(_), QueueConfig::Xcp { .. })
        | (SchemeConfig::PFabric(_), QueueConfig::PFabric { .. }) => return Ok(()),
        (SchemeConfig::Xcp(_), _) => "xcp",
        (SchemeConfig::PFabric(_), _) => "pfabric",
        _ => return Ok(()),
    };
    let message = format!(
        "{needed} needs the queue `{needed}` in switches; give it a [transport.queue] of its own, or the plan that [queue]"
    );
    Err(source.error(Some(span.clone()), message))
}
