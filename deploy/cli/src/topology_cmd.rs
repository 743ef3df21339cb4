//! `ratewright topology`: builds, checks and shows topology files.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use ratewright_topology::render::{summary, to_dot, to_svg};
use ratewright_topology::units::{parse_capacity_bps, parse_delay_ns};
use ratewright_topology::{
    Addressing, BigSwitch, EcmpConfig, FatTree, Frames, Parameters, ThreeTierClos, Topology,
    TwoTierClos,
};

use crate::topology_import::{Ec2Inputs, ImportedNetwork, SlurmInputs};

/// Build, check or show a topology file.
#[derive(Debug, Args)]
pub struct TopologyCommand {
    #[command(subcommand)]
    action: TopologyAction,
}

#[derive(Debug, Subcommand)]
enum TopologyAction {
    /// Write the file of a regular network, to be used as it is or edited
    #[command(subcommand)]
    Build(Build),
    /// Write the file of EC2 instances out of the AWS CLI's JSON
    FromEc2 {
        #[command(flatten)]
        inputs: Ec2Inputs,
        #[command(flatten)]
        frames: FrameSizes,
        #[command(flatten)]
        output: Output,
    },
    /// Write the file of Slurm's nodes out of its topology.conf or topology.yaml
    FromSlurm {
        #[command(flatten)]
        inputs: SlurmInputs,
        #[command(flatten)]
        frames: FrameSizes,
        #[command(flatten)]
        output: Output,
    },
    /// Read a file and say whether it is valid; exit status 1 and the line at fault if not
    Check {
        /// Topology file
        file: PathBuf,
    },
    /// Print a summary of a file, or draw it
    Show {
        /// Topology file
        file: PathBuf,
        /// Write a picture here ("-": standard output)
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
        /// Write a Graphviz graph here ("-": standard output)
        #[arg(long, value_name = "FILE")]
        dot: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
enum Build {
    /// One big switch: only the edge links are modelled
    BigSwitch {
        #[command(flatten)]
        racks: Racks,
        #[command(flatten)]
        host: HostLinks,
        #[command(flatten)]
        common: Common,
    },
    /// Racks under spines
    TwoTierClos {
        #[command(flatten)]
        racks: Racks,
        /// Spine switches
        #[arg(long, default_value_t = 2, value_name = "N")]
        spines: u32,
        #[command(flatten)]
        host: HostLinks,
        #[command(flatten)]
        fabric: FabricLinks,
        #[command(flatten)]
        common: Common,
    },
    /// The fat tree of k-port switches
    FatTree {
        /// Ports of a switch; even
        #[arg(long, value_name = "K")]
        k: u32,
        /// Capacity of every link, each way
        #[arg(long, default_value = "10Gbit/s", value_parser = parse_capacity_bps, value_name = "RATE")]
        capacity: u64,
        /// Delay of every link, each way
        #[arg(long, default_value = "2us", value_parser = parse_delay_ns, value_name = "TIME")]
        delay: u64,
        #[command(flatten)]
        common: Common,
    },
    /// Pods of racks under aggregation switches, pods under cores
    ThreeTierClos {
        /// Pods
        #[arg(long, value_name = "N")]
        pods: u32,
        /// Racks in each pod
        #[arg(long, value_name = "N")]
        racks_per_pod: u32,
        #[command(flatten)]
        hosts: Hosts,
        /// Aggregation switches in each pod
        #[arg(long, default_value_t = 2, value_name = "N")]
        aggs_per_pod: u32,
        /// Core switches; a multiple of the aggregation switches in a pod
        #[arg(long, default_value_t = 4, value_name = "N")]
        cores: u32,
        #[command(flatten)]
        host: HostLinks,
        #[command(flatten)]
        fabric: FabricLinks,
        /// Capacity of an aggregation–core link, each way
        #[arg(long, default_value = "40Gbit/s", value_parser = parse_capacity_bps, value_name = "RATE")]
        core_capacity: u64,
        /// Delay of an aggregation–core link, each way
        #[arg(long, default_value = "2us", value_parser = parse_delay_ns, value_name = "TIME")]
        core_delay: u64,
        #[command(flatten)]
        common: Common,
    },
}

#[derive(Debug, Args)]
struct Racks {
    /// Racks
    #[arg(long, value_name = "N")]
    racks: u32,
    #[command(flatten)]
    hosts: Hosts,
}

#[derive(Debug, Args)]
struct Hosts {
    /// Hosts in each rack
    #[arg(
        long,
        required_unless_present = "rack_sizes",
        default_value_t = 0,
        hide_default_value = true,
        value_name = "N"
    )]
    hosts_per_rack: u32,
    /// Hosts of each rack where they differ, such as 4,4,3
    #[arg(
        long,
        value_delimiter = ',',
        conflicts_with = "hosts_per_rack",
        value_name = "N,N,…"
    )]
    rack_sizes: Vec<u32>,
    /// Spare places in each rack, for hosts that join at run time
    #[arg(long, default_value_t = 0, value_name = "N")]
    spare_hosts: u32,
}

#[derive(Debug, Args)]
struct HostLinks {
    /// Capacity of a host's link, each way
    #[arg(long, default_value = "10Gbit/s", value_parser = parse_capacity_bps, value_name = "RATE")]
    host_capacity: u64,
    /// Delay of a host's link, each way
    #[arg(long, default_value = "2us", value_parser = parse_delay_ns, value_name = "TIME")]
    host_delay: u64,
}

#[derive(Debug, Args)]
struct FabricLinks {
    /// Capacity of a link between a leaf and a spine or aggregation switch, each way
    #[arg(long, default_value = "40Gbit/s", value_parser = parse_capacity_bps, value_name = "RATE")]
    fabric_capacity: u64,
    /// Delay of such a link, each way
    #[arg(long, default_value = "2us", value_parser = parse_delay_ns, value_name = "TIME")]
    fabric_delay: u64,
}

#[derive(Debug, Args)]
struct Common {
    /// Seed of the ECMP hash
    #[arg(long, default_value_t = 0, value_name = "N")]
    ecmp_seed: u32,
    /// A flow and its acknowledgements take the same way
    #[arg(long)]
    symmetric: bool,
    /// Prefix of the hosts' IPv4 addresses, or "none"
    #[arg(long, default_value = "10.0.0.0/8", value_name = "PREFIX")]
    ipv4_base: String,
    /// Prefix of the hosts' IPv6 addresses, or "none"
    #[arg(long, default_value = "fd00::/48", value_name = "PREFIX")]
    ipv6_base: String,
    #[command(flatten)]
    frames: FrameSizes,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
struct FrameSizes {
    /// Largest IP packet in bytes; where hosts differ, the smallest
    #[arg(long, default_value_t = 1_500, value_parser = clap::value_parser!(u16).range(576..), value_name = "BYTES")]
    mtu: u16,
    /// Bytes that a link carries for each frame beside its packet: 38 on Ethernet, 14 where a
    /// shaper counts frames with their header alone
    #[arg(long, default_value_t = 38, value_parser = clap::value_parser!(u16).range(14..=1_000), value_name = "BYTES")]
    frame_overhead: u16,
}

impl FrameSizes {
    fn frames(&self) -> Frames {
        Frames::of(self.mtu, self.frame_overhead)
    }
}

#[derive(Debug, Args)]
struct Output {
    /// Write here; without it, to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(short, long)]
    force: bool,
}

impl Output {
    /// Writes a topology file, and its summary to standard error.
    fn write(self, text: &str, net: &Topology) -> Result<()> {
        let Some(path) = self.output.filter(|p| !is_stdout(p)) else {
            return print(text);
        };
        let mut options = File::options();
        options
            .write(true)
            .truncate(self.force)
            .create(self.force)
            // Without --force the file must not exist: checked and created in one step.
            .create_new(!self.force);
        let mut file = options.open(&path).with_context(|| match self.force {
            true => format!("cannot write {}", path.display()),
            false => format!("cannot create {} (--force replaces a file)", path.display()),
        })?;
        file.write_all(text.as_bytes())
            .with_context(|| format!("cannot write {}", path.display()))?;
        // On standard error: standard output may be a pipe that expects a topology.
        eprint!("{}", summary(net));
        Ok(())
    }
}

impl TopologyCommand {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// If a file cannot be read or written, or describes no valid network.
    pub fn run(self) -> Result<()> {
        match self.action {
            TopologyAction::Build(build) => build.run(),
            TopologyAction::FromEc2 {
                inputs,
                frames,
                output,
            } => write_imported(&inputs.import()?, &frames, output),
            TopologyAction::FromSlurm {
                inputs,
                frames,
                output,
            } => write_imported(&inputs.import()?, &frames, output),
            TopologyAction::Check { file } => {
                let net = Topology::load(&file)?;
                let (hosts, racks) = (net.hosts().len(), net.racks().len());
                if let Some(note) = net.note() {
                    eprintln!("{}: note: {note}", file.display());
                }
                print(&format!(
                    "{}: valid; {}, {hosts} hosts in {racks} racks\n",
                    file.display(),
                    net.kind()
                ))
            }
            TopologyAction::Show { file, svg, dot } => {
                let net = Topology::load(&file)?;
                if let Some(path) = &svg {
                    write(path, &to_svg(&net))?;
                }
                if let Some(path) = &dot {
                    write(path, &to_dot(&net))?;
                }
                // A picture on standard output stays alone there.
                if [&svg, &dot].into_iter().flatten().any(|p| is_stdout(p)) {
                    Ok(())
                } else {
                    print(&summary(&net))
                }
            }
        }
    }
}

fn write_imported(network: &ImportedNetwork, frames: &FrameSizes, output: Output) -> Result<()> {
    let (text, net) = network.to_file(frames.frames())?;
    output.write(&text, &net)
}

impl Build {
    fn run(self) -> Result<()> {
        let (parameters, common) = self.into_parameters()?;
        let net = parameters
            .build()
            .context("these parameters describe no network")?
            .with_frames(common.frames.frames());
        common.output.write(&net.to_toml_string(), &net)
    }

    fn into_parameters(self) -> Result<(Parameters, Common)> {
        Ok(match self {
            Self::BigSwitch {
                racks,
                host,
                common,
            } => {
                let net = BigSwitch {
                    racks: racks.racks,
                    hosts_per_rack: racks.hosts.hosts_per_rack,
                    rack_sizes: racks.hosts.rack_sizes,
                    spare_hosts: racks.hosts.spare_hosts,
                    host_capacity_bps: host.host_capacity,
                    host_delay_ns: host.host_delay,
                    addressing: common.addressing()?,
                    ecmp: common.ecmp(),
                };
                (Parameters::BigSwitch(net), common)
            }
            Self::TwoTierClos {
                racks,
                spines,
                host,
                fabric,
                common,
            } => {
                let net = TwoTierClos {
                    racks: racks.racks,
                    hosts_per_rack: racks.hosts.hosts_per_rack,
                    rack_sizes: racks.hosts.rack_sizes,
                    spare_hosts: racks.hosts.spare_hosts,
                    spines,
                    host_capacity_bps: host.host_capacity,
                    fabric_capacity_bps: fabric.fabric_capacity,
                    host_delay_ns: host.host_delay,
                    fabric_delay_ns: fabric.fabric_delay,
                    addressing: common.addressing()?,
                    ecmp: common.ecmp(),
                };
                (Parameters::TwoTierClos(net), common)
            }
            Self::FatTree {
                k,
                capacity,
                delay,
                common,
            } => {
                let (addressing, ecmp) = (common.addressing()?, common.ecmp());
                let net = FatTree {
                    k,
                    capacity_bps: capacity,
                    delay_ns: delay,
                    addressing,
                    ecmp,
                };
                (Parameters::FatTree(net), common)
            }
            Self::ThreeTierClos {
                pods,
                racks_per_pod,
                hosts,
                aggs_per_pod,
                cores,
                host,
                fabric,
                core_capacity,
                core_delay,
                common,
            } => {
                let net = ThreeTierClos {
                    pods,
                    racks_per_pod,
                    hosts_per_rack: hosts.hosts_per_rack,
                    rack_sizes: hosts.rack_sizes,
                    spare_hosts: hosts.spare_hosts,
                    aggs_per_pod,
                    cores,
                    host_capacity_bps: host.host_capacity,
                    fabric_capacity_bps: fabric.fabric_capacity,
                    core_capacity_bps: core_capacity,
                    host_delay_ns: host.host_delay,
                    fabric_delay_ns: fabric.fabric_delay,
                    core_delay_ns: core_delay,
                    addressing: common.addressing()?,
                    ecmp: common.ecmp(),
                };
                (Parameters::ThreeTierClos(net), common)
            }
        })
    }
}

impl Common {
    fn ecmp(&self) -> EcmpConfig {
        EcmpConfig {
            seed: self.ecmp_seed,
            symmetric: self.symmetric,
        }
    }

    fn addressing(&self) -> Result<Addressing> {
        Ok(Addressing {
            ipv4_base: base(&self.ipv4_base)
                .context("--ipv4-base takes an IPv4 prefix such as 10.0.0.0/8, or \"none\"")?,
            ipv6_base: base(&self.ipv6_base)
                .context("--ipv6-base takes an IPv6 prefix such as fd00::/48, or \"none\"")?,
        })
    }
}

fn base<N>(text: &str) -> Result<Option<N>>
where
    N: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    Ok(if text == "none" {
        None
    } else {
        Some(text.parse()?)
    })
}

fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

fn write(path: &Path, text: &str) -> Result<()> {
    if is_stdout(path) {
        return print(text);
    }
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// To standard output; a reader that has seen enough is no error.
fn print(text: &str) -> Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(e).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct TopologyCli {
        #[command(flatten)]
        command: TopologyCommand,
    }

    fn run(arguments: &[&str]) -> Result<()> {
        TopologyCli::try_parse_from([&["topology"], arguments].concat())?
            .command
            .run()
    }

    #[test]
    fn what_is_built_is_valid_and_can_be_drawn() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let kinds: [&[&str]; 4] = [
            &["big-switch", "--racks", "3", "--hosts-per-rack", "3"],
            &[
                "two-tier-clos",
                "--racks",
                "2",
                "--rack-sizes",
                "5,4",
                "--symmetric",
                "--host-capacity",
                "200Mbit/s",
            ],
            &["fat-tree", "--k", "4", "--ipv6-base", "none"],
            &[
                "three-tier-clos",
                "--pods",
                "2",
                "--racks-per-pod",
                "2",
                "--hosts-per-rack",
                "2",
            ],
        ];
        for kind in kinds {
            let (file, svg, dot) = (path(kind[0]), path("a.svg"), path("a.dot"));
            run(&[&["build"], kind, &["-o", &file]].concat()).unwrap();
            run(&["check", &file]).unwrap();
            run(&["show", &file, "--svg", &svg, "--dot", &dot]).unwrap();
            assert!(std::fs::read_to_string(&svg).unwrap().starts_with("<svg"));
            assert!(std::fs::read_to_string(&dot).unwrap().starts_with("graph"));
        }
        let two = Topology::load(&dir.path().join("two-tier-clos")).unwrap();
        assert_eq!(
            (two.hosts().len(), two.links()[0].line_rate_bps),
            (9, 200_000_000)
        );
        // Ethernet carries 1,538 bytes of a full frame, and rates count 1,514 of them.
        assert_eq!(two.links()[0].capacity_bps, 200_000_000 * 1_514 / 1_538);
    }

    #[test]
    fn an_existing_file_is_replaced_only_when_asked() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("t.toml").display().to_string();
        let build =
            |more: &[&str]| run(&[&["build", "fat-tree", "--k", "4", "-o", &file], more].concat());
        build(&[]).unwrap();
        let refusal = format!("{:#}", build(&[]).unwrap_err());
        assert!(refusal.contains("--force"), "{refusal}");
        build(&["--force"]).unwrap();
    }

    #[test]
    fn mistakes_name_the_place_and_what_would_be_right() {
        let odd = format!("{:#}", run(&["build", "fat-tree", "--k", "5"]).unwrap_err());
        assert!(odd.contains("needs an even k"), "{odd}");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("bad.toml");
        std::fs::write(
            &file,
            "kind = \"fat_tree\"\n[parameters]\nk = 3\ncapacity = \"1Gbit/s\"\n",
        )
        .unwrap();
        let name = file.display().to_string();
        let bad = run(&["check", &name]).unwrap_err().to_string();
        assert!(bad.starts_with(&format!("{name}:3: `k` is 3")), "{bad}");
        assert!(
            run(&["build", "big-switch", "--racks", "1"]).is_err(),
            "how many hosts?"
        );
    }
}
