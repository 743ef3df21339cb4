//! The command line of `ratewright-lab`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Scenario to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ScenarioKind {
    /// Senders to one receiver, starting one after another and ending likewise (flowtune §5.1 A)
    Fairness,
    /// Many parallel transfers to one receiver: completion times (flowtune §5.1 B)
    Coflow,
    /// The allocator is killed under load, then a daemon; both come back
    Failover,
    /// Cross traffic over a two-tier Clos; long flows of weights 1:2:4 and short ones
    Mixed,
    /// Capacity for those that use it: stalled readers, slow applications, sources that come and go
    Use,
    /// Links without a shaper at 1 to 40 Gbit/s: rates reached, and processor time per bit
    Links,
    /// Hundreds of slow connections on busy cores, through lapse and release: every byte arrives
    Safety,
    /// Traffic from outside the allocator, and a lost allocator: with and without feeds and shares
    Feeds,
    /// Hundreds of flows start at once on a full uplink: with and without control datagrams ahead
    /// of data
    Starts,
    /// Wrong topology files, unmanaged hosts, lossy and slow ways: nobody is worse off than with
    /// TCP alone
    Obey,
    /// Capacities, senders, paths and settings change: each is named in time, and taken back
    Check,
}

impl ScenarioKind {
    /// The name on the command line and in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ScenarioKind::Fairness => "fairness",
            ScenarioKind::Coflow => "coflow",
            ScenarioKind::Failover => "failover",
            ScenarioKind::Mixed => "mixed",
            ScenarioKind::Use => "use",
            ScenarioKind::Feeds => "feeds",
            ScenarioKind::Starts => "starts",
            ScenarioKind::Links => "links",
            ScenarioKind::Safety => "safety",
            ScenarioKind::Obey => "obey",
            ScenarioKind::Check => "check",
        }
    }
}

/// Address family of the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Family {
    /// IPv4
    #[value(name = "4")]
    V4,
    /// IPv6
    #[value(name = "6")]
    V6,
    /// First one, then the other (safety)
    Both,
}

impl Family {
    /// Returns the families one after another, true for IPv6.
    #[must_use]
    pub fn each(self) -> &'static [bool] {
        match self {
            Family::V4 => &[false],
            Family::V6 => &[true],
            Family::Both => &[false, true],
        }
    }
}

/// Change of the rates in the middle of a run of the safety scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RateFate {
    /// They hold to the end
    Leased,
    /// The allocator is killed
    Lapsed,
    /// The kill switch is turned on
    Released,
}

impl RateFate {
    /// The name on the command line and in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RateFate::Leased => "leased",
            RateFate::Lapsed => "lapsed",
            RateFate::Released => "released",
        }
    }
}

/// Back end by which the daemons detect and pace flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Backend {
    /// The best that this kernel offers
    Auto,
    /// A BPF sock_ops program
    SockOps,
    /// tc HTB classes
    TcHtb,
}

impl Backend {
    /// The name in configuration files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Backend::Auto => "auto",
            Backend::SockOps => "sock_ops",
            Backend::TcHtb => "tc_htb",
        }
    }
}

/// The allocator's engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    /// Vector instructions, any number of threads
    Parallel,
    /// One thread, double precision
    Reference,
}

impl EngineName {
    /// The name in configuration files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            EngineName::Parallel => "parallel",
            EngineName::Reference => "reference",
        }
    }
}

/// `ratewright-lab`
#[derive(Debug, Clone, Args)]
pub struct LabOptions {
    /// Scenario to run
    #[arg(value_enum)]
    pub scenario: ScenarioKind,
    /// Write the results here; the plot lands beside it
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Stretch or shrink all times of the scenario
    #[arg(long, default_value_t = 1.0, value_name = "X", value_parser = parse_scale)]
    pub duration_scale: f64,
    /// Hosts, the receiver included (fairness, coflow and failover); an even number for mixed; use
    /// has six, links and safety have two
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(3..=64))]
    pub hosts: Option<u16>,
    /// Capacity of a host's link; default: 250; 100 for mixed, whose packets cross more switches;
    /// 200 for use, safety, starts, obey and check; links: this speed instead of all
    #[arg(long, value_name = "MBIT/S", value_parser = clap::value_parser!(u32).range(10..=100_000))]
    pub link_mbps: Option<u32>,
    /// Drop-tail buffer of a switch port
    #[arg(long, default_value_t = 64, value_name = "KIB", value_parser = clap::value_parser!(u32).range(4..=65_536))]
    pub buffer_kib: u32,
    /// Runs, each with and without Ratewright; default: 20 of coflow, 5 of use, 3 of links, obey
    /// and check, 10 of safety
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub runs: Option<u16>,
    /// The most telling cases of obey, one pair of runs each
    #[arg(long)]
    pub quick: bool,
    /// Cases of obey whose names have this text in them; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub only: Vec<String>,
    /// Address family of the traffic of use, links, safety and obey; default: 4, or both for safety
    /// and obey
    #[arg(long, value_enum)]
    pub family: Option<Family>,
    /// Connections at a time in the safety scenario
    #[arg(long, default_value_t = 300, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=2000))]
    pub connections: u16,
    /// Change of the rates in the middle of a run of the safety scenario
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [RateFate::Leased, RateFate::Lapsed, RateFate::Released])]
    pub fates: Vec<RateFate>,
    /// Programs that keep a core busy in the safety scenario; default: one per core. 0 if others
    /// do, such as a lab beside this one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub busy: Option<u16>,
    /// Pacing back end of the daemons; safety runs with all that work here unless one is named
    #[arg(long, value_enum, default_value_t = Backend::Auto)]
    pub backend: Backend,
    /// Engine of the allocator
    #[arg(long, value_enum, default_value_t = EngineName::Parallel)]
    pub engine: EngineName,
    /// DSCP of control datagrams, which the links' queues let pass data (48 is CS6); 0: they wait
    /// with data
    #[arg(long, default_value_t = 48, value_name = "DSCP", value_parser = clap::value_parser!(u8).range(0..=63))]
    pub control_dscp: u8,
    /// Only the phase with Ratewright
    #[arg(long)]
    pub no_baseline: bool,
    /// Only the phase without Ratewright
    #[arg(long, conflicts_with = "no_baseline")]
    pub only_baseline: bool,
    /// Lines of progress instead of the live view
    #[arg(long)]
    pub plain: bool,
    /// Seed of everything random: path hashes, cross traffic
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Keep the run directory with configurations, certificates and logs
    #[arg(long)]
    pub keep: bool,
    /// Directory of ratewright-allocator and ratewright-endpointd; default: beside this program
    #[arg(long, value_name = "DIR")]
    pub bin_dir: Option<PathBuf>,
}

impl LabOptions {
    /// Returns the path of the results file.
    #[must_use]
    pub fn json_path(&self) -> PathBuf {
        self.json
            .clone()
            .unwrap_or_else(|| PathBuf::from(format!("lab-out/{}.json", self.scenario.name())))
    }

    /// Capacity of a host's link in Mbit/s: what two cores carry with the control plane beside it.
    #[must_use]
    pub fn link_mbps(&self) -> u32 {
        self.link_mbps.unwrap_or(match self.scenario {
            ScenarioKind::Mixed => 100,
            ScenarioKind::Use
            | ScenarioKind::Safety
            | ScenarioKind::Starts
            | ScenarioKind::Obey
            | ScenarioKind::Check => 200,
            ScenarioKind::Fairness
            | ScenarioKind::Feeds
            | ScenarioKind::Coflow
            | ScenarioKind::Failover
            | ScenarioKind::Links => 250,
        })
    }

    /// Capacity of a host's link in bit/s.
    #[must_use]
    pub fn link_bps(&self) -> u64 {
        u64::from(self.link_mbps()) * 1_000_000
    }

    /// Runs of a scenario that repeats itself.
    #[must_use]
    pub fn runs(&self) -> u16 {
        self.runs.unwrap_or(match self.scenario {
            ScenarioKind::Use => 5,
            ScenarioKind::Obey if self.quick => 1,
            ScenarioKind::Links | ScenarioKind::Obey | ScenarioKind::Check => 3,
            ScenarioKind::Safety => 10,
            _ => 20,
        })
    }

    /// Address family of the traffic.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family.unwrap_or(match self.scenario {
            ScenarioKind::Obey if self.quick => Family::V4,
            ScenarioKind::Safety | ScenarioKind::Obey => Family::Both,
            _ => Family::V4,
        })
    }

    /// Number of hosts, or the scenario's own.
    #[must_use]
    pub fn hosts_or(&self, default: usize) -> usize {
        self.hosts.map_or(default, usize::from)
    }
}

fn parse_scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(scale) if (0.05..=100.0).contains(&scale) => Ok(scale),
        Ok(_) => Err("must be between 0.05 and 100".to_owned()),
        Err(e) => Err(e.to_string()),
    }
}
