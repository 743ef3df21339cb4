//! The allocator that a swarm talks to: a child of its own with throw-away certificates, or one
//! that runs already; and what it costs.

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ratewright_cli::admin;
use ratewright_cli::certs::{self, CertificateAuthority, CertificatePair};
use ratewright_cli::clock;
use ratewright_cli::process::{self, Process};
use ratewright_topology::TwoTierClos;
use tempfile::TempDir;

use super::options::{EngineName, SwarmOptions, SwarmPlan, TransportKind};
use super::{bypass, cores, guests};

const READY_PATIENCE: Duration = Duration::from_secs(15);
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// Hosts of a rack, as in flowtune's simulations.
pub const HOSTS_PER_RACK: u32 = 16;
/// Spines that a rack is connected to.
const SPINES: u32 = 4;

/// An allocator.
#[derive(Debug)]
pub struct Target {
    /// Its QUIC service.
    pub address: SocketAddr,
    /// Its admin interface.
    pub admin: String,
    /// The authority of all certificates, as PEM.
    pub authority: String,
    /// A certificate for each host.
    pub identities: Vec<CertificatePair>,
    /// Its process, if it is known.
    pub pid: Option<u32>,
    child: Option<Process>,
    /// Its files; removed at the end.
    dir: Option<TempDir>,
}

/// The names of the hosts that are played.
#[must_use]
pub fn names(sessions: u32) -> Vec<String> {
    (1..=sessions).map(|host| format!("h{host}")).collect()
}

impl Target {
    /// Starts an allocator, or finds the one that the options name.
    ///
    /// # Errors
    /// When files cannot be read or written, or it does not start.
    pub fn prepare(options: &SwarmOptions, plan: &SwarmPlan) -> Result<Self> {
        match (&options.allocator, &options.admin, &options.cert_dir) {
            (Some(address), Some(admin), Some(dir)) => {
                Self::existing(options, *address, admin, dir)
            }
            _ => Self::start(options, plan),
        }
    }

    fn existing(
        options: &SwarmOptions,
        address: SocketAddr,
        admin: &str,
        dir: &Path,
    ) -> Result<Self> {
        let read = |file: String| {
            let path = dir.join(file);
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
        };
        let identities = names(options.sessions).into_iter().map(|name| {
            Ok(CertificatePair {
                certificate: read(format!("{name}.pem"))?,
                key: read(format!("{name}.key"))?,
            })
        });
        let target = Self {
            address,
            admin: admin.to_owned(),
            authority: read("ca.pem".to_owned())?,
            identities: identities.collect::<Result<_>>()?,
            pid: options.allocator_pid,
            child: None,
            dir: None,
        };
        // A wrong address shows here, and not as thousands of failed sessions.
        admin::get(&target.admin, "/live").context("asking the allocator whether it lives")?;
        Ok(target)
    }

    fn start(options: &SwarmOptions, plan: &SwarmPlan) -> Result<Self> {
        let program = allocator_program(options)?;
        let dir = tempfile::Builder::new()
            .prefix("ratewright-swarm-")
            .tempdir()
            .context("creating a directory for the allocator's files")?;
        let path = dir.path();
        certs::init(path)?;
        certs::issue(path, certs::ALLOCATOR_NAME)?;
        let authority = CertificateAuthority::load(path)?;
        let hosts = names(options.sessions);
        let hosts = hosts.iter().map(|name| authority.sign(&[name]));
        let guests = (0..options.guests).map(|guest| {
            let address = guests::address(options.sessions, guest).to_string();
            authority.sign(&[&guests::name(guest), &address])
        });
        let identities = hosts.chain(guests).collect::<Result<_>>()?;
        let topology = topology(options, plan.host_bps)?;
        write(path, "topology.toml", &topology)?;
        let ip = match options.transport {
            TransportKind::Dpdk => {
                bypass::enter(options.shards)?;
                bypass::KERNEL
            }
            TransportKind::Quic | TransportKind::Udp => Ipv4Addr::LOCALHOST,
        };
        // Known to both sides before the start: the hosts need no announcement.
        let address = SocketAddr::from((ip, free_port(ip)?));
        let admin = format!("unix:{}", path.join("admin.sock").display());
        // Before the sessions' threads start, which inherit the affinity that `for_shard` sets.
        let config = config(options, plan, address, &admin, cores::for_shard(options)?);
        write(path, "allocator.toml", &config)?;
        let mut command = Command::new(program);
        command.arg("--config").arg(path.join("allocator.toml"));
        let log = path.join("allocator.log");
        let child = Process::start_here("the allocator", command, &log)?;
        let mut target = Self {
            address,
            admin,
            authority: fs::read_to_string(path.join("ca.pem")).context("reading ca.pem")?,
            identities,
            pid: Some(child.id()),
            child: Some(child),
            dir: Some(dir),
        };
        target.wait_until_live()?;
        Ok(target)
    }

    fn wait_until_live(&mut self) -> Result<()> {
        let until_ns = clock::now_ns() + READY_PATIENCE.as_nanos() as u64;
        while clock::now_ns() < until_ns {
            self.check_alive()?;
            if admin::get(&self.admin, "/live").is_ok() {
                return Ok(());
            }
            clock::sleep(Duration::from_millis(10));
        }
        bail!(
            "the allocator is not live after {} s",
            READY_PATIENCE.as_secs()
        )
    }

    /// Fails if the child has ended by itself; the error carries its last message.
    ///
    /// # Errors
    /// Then.
    pub fn check_alive(&mut self) -> Result<()> {
        let Some(status) = self.child.as_mut().and_then(Process::exited) else {
            return Ok(());
        };
        let log = self
            .dir
            .as_ref()
            .map(|dir| dir.path().join("allocator.log"));
        let said = log.and_then(|log| fs::read_to_string(log).ok());
        let said = said.as_deref().unwrap_or_default();
        // A program that ends by an error says why in its last line.
        let last = said.lines().rev().find(|line| !line.trim().is_empty());
        bail!(
            "the allocator ended ({status}): {}",
            last.unwrap_or("it said nothing")
        )
    }

    /// Processor time that it has used so far, by thread name, in seconds; nothing if its process
    /// is unknown.
    #[must_use]
    pub fn cpu_s(&self) -> Option<Vec<(String, f64)>> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid?)).ok()?;
        let mut threads: Vec<(String, f64)> = Vec::new();
        for task in tasks.flatten() {
            let read = |file: &str| fs::read_to_string(task.path().join(file)).ok();
            // A thread may end between the two.
            let (Some(name), Some(times)) = (read("comm"), read("schedstat")) else {
                continue;
            };
            let Some(ns) = times
                .split(' ')
                .next()
                .and_then(|ns| ns.parse::<u64>().ok())
            else {
                continue;
            };
            let (name, cpu_s) = (name.trim().to_owned(), ns as f64 / 1e9);
            match threads.iter_mut().find(|thread| thread.0 == name) {
                // Threads of one name are workers of one kind.
                Some(thread) => thread.1 += cpu_s,
                None => threads.push((name, cpu_s)),
            }
        }
        (!threads.is_empty()).then_some(threads)
    }

    /// Its resident memory, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> Option<u64> {
        process::resident_bytes(self.pid?)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // SIGTERM first, so that the allocator closes its sessions.
            child.terminate();
            child.wait(STOP_PATIENCE);
        }
    }
}

fn allocator_program(options: &SwarmOptions) -> Result<PathBuf> {
    let directory = match &options.bin_dir {
        Some(directory) => directory.clone(),
        None => std::env::current_exe()
            .context("finding this program's own file")?
            .parent()
            .map(Path::to_owned)
            .unwrap_or_default(),
    };
    let program = directory.join("ratewright-allocator");
    if !program.is_file() {
        bail!(
            "{} is not there: build it (cargo build -p ratewright-allocator), or say where it is with --bin-dir",
            program.display()
        );
    }
    Ok(program)
}

/// Racks of 16 hosts under spines that carry whatever the hosts can send.
fn topology(options: &SwarmOptions, host_bps: u64) -> Result<String> {
    let sessions = options.sessions;
    let racks = guests::racks(sessions);
    // The last rack takes the rest.
    let last = sessions - (racks - 1) * HOSTS_PER_RACK;
    let mut rack_sizes = vec![HOSTS_PER_RACK; racks as usize - 1];
    rack_sizes.push(last);
    let clos = TwoTierClos {
        racks,
        hosts_per_rack: HOSTS_PER_RACK,
        rack_sizes,
        spines: SPINES,
        spare_hosts: guests::places_per_rack(options),
        host_capacity_bps: host_bps,
        // Full bisection: the uplinks of a rack carry what its hosts can send.
        fabric_capacity_bps: host_bps * u64::from(HOSTS_PER_RACK / SPINES),
        ..TwoTierClos::default()
    };
    Ok(clos
        .build()
        .context("building the topology")?
        .to_toml_string())
}

fn config(
    options: &SwarmOptions,
    plan: &SwarmPlan,
    address: SocketAddr,
    admin: &str,
    shard_core: Option<usize>,
) -> String {
    let hot = match options.transport {
        TransportKind::Quic => "quic",
        TransportKind::Udp => "udp",
        TransportKind::Dpdk => "dpdk",
    };
    let dpdk = match options.transport {
        TransportKind::Dpdk => bypass::table(options),
        TransportKind::Quic | TransportKind::Udp => String::new(),
    };
    let mut text = format!(
        "listen = \"{address}\"\nadmin = \"{admin}\"\ntopology = \"topology.toml\"\nlog = \"warn\"\n\
         [tls]\nca = \"ca.pem\"\ncert = \"{name}.pem\"\nkey = \"{name}.key\"\n\
         [transport]\nhot = \"{hot}\"\nshards = {}\nbusy_poll = {}\n{dpdk}\
         [limits]\nmax_sessions = {}\n[allocation]\n",
        options.shards,
        options.busy_poll,
        options.sessions + options.guests,
        name = certs::ALLOCATOR_NAME,
    );
    if let Some(engine) = options.engine {
        let engine = match engine {
            EngineName::Reference => "reference",
            EngineName::Parallel => "parallel",
        };
        let _ = writeln!(text, "engine = \"{engine}\"");
    }
    if let Some(core) = shard_core {
        let _ = writeln!(text, "pin_core = {core}");
    }
    for (key, value) in plan.dilation.settings() {
        // A line of the user's own wins; the file may hold a key once only.
        if !options.is_set(key) {
            let _ = writeln!(text, "{key} = {value}");
        }
    }
    for setting in &options.settings {
        let _ = writeln!(text, "{setting}");
    }
    if options.guests > 0 {
        text.push_str(&guests::membership(options.sessions));
    }
    text
}

/// A UDP port that is free now.
fn free_port(ip: Ipv4Addr) -> Result<u16> {
    let socket = UdpSocket::bind((ip, 0)).context("finding a free port")?;
    Ok(socket.local_addr().context("finding a free port")?.port())
}

fn write(dir: &Path, name: &str, text: &str) -> Result<()> {
    let path = dir.join(name);
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}
