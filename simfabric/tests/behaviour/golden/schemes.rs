//! Transports of the golden table and of other tests of all schemes.

/// Schemes that the Flowtune paper does not compare. Those of senders run over a queue that loses
/// packets at random. Not over drop-tail: with hosts and bottleneck at one rate and nothing random,
/// one flow's packets always come when a place falls free, and the others' never (Floyd and
/// Jacobson, "Traffic phase effects in packet-switched gateways", 1991).
pub(crate) const OTHERS: &str = r#"
queue = { discipline = "red", min_packets = 15, max_packets = 45, limit_packets = 100 }

[[transport]]
name = "newreno"
label = "NewReno"
min_rto = "200us"
initial_rto = "1ms"

[[transport]]
name = "cubic"
label = "CUBIC"
min_rto = "200us"
initial_rto = "1ms"

[[transport]]
name = "dctcp"
label = "DCTCP over RPM"
queue = { discipline = "rpm", each = { discipline = "ecn-threshold", mark_packets = 65 } }

[[transport]]
name = "swift"
label = "Swift"
queue = { discipline = "drop-tail" }

[[transport]]
name = "homa"
label = "Homa"
rtt_bytes = 250000
queue = { discipline = "drop-tail" }

[[transport]]
name = "sird"
label = "SIRD"
bdp_bytes = 250000
queue = { discipline = "ecn-threshold", mark_bytes = 31250 }

[[transport]]
name = "dcpim"
label = "dcPIM"
queue = { discipline = "drop-tail" }
"#;

/// Schemes whose packets must come back the way of those that they answer, but for RDMA's.
pub(crate) const SYMMETRIC: &str = r#"
[[transport]]
name = "expresspass"
"#;

/// The RDMA schemes, over the buffers that they bring.
pub(crate) const RDMA: &str = r#"
[[transport]]
name = "hpcc"

[[transport]]
name = "fncc"

[[transport]]
name = "powertcp"

[[transport]]
name = "theta-powertcp"

[[transport]]
name = "dcqcn"

[[transport]]
name = "dcqcn"
label = "dcqcn-nic"
reaction = "periodic"

[[transport]]
name = "dart"

[[transport]]
name = "timely"

[[transport]]
name = "timely"
label = "timely-patched"
patched = true

[[transport]]
name = "rocc"

[[transport]]
name = "rcp"
"#;
