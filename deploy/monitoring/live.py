#!/usr/bin/env python3
"""Dashboard and alert rules before a live allocator, a swarm of hosts, a daemon that paces, and Debian's Prometheus.

usage: live.py alerts         every expression of the dashboard has data, no alert fires at rest, and alerts fire when
                              the thing that they are for is broken; the rules' times are divided by SPEED
       live.py soak MINUTES   no alert fires for so long before a swarm at rest, with the rules as they are, and no link
                              or host is named

Run as root: the daemon has a network namespace of its own. Programs are those in $RATEWRIGHT_BINARIES, else in the
debug folder of cargo's target directory.
"""

import json
import os
import pathlib
import re
import resource
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))
import generate  # noqa: E402

TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
BINARIES = pathlib.Path(os.environ.get("RATEWRIGHT_BINARIES") or TARGET / "debug")
# Rules' times in the short form: five minutes become 2.5 seconds.
SPEED = 120
RACKS, PER_RACK = 4, 16
HOSTS = RACKS * PER_RACK
# The daemon's host, and the one to which it sends, are none that the swarm plays: the last rack has two hosts more.
DAEMON_HOST, SINK_HOST = f"h{HOSTS + 1}", f"h{HOSTS + 2}"
# Addresses of the pair of interfaces between this namespace and the daemon's, one of no host, one of a host of the
# swarm's, and another one for the daemon's host; two runs at a time have others.
HERE_ADDRESS, THERE_ADDRESS, ELSEWHERE, CLAIMED, MOVED = (
    f"10.{net}.{os.getpid() % 251}.{host}" for net, host in ((213, 1), (213, 2), (214, 1), (214, 2), (214, 3)))
# The link from the daemon's host, as it is: a shaper below its rates would be a link that carries less.
UPLINK = {"from": DAEMON_HOST, "to": f"leaf{RACKS}"}
UPLINK_MBPS, SHAPED_MBPS = 150, 200
# Open files of a process of ours, at most.
FILES = 8192
NAMESPACE = f"rwmon{os.getpid()}"
LINK_HERE, LINK_THERE = f"rwm{os.getpid() % 100000}a", f"rwm{os.getpid() % 100000}b"
# Alerts about times, which a machine that is busy with other things may justify: the short form only says that they
# fired at rest. The soak wants a machine of its own.
OF_TIMES = {"RatewrightEngineSlow", "RatewrightFirstRateSlow", "RatewrightHostFirstRateSlow", "RatewrightFarFromOptimum",
            "RatewrightLeasesLapse"}


def run(*command, **options):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True, **options).stdout


def until(what, condition, limit_s=30):
    end = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise SystemExit(f"live.py: waited {limit_s} s in vain: {what}")
        time.sleep(0.05)


def free_port():
    with socket.socket() as probe:
        probe.bind((HERE_ADDRESS, 0))
        return probe.getsockname()[1]


def get(url, body=None):
    request = urllib.request.Request(url, data=None if body is None else json.dumps(body).encode(), method="GET" if body is None else "POST")
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode()


class Site:
    """The programs and their files. `close` ends all of them."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ratewright-monitoring-"))
        self.children = {}
        self.traffic_on = threading.Event()
        self.stop_traffic = threading.Event()
        # The allocator polls its port, and the swarm is busy: the host of the daemon is another machine in truth, so
        # that these leave it a core.
        cores = sorted(os.sched_getaffinity(0))
        self.busy_cores = cores[:-1] or cores

    def path(self, name):
        return self.folder / name

    def spawn(self, name, *command, cores=None):
        """Starts a program, on some cores if they are given."""
        log = open(self.path(f"{name}.log"), "w")
        if cores:
            command = ("taskset", "-c", ",".join(map(str, cores)), *command)
        self.children[name] = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log, cwd=self.folder)
        return self.children[name]

    def end(self, name, how=signal.SIGKILL):
        child = self.children.pop(name)
        child.send_signal(how)
        child.wait()

    def stall(self, name, for_s):
        """Stops a program for so long, and then lets it run for as long."""
        for how in (signal.SIGSTOP, signal.SIGCONT):
            self.children[name].send_signal(how)
            time.sleep(for_s)

    def lose_sealed_port(self):
        """Has the kernel close the allocator's socket of sealed datagrams, as `ss --kill` does."""
        ours = f"pid={self.children['allocator'].pid},"
        places = [line.split()[3] for line in run("ss", "-Huanp").splitlines() if ours in line]
        port, = {place.rpartition(":")[2] for place in places} - {str(self.listen)}
        killed = run("ss", "-K", "-uan", f"sport = :{port}")
        if f":{port} " not in killed:
            raise SystemExit(f"live.py: the kernel did not close port {port}: {killed}")

    def log(self, name):
        return self.path(f"{name}.log").read_text()

    def close(self):
        self.stop_traffic.set()
        for name in list(self.children)[::-1]:
            self.children[name].send_signal(signal.SIGCONT)
            self.end(name, signal.SIGTERM if name == "daemon" else signal.SIGKILL)
        # A daemon that was killed leaves its programs to the next one.
        subprocess.run(["ip", "netns", "exec", NAMESPACE, BINARIES / "ratewright-endpointd", "cleanup", "--yes",
                        "--config", self.path("daemon.toml")], capture_output=True)
        subprocess.run(["ip", "netns", "del", NAMESPACE], capture_output=True)
        subprocess.run(["ip", "link", "del", LINK_HERE], capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- the network, the files

    def prepare(self):
        run("ip", "netns", "add", NAMESPACE)
        run("ip", "link", "add", LINK_HERE, "type", "veth", "peer", "name", LINK_THERE, "netns", NAMESPACE)
        run("ip", "addr", "add", f"{HERE_ADDRESS}/30", "dev", LINK_HERE)
        run("ip", "addr", "add", f"{ELSEWHERE}/32", "dev", LINK_HERE)
        run("ip", "link", "set", LINK_HERE, "up")
        for command in (f"addr add {THERE_ADDRESS}/30 dev {LINK_THERE}", f"link set {LINK_THERE} up", "link set lo up",
                        f"route add default via {HERE_ADDRESS}"):
            run("ip", "-n", NAMESPACE, *command.split())
        # Ports of short connections are free again within a second.
        run("ip", "netns", "exec", NAMESPACE, "sysctl", "-w", "net.ipv4.tcp_tw_reuse=1")
        # Slow enough that one connection is always backlogged and costs little processor.
        run("tc", "-n", NAMESPACE, "qdisc", "add", "dev", LINK_THERE, "root", "tbf", "rate", f"{SHAPED_MBPS}mbit", "burst", "128kb",
            "latency", "5ms")
        program = BINARIES / "ratewright"
        names = [f"--name=h{i + 1}" for i in range(HOSTS + 1)]
        for folder in ("certs", "foreign"):
            run(program, "certs", "init", "--dir", self.path(folder))
        run(program, "certs", "issue", "--dir", self.path("certs"), "--name=ratewright-allocator", *names)
        run(program, "certs", "issue", "--dir", self.path("foreign"), *names[:2])
        # Hosts that trust the right authority and are of another one.
        shutil.copy(self.path("certs/ca.pem"), self.path("foreign/ca.pem"))
        sizes = ",".join([str(PER_RACK)] * (RACKS - 1) + [str(PER_RACK + 2)])
        topology = self.path("topology.toml")
        run(program, "topology", "build", "two-tier-clos", "--racks", RACKS, "--rack-sizes", sizes, "--spines", 4, "--output", topology)
        built = topology.read_text()
        # The daemon's host, and the one to which it sends, have the addresses of our interfaces; and a file in which the
        # daemon's host has another.
        for name, own in (("topology.toml", THERE_ADDRESS), ("moved.toml", MOVED)):
            hosts = "".join(f'\n[[host]]\nname = "{host}"\nprefixes = ["{address}"]\n'
                            for host, address in ((DAEMON_HOST, own), (SINK_HOST, HERE_ADDRESS), ("h1", CLAIMED)))
            link = f'\n[[link]]\nfrom = "{UPLINK["from"]}"\nto = "{UPLINK["to"]}"\ncapacity = "{UPLINK_MBPS}Mbit/s"\n'
            self.path(name).write_text(built + hosts + link)
        self.listen, self.admin, self.daemon_admin = free_port(), free_port(), free_port()
        self.configure()

    def configure(self, allocation="", limits="", topology="topology.toml", certificate="certs/ratewright-allocator.pem"):
        self.path("allocator.toml").write_text(
            f'listen = "{HERE_ADDRESS}:{self.listen}"\nadmin = "writable:{HERE_ADDRESS}:{self.admin}"\ntopology = "{topology}"\n'
            f'[tls]\nca = "certs/ca.pem"\ncert = "{certificate}"\nkey = "certs/ratewright-allocator.key"\n'
            f"[allocation]\n{allocation}\n[limits]\n{limits}\n")

    def reload(self, **changes):
        self.configure(**changes)
        self.children["allocator"].send_signal(signal.SIGHUP)

    # ---- the programs

    def url(self, path):
        return f"http://{HERE_ADDRESS}:{self.admin}{path}"

    def start_allocator(self, *command):
        command = command or (BINARIES / "ratewright-allocator", "--config")
        self.spawn("allocator", *command, self.path("allocator.toml"), cores=self.busy_cores)
        until("the allocator is ready", lambda: "ready: " in self.log("allocator"))

    def start_swarm(self, sessions=HOSTS, name="swarm", certificates="certs", flows=400, churn=400, options=()):
        self.spawn(name, BINARIES / "ratewright-bench", "swarm", "--allocator", f"{HERE_ADDRESS}:{self.listen}",
                   "--admin", f"{HERE_ADDRESS}:{self.admin}", "--cert-dir", self.path(certificates), "--sessions", sessions,
                   "--flows", flows, "--churn", churn, "--seconds", 86400, "--warm-up", 0, "--tell-links", *options,
                   cores=self.busy_cores)

    def tell_uplink(self, mbps):
        """Tells the allocator another capacity of the link from the daemon's host."""
        get(self.url("/topology/link"), {**UPLINK, "capacity_bps": round(mbps * 1000000), "one_way": True, "force": True})

    def states(self):
        """State of each of the swarm's own links that carries something, as the allocator judges it."""
        links = json.loads(get(self.url("/links?top=1000")))["links"]
        swarm = {f"h{i + 1}" for i in range(HOSTS)}
        return {link["name"]: link["check"]["state"] for link in links if swarm & set(link["name"].split("->"))}

    def named(self):
        """What the allocator names now, and how often it has named something since its start."""
        status = json.loads(get(self.url("/status")))
        series = re.findall(r"^ratewright_allocator_((?:links|hosts)_not_as_told(?:_total)?\{.*\}) (\S+)$", get(self.url("/metrics")), re.M)
        metrics = {name for name, _ in series}
        expected = {f'links_not_as_told{total}{{state="{state}"}}' for state in generate.STATES for total in ("", "_total")}
        expected |= {f'hosts_not_as_told{total}{{fault="{fault}"}}' for fault in generate.FAULTS for total in ("", "_total")}
        if not expected <= metrics:
            raise SystemExit(f"live.py: no metrics {sorted(expected - metrics)}")
        return status["links_not_as_told"] + status["hosts_not_as_told"] + [f"{name} {value}" for name, value in series if float(value)]

    def start_daemon(self, more=""):
        self.path("daemon.toml").write_text(
            f'host = "{DAEMON_HOST}"\nallocator = ["{HERE_ADDRESS}:{self.listen}"]\nadmin = "{THERE_ADDRESS}:{self.daemon_admin}"\n'
            f'[tls]\nca = "certs/ca.pem"\ncert = "certs/{DAEMON_HOST}.pem"\nkey = "certs/{DAEMON_HOST}.key"\n'
            f'[pacing]\nbackend = "auto"\ninstance = "mon"\n{more}\n')
        self.spawn("daemon", "ip", "netns", "exec", NAMESPACE, BINARIES / "ratewright-endpointd", "run", "--config", self.path("daemon.toml"))
        until("the daemon has a session", lambda: self.daemon_metric("session_established") == 1)

    def daemon_metric(self, name):
        try:
            text = get(f"http://{THERE_ADDRESS}:{self.daemon_admin}/metrics")
        except OSError:
            return None
        found = re.search(rf"^ratewright_endpointd_{name} (\S+)$", text, re.M)
        return float(found[1]) if found else None

    def start_traffic(self, connections=1, address=HERE_ADDRESS, name="traffic", burst_bytes=40000, pause_s=0.05, short=False):
        """Flows of the daemon's host to a sink in this namespace: bursts with pauses, or connections of one burst each."""
        sink = socket.create_server((address, 0), backlog=4096)
        port = sink.getsockname()[1]

        def take():
            ready = selectors.DefaultSelector()
            ready.register(sink, selectors.EVENT_READ)
            while not self.stop_traffic.is_set():
                for key, _ in ready.select(1):
                    if key.fileobj is sink:
                        ready.register(sink.accept()[0], selectors.EVENT_READ)
                        continue
                    try:
                        more = key.fileobj.recv(1 << 20)
                    except OSError:
                        more = b""
                    if not more:
                        ready.unregister(key.fileobj)
                        key.fileobj.close()

        threading.Thread(target=take, daemon=True).start()
        if short:
            code = ("import socket, threading\n"
                    "def run():\n"
                    " while True:\n"
                    f"  s = socket.create_connection(('{address}', {port}))\n"
                    f"  s.sendall(bytes({burst_bytes}))\n"
                    "  s.close()\n"
                    f"for _ in range({connections}): threading.Thread(target=run).start()\n")
            self.spawn(name, "ip", "netns", "exec", NAMESPACE, sys.executable, "-c", code)
            return
        code = ("import resource, socket, time\n"
                f"resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES}, {FILES}))\n"
                f"all = [socket.create_connection(('{address}', {port})) for _ in range({connections})]\n"
                "for s in all: s.setblocking(False)\n"
                "while True:\n"
                " for s in all:\n"
                f"  try: s.send(bytes({burst_bytes}))\n"
                "  except BlockingIOError: pass\n"
                f" time.sleep({pause_s})\n")
        self.spawn(name, "ip", "netns", "exec", NAMESPACE, sys.executable, "-c", code)


class Prometheus:
    """Debian's Prometheus on loopback, with our rules."""

    def __init__(self, site, shorter, scrape):
        self.site = site
        self.port = free_port()
        site.path("alerts.yml").write_text(generate.rules(shorter))
        run("promtool", "check", "rules", site.path("alerts.yml"))
        site.path("prometheus.yml").write_text(
            f"global: {{scrape_interval: {scrape}, scrape_timeout: {scrape}, evaluation_interval: {scrape}}}\nrule_files: [alerts.yml]\n"
            f"scrape_configs:\n"
            f"- {{job_name: ratewright-allocator, static_configs: [{{targets: ['{HERE_ADDRESS}:{site.admin}']}}]}}\n"
            f"- {{job_name: ratewright-endpointd, static_configs: [{{targets: ['{THERE_ADDRESS}:{site.daemon_admin}']}}]}}\n")
        run("promtool", "check", "config", site.path("prometheus.yml"))
        site.spawn("prometheus", "prometheus", f"--config.file={site.path('prometheus.yml')}", f"--storage.tsdb.path={site.path('tsdb')}",
                   f"--web.listen-address=127.0.0.1:{self.port}")
        until("Prometheus is ready", self.ready)

    def ready(self):
        try:
            return get(f"http://127.0.0.1:{self.port}/-/ready")
        except OSError:
            return None

    def api(self, path, **query):
        answer = json.loads(get(f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"))
        if answer["status"] != "success":
            raise SystemExit(f"live.py: {path} {query}: {answer}")
        return answer["data"]

    def query(self, expression):
        return self.api("query", query=expression)["result"]

    def firing(self):
        """Alerts that fire, those by state or by fault as `name: state`."""
        return {": ".join([labels["alertname"], *(labels[key] for key in ("state", "fault") if key in labels)])
                for labels in (alert["labels"] for alert in self.api("alerts")["alerts"] if alert["state"] == "firing")}

    def scraped(self):
        targets = self.api("targets", state="active")["activeTargets"]
        return len(targets) == 2 and all(target["health"] == "up" for target in targets)


def start(site, shorter, scrape):
    site.prepare()
    site.start_allocator()
    site.start_swarm()
    until("the swarm's hosts have sessions", lambda: json.loads(get(site.url("/overview")))["sessions"] >= HOSTS, 60)
    site.start_daemon()
    site.start_traffic()
    site.start_traffic(name="steady", burst_bytes=400000, pause_s=0.005)
    # Rounds of the swarm's hosts take a second: nothing of an empty state would be said of a link that nobody tells of.
    until("the swarm tells of its links", lambda: set(site.states().values()) == {"as_told"}, 10)
    prometheus = Prometheus(site, shorter, scrape)
    until("Prometheus scrapes both", prometheus.scraped)
    return prometheus


# Expressions that may have no data while all is well: counts by a reason that has not occurred. They have some once
# things are broken.
EMPTY_AT_REST = re.compile(r"by \(reason\)")


def alerts(site):
    began = time.monotonic()
    prometheus = start(site, SPEED, "500ms")
    window = generate.duration(300, SPEED)
    missing = []

    def all_have_data():
        missing[:] = [(title, expr) for title, expr in generate.queries()
                      if not prometheus.query(expr.replace("$w", window)) and not EMPTY_AT_REST.search(expr)]
        return not missing

    try:
        until("every expression of the dashboard has data", all_have_data, 20)
    except SystemExit:
        raise SystemExit(f"live.py: no data for {missing}") from None
    by_reason = {expr.replace("$w", window) for _, expr in generate.queries() if EMPTY_AT_REST.search(expr)}
    asked = len(generate.queries())
    print(f"live.py: {asked} expressions of the dashboard parse, and {asked - len(by_reason)} have data, of a live allocator, "
          f"{HOSTS} hosts and a daemon; {len(by_reason)} count by reason")
    # At rest for as long as the longest rule waits in this form.
    rest_s = max(wait for _, _, wait, *_ in generate.ALERTS) / SPEED + 300 / SPEED
    end, busy = time.monotonic() + rest_s, set()
    while time.monotonic() < end:
        firing = prometheus.firing()
        if firing - OF_TIMES:
            raise SystemExit(f"live.py: fires at rest: {sorted(firing)}")
        busy |= firing
        time.sleep(0.5)
    if found := site.named():
        raise SystemExit(f"live.py: named at rest: {found}")
    print(f"live.py: at rest for {rest_s:.0f} s, which are {rest_s * SPEED / 60:.0f} min of the rules' time, no alert fires"
          + (f" but for times, on a busy machine: {', '.join(sorted(busy))}" if busy else ""))

    seen = set()

    def fires(*names, limit_s=30, meanwhile=lambda: None):
        fired = set()

        def all_fire():
            meanwhile()
            fired.update(prometheus.firing())
            by_reason.difference_update([expr for expr in by_reason if prometheus.query(expr)])
            return fired.issuperset(names)
        try:
            until("alerts fire", all_fire, limit_s)
        except SystemExit:
            raise SystemExit(f"live.py: {sorted(set(names) - fired)} did not fire") from None
        for name in names:
            print(f"live.py: {name} fired ({time.monotonic() - began:.0f} s)")
        seen.update(names)
        return fired

    def named(*names):
        """Alerts of links and hosts fire, and none of another state or fault than this or an earlier one."""
        if wrong := {name for name in fires(*names) if "NotAsTold: " in name} - seen:
            raise SystemExit(f"live.py: {sorted(wrong)} fired, beside {names}")

    def ends(*names, limit_s=30):
        until(f"{', '.join(names)} end", lambda: not prometheus.firing() & set(names), limit_s)
        for name in names:
            print(f"live.py: {name} ended ({time.monotonic() - began:.0f} s)")

    # A shaper that lets less through than the link was told to carry, another congestion control under the daemon, and
    # an address of another host.
    less, more, misled, others = (f"RatewrightLinkNotAsTold: {state}" for state in generate.STATES)
    moved, changed, shared, beyond = (f"RatewrightHostNotAsTold: {fault}" for fault in generate.FAULTS)
    default = "net.ipv4.tcp_congestion_control"
    former = run("ip", "netns", "exec", NAMESPACE, "sysctl", "-n", default).strip()
    site.tell_uplink(2 * UPLINK_MBPS)
    run("ip", "netns", "exec", NAMESPACE, "sysctl", "-w", f"{default}=reno")
    run("ip", "-n", NAMESPACE, "addr", "add", f"{CLAIMED}/32", "dev", LINK_THERE)
    named(less, changed, shared)
    run("ip", "netns", "exec", NAMESPACE, "sysctl", "-w", f"{default}={former}")
    run("ip", "-n", NAMESPACE, "addr", "del", f"{CLAIMED}/32", "dev", LINK_THERE)
    # More to an unknown address than the link was told to carry, and then as much as it was told.
    site.tell_uplink(SHAPED_MBPS // 2)
    site.start_traffic(address=ELSEWHERE, name="strangers", burst_bytes=200000, pause_s=0.005)
    named(more)
    ends(less, changed, shared)
    site.tell_uplink(1.05 * SHAPED_MBPS)
    named(others)
    ends(more)
    site.end("strangers")
    ends(others)
    site.tell_uplink(UPLINK_MBPS)
    # A file in which the daemon's host has another address, and the right one again.
    site.reload(topology="moved.toml")
    named(moved)
    site.reload()
    ends(moved)
    # Flows between racks that stay, on links which have carried their rates before, take another path.
    site.end("swarm")
    site.start_swarm(name="misled", churn=0, options=("--misled-after", 5))
    named(misled)
    site.end("misled")
    site.start_swarm()
    ends(misled)
    # A certificate of five days, limits that are too low, an engine that is too slow for its flows, a failed link, a
    # topology that lacks a file at the next reload, hosts of another authority, traffic to an unknown address.
    expiring(site)
    get(site.url("/topology/link"), {"from": "leaf1", "to": "spine1", "up": False})
    # The only report of a feed that then dies.
    get(site.url("/topology/load"), {"from": "leaf4", "to": f"h{HOSTS}", "load_bps": 1000000000, "for_ms": 2000})
    site.start_traffic(connections=4, address=ELSEWHERE, name="elsewhere")
    site.start_swarm(sessions=2, name="foreign", certificates="foreign", flows=2)
    site.reload(certificate="certs/expiring.pem", limits="max_flows = 100\nmax_starts_per_s = 1", allocation='engine = "reference"')
    fires("RatewrightCertificateExpires", "RatewrightLinksDown", "RatewrightFlowsRefused", "RatewrightDatagramsDropped",
          "RatewrightConnectionsRejected", "RatewrightUnknownDestinations")
    site.end("foreign")
    site.end("swarm")
    site.reload(topology="absent.toml")
    fires("RatewrightReloadRejected", "RatewrightHostsLost", "RatewrightFeedStale")
    get(site.url("/release"), {})
    fires("RatewrightReleased")
    get(site.url("/resume"), {})
    # The allocator stalls for longer than a lease, again and again, while the daemon's flows are paced.
    site.reload()
    fires("RatewrightLeasesLapse", meanwhile=lambda: site.stall("allocator", 0.6))
    # A daemon that gets too little processor, before connections that come and go by hundreds a second.
    site.end("daemon", signal.SIGTERM)
    site.start_daemon("max_flows = 100")
    site.start_swarm()
    site.start_traffic(connections=8, name="short", burst_bytes=20000, short=True)
    fires("RatewrightEventsLost", "RatewrightHostFirstRateSlow", meanwhile=lambda: site.stall("daemon", 0.3))
    site.end("short")
    site.end("swarm")
    # More connections than its table holds.
    site.start_traffic(connections=200, name="crowd")
    # An engine that is too slow for its flows; a host that is refused, as one that another process plays.
    site.reload(allocation='engine = "reference"')
    site.start_swarm(flows=60000, churn=400)
    # All sessions first: a swarm whose hosts are refused would go on trying.
    until("the swarm is back", lambda: json.loads(get(site.url("/overview")))["flows"] > 50000, 60)
    site.start_swarm(sessions=2, name="twins", flows=2)
    fires("RatewrightTableFull", "RatewrightSessionsRefused", "RatewrightEngineSlow", "RatewrightFirstRateSlow", beyond, limit_s=40)
    # A socket that the kernel takes away.
    site.lose_sealed_port()
    fires("RatewrightSealedPortLost")
    # Who has flows beyond a bound leaves: the daemon's crowd, too.
    for name in ("crowd", "swarm", "twins"):
        site.end(name)
    ends(beyond)
    site.end("allocator")
    fires("RatewrightAllocatorDown", "RatewrightDaemonWithoutSession")
    # An engine with defects, and no daemon.
    site.end("daemon")
    site.configure()
    site.start_allocator(BINARIES / "examples/broken_engine")
    site.start_swarm(flows=6000)
    fires("RatewrightLinkOverAllocated", "RatewrightFarFromOptimum", "RatewrightDaemonDown")
    if by_reason:
        raise SystemExit(f"live.py: no data while things are broken: {sorted(by_reason)}")
    print("live.py: the expressions that count by reason have data, too")
    names = {name for name, *_ in generate.ALERTS}
    by_label = {"RatewrightLinkNotAsTold": set(generate.STATES), "RatewrightHostNotAsTold": set(generate.FAULTS)}
    names = (names - set(by_label)) | {f"{name}: {label}" for name, labels in by_label.items() for label in labels}
    if names != seen:
        raise SystemExit(f"live.py: never fired: {sorted(names - seen)}")
    print(f"live.py: all {len(generate.ALERTS)} alerts fired, in {time.monotonic() - began:.0f} s")


def expiring(site):
    """A certificate of the allocator's name and key that is valid for five days."""
    certs = site.path("certs")
    run("openssl", "req", "-new", "-key", certs / "ratewright-allocator.key", "-subj", "/CN=ratewright-allocator", "-out", certs / "expiring.csr")
    (certs / "expiring.ext").write_text("subjectAltName=DNS:ratewright-allocator\nextendedKeyUsage=serverAuth,clientAuth\n")
    run("openssl", "x509", "-req", "-in", certs / "expiring.csr", "-CA", certs / "ca.pem", "-CAkey", certs / "ca.key", "-days", "5",
        "-set_serial", "77", "-extfile", certs / "expiring.ext", "-out", certs / "expiring.pem")


def soak(site, minutes):
    prometheus = start(site, 1, "5s")
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        firing = prometheus.firing()
        if firing:
            raise SystemExit(f"live.py: fires at rest: {sorted(firing)}")
        # Alerts wait a minute. What is named for a moment only is counted.
        if found := site.named():
            raise SystemExit(f"live.py: named at rest: {found}")
        for name, child in site.children.items():
            if child.poll() is not None:
                raise SystemExit(f"live.py: {name} ended: {site.log(name)[-2000:]}")
        time.sleep(min(5, max(0, end - time.monotonic())))
    pending = sorted({alert["labels"]["alertname"] for alert in prometheus.api("alerts")["alerts"]})
    print(f"live.py: no alert fired for {minutes:g} min of a swarm of {HOSTS} hosts at rest, and no link or host was named; "
          f"pending at the end: {pending or 'none'}")


def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    site = Site()
    try:
        if sys.argv[1:2] == ["soak"]:
            soak(site, float(sys.argv[2]))
        else:
            alerts(site)
    except BaseException:
        for name in ("allocator", "swarm", "daemon"):
            if site.path(f"{name}.log").exists():
                print(f"---- {name}\n{site.log(name)[-1500:]}", file=sys.stderr)
        raise
    finally:
        site.close()


if __name__ == "__main__":
    main()
