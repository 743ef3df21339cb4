#!/usr/bin/env python3
"""Writes the Grafana dashboard, the alert rules, their tests and the guide's table of alerts from the lists below.

usage: generate.py            writes dashboard.json, alerts.yml, alerts.test.yml and the table in docs/operating/monitoring.md
       generate.py --check    exits with 1 if any of them differs from the lists
       generate.py --rules N  prints the alert rules with all times N times as short, for tests
"""

import json
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).parent
GUIDE = HERE / "../../docs/operating/monitoring.md"
A = "ratewright_allocator_"
E = "ratewright_endpointd_"
ALLOCATOR, DAEMON = 'job="ratewright-allocator"', 'job="ratewright-endpointd"'

# Panels: row title, then (title, unit, kind, [(expression, legend)], description). `$w` is the window of rates.
ROWS = [
    ("State", [
        ("Hosts with a session", "short", "timeseries",
         [(f"{A}sessions", "with a session"), (f"{A}hosts", "in the topology")],
         "Hosts that the allocator serves, of those in its topology."),
        ("Kill switch", "short", "timeseries",
         [(f"{A}released", "allocator"), (f"sum({E}released)", "hosts that are released")],
         "1 while the network is released: all flows are plain TCP."),
        ("Links", "short", "timeseries",
         [(f"{A}links_down", "down"), (f"{A}links_with_external_load", "with external load")],
         "Links that carry nothing, and links with traffic that others schedule."),
        ("Links that are not as told", "short", "timeseries",
         [(f"{A}links_not_as_told", "{{state}}"), (f"{A}links_lowered", "lowered to what they carry")],
         "Links that carry less or more than the topology says, whose flows take another path, or traffic that nobody paces."),
        ("Versions", "short", "table",
         [(f"{A}build_info", "allocator {{version}}"), (f"count by (version, backend) ({E}info)", "{{version}} {{backend}}")],
         "Versions and pacing mechanisms in use."),
    ]),
    ("Allocation", [
        ("Flows", "short", "timeseries",
         [(f"{A}flows", "with a rate"), (f"{A}flows_left_alone", "left alone")],
         "Flows that the allocator knows."),
        ("Distance from the optimum", "percentunit", "timeseries",
         [(f"{A}optimality_gap_ratio", "relative duality gap")],
         "Distance of the allocation from the optimum of its objective."),
        ("Load of the fullest link", "percentunit", "timeseries",
         [(f"{A}max_link_load_ratio", "after normalisation"), (f"{A}optimizer_overload_ratio", "before normalisation")],
         "Load over derated capacity. After normalisation it never exceeds 1."),
        ("Flowlets", "ops", "timeseries",
         [(f"rate({A}flowlet_starts_total[$w])", "starts"), (f"rate({A}flowlet_ends_total[$w])", "ends"),
          (f"rate({A}demand_changes_total[$w])", "demand changes")],
         "What hosts tell the allocator."),
        ("Rate updates", "ops", "timeseries",
         [(f"rate({A}rate_updates_total[$w])", "rates"), (f"rate({A}rate_updates_stale_total[$w])", "of flows that had ended")],
         "Rates handed to sessions."),
    ]),
    ("Latency", [
        ("Start to first rate, in the allocator", "s", "timeseries",
         [(f"histogram_quantile(0.5, rate({A}first_rate_seconds_bucket[$w]))", "median"),
          (f"histogram_quantile(0.99, rate({A}first_rate_seconds_bucket[$w]))", "99 %")],
         "From taking a start to handing its first rate to its session."),
        ("Iteration", "s", "timeseries",
         [(f"histogram_quantile(0.5, rate({A}iteration_seconds_bucket[$w]))", "median"),
          (f"histogram_quantile(0.99, rate({A}iteration_seconds_bucket[$w]))", "99 %")],
         "Duration of one iteration of the optimiser."),
        ("Start to first rate, at the hosts", "s", "timeseries",
         [(f"histogram_quantile(0.5, sum by (le) (rate({E}first_rate_seconds_bucket[$w])))", "median"),
          (f"histogram_quantile(0.99, sum by (le) (rate({E}first_rate_seconds_bucket[$w])))", "99 %")],
         "From the kernel's seeing a flowlet begin to handing its first rate to the kernel."),
        ("First byte to first paced transmission", "s", "timeseries",
         [(f"histogram_quantile(0.5, sum by (le) (rate({E}first_paced_seconds_bucket[$w])))", "median"),
          (f"histogram_quantile(0.99, sum by (le) (rate({E}first_paced_seconds_bucket[$w])))", "99 %")],
         "What an application's flowlet waits for its rate, with the application's own pauses."),
        ("Round-trip time to the allocator", "s", "timeseries",
         [(f"quantile(0.5, {E}session_rtt_seconds)", "median"), (f"max({E}session_rtt_seconds)", "largest")],
         "Over all hosts."),
    ]),
    ("Refused, lost, left alone", [
        ("Flows left alone", "ops", "timeseries",
         [(f"sum by (reason) (rate({A}flows_left_alone_total[$w]))", "{{reason}}")], "Flows that became plain TCP, by reason."),
        ("Datagrams dropped", "ops", "timeseries",
         [(f"sum by (reason) (rate({A}datagrams_dropped_total[$w]))", "{{reason}}")], "Datagrams that changed nothing, by reason."),
        ("Sessions", "ops", "timeseries",
         [(f"rate({A}sessions_opened_total[$w])", "opened"),
          (f"sum by (reason) (rate({A}sessions_refused_total[$w]))", "refused: {{reason}}"),
          (f"sum by (reason) (rate({A}sessions_closed_total[$w]))", "closed: {{reason}}"),
          (f"sum by (reason) (rate({A}connections_rejected_total[$w]))", "rejected: {{reason}}")],
         "Sessions and connections by what became of them."),
        ("Leases that ran out", "ops", "timeseries",
         [(f"sum(rate({E}backend_leases_expired_total[$w]))", "leases")],
         "Sockets that went on as plain TCP since the allocator was not heard in time."),
    ]),
    ("Hosts", [
        ("Flowlets at the hosts", "short", "timeseries",
         [(f"sum({E}flows)", "running"), (f"sum({E}reported_flows)", "known to the allocator"), (f"sum({E}paced_flows)", "paced")],
         "Over all hosts."),
        ("Hosts without a session", "short", "timeseries",
         [(f"count({E}session_established == 0) or vector(0)", "hosts")], "Their flows are plain TCP."),
        ("Table and events", "ops", "timeseries",
         [(f"sum(rate({E}backend_table_full_total[$w]))", "connections that found the table full"),
          (f"sum(rate({E}backend_events_lost_total[$w]))", "events lost")],
         "Bounds that hosts have met."),
    ]),
]

# Alerts: name, expression, time until it fires, severity, summary, what to do. Times in seconds; `$w` is five minutes.
ALERTS = [
    ("RatewrightAllocatorDown", f"up{{{ALLOCATOR}}} == 0", 60, "critical",
     "The allocator does not answer.",
     "Flows are plain TCP from one lease on. Look at `systemctl status ratewright-allocator` and its log; start it again."),
    ("RatewrightReleased", f"{A}released == 1", 300, "warning",
     "The kill switch is on: nothing is paced.",
     "Ask who released the network and why; `ratewright resume` turns rates on again."),
    ("RatewrightHostsLost", f"{A}sessions < 0.9 * max_over_time({A}sessions[$h])", 120, "warning",
     "More than a tenth of the hosts lost their sessions within the hour.",
     "`ratewright status` lists who is there. Look at a missing host's daemon log, and at the way between it and the allocator."),
    ("RatewrightLinkOverAllocated", f"{A}max_link_load_ratio > 1.1", 300, "critical",
     "A link is over-allocated, which must not happen.",
     "`ratewright release`, keep `/status` and the log, and report the defect."),
    ("RatewrightFarFromOptimum", f"{A}optimality_gap_ratio > 0.2", 600, "warning",
     "The allocation stays far from its optimum.",
     "Look at the iteration time and the rate of starts: the engine may not keep up. Lower `allocation.gamma` if rates oscillate."),
    ("RatewrightEngineSlow", f"histogram_quantile(0.99, rate({A}iteration_seconds_bucket[$w])) > 0.002", 300, "warning",
     "An iteration takes more than 2 ms.",
     "See *Sizing* in the allocator's guide: more `blocks` and `workers`, fewer flows of utilities other than `log`, another machine."),
    ("RatewrightFirstRateSlow", f"histogram_quantile(0.99, rate({A}first_rate_seconds_bucket[$w])) > 0.005", 300, "warning",
     "First rates take more than 5 ms in the allocator.",
     "The machine is too busy, or the engine too slow: look at its processor, at the iteration time, and at `sealed_total`."),
    ("RatewrightDatagramsDropped",
     f'sum by (instance, reason) (rate({A}datagrams_dropped_total{{reason=~"start_rate|datagram_rate|engine_backlog"}}[$w])) > 1', 120, "warning",
     "A queue or a budget is full: the allocator drops datagrams ({{ $labels.reason }}).",
     "`start_rate`, `datagram_rate`: a host sends more than `limits` allow; raise them or look at that host. `engine_backlog`: the engine does not keep up."),
    ("RatewrightFlowsRefused",
     f'sum by (instance, reason) (rate({A}flows_left_alone_total{{reason=~"table_full|start_rate|unknown_class|unknown_host"}}[$w])) > 0.1', 120, "warning",
     "Flows are left to plain TCP ({{ $labels.reason }}).",
     "`table_full`: raise `limits.max_flows`. `start_rate`: raise `limits.max_total_starts_per_s`. `unknown_class`, `unknown_host`: policy or topology differ from the network."),
    ("RatewrightSessionsRefused", f"sum by (instance, reason) (rate({A}sessions_refused_total[$w])) > 0", 120, "warning",
     "Hosts are refused ({{ $labels.reason }}).",
     "The reason says which of topology, certificate, version and trust does not fit; the daemon's log has the host's side."),
    ("RatewrightConnectionsRejected", f'sum by (instance, reason) (rate({A}connections_rejected_total{{reason=~"handshake|table_full|no_hello|stalled"}}[$w])) > 0', 120, "warning",
     "Connections never become sessions ({{ $labels.reason }}).",
     "`handshake`: a certificate has expired or is of another authority. Others: somebody begins connections and does not go on."),
    ("RatewrightCertificateExpires", f"{A}certificate_expiry_timestamp_seconds - time() < 14 * 86400", 60, "warning",
     "The allocator's certificate expires within 14 days.",
     "Write the new certificate and key, then `systemctl reload ratewright-allocator`. Sessions that stand live on."),
    ("RatewrightReloadRejected", f'increase({A}reloads_total{{result="rejected"}}[$w]) > 0', 0, "warning",
     "A reload was rejected: the former configuration stays in force.",
     "The log has one line that says why; `ratewright-allocator check-config` says it again."),
    ("RatewrightLinksDown", f"{A}links_down > 0", 300, "info",
     "{{ $value }} links carry nothing.",
     "`/status` names them. If one is back, say so: `POST /topology/link` with `\"up\": true`."),
    ("RatewrightLinkNotAsTold", f"{A}links_not_as_told > 0", 60, "warning",
     "Links are not as the topology says ({{ $labels.state }}).",
     "`/status` and the page name them (`links_not_as_told`). `carries_less`: look for a slower port, a lost member of a LAG, a shaper; correct the capacity in the topology. `carries_more`: raise it there. `wrong_path`: compare the switches' ECMP with the topology's, and look for a lost member of a LAG. `has_others_traffic`: see *Traffic of others* in the allocator's guide."),
    ("RatewrightHostNotAsTold", f"{A}hosts_not_as_told > 0", 60, "warning",
     "Hosts are not as the topology or their daemons took them to be ({{ $labels.fault }}).",
     "`/status` and the page name them (`hosts_not_as_told`). `address_not_in_prefix`: correct the host's `prefixes` in the topology, or its address. `congestion_control_changed`: restart that host's daemon, if the change is meant. `prefix_of_several_hosts`: narrow the host's `prefixes`, since the host in `seen_at` has an address in them. `flows_beyond_bound`: raise `pacing.max_flows` of its daemon, or the allocator's `limits`."),
    ("RatewrightFeedStale", f"{A}links_with_external_load == 0 and max_over_time({A}links_with_external_load[$h]) > 0", 300, "info",
     "Nobody tells of external traffic any more, as somebody did within the hour.",
     "If that traffic is still there, look at what reports it: a report is forgotten after its `for_ms`."),
    ("RatewrightSealedPortLost", f"{A}sealed_ports_lost > 0", 60, "warning",
     "A port of sealed datagrams is lost: its hosts are on QUIC.",
     "The log says why. Restart the allocator at a quiet time."),
    ("RatewrightDaemonDown", f"up{{{DAEMON}}} == 0", 300, "warning",
     "The daemon of {{ $labels.instance }} does not answer.",
     "The host's flows are plain TCP. Look at `systemctl status ratewright-endpointd` there."),
    ("RatewrightDaemonWithoutSession", f"{E}session_established == 0", 60, "warning",
     "{{ $labels.instance }} has no session with the allocator.",
     "Its `/ready` and its log say why. Its flows are plain TCP meanwhile."),
    ("RatewrightLeasesLapse", f"rate({E}backend_leases_expired_total[$w]) > 0.02", 60, "warning",
     "Rates run out at {{ $labels.instance }}, more than one a minute, before the allocator is heard again.",
     "The allocator or the way to it stalls for longer than a lease: look at its processor, and at losses of the control class."),
    ("RatewrightTableFull", f"rate({E}backend_table_full_total[$w]) > 0", 120, "warning",
     "Connections at {{ $labels.instance }} find the flow table full and are plain TCP.",
     "Raise `pacing.max_flows` and restart the daemon."),
    ("RatewrightEventsLost", f"rate({E}backend_events_lost_total[$w]) > 0", 120, "warning",
     "The daemon of {{ $labels.instance }} takes the kernel's events too late.",
     "Its thread gets too little processor: give it a real-time priority, as its guide says."),
    ("RatewrightUnknownDestinations", f"rate({E}flowlets_unknown_destination_total[$w]) > 1", 600, "info",
     "{{ $labels.instance }} sends to addresses that no host of the topology has.",
     "Add the prefixes to the topology file, if they are hosts of yours."),
    ("RatewrightHostFirstRateSlow", f"histogram_quantile(0.99, rate({E}first_rate_seconds_bucket[$w])) > 0.01", 600, "warning",
     "Flowlets at {{ $labels.instance }} wait more than 10 ms for their rate.",
     "Compare with the round-trip time and with the allocator's own first rates: the way, the allocator or the daemon is slow."),
]


# States of links and faults of hosts that the allocator names: values of `state` and of `fault`.
STATES = ("carries_less", "carries_more", "wrong_path", "has_others_traffic")
FAULTS = ("address_not_in_prefix", "congestion_control_changed", "prefix_of_several_hosts", "flows_beyond_bound")


def named(metric, label, values):
    """All series of a gauge by state or by fault, for each of whose values an alert fires, and the alerts' labels."""
    return ([(f'{metric}{{{label}="{value}"}}', "1x60") for value in values], *({label: value} for value in values))


# Series for `promtool test rules`, a value a minute: those under which each alert fires within half an hour, with the
# labels that the alerts then have. A histogram is "name" with the bound below which no duration lies.
BROKEN = {
    "RatewrightAllocatorDown": ([(f"up{{{ALLOCATOR}}}", "0x60")], {"job": "ratewright-allocator"}),
    "RatewrightReleased": ([(f"{A}released", "1x60")], {}),
    "RatewrightHostsLost": ([(f"{A}sessions", "100x20 89x40")], {}),
    "RatewrightLinkOverAllocated": ([(f"{A}max_link_load_ratio", "1.2x60")], {}),
    "RatewrightFarFromOptimum": ([(f"{A}optimality_gap_ratio", "0.3x60")], {}),
    "RatewrightEngineSlow": ([(f"{A}iteration_seconds", 0.004)], {}),
    "RatewrightFirstRateSlow": ([(f"{A}first_rate_seconds", 0.016)], {}),
    "RatewrightDatagramsDropped": ([(f'{A}datagrams_dropped_total{{reason="engine_backlog"}}', "0+120x60")], {"reason": "engine_backlog"}),
    "RatewrightFlowsRefused": ([(f'{A}flows_left_alone_total{{reason="table_full"}}', "0+60x60")], {"reason": "table_full"}),
    "RatewrightSessionsRefused": ([(f'{A}sessions_refused_total{{reason="unknown_host"}}', "0+1x60")], {"reason": "unknown_host"}),
    "RatewrightConnectionsRejected": ([(f'{A}connections_rejected_total{{reason="handshake"}}', "0+1x60")], {"reason": "handshake"}),
    "RatewrightCertificateExpires": ([(f"{A}certificate_expiry_timestamp_seconds", "864000x60")], {}),
    "RatewrightReloadRejected": ([(f'{A}reloads_total{{result="rejected"}}', "0x27 1x33")], {"result": "rejected"}),
    "RatewrightLinksDown": ([(f"{A}links_down", "2x60")], {}),
    "RatewrightLinkNotAsTold": named(f"{A}links_not_as_told", "state", STATES),
    "RatewrightHostNotAsTold": named(f"{A}hosts_not_as_told", "fault", FAULTS),
    "RatewrightFeedStale": ([(f"{A}links_with_external_load", "3x20 0x40")], {}),
    "RatewrightSealedPortLost": ([(f"{A}sealed_ports_lost", "1x60")], {}),
    "RatewrightDaemonDown": ([(f'up{{instance="h1",{DAEMON}}}', "0x60")], {"instance": "h1", "job": "ratewright-endpointd"}),
    "RatewrightDaemonWithoutSession": ([(f'{E}session_established{{instance="h1"}}', "0x60")], {"instance": "h1"}),
    "RatewrightLeasesLapse": ([(f'{E}backend_leases_expired_total{{instance="h1"}}', "0+5x60")], {"instance": "h1"}),
    "RatewrightTableFull": ([(f'{E}backend_table_full_total{{instance="h1"}}', "0+5x60")], {"instance": "h1"}),
    "RatewrightEventsLost": ([(f'{E}backend_events_lost_total{{instance="h1"}}', "0+5x60")], {"instance": "h1"}),
    "RatewrightUnknownDestinations": ([(f'{E}flowlets_unknown_destination_total{{instance="h1"}}', "0+90x60")], {"instance": "h1"}),
    "RatewrightHostFirstRateSlow": ([(f'{E}first_rate_seconds{{instance="h1"}}', 0.05)], {"instance": "h1"}),
}

# The same series when all is well.
AT_REST = [
    (f"up{{{ALLOCATOR}}}", "1x60"), (f'up{{instance="h1",{DAEMON}}}', "1x60"), (f"{A}released", "0x60"), (f"{A}sessions", "100x30 95x30"),
    (f"{A}max_link_load_ratio", "0.99x60"), (f"{A}optimality_gap_ratio", "0.03x60"), (f"{A}iteration_seconds", 0),
    (f"{A}first_rate_seconds", 0), (f'{A}datagrams_dropped_total{{reason="duplicate"}}', "0+120x60"),
    (f'{A}flows_left_alone_total{{reason="same_host"}}', "0+60x60"), (f'{A}sessions_refused_total{{reason="superseded"}}', "3x60"),
    (f'{A}connections_rejected_total{{reason="busy"}}', "0+5x60"), (f"{A}certificate_expiry_timestamp_seconds", "7776000x60"),
    (f'{A}reloads_total{{result="ok"}}', "0+1x60"), (f'{A}reloads_total{{result="rejected"}}', "2x60"), (f"{A}links_down", "0x60"),
    *((f'{A}links_not_as_told{{state="{state}"}}', "0x60") for state in STATES),
    *((f'{A}hosts_not_as_told{{fault="{fault}"}}', "0x60") for fault in FAULTS),
    (f"{A}sealed_ports_lost", "0x60"), (f"{A}links_with_external_load", "3x30 2x30"), (f'{E}session_established{{instance="h1"}}', "1x60"),
    (f'{E}backend_leases_expired_total{{instance="h1"}}', "4x60"), (f'{E}backend_table_full_total{{instance="h1"}}', "4x60"),
    (f'{E}backend_events_lost_total{{instance="h1"}}', "0x60"), (f'{E}flowlets_unknown_destination_total{{instance="h1"}}', "0+20x60"),
    (f'{E}first_rate_seconds{{instance="h1"}}', 0),
]


def series(listed):
    """Series in promtool's form."""
    out = []
    for name, values in listed:
        if isinstance(values, str):
            out.append({"series": name, "values": values})
            continue
        # A histogram: buckets at the bound and at a tenth of a millisecond; all durations are above the bound, or all
        # are below the smallest bucket.
        base, _, labels = name.partition("{")
        for bound in ("0.0001", "0.1", "+Inf") if not values else (str(values), str(2 * values), "+Inf"):
            grows = 10 if not values or bound != str(values) else 0
            out.append({"series": f'{base}_bucket{{le="{bound}"{"," + labels if labels else "}"}', "values": f"0+{grows}x60"})
    return out


def rule_tests():
    """Tests of the rules for promtool: each fires from its series, and none in an hour at rest."""
    tests = []
    for name, _, _, severity, summary, action in ALERTS:
        listed, *fired = BROKEN[name]
        value = listed[0][1].split("x")[0] if isinstance(listed[0][1], str) else ""
        expected = []
        for labels in fired:
            said = summary.replace("{{ $value }}", value)
            for key, text in labels.items():
                said = said.replace(f"{{{{ $labels.{key} }}}}", text)
            expected.append({"exp_labels": {"severity": severity, **labels}, "exp_annotations": {"summary": said, "description": action}})
        tests.append({"interval": "1m", "input_series": series(listed),
                      "alert_rule_test": [{"eval_time": "30m", "alertname": name, "exp_alerts": expected}]})
    tests.append({"interval": "1m", "input_series": series(AT_REST), "alert_rule_test": [
        {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": []} for name, *_ in ALERTS for minute in (10, 30, 60)]})
    # JSON is YAML.
    return json.dumps({"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": tests}, indent=1, ensure_ascii=False) + "\n"


def duration(seconds, shorter):
    """Prometheus' form of a time, N times as short."""
    ms = round(seconds * 1000 / shorter)
    return f"{ms // 1000}s" if ms % 1000 == 0 else f"{ms}ms"


def expression(text, shorter=1):
    return text.replace("$w", duration(300, shorter)).replace("$h", duration(3600, shorter))


def rules(shorter=1):
    """The alert rules, in Prometheus' own form."""
    out = ["# Written by deploy/monitoring/generate.py: change its lists, not this file.", "groups:", "- name: ratewright", "  rules:"]
    for name, expr, wait, severity, summary, action in ALERTS:
        out += [
            f"  - alert: {name}",
            f"    expr: {json.dumps(expression(expr, shorter))}",
            f"    for: {duration(wait, shorter)}",
            f"    labels: {{severity: {severity}}}",
            "    annotations:",
            f"      summary: {json.dumps(summary, ensure_ascii=False)}",
            f"      description: {json.dumps(action, ensure_ascii=False)}",
        ]
    return "\n".join(out) + "\n"


def dashboard():
    """The dashboard in the JSON model of Grafana 9 and later."""
    source = {"type": "prometheus", "uid": "${source}"}
    panels, y, number = [], 0, 0
    for row, listed in ROWS:
        number += 1
        panels.append({"id": number, "type": "row", "title": row, "collapsed": False, "panels": [],
                       "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}})
        y += 1
        width = 24 // min(len(listed), 3)
        for place, (title, unit, kind, queries, description) in enumerate(listed):
            number += 1
            per_row = 24 // width
            panels.append({
                "id": number, "type": kind, "title": title, "description": description, "datasource": source,
                "gridPos": {"h": 8, "w": width, "x": width * (place % per_row), "y": y + 8 * (place // per_row)},
                "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                "options": {} if kind == "table" else {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
                "targets": [{
                    "refId": chr(65 + i), "datasource": source, "expr": expr.replace("$w", "$__rate_interval"), "legendFormat": legend,
                    "instant": kind == "table", "range": kind != "table", "format": "table" if kind == "table" else "time_series",
                } for i, (expr, legend) in enumerate(queries)],
            })
        y += 8 * -(-len(listed) // (24 // width))
    return json.dumps({
        "title": "Ratewright", "uid": "ratewright", "tags": ["ratewright"], "schemaVersion": 37, "version": 1, "editable": True,
        "timezone": "", "refresh": "10s", "time": {"from": "now-1h", "to": "now"}, "annotations": {"list": []}, "links": [],
        "templating": {"list": [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": {}, "hide": 0}]},
        "panels": panels,
    }, indent=1, ensure_ascii=False) + "\n"


def queries():
    """Every expression of the dashboard, with the panel's title."""
    return [(title, expr) for _, listed in ROWS for title, _, _, asked, _ in listed for expr, _ in asked]


def table():
    lines = ["| alert | fires after | severity | what to do |", "|---|---|---|---|"]
    for name, _, wait, severity, summary, action in ALERTS:
        summary = re.sub(r" ?\(\{\{ \$labels\.(reason|state|fault) \}\}\)", "", summary)
        summary = summary.replace("{{ $labels.instance }}", "a host").replace("{{ $value }} links carry", "Links carry")
        summary = summary[0].upper() + summary[1:]
        lines.append(f"| `{name}`: {summary} | {wait // 60} min | {severity} | {action} |")
    return "\n".join(lines) + "\n"


def guide():
    begin, end = "<!-- alerts -->\n", "<!-- end of alerts -->\n"
    text = GUIDE.read_text()
    before, rest = text.split(begin)
    return before + begin + "\n" + table() + "\n" + end + rest.split(end)[1]


def main():
    if sys.argv[1:2] == ["--rules"]:
        sys.stdout.write(rules(float(sys.argv[2])))
        return 0
    written = {HERE / "alerts.yml": rules(), HERE / "alerts.test.yml": rule_tests(), HERE / "dashboard.json": dashboard(), GUIDE: guide()}
    stale = [path for path, text in written.items() if not path.exists() or path.read_text() != text]
    if sys.argv[1:] == ["--check"]:
        for path in stale:
            print(f"{path.resolve()} differs from generate.py's lists: run deploy/monitoring/generate.py", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(written[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
