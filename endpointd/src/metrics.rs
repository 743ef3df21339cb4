//! Prometheus metrics, in base units and without labels per flow or peer.
//!
//! Counters and gauges are read from the [`Status`] at each scrape, so nothing is counted twice.
//! Only the histograms are fed as samples arise.

use metrics::{
    Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusRecorder};

use crate::flows::{ClassUse, FlowCounters, PacingState};
use crate::status::{HotPathKind, SessionState, Status, backend_name};

const FIRST_PACED: &str = "ratewright_endpointd_first_paced_seconds";
const FIRST_RATE: &str = "ratewright_endpointd_first_rate_seconds";
/// Upper ends of the histogram's buckets, in seconds.
const BUCKETS: [f64; 14] = [
    5e-5, 1e-4, 1.5e-4, 2e-4, 3e-4, 5e-4, 7.5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2, 0.25, 1.0,
];
/// Most samples that wait in the recorder for being sorted into buckets.
const UPKEEP_EVERY: u32 = 1_024;

/// The metrics of one daemon.
pub struct Metrics {
    recorder: PrometheusRecorder,
    first_paced: Histogram,
    first_rate: Histogram,
    since_upkeep: u32,
}

impl Metrics {
    /// Registers the histograms.
    ///
    /// # Errors
    /// Never in practice: the buckets are a constant that is not empty.
    pub fn new() -> Result<Self, BuildError> {
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS)?
            .build_recorder();
        // A global recorder can be set once per process, and tests run several daemons in one.
        let (first_paced, first_rate) = metrics::with_local_recorder(&recorder, || {
            describe_histogram!(
                FIRST_PACED,
                Unit::Seconds,
                "From the write of a flowlet's first byte to its first transmission under a rate"
            );
            describe_histogram!(
                FIRST_RATE,
                Unit::Seconds,
                "From the kernel's seeing a flowlet begin to handing its first rate to the kernel"
            );
            (histogram!(FIRST_PACED), histogram!(FIRST_RATE))
        });
        Ok(Self {
            recorder,
            first_paced,
            first_rate,
            since_upkeep: 0,
        })
    }

    /// Adds a first paced transmission.
    pub fn first_paced(&mut self, latency_ns: u64) {
        self.first_paced.record(seconds(latency_ns));
        self.sort_sometimes();
    }

    /// Adds a first rate.
    pub fn first_rate(&mut self, latency_ns: u64) {
        self.first_rate.record(seconds(latency_ns));
        self.sort_sometimes();
    }

    fn sort_sometimes(&mut self) {
        self.since_upkeep += 1;
        if self.since_upkeep >= UPKEEP_EVERY {
            self.since_upkeep = 0;
            // Without upkeep the recorder keeps every sample until the next scrape, which may never
            // come.
            self.recorder.handle().run_upkeep();
        }
    }

    /// Renders the text of a scrape.
    #[must_use]
    pub fn render(&self, status: &Status) -> String {
        metrics::with_local_recorder(&self.recorder, || {
            publish_counters(status);
            publish_gauges(status);
        });
        self.recorder.handle().render()
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

#[allow(clippy::cast_precision_loss)] // nanoseconds of at most minutes
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn publish_counters(status: &Status) {
    let flows: &FlowCounters = &status.counters;
    let backend = &status.backend_stats;
    let link = &status.link;
    let telemetry = &status.telemetry;
    let second_line = &status.second_line;
    let table: [(&'static str, &'static str, u64); 52] = [
        (
            "flowlets_started_total",
            "Flowlets that began",
            flows.flowlets_started,
        ),
        (
            "flowlets_ended_total",
            "Flowlets that ended",
            flows.flowlets_ended,
        ),
        (
            "gaps_bridged_total",
            "Pauses too short to end a flowlet",
            flows.gaps_bridged,
        ),
        (
            "connections_closed_total",
            "Connections that closed",
            flows.closed,
        ),
        (
            "flowlets_reported_total",
            "Starts and changes reported to the allocator",
            flows.reported,
        ),
        (
            "flowlets_bypassed_total",
            "Flowlets that the policy leaves alone",
            flows.bypassed,
        ),
        (
            "flowlets_unknown_destination_total",
            "Flowlets to no host of the topology",
            flows.unknown_destination,
        ),
        (
            "flowlets_own_host_total",
            "Flowlets to this host itself",
            flows.own_host,
        ),
        (
            "flowlets_refused_total",
            "Flowlets beyond the session's bound",
            flows.refused,
        ),
        (
            "events_beyond_bound_total",
            "Kernel events beyond the flow table",
            flows.beyond_bound,
        ),
        (
            "events_stale_total",
            "Kernel events of connections that are gone",
            flows.stale_events,
        ),
        (
            "rates_applied_total",
            "Rates handed to the kernel",
            flows.rates_applied,
        ),
        (
            "rates_stale_total",
            "Rates of flowlets that were over",
            flows.rates_stale,
        ),
        (
            "rates_expired_total",
            "Rates that came after their lease",
            flows.rates_expired,
        ),
        (
            "rates_withheld_total",
            "Rates not applied because of the kill switch",
            flows.rates_withheld,
        ),
        (
            "demands_lowered_total",
            "Demands lowered to what a flow was measured to use",
            flows.demands_lowered,
        ),
        (
            "demands_raised_total",
            "Lowered demands that were raised because their flow met its limit",
            flows.demands_raised,
        ),
        (
            "flowlets_stalled_total",
            "Flowlets ended because nothing was acknowledged any more",
            flows.stalled,
        ),
        (
            "lease_renewals_total",
            "Times that the kernel's leases were moved",
            flows.renewals,
        ),
        (
            "connect_attempts_total",
            "Attempts to connect to the allocator",
            link.connect_attempts,
        ),
        (
            "connect_failures_total",
            "Attempts that failed",
            link.connect_failures,
        ),
        (
            "sessions_established_total",
            "Sessions established",
            link.sessions_established,
        ),
        (
            "sessions_lost_total",
            "Established sessions lost",
            link.sessions_lost,
        ),
        (
            "datagrams_unsent_total",
            "Datagrams that the transport did not take",
            link.datagrams_unsent,
        ),
        (
            "quic_sent_total",
            "Datagrams that QUIC carried to the allocator",
            link.quic_sent,
        ),
        (
            "quic_received_total",
            "Datagrams that QUIC brought",
            link.quic_received,
        ),
        (
            "sealed_sent_total",
            "Sealed datagrams sent, probes included",
            link.sealed_sent,
        ),
        (
            "sealed_received_total",
            "Sealed datagrams received, answers to probes included",
            link.sealed_received,
        ),
        (
            "sealed_dropped_total",
            "Received datagrams that did not open",
            link.sealed_dropped,
        ),
        (
            "path_fallbacks_total",
            "Times that QUIC took over from sealed datagrams",
            link.path_fallbacks,
        ),
        (
            "log_lines_dropped_total",
            "Log lines that were dropped since nobody took them fast enough",
            ratewright_io::log::lost_lines(),
        ),
        (
            "log_lines_held_back_total",
            "Log lines that were held back since their kind repeated itself",
            ratewright_io::log::held_back_lines(),
        ),
        (
            "rates_observed_total",
            "Rates that were compared with what plain TCP achieves, and not applied",
            flows.rates_observed,
        ),
        (
            "backend_errors_total",
            "Operations that the back end refused",
            status.backend_errors,
        ),
        (
            "backend_table_full_total",
            "Connections that found the flow table full",
            backend.table_full,
        ),
        (
            "backend_events_lost_total",
            "Events that the kernel could not queue",
            backend.events_lost,
        ),
        (
            "backend_adopted_total",
            "Connections taken over at start",
            backend.adopted,
        ),
        (
            "backend_leases_expired_total",
            "Leases that ran out in the kernel",
            backend.expired,
        ),
        (
            "backend_socket_passes_total",
            "Passes over the sockets",
            backend.socket_passes,
        ),
        (
            "first_paced_total",
            "First paced transmissions",
            flows.first_paced,
        ),
        (
            "telemetry_messages_total",
            "Measurements sent to the allocator",
            telemetry.messages,
        ),
        (
            "telemetry_passes_total",
            "Whole readings of the TCP sockets",
            telemetry.passes,
        ),
        (
            "telemetry_errors_total",
            "Readings that the kernel refused",
            telemetry.errors,
        ),
        (
            "telemetry_left_out_total",
            "Sockets and senders left out because too many others were remembered",
            telemetry.totals.sockets_beyond_bound + telemetry.totals.senders_beyond_bound,
        ),
        (
            "tcp_received_bytes_total",
            "TCP payload received from other hosts",
            telemetry.totals.received_bytes,
        ),
        (
            "tcp_delivered_packets_total",
            "TCP packets delivered to other hosts",
            telemetry.totals.delivered,
        ),
        (
            "tcp_marked_packets_total",
            "Delivered TCP packets that came back with a congestion mark",
            telemetry.totals.delivered_ce,
        ),
        (
            "interface_dropped_packets_total",
            "Packets that the interface and its queueing discipline dropped",
            telemetry.counters.rx_dropped
                + telemetry.counters.tx_dropped
                + u64::from(telemetry.counters.queue_drops),
        ),
        (
            "second_line_engagements_total",
            "Times that receivers' shares began to pace flows",
            second_line.engagements,
        ),
        (
            "second_line_messages_sent_total",
            "Messages to other daemons",
            second_line.peers.sent,
        ),
        (
            "second_line_messages_received_total",
            "Messages of other daemons",
            second_line.peers.received,
        ),
        (
            "second_line_refused_total",
            "Connections and handshakes of the second line that failed or were refused",
            second_line.peers.refused + second_line.peers.failed,
        ),
    ];
    for (name, help, value) in table {
        let name = format!("ratewright_endpointd_{name}");
        describe_counter!(name.clone(), help);
        // The status holds totals, and any number of scrapes may read them.
        counter!(name).absolute(value);
    }
    for (allowance, packets) in &telemetry.allowances {
        describe_counter!(
            "ratewright_endpointd_allowance_exceeded_packets_total",
            "Packets that the instance's allowance held up or dropped, by allowance"
        );
        counter!(
            "ratewright_endpointd_allowance_exceeded_packets_total",
            "allowance" => allowance.trim_end_matches("_allowance_exceeded")
        )
        .absolute(*packets);
    }
    for (event, value) in &status.protocol {
        describe_counter!(
            "ratewright_endpointd_protocol_events_total",
            "Events of the control protocol, by kind"
        );
        counter!("ratewright_endpointd_protocol_events_total", "event" => *event).absolute(*value);
    }
}

#[allow(clippy::cast_precision_loss)] // gauges are floats by definition
fn publish_gauges(status: &Status) {
    let session = &status.session;
    let telemetry = &status.telemetry;
    let second_line = &status.second_line;
    let established = session.state == SessionState::Established;
    let table: [(&'static str, &'static str, f64); 27] = [
        ("flows", "Flowlets that run", status.flows as f64),
        (
            "reported_flows",
            "Flowlets that the allocator knows",
            status.reported_flows as f64,
        ),
        (
            "paced_flows",
            "Flowlets paced now",
            status.paced_flows as f64,
        ),
        (
            "backend_connections",
            "Connections that hold a slot",
            status.backend_stats.connections as f64,
        ),
        (
            "backend_pods",
            "Network namespaces of pods whose sockets are paced",
            status.backend_stats.pods as f64,
        ),
        (
            "left_overs",
            "What other daemons could not give back, when this one began",
            status.left_overs.len() as f64,
        ),
        (
            "released",
            "1 while the kill switch is on",
            f64::from(u8::from(status.released)),
        ),
        (
            "observing",
            "1 while rates are compared with what plain TCP achieves, and not applied",
            f64::from(u8::from(status.mode == PacingState::Observe)),
        ),
        (
            "session_established",
            "1 while a session is established",
            f64::from(u8::from(established)),
        ),
        (
            "sealed_path",
            "1 while sealed datagrams carry the session",
            f64::from(u8::from(session.hot == HotPathKind::Udp)),
        ),
        (
            "topology_epoch",
            "Version of the topology",
            f64::from(status.topology_epoch),
        ),
        ("lease_seconds", "Lifetime of a rate", session.lease_s),
        (
            "session_rtt_seconds",
            "Round-trip time to the allocator",
            session.rtt_s,
        ),
        (
            "uptime_seconds",
            "Since the daemon started",
            status.uptime_s,
        ),
        (
            "telemetry_cost_seconds",
            "Time that measuring took so far",
            seconds(telemetry.cost_ns),
        ),
        (
            "tcp_sockets",
            "TCP sockets with other hosts",
            telemetry.sockets as f64,
        ),
        (
            "known_senders",
            "Active senders towards this host that the topology knows",
            f64::from(telemetry.known_senders),
        ),
        (
            "unknown_senders",
            "Active senders towards this host that the topology does not know",
            f64::from(telemetry.unknown_senders),
        ),
        (
            "unknown_senders_bps",
            "Payload rate of the senders that the topology does not know",
            telemetry.unknown_bps as f64,
        ),
        (
            "tcp_busy_seconds",
            "Time with data to send, summed over sockets",
            telemetry.totals.busy_us as f64 / 1e6,
        ),
        (
            "tcp_rwnd_limited_seconds",
            "Time in which receive windows kept sockets from sending, summed over sockets",
            telemetry.totals.rwnd_limited_us as f64 / 1e6,
        ),
        (
            "tcp_rtt_mean_seconds",
            "Mean of the sockets' smoothed round-trip times",
            telemetry.mean_rtt_us as f64 / 1e6,
        ),
        (
            "interface_queue_bytes",
            "Bytes in the interface's queueing discipline",
            f64::from(telemetry.counters.queue_bytes),
        ),
        (
            "second_line_engaged",
            "1 while the allocator is lost and receivers' shares pace flows",
            f64::from(u8::from(second_line.engaged)),
        ),
        (
            "second_line_shares",
            "Receivers whose share holds",
            second_line.shares as f64,
        ),
        (
            "second_line_senders",
            "Active senders towards this host as the second line counts them",
            second_line.senders as f64,
        ),
        (
            "second_line_peers",
            "Daemons with a connection to this one",
            second_line.peers.connected as f64,
        ),
    ];
    for (name, help, value) in table {
        let name = format!("ratewright_endpointd_{name}");
        describe_gauge!(name.clone(), help);
        gauge!(name).set(value);
    }
    for class in &status.classes {
        publish_class(class);
    }
    let kind = backend_name(status.backend);
    describe_gauge!(
        "ratewright_endpointd_info",
        "Always 1; version and pacing mechanism"
    );
    gauge!("ratewright_endpointd_info", "version" => status.version, "backend" => kind).set(1.0);
}

/// Publishes a class's rates against what its flows achieve. A class is a number below 128, which
/// bounds the series.
#[allow(clippy::cast_precision_loss)] // gauges are floats by definition
fn publish_class(class: &ClassUse) {
    let label = class.class.to_string();
    let gauges: [(&'static str, &'static str, u64); 3] = [
        (
            "ratewright_endpointd_class_flows",
            "Flowlets with a rate, by class",
            class.flows,
        ),
        (
            "ratewright_endpointd_class_rate_bits_per_second",
            "Rates of a class's flowlets, applied or only observed",
            class.rate_bps,
        ),
        (
            "ratewright_endpointd_class_achieved_bits_per_second",
            "Use by a class's flowlets in their last measuring window",
            class.achieved_bps,
        ),
    ];
    for (name, help, value) in gauges {
        describe_gauge!(name, help);
        gauge!(name, "class" => label.clone()).set(value as f64);
    }
    let counters: [(&'static str, &'static str, u64); 2] = [
        (
            "ratewright_endpointd_class_allowed_bytes_total",
            "Bytes that rates allowed, at most what was sent while the application had no more",
            class.allowed_bytes,
        ),
        (
            "ratewright_endpointd_class_achieved_bytes_total",
            "Bytes that were sent meanwhile",
            class.achieved_bytes,
        ),
    ];
    for (name, help, value) in counters {
        describe_counter!(name, help);
        counter!(name, "class" => label.clone()).absolute(value);
    }
}
