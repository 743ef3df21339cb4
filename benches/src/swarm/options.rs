//! The command line of `ratewright-bench swarm`.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use ratewright_sizes::SizeDistribution;

use super::time_dilation::TimeDilation;

/// Hosts that a swarm can be.
const MOST_SESSIONS: u32 = 16_384;

/// Transport of rate datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TransportKind {
    /// QUIC datagrams
    Quic,
    /// Sealed UDP, keyed from the QUIC session
    Udp,
    /// Sealed UDP between kernel sockets and a port of the allocator's that DPDK drives (root; an
    /// allocator that was built with the feature `dpdk`)
    Dpdk,
}

impl TransportKind {
    /// The name on the command line and in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Quic => "quic",
            Self::Udp => "udp",
            Self::Dpdk => "dpdk",
        }
    }
}

/// Driver that moves frames between DPDK and the pair of interfaces that `--transport dpdk` makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DpdkDriver {
    /// net_af_xdp
    AfXdp,
    /// net_af_packet
    AfPacket,
}

/// The engine of the allocator that is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    /// f64, one thread
    Reference,
    /// Vector instructions, any number of threads
    Parallel,
}

/// `ratewright-bench swarm`
#[derive(Debug, Clone, Args)]
pub struct SwarmOptions {
    /// Transport of datagrams
    #[arg(long, value_enum, default_value_t = TransportKind::Udp)]
    pub transport: TransportKind,
    /// Hosts, each with a session of its own
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=i64::from(MOST_SESSIONS)))]
    pub sessions: u32,
    /// Flows that are active at any time; with a workload: at most (arrivals beyond are not
    /// started)
    #[arg(long, value_name = "F", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub flows: Option<u32>,
    /// Length of the measurement
    #[arg(long, default_value_t = 10.0, value_name = "S")]
    pub seconds: f64,
    /// Time before the measurement, once every flow has its rate
    #[arg(long, default_value_t = 1.0, value_name = "S")]
    pub warm_up: f64,
    /// Flowlet starts in a second over all hosts (default: 2000). With a workload it sets the
    /// hosts' capacity, unless --host-bps does
    #[arg(long, value_name = "PER_S")]
    pub churn: Option<f64>,
    /// Flowlets of these sizes, which end when the allocated rates have carried them: web, cache,
    /// hadoop, web-search, data-mining, …
    #[arg(long, value_name = "NAME")]
    pub workload: Option<String>,
    /// Offered load of the workload, as a share of the hosts' capacity
    #[arg(long, default_value_t = 0.8, value_name = "X")]
    pub load: f64,
    /// Modelled capacity of a host's link, each way (default: 10 Gbit/s; with a workload: what
    /// makes it --churn flowlets a second)
    #[arg(long, value_name = "BIT/S")]
    pub host_bps: Option<u64>,
    /// With a workload: the capacity that a host's link stands for. The fabric is slower by this
    /// over what --host-bps or --churn make it, and leases, acknowledgements that wait and the
    /// times between rate updates are made as much longer (default: 10 Gbit/s; with --allocator: as
    /// it is)
    #[arg(long, value_name = "BIT/S", requires = "workload")]
    pub nominal_bps: Option<u64>,
    /// Print the `[allocation]` table that an allocator of one's own needs for --nominal-bps, and
    /// end
    #[arg(long, requires = "nominal_bps")]
    pub print_settings: bool,
    /// Share of datagrams that are lost, each way
    #[arg(long, default_value_t = 0.0, value_name = "X")]
    pub loss: f64,
    /// Share of datagrams that are held back for up to a millisecond, each way
    #[arg(long, default_value_t = 0.0, value_name = "X")]
    pub reorder: f64,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Hosts tell what their links carry, as daemons do: what the rates add up to, over interfaces
    /// of --host-bps. Figures of the benchmarks are without
    #[arg(long, conflicts_with_all = ["stampede", "guests"])]
    pub tell_links: bool,
    /// With --tell-links: from so many seconds on, flows between racks of 16 hosts carry half of
    /// their rates and meet congestion, as on a path that is not the topology's
    #[arg(long, value_name = "S", requires = "tell_links")]
    pub misled_after: Option<u32>,
    /// Only connect, all hosts at once and with the daemon's own time-outs and pauses, as after a
    /// restart of the allocator, and tell how long that takes
    #[arg(long, conflicts_with_all = ["flows", "workload", "churn", "memory_log"])]
    pub stampede: bool,
    /// With --stampede: no host knows the topology from an earlier session
    #[arg(long, requires = "stampede")]
    pub cold: bool,
    /// So many hosts beside the --sessions join on spare places of the topology and leave again, in
    /// turns; tells what the others noticed of it
    #[arg(long, default_value_t = 0, value_name = "N", conflicts_with_all = ["stampede", "allocator", "memory_log"], value_parser = clap::value_parser!(u32).range(0..=8_192))]
    pub guests: u32,
    /// With --guests: guests that join in a second, and that leave in a second
    #[arg(
        long,
        default_value_t = 50.0,
        requires = "guests",
        value_name = "PER_S"
    )]
    pub guest_rate: f64,
    /// Print one JSON object and nothing else
    #[arg(long)]
    pub json: bool,
    /// Engine of the allocator that is started
    #[arg(long, value_enum)]
    pub engine: Option<EngineName>,
    /// Threads for sealed datagrams in the allocator that is started
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub shards: u16,
    /// Let those threads spin; one that is alone gets a core of its own, which the hosts keep off
    /// (unless --set pin_core)
    #[arg(long)]
    pub busy_poll: bool,
    /// The driver of --transport dpdk
    #[arg(long, value_enum, default_value_t = DpdkDriver::AfXdp, value_name = "DRIVER")]
    pub dpdk_driver: DpdkDriver,
    /// Lines for the `[allocation]` table of the allocator that is started, such as "interval_us =
    /// 50"
    #[arg(long = "set", value_name = "KEY = VALUE")]
    pub settings: Vec<String>,
    /// Directory of ratewright-allocator; default: beside this program
    #[arg(long, value_name = "DIR", conflicts_with = "allocator")]
    pub bin_dir: Option<PathBuf>,
    /// An allocator that runs already, instead of one that is started
    #[arg(long, value_name = "ADDR", requires_all = ["cert_dir", "admin"])]
    pub allocator: Option<SocketAddr>,
    /// Its admin interface: an address, or unix:PATH
    #[arg(long, value_name = "ADDR", requires = "allocator")]
    pub admin: Option<String>,
    /// Directory with ca.pem, and NAME.pem and NAME.key for each of the hosts h1, h2, …
    #[arg(long, value_name = "DIR", requires = "allocator")]
    pub cert_dir: Option<PathBuf>,
    /// Its process, for its CPU time
    #[arg(long, value_name = "PID", requires = "allocator")]
    pub allocator_pid: Option<u32>,
    /// Write the allocator's resident memory there, a line every ten seconds
    #[arg(long, value_name = "FILE")]
    pub memory_log: Option<PathBuf>,
}

/// Offered traffic, derived from the options.
#[derive(Debug, Clone, PartialEq)]
pub enum Offer {
    /// That many flows, replaced one by one at random times.
    Fixed {
        /// Flows.
        flows: u32,
        /// Mean replacements in a second.
        churn_per_s: f64,
    },
    /// Flows of random sizes at random times.
    Sized {
        /// Flow sizes.
        sizes: SizeDistribution,
        /// Mean arrivals in a second.
        arrivals_per_s: f64,
        /// Flows that may be active at once.
        most_flows: u32,
    },
}

/// Options that were checked.
#[derive(Debug, Clone)]
pub struct SwarmPlan {
    /// Offered traffic.
    pub offer: Offer,
    /// Modelled capacity of a host's link, each way.
    pub host_bps: u64,
    /// Slow-down of the sessions' times.
    pub dilation: TimeDilation,
}

/// Default of `--churn`, in flowlet starts per second.
const DEFAULT_CHURN_PER_S: f64 = 2_000.0;
/// Default of `--flows`.
const DEFAULT_FLOWS: u32 = 2_000;
const DEFAULT_HOST_BPS: u64 = 10_000_000_000;
/// Least capacity for which rates can be sent.
const LEAST_HOST_BPS: u64 = 10_000;

impl SwarmOptions {
    /// Returns true if one of the lines for `[allocation]` sets `key`.
    #[must_use]
    pub fn is_set(&self, key: &str) -> bool {
        let mut keys = self
            .settings
            .iter()
            .filter_map(|line| line.split('=').next());
        keys.any(|set| set.trim() == key)
    }

    /// Checks what the parser cannot.
    ///
    /// # Errors
    /// One line that says what would be right.
    pub fn check(&self) -> Result<SwarmPlan> {
        let within = |name: &str, value: f64, least: f64, most: f64| {
            if (least..=most).contains(&value) {
                Ok(())
            } else {
                bail!("--{name} {value}: must be between {least} and {most}")
            }
        };
        within("seconds", self.seconds, 0.1, 86_400.0)?;
        within("warm-up", self.warm_up, 0.0, 3_600.0)?;
        within("load", self.load, 0.01, 1.0)?;
        within("guest-rate", self.guest_rate, 0.1, 1_000.0)?;
        within("loss", self.loss, 0.0, 0.9)?;
        within("reorder", self.reorder, 0.0, 1.0)?;
        let churn_per_s = self.churn.unwrap_or(DEFAULT_CHURN_PER_S);
        within("churn", churn_per_s, 0.0, 1e6)?;
        let Some(name) = &self.workload else {
            let host_bps = self.host_bps.unwrap_or(DEFAULT_HOST_BPS);
            check_capacity(host_bps)?;
            return Ok(SwarmPlan {
                offer: Offer::Fixed {
                    flows: self.flows.unwrap_or(DEFAULT_FLOWS),
                    churn_per_s,
                },
                host_bps,
                dilation: TimeDilation::usual(),
            });
        };
        let sizes = SizeDistribution::published(name)?;
        let bits = 8.0 * sizes.mean_bytes();
        let hosts = f64::from(self.sessions);
        let host_bps = self
            .host_bps
            // Solved from load = arrivals · size / capacity, so that the churn gives the load.
            .unwrap_or((churn_per_s * bits / (self.load * hosts)) as u64);
        check_capacity(host_bps)?;
        // What an allocator that runs already does in which time is not up to us.
        let nominal_bps = self.nominal_bps.unwrap_or(match self.allocator {
            Some(_) => host_bps,
            None => DEFAULT_HOST_BPS,
        });
        Ok(SwarmPlan {
            dilation: TimeDilation::slower(nominal_bps as f64 / host_bps as f64),
            offer: Offer::Sized {
                // The same relation the other way: equal to the churn if the capacity came from it.
                arrivals_per_s: self.load * hosts * host_bps as f64 / bits,
                sizes,
                most_flows: self.flows.unwrap_or(u32::MAX),
            },
            host_bps,
        })
    }
}

fn check_capacity(host_bps: u64) -> Result<()> {
    if host_bps < LEAST_HOST_BPS {
        bail!(
            "a host's capacity of {host_bps} bit/s: must be {LEAST_HOST_BPS} or more; raise --churn or --host-bps"
        );
    }
    Ok(())
}
