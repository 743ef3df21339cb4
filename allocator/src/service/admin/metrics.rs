//! Prometheus metrics of a snapshot. Units are base units. Labels are reasons from a fixed set,
//! never a peer or a flow, so that their number is bounded.

use std::fmt::Write as _;

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

use crate::engine::DurationFigures;
use crate::link_check::{HostFault, LinkState};
use crate::service::audit::AuditLog;
use crate::service::status::{Reasons, Snapshot};

/// Installs the process's metrics recorder.
///
/// # Errors
/// Another recorder is installed already.
pub fn install() -> Result<PrometheusHandle, metrics_exporter_prometheus::BuildError> {
    let handle = PrometheusBuilder::new().install_recorder()?;
    describe();
    Ok(handle)
}

fn describe() {
    for (name, unit, text) in [
        (
            "ratewright_allocator_sessions",
            Unit::Count,
            "Hosts with a session.",
        ),
        (
            "ratewright_allocator_members",
            Unit::Count,
            "Hosts that joined at run time and have not left.",
        ),
        (
            "ratewright_allocator_hosts",
            Unit::Count,
            "Hosts of the topology.",
        ),
        (
            "ratewright_allocator_certificate_expiry_timestamp_seconds",
            Unit::Seconds,
            "End of the validity of the allocator's own certificate, in seconds since 1970.",
        ),
        (
            "ratewright_allocator_flows",
            Unit::Count,
            "Flows that get rates.",
        ),
        (
            "ratewright_allocator_flows_left_alone",
            Unit::Count,
            "Flows that are known and left to plain TCP.",
        ),
        (
            "ratewright_allocator_released",
            Unit::Count,
            "1 while the kill switch is on.",
        ),
        (
            "ratewright_allocator_topology_epoch",
            Unit::Count,
            "Version of the topology.",
        ),
        (
            "ratewright_allocator_links_down",
            Unit::Count,
            "Links that carry nothing because they or a switch failed.",
        ),
        (
            "ratewright_allocator_links_with_external_load",
            Unit::Count,
            "Links with traffic that the allocator does not schedule, as it was told.",
        ),
        (
            "ratewright_allocator_links_shared",
            Unit::Count,
            "Links that paced flows share with traffic that nobody paces.",
        ),
        (
            "ratewright_allocator_links_not_as_told",
            Unit::Count,
            "Links that carry less, more or other traffic than they were told, by state.",
        ),
        (
            "ratewright_allocator_hosts_not_as_told",
            Unit::Count,
            "Hosts with a fault that a daemon or the allocator found, by fault.",
        ),
        (
            "ratewright_allocator_links_lowered",
            Unit::Count,
            "Links whose capacity is lowered to what they carry.",
        ),
        (
            "ratewright_allocator_feed_age_seconds",
            Unit::Seconds,
            "Mean age of a feed's measurements when they arrived.",
        ),
        (
            "ratewright_allocator_feed_error_ratio",
            Unit::Count,
            "Mean difference of what a feed led to expect and what was measured next, over capacity.",
        ),
        (
            "ratewright_allocator_feed_moved_bits_per_second",
            Unit::Count,
            "Capacity that a feed takes from scheduled flows at most, over all links.",
        ),
        (
            "ratewright_allocator_max_link_load_ratio",
            Unit::Count,
            "Largest allocated load over derated capacity of any link; above 1 is over-allocation.",
        ),
        (
            "ratewright_allocator_optimizer_overload_ratio",
            Unit::Count,
            "Largest load over capacity before normalisation in the last iteration.",
        ),
        (
            "ratewright_allocator_sealed_ports_lost",
            Unit::Count,
            "Ports of sealed datagrams that are lost; above 0, hosts are on QUIC that need not be.",
        ),
        (
            "ratewright_allocator_build_info",
            Unit::Count,
            "1, with the version of this binary as a label.",
        ),
        (
            "ratewright_allocator_optimality_gap_ratio",
            Unit::Count,
            "Relative duality gap of the last iteration: distance from the optimum.",
        ),
    ] {
        describe_gauge!(name, unit, text);
    }
    for (name, text) in [
        (
            "ratewright_allocator_log_lines_dropped_total",
            "Log lines that were dropped since nobody took them fast enough.",
        ),
        (
            "ratewright_allocator_log_lines_held_back_total",
            "Log lines that were held back since their kind repeated itself.",
        ),
        (
            "ratewright_allocator_flowlet_starts_total",
            "Flowlet starts taken.",
        ),
        (
            "ratewright_allocator_flowlet_ends_total",
            "Flowlet ends taken.",
        ),
        (
            "ratewright_allocator_feed_entries_total",
            "Measurements that a feed has taken.",
        ),
        (
            "ratewright_allocator_feed_refused_total",
            "Measurements that a feed has refused, by reason.",
        ),
        (
            "ratewright_allocator_feed_contradictions_total",
            "Measurements that did not stand against another one, by feed.",
        ),
        (
            "ratewright_allocator_reroutes_total",
            "Flows that found another path after a change of the topology.",
        ),
        (
            "ratewright_allocator_demand_changes_total",
            "Active flows that were said to use more or less than before.",
        ),
        (
            "ratewright_allocator_demand_changes_deferred_total",
            "Those of them that waited, since their host or all hosts together told too many.",
        ),
        (
            "ratewright_allocator_paths_total",
            "Paths that were looked for in the topology.",
        ),
        (
            "ratewright_allocator_flows_left_alone_total",
            "Flows left to plain TCP, by reason.",
        ),
        (
            "ratewright_allocator_rate_updates_total",
            "Rates handed to sessions.",
        ),
        (
            "ratewright_allocator_rate_updates_stale_total",
            "Rates whose flow was gone.",
        ),
        (
            "ratewright_allocator_engine_events_total",
            "Events that the engine applied.",
        ),
        (
            "ratewright_allocator_engine_events_refused_total",
            "Events that the engine refused.",
        ),
        (
            "ratewright_allocator_engine_price_resets_total",
            "Prices that were no number and started anew.",
        ),
        (
            "ratewright_allocator_datagrams_received_total",
            "Datagrams taken from hosts.",
        ),
        (
            "ratewright_allocator_datagrams_sent_total",
            "Datagrams handed to the transport.",
        ),
        (
            "ratewright_allocator_sealed_total",
            "Sealed UDP datagrams, by what became of them (sealed_bytes and opened_bytes are bytes).",
        ),
        (
            "ratewright_allocator_dpdk_total",
            "Frames and datagrams of the interface that DPDK drives, by what became of them.",
        ),
        (
            "ratewright_allocator_datagrams_dropped_total",
            "Datagrams that changed nothing, by reason.",
        ),
        (
            "ratewright_allocator_control_errors_total",
            "Control messages that broke the protocol, by reason.",
        ),
        (
            "ratewright_allocator_members_joined_total",
            "Hosts that joined at run time.",
        ),
        (
            "ratewright_allocator_members_left_total",
            "Hosts that had joined at run time and left.",
        ),
        (
            "ratewright_allocator_links_shared_total",
            "Links that began to be shared with traffic that nobody paces, by cause.",
        ),
        (
            "ratewright_allocator_links_not_as_told_total",
            "Links that were found not to be as told, by state.",
        ),
        (
            "ratewright_allocator_hosts_not_as_told_total",
            "Faults that were found in hosts, by fault.",
        ),
        (
            "ratewright_allocator_sessions_opened_total",
            "Sessions accepted.",
        ),
        (
            "ratewright_allocator_sessions_refused_total",
            "Sessions refused, by reason.",
        ),
        (
            "ratewright_allocator_sessions_closed_total",
            "Sessions that ended, by reason.",
        ),
        (
            "ratewright_allocator_connections_rejected_total",
            "Connections that never became a session, by reason.",
        ),
        (
            "ratewright_allocator_control_waits_total",
            "Pauses in reading a control stream whose host sent more than its budget.",
        ),
        (
            "ratewright_allocator_telemetry_messages_total",
            "Telemetry messages taken.",
        ),
        (
            "ratewright_allocator_collector_datagrams_total",
            "Datagrams of the collector of switches that were taken.",
        ),
        (
            "ratewright_allocator_collector_unknown_total",
            "Events of interfaces that the collector may not tell of.",
        ),
        (
            "ratewright_allocator_collector_unused_total",
            "Events of the collector that say nothing, by reason.",
        ),
        (
            "ratewright_allocator_collector_dropped_total",
            "Datagrams at the collector's address that were not taken, by reason.",
        ),
        (
            "ratewright_allocator_relay_bundles_total",
            "Bundles of relays' hosts' datagrams, by direction.",
        ),
        (
            "ratewright_allocator_relay_bundle_bytes_total",
            "Bytes of those bundles, by direction.",
        ),
        (
            "ratewright_allocator_relay_datagrams_total",
            "Hosts' datagrams in those bundles, by direction.",
        ),
        (
            "ratewright_allocator_relay_rejected_total",
            "What relays sent that was turned down, and what could not be sent to them, by reason.",
        ),
        (
            "ratewright_allocator_audit_entries_total",
            "Changes by operators that were recorded.",
        ),
        (
            "ratewright_allocator_audit_entries_lost_total",
            "Those of them that the audit log's file did not take.",
        ),
        (
            "ratewright_allocator_reloads_total",
            "Configurations loaded at run time, by result.",
        ),
    ] {
        describe_counter!(name, Unit::Count, text);
    }
}

#[allow(
    clippy::cast_precision_loss,
    reason = "gauges are floating point by definition"
)]
fn set(name: &'static str, value: u64) {
    gauge!(name).set(value as f64);
}

// The service counts in a snapshot of its own; `absolute` carries those counts over, never adds.
fn by_reason(name: &'static str, reasons: &Reasons) {
    for (reason, count) in reasons.iter() {
        counter!(name, "reason" => reason).absolute(count);
    }
}

/// Writes the audit log's counts to the recorder.
pub fn publish_audit(audit: &AuditLog) {
    let page = audit.page(0);
    counter!("ratewright_allocator_audit_entries_total").absolute(page.entries_total);
    counter!("ratewright_allocator_audit_entries_lost_total").absolute(page.lost_total);
}

/// Writes a snapshot to the recorder.
#[allow(
    clippy::cast_precision_loss,
    reason = "gauges are floating point by definition"
)]
pub fn publish(snapshot: &Snapshot) {
    // Destructured, so that a new field of the snapshot is not forgotten here.
    let Snapshot {
        status,
        totals,
        counts,
        sealed,
        port,
        engine,
        certificate_expires_unix_s,
        first_rates: _, // appended as a histogram
        feeds,
    } = snapshot;
    for (&feed, figures) in &feeds.feeds {
        counter!("ratewright_allocator_feed_entries_total", "feed" => feed).absolute(figures.taken);
        for (&reason, &count) in &figures.refused {
            counter!("ratewright_allocator_feed_refused_total", "feed" => feed, "reason" => reason)
                .absolute(count);
        }
        gauge!("ratewright_allocator_feed_age_seconds", "feed" => feed)
            .set(figures.mean_age_ns / 1e9);
        gauge!("ratewright_allocator_feed_error_ratio", "feed" => feed).set(figures.mean_error);
        gauge!("ratewright_allocator_feed_moved_bits_per_second", "feed" => feed)
            .set(figures.moved_bps);
    }
    for (&feed, &count) in &feeds.contradictions {
        counter!("ratewright_allocator_feed_contradictions_total", "feed" => feed).absolute(count);
    }
    for &(name, count) in port {
        counter!("ratewright_allocator_dpdk_total", "kind" => name).absolute(count);
    }
    sealed.for_each(|name, count| {
        counter!("ratewright_allocator_sealed_total", "kind" => name).absolute(count);
    });
    set("ratewright_allocator_sessions", totals.sessions);
    set("ratewright_allocator_hosts", status.hosts);
    set("ratewright_allocator_members", totals.members);
    set("ratewright_allocator_flows", status.flows);
    if let Some(expires_unix_s) = *certificate_expires_unix_s {
        gauge!("ratewright_allocator_certificate_expiry_timestamp_seconds")
            .set(expires_unix_s as f64);
    }
    set(
        "ratewright_allocator_flows_left_alone",
        status.flows_left_alone,
    );
    set(
        "ratewright_allocator_sealed_ports_lost",
        status.sealed_ports_lost,
    );
    set("ratewright_allocator_released", u64::from(status.released));
    set("ratewright_allocator_topology_epoch", status.topology_epoch);
    set("ratewright_allocator_links_down", totals.links_down);
    set(
        "ratewright_allocator_links_with_external_load",
        totals.external,
    );
    set("ratewright_allocator_links_shared", status.links_shared);
    for (state, count) in totals.links_named {
        gauge!("ratewright_allocator_links_not_as_told", "state" => state.label())
            .set(count as f64);
    }
    set("ratewright_allocator_links_lowered", totals.links_lowered);
    for (fault, count) in HostFault::ALL.into_iter().zip(totals.hosts_named) {
        gauge!("ratewright_allocator_hosts_not_as_told", "fault" => fault.label())
            .set(count as f64);
    }
    gauge!("ratewright_allocator_max_link_load_ratio").set(status.optimality.max_link_load);
    gauge!("ratewright_allocator_optimizer_overload_ratio").set(engine.max_overload);
    for (cause, flows) in [
        ("utility", engine.exceptions.flows_of_other_utilities),
        ("path", engine.exceptions.flows_on_other_paths),
        ("room", engine.exceptions.flows_without_room),
    ] {
        gauge!("ratewright_allocator_engine_flows_one_by_one", "cause" => cause).set(flows as f64);
    }
    counter!("ratewright_allocator_engine_price_resets_total")
        .absolute(engine.exceptions.price_resets);
    // Absent while it is no number: 0 would claim the optimum.
    if let Some(gap) = status.optimality.relative_gap {
        gauge!("ratewright_allocator_optimality_gap_ratio").set(gap);
    }
    // Prometheus' convention: constant 1, and the information in labels.
    gauge!("ratewright_allocator_build_info", "version" => status.version).set(1.0);

    counter!("ratewright_allocator_log_lines_dropped_total")
        .absolute(ratewright_io::log::lost_lines());
    counter!("ratewright_allocator_log_lines_held_back_total")
        .absolute(ratewright_io::log::held_back_lines());
    counter!("ratewright_allocator_flowlet_starts_total").absolute(counts.starts);
    counter!("ratewright_allocator_flowlet_ends_total").absolute(counts.ends);
    counter!("ratewright_allocator_demand_changes_total").absolute(counts.demand_changes);
    counter!("ratewright_allocator_demand_changes_deferred_total")
        .absolute(counts.demand_changes_deferred);
    counter!("ratewright_allocator_paths_total").absolute(counts.paths);
    counter!("ratewright_allocator_reroutes_total").absolute(counts.reroutes);
    counter!("ratewright_allocator_rate_updates_total").absolute(counts.updates);
    counter!("ratewright_allocator_rate_updates_stale_total").absolute(counts.updates_stale);
    counter!("ratewright_allocator_engine_events_total").absolute(engine.events);
    counter!("ratewright_allocator_engine_events_refused_total").absolute(engine.events_refused);
    counter!("ratewright_allocator_datagrams_received_total").absolute(counts.datagrams_received);
    counter!("ratewright_allocator_datagrams_sent_total").absolute(counts.datagrams_sent);
    counter!("ratewright_allocator_members_joined_total").absolute(counts.members_joined);
    counter!("ratewright_allocator_members_left_total").absolute(counts.members_left);
    counter!("ratewright_allocator_sessions_opened_total").absolute(counts.sessions_opened);
    counter!("ratewright_allocator_control_waits_total").absolute(counts.control_waits);
    counter!("ratewright_allocator_telemetry_messages_total").absolute(counts.telemetry);
    counter!("ratewright_allocator_collector_datagrams_total").absolute(counts.collector_datagrams);
    counter!("ratewright_allocator_collector_unknown_total").absolute(counts.collector_unknown);
    by_reason(
        "ratewright_allocator_collector_unused_total",
        &counts.collector_unused,
    );
    by_reason(
        "ratewright_allocator_collector_dropped_total",
        &counts.collector_dropped,
    );
    by_reason(
        "ratewright_allocator_flows_left_alone_total",
        &counts.flows_unmanaged,
    );
    by_reason(
        "ratewright_allocator_datagrams_dropped_total",
        &counts.datagrams_dropped,
    );
    by_reason(
        "ratewright_allocator_control_errors_total",
        &counts.control_errors,
    );
    by_reason(
        "ratewright_allocator_sessions_refused_total",
        &counts.sessions_refused,
    );
    by_reason(
        "ratewright_allocator_sessions_closed_total",
        &counts.sessions_closed,
    );
    by_reason(
        "ratewright_allocator_connections_rejected_total",
        &counts.connections_rejected,
    );
    by_reason(
        "ratewright_allocator_links_shared_total",
        &counts.links_shared,
    );
    // All from the start, as results of reloads below.
    for label in LinkState::NAMED.map(LinkState::label) {
        counter!("ratewright_allocator_links_not_as_told_total", "state" => label)
            .absolute(counts.links_named.get(label));
    }
    for label in HostFault::ALL.map(HostFault::label) {
        counter!("ratewright_allocator_hosts_not_as_told_total", "fault" => label)
            .absolute(counts.hosts_named.get(label));
    }
    counts.relay.for_each(|what, direction, count| {
        let name = match what {
            "bundles" => "ratewright_allocator_relay_bundles_total",
            "bytes" => "ratewright_allocator_relay_bundle_bytes_total",
            _ => "ratewright_allocator_relay_datagrams_total",
        };
        counter!(name, "direction" => direction).absolute(count);
    });
    by_reason(
        "ratewright_allocator_relay_rejected_total",
        &counts.relay.rejected,
    );
    // Both from the start: a series that begins with its first rejection shows no increase.
    for result in ["ok", "rejected"] {
        let count = counts.reloads.get(result);
        counter!("ratewright_allocator_reloads_total", "result" => result).absolute(count);
    }
}

/// Appends the histograms. The service counts into buckets of its own, which spares its loops a
/// recorder, so this function writes them in place of the exporter.
pub fn append_histograms(snapshot: &Snapshot, text: &mut String) {
    for (name, help, figures) in [
        (
            "ratewright_allocator_iteration_seconds",
            "Duration of one iteration of the optimiser.",
            &snapshot.engine.iterations,
        ),
        (
            "ratewright_allocator_first_rate_seconds",
            "From taking a flowlet's start to handing its first rate to its session.",
            &snapshot.first_rates,
        ),
    ] {
        if let Err(error) = append(name, help, figures, text) {
            unreachable!("writing to a String cannot fail: {error}");
        }
    }
}

fn append(
    name: &str,
    help: &str,
    figures: &DurationFigures,
    text: &mut String,
) -> std::fmt::Result {
    writeln!(text, "# HELP {name} {help}")?;
    writeln!(text, "# TYPE {name} histogram")?;
    for (bound, count) in &figures.buckets {
        writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {count}")?;
    }
    // The exposition format requires this bucket, with the total count.
    writeln!(text, "{name}_bucket{{le=\"+Inf\"}} {}", figures.count)?;
    writeln!(text, "{name}_sum {}", figures.seconds_sum)?;
    writeln!(text, "{name}_count {}\n", figures.count)
}
