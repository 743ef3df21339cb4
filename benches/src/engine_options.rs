//! The command line of `ratewright-bench engine`.

use clap::Args;

/// `ratewright-bench engine`
#[derive(Debug, Clone, Args)]
pub struct EngineOptions {
    /// Hosts
    #[arg(long, default_value_t = 4_608)]
    pub hosts: u32,
    /// Flows between random hosts of different racks
    #[arg(long, default_value_t = 49_152)]
    pub flows: usize,
    /// Tiers of the network
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=3))]
    pub tiers: u8,
    /// Hosts of a rack
    #[arg(long, default_value_t = 48)]
    pub rack_hosts: u32,
    /// Spines, or aggregation switches of a pod
    #[arg(long, default_value_t = 16)]
    pub spines: u32,
    /// Blocks of racks, a power of two; if not given, as many as the flows need
    #[arg(long)]
    pub blocks: Option<u32>,
    /// Workers, at most the square of the blocks
    #[arg(long, default_value_t = 1)]
    pub workers: usize,
    /// Flowlets that start, and as many that end, in a second
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub churn: f64,
    /// The share of flows with a demand, half of what they have without; the plain case is measured
    /// in turns
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub capped: f64,
    /// Log classes of weights 1, 2, 4 and so on, the flows spread over them; the plain case is
    /// measured in turns
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub classes: u8,
    /// Iterations
    #[arg(long, default_value_t = 10_000)]
    pub iterations: usize,
    /// The instruction set: scalar, avx2 or avx512; the best there is if not given
    #[arg(long)]
    pub simd: Option<String>,
    /// Seed of the flows
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Compare the rates at rest with the f64 reference's, which takes a while
    #[arg(long)]
    pub against_reference: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}
