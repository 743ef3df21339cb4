//! The network of the lab: what is to be built ([`plan`]), and the namespaces, links, queues and
//! control groups that it is built of.
//!
//! | module | what |
//! |---|---|
//! | [`plan`] | nodes, links, addresses and routes; no I/O |
//! | [`ns`] | network namespaces: creating, entering, system settings |
//! | [`build`] | realises a plan with `ip` and `tc` |
//! | [`qdisc`] | link capacity, shallow buffers and the control traffic's priority: HTB and bfifo |
//! | [`ecmp`] | the leaf switches' path choice in BPF |
//! | [`loss`] | a lossy link in BPF |
//! | [`segmentation`] | interfaces that split what TCP builds |
//! | [`relay`] | a long cable between two TAP devices |
//! | [`cgroup`] | a cgroup v2 directory per host |

pub mod build;
pub mod cgroup;
pub mod ecmp;
pub mod loss;
pub mod ns;
pub mod plan;
pub mod qdisc;
pub mod relay;
pub mod segmentation;
