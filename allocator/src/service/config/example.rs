//! Commented configuration with every key, for `ratewright-allocator example-config`.

/// Returns a commented configuration with every key at its default.
pub fn example_config() -> String {
    EXAMPLE.to_owned()
}

// Tests compare it with the defaults and with the fuzz target's seed.
const EXAMPLE: &str = r#"# Configuration of ratewright-allocator. Paths are relative to this file's folder.

# UDP address of the QUIC service that the hosts' daemons connect to. (restart to change)
listen = "0.0.0.0:7600"
# Admin HTTP: /live /ready /metrics /status, and the kill switch. A Unix socket, which only its owner and group
# can use; or an address, such as "127.0.0.1:9600", where every user of the machine can read and nobody change
# anything ("writable:127.0.0.1:9600": every user can). (restart to change)
admin = "unix:/run/ratewright-allocator/admin.sock"
# The network: hosts, links, capacities (`ratewright topology build` writes one).
topology = "topology.toml"
# Log filter at start; PUT /log-level changes it at run time.
log = "info"
# File of JSON lines to which every change by an operator is appended, with who made it; SIGHUP opens it again.
# audit = "/var/log/ratewright-allocator/audit.jsonl"

[tls]
# Authority that signed the hosts' certificates. A host's certificate names it (SAN DNS = host name).
ca = "ca.pem"
# The allocator's own certificate (SAN DNS = "ratewright-allocator") and key.
cert = "allocator.pem"
key = "allocator.key"

[allocation]
# "parallel" computes with vector instructions on any number of threads; "reference" finds the same
# rates on one, in double precision and every step spelled out: to compare with.
engine = "parallel"
# Blocks that "parallel" cuts the topology into, a power of two of whole racks or pods, and its
# threads, at most the square of that. Without these keys: as many blocks as suit the number of hosts,
# and a thread per core but one, as far as there are hosts enough to keep it busy.
# blocks = 4
# workers = 3
# Time between two iterations while rates move; nothing runs when they stand still.
interval_us = 100
# back_to_back = true       # instead of interval_us: iterate without pause while rates move
# Step size of the price update.
gamma = 0.4
# Rates are sent when they moved by more than this share; capacities are derated by as much.
threshold = 0.01
# Share of every link that is left to flows too short to be reported.
mice_reserve = 0.0
# Share of a link that traffic which others schedule may take, at most, by what POST /topology/load tells.
external_share = 0.9
# Least time between two datagrams that a host is sent for rates that change: more of them share one. First
# rates go at once, and what waits then goes with them.
update_interval_us = 0
# An acknowledgement that nobody waits for may wait this long for something that goes the same way.
# (restart to change)
ack_delay_ms = 20
# A rate holds this long at an endpoint without word from the allocator; then it is plain TCP.
# (restart to change)
lease_ms = 300
# Hosts give an allocator up that is silent for this long. After three times that, a host's session is
# dropped, and its flows' shares are handed out.
# (restart to change)
liveness_ms = 1000
# After a start no rate is handed out for this long, so that the hosts are back before links are
# shared out: the first to return would get them whole.
start_grace_ms = 300
# pin_core = 1              # core of the engine thread
# Start with the kill switch on: every host stays on plain TCP until POST /resume.
start_released = false

# How datagrams travel. (restart to change)
[transport]
# "udp" offers hosts sealed UDP datagrams; those that they do not reach go on with QUIC, which "quic" leaves alone.
# "dpdk": as "udp", through a network interface that is taken away from the kernel (builds with
# `--features dpdk`; see docs/dpdk.md), which [transport.dpdk] describes.
hot = "udp"
# Threads that serve sealed datagrams, each on a UDP port of its own.
shards = 1
# udp_port = 7601           # the first of those ports, for firewalls to know; else whichever are free
# "aes-128-gcm", or "chacha20-poly1305" for processors without AES instructions.
cipher = "aes-128-gcm"
# DSCP of every datagram to hosts and relays, so that queues let it pass data: 0 to 63; 48 is CS6, 0 marks none.
control_dscp = 48
# Spin instead of sleeping: lower latency, at a core for each shard.
busy_poll = false

# [transport.dpdk]
# eal = ["--in-memory", "-a", "0000:00:06.0"]   # options of DPDK's environment
# port = 0                  # of the ports that those bring up
# interface = "10.0.0.2/24" # its address and prefix; hosts send their sealed datagrams there
# gateway = "10.0.0.1"      # for hosts outside of the prefix
# mac = "02:00:00:00:00:01" # refuse any other port
# descriptors = 1024        # of every ring; a shard has a receive and a transmit queue
# buffers = 8191            # packet buffers of every shard, 2.3 KB each
# neighbours = 16384        # stations that are remembered

[limits]
max_sessions = 4096
max_flows_per_session = 16384
max_flows = 1000000
# Flowlet starts that are taken from one session in a second; datagrams beyond wait.
max_starts_per_s = 200000
# Flowlet starts and changes of demands that are taken from all sessions in a second. Flows that start beyond it stay
# with plain TCP until there is room; changes wait.
max_total_starts_per_s = 1000000
# Changes of active flows' demands that are taken from one session in a second; the newest of each flow waits.
max_demand_changes_per_s = 20000
# Datagrams of any content that are taken from one session in a second; those beyond are dropped.
max_datagrams_per_s = 200000
# Bytes of one session's control stream that are read in a second; the sender waits for the rest.
max_control_bytes_per_s = 4194304

# What hosts measure of traffic that nobody schedules: it takes its part of links, at most max_share of each, and
# only as long as it is told. Hosts measure while any of it is on: a reload that switches the first one on, or has
# another interval, lets them connect again.
[feeds]
receivers = false           # senders towards a host, counted there
credit = false              # what receivers grant their senders
int = false                 # bytes and queues of links
# Where daemons tell that paced flows meet traffic which nobody paces, TCP decides between the two: maxima are twice the
# share there. Off by default where one of the three above is on.
shared = true
# A link that is congested and carries less than its capacity is lowered to what it carries, by this part of the
# capacity at most, and probed until it carries it again; 0: it is only named.
max_lowering = 0.5
# Hosts measure this often. What is older than fresh_ms fades; at max_age_ms it is forgotten.
interval_ms = 10
fresh_ms = 40
max_age_ms = 100
# Longest time in which traffic follows its rates: the longer, the slower measured loads are followed.
max_delay_us = 1000
max_share = 0.5
# Share of a link's bandwidth by which a load must move before its host tells it; 0: hosts repeat all that they measure.
state_hysteresis = 0.01
# Share of a link by which a load must move to change rates.
hysteresis = 0.01

# A collector that reads interfaces of switches, and sends what it reads in gnmic's format `event` over UDP.
# [feeds.collector]
# listen = "10.0.0.1:7610"  # keep it out of reach of hosts: a datagram proves nothing but its address (restart to change)
# sources = ["10.0.0.9"]    # addresses that may send
# [[feeds.collector.interface]]
# target = "leaf1"          # the switch at gnmic, and its interface
# name = "Ethernet1/1"
# from = "leaf1"            # the link that it sends into, by the names of the topology
# to = "h1"

# Hosts that the topology does not name take its spare places (spare_hosts) as long as they have sessions. The
# certificate proves the name (DNS) and the addresses (IP); openssl and `ratewright certs issue` write both.
[membership]
join = false
# Time without a session after which a member's place is free again.
grace_s = 60
# Where addresses are, by the names of the topology's racks; a topology of one rack needs none of it.
[membership.racks]
# "10.1.3.0/24" = "rack3"

# Who may have a session, of all whose certificates the authority has signed. Takes effect upon reload, for
# sessions that stand too.
[trust]
# allow = ["h1", "h2"]      # these hosts and no others; without it, every host of the topology
# SHA-256 fingerprints of certificates that are worth nothing any more
# (openssl x509 -noout -fingerprint -sha256 -in FILE).
deny_certificates = []
# Relays by the DNS name in their certificates, and the hosts that each may speak for; a star at a name's end
# stands for any ending. No relay is listened to that has no line here.
[trust.relays]
# relay-1 = ["h1", "rack7-*"]

# Which hosts pace. Takes effect upon reload. A host's place follows from its name and the salt, so that a larger
# percentage keeps the hosts of a smaller one.
[rollout]
percent = 100
# salt = "2026-11"          # another text chooses other hosts
# hosts = ["canary-*"]      # these pace whatever the percentage
# racks = ["rack1"]         # as do the hosts of these racks
# exclude = ["db-*"]        # and these never
# What the others do: "observe" compares rates with what plain TCP achieves and applies none; "release" gets none.
others = "observe"

# Flow classes. Class 0 holds every flow without a policy.
[[class]]
id = 0
name = "default"
utility = "log"             # proportional fairness; or "alpha" with alpha = 2.0
weight = 1.0
# max_rate_bps = 1000000000 # no flow of the class gets more
# "measured": a flow that uses less than its share, as its host measures, leaves the rest to others. "ignored": it keeps
# its share, used or not.
demand = "measured"
"#;
