//! The control plane of a testbed: one allocator, one daemon per host, each a process of its own.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ratewright_cli::process::Process;
use ratewright_topology::ecmp::EcmpConfig;
use ratewright_topology::{Addressing, BigSwitch, Frames, Topology, TwoTierClos};

use super::context::Lab;
use super::testbed::{Testbed, ecmp_seed};
use crate::net::plan::{HOSTS_V4, HOSTS_V6, NetworkPlan};
use crate::options::Backend;
use crate::proc::{self, Work};
use ratewright_cli::{admin, certs};

/// Lifetime in milliseconds of a rate that the allocator does not renew.
pub const LEASE_MS: u64 = 300;
/// Time-out for a process to become ready.
const READY_PATIENCE: Duration = Duration::from_secs(15);
/// Flowlets below this are not reported. The daemon's default of 15 kB takes 12 µs at 10 Gbit/s; at
/// the lab's speed a tenth of it takes as long as a rate takes to come, and every segment that
/// waits for the report crosses the whole network on the sender's core first.
const MIN_FLOWLET_BYTES: u64 = 3_000;
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// The allocator and the daemons of a testbed.
#[derive(Debug)]
pub struct Control {
    allocator: Option<Process>,
    daemons: Vec<Option<Process>>,
    dir: PathBuf,
    /// Hosts with a daemon.
    managed: Vec<usize>,
    /// Number of the first host's daemon among those of this lab.
    first_instance: u32,
}

/// Allocator's keys with which receivers' and links' measurements bound what it hands out.
pub const FEEDS_ON: &str = "\n[feeds]\nreceivers = true\nint = true\n";

/// Configuration of a scenario beyond the lab's own keys.
#[derive(Debug, Clone, Copy)]
pub struct ControlKeys<'a> {
    /// End of the allocator's configuration.
    pub allocator: &'a str,
    /// End of each daemon's configuration.
    pub daemons: &'a str,
    /// Back end of the daemons.
    pub backend: Backend,
    /// Capacity of a host's link in the topology file; `None`: what it has.
    pub told_bps: Option<u64>,
    /// Hosts without a daemon.
    pub unmanaged: &'a [usize],
    /// Flowlets below this are not reported; `None`: the daemon's default.
    pub min_flowlet_bytes: Option<u64>,
}

impl ControlKeys<'_> {
    /// Returns the lab's choice: its back end, and nothing more.
    #[must_use]
    pub fn of(lab: &Lab) -> Self {
        Self {
            allocator: "",
            daemons: "",
            backend: lab.options.backend,
            told_bps: None,
            unmanaged: &[],
            min_flowlet_bytes: Some(MIN_FLOWLET_BYTES),
        }
    }
}

/// Daemons that this lab has named.
static NAMED: AtomicU32 = AtomicU32::new(0);

impl Control {
    /// Writes certificates and configurations, starts everything and waits until every daemon has
    /// its session. `policy` is appended to each daemon's configuration.
    ///
    /// # Errors
    /// When something cannot be written or started, or is not ready in time.
    pub fn start(lab: &Lab, testbed: &Testbed, policy: &str) -> Result<Control> {
        let keys = ControlKeys {
            daemons: policy,
            ..ControlKeys::of(lab)
        };
        Control::start_with(lab, testbed, &keys)
    }

    /// As [`Control::start`], with keys of the scenario's choice.
    ///
    /// # Errors
    /// As [`Control::start`].
    pub fn start_with(lab: &Lab, testbed: &Testbed, keys: &ControlKeys<'_>) -> Result<Control> {
        let plan = &testbed.network.plan;
        let dir = testbed.dir.clone();
        // An authority for each testbed: nothing of it is of use elsewhere.
        certs::init(&dir)?;
        certs::issue(&dir, certs::ALLOCATOR_NAME)?;
        let mut told = plan.clone();
        told.capacities.host_bps = keys.told_bps.unwrap_or(plan.capacities.host_bps);
        let topology = topology_of(&told, ecmp_seed(lab))?;
        write(&dir, "topology.toml", &topology.to_toml_string())?;
        let mut control = Control {
            allocator: None,
            daemons: Vec::new(),
            dir,
            managed: (0..plan.hosts)
                .filter(|host| !keys.unmanaged.contains(host))
                .collect(),
            first_instance: NAMED.fetch_add(plan.hosts as u32, Ordering::Relaxed),
        };
        write(
            &control.dir,
            "allocator.toml",
            &(control.allocator_config(lab, plan) + keys.allocator),
        )?;
        for host in control.managed.clone() {
            let name = &plan.nodes[host].name;
            certs::issue(&control.dir, name)?;
            let config = control.daemon_config(testbed, host, keys);
            write(&control.dir, &format!("{name}.toml"), &config)?;
        }
        control.start_allocator(lab, testbed)?;
        // Daemons that find no allocator would pause before their next attempt.
        control.wait_allocator(lab)?;
        // A slot for each host, so that one can be killed and started again.
        control.daemons = (0..plan.hosts).map(|_| None).collect();
        for host in control.managed.clone() {
            control.start_daemon(lab, testbed, host)?;
        }
        control.wait_ready(lab)?;
        Ok(control)
    }

    /// Starts the allocator.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_allocator(&mut self, lab: &Lab, testbed: &Testbed) -> Result<()> {
        let mut command = Command::new(&lab.binaries.allocator);
        command.arg("--config").arg(self.dir.join("allocator.toml"));
        let log = self.dir.join("allocator.log");
        // The allocator's node comes right behind the hosts.
        let place = testbed.place(testbed.network.plan.hosts, Work::Control);
        self.allocator = Some(proc::start_logged("the allocator", command, &place, &log)?);
        Ok(())
    }

    /// Starts the daemon of a host.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_daemon(&mut self, lab: &Lab, testbed: &Testbed, host: usize) -> Result<()> {
        let name = &testbed.network.plan.nodes[host].name;
        let mut command = Command::new(&lab.binaries.endpointd);
        command
            .arg("run")
            .arg("--config")
            .arg(self.dir.join(format!("{name}.toml")));
        let log = self.dir.join(format!("endpointd-{name}.log"));
        let process = proc::start_logged(
            &format!("the daemon of {name}"),
            command,
            &testbed.place(host, Work::Control),
            &log,
        )?;
        self.daemons[host] = Some(process);
        Ok(())
    }

    /// SIGKILLs the allocator.
    pub fn kill_allocator(&mut self) {
        if let Some(mut process) = self.allocator.take() {
            process.kill();
        }
    }

    /// SIGKILLs the daemon of a host.
    pub fn kill_daemon(&mut self, host: usize) {
        if let Some(mut process) = self.daemons[host].take() {
            process.kill();
        }
    }

    /// Returns true if the host's daemon has a session with the allocator.
    #[must_use]
    pub fn daemon_is_ready(&self, host: usize) -> bool {
        admin::get(&self.admin(&format!("h{}", host + 1)), "/ready").is_ok()
    }

    fn wait_allocator(&mut self, lab: &Lab) -> Result<()> {
        let address = self.admin("allocator");
        let ready = lab.wait_for(READY_PATIENCE, || {
            self.check_alive()?;
            Ok(admin::get(&address, "/live").is_ok())
        })?;
        if !ready {
            bail!(
                "the allocator is not live after {} s: see its log",
                READY_PATIENCE.as_secs()
            );
        }
        Ok(())
    }

    /// Starts the allocator again after [`Control::kill_allocator`] and waits until every daemon
    /// has its session.
    ///
    /// # Errors
    /// When it does not start, or a daemon has no session in time.
    pub fn revive_allocator(&mut self, lab: &Lab, testbed: &Testbed) -> Result<()> {
        self.start_allocator(lab, testbed)?;
        self.wait_allocator(lab)?;
        self.wait_ready(lab)
    }

    /// Asks the allocator's admin interface for `path`.
    ///
    /// # Errors
    /// When it does not answer, or has no such path.
    pub fn ask_allocator(&self, path: &str) -> Result<String> {
        admin::get(&self.admin("allocator"), path).with_context(|| format!("GET {path}"))
    }

    /// Returns how often the allocator has named a link that is not as told, and how many hosts it
    /// names now.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn names_given(&self) -> Result<u64> {
        Ok(names_in(&self.ask_allocator("/metrics")?))
    }

    /// Turns the allocator's kill switch on or off.
    ///
    /// # Errors
    /// When the allocator does not answer.
    pub fn release(&self, on: bool) -> Result<()> {
        let path = if on { "/release" } else { "/resume" };
        admin::post(&self.admin("allocator"), path)
            .map(drop)
            .with_context(|| format!("POST {path} to the allocator"))
    }

    fn wait_ready(&mut self, lab: &Lab) -> Result<()> {
        let managed = self.managed.clone();
        managed
            .into_iter()
            .try_for_each(|host| self.wait_host(lab, host))
    }

    /// Waits until a host's daemon has its session.
    ///
    /// # Errors
    /// When it has none in time.
    pub fn wait_host(&mut self, lab: &Lab, host: usize) -> Result<()> {
        let ready = lab.wait_for(READY_PATIENCE, || {
            self.check_alive()?;
            Ok(self.daemon_is_ready(host))
        })?;
        if !ready {
            bail!(
                "the daemon of h{} has no session after {} s: see its log",
                host + 1,
                READY_PATIENCE.as_secs()
            );
        }
        Ok(())
    }

    /// Fails if a process of the control plane ended by itself.
    ///
    /// # Errors
    /// Then.
    pub fn check_alive(&mut self) -> Result<()> {
        for process in self
            .allocator
            .iter_mut()
            .chain(self.daemons.iter_mut().flatten())
        {
            if let Some(status) = process.exited() {
                bail!("{} ended ({status}): see its log", process.name());
            }
        }
        Ok(())
    }

    /// Returns the back end that the first daemon reports.
    #[must_use]
    pub fn backend(&self) -> Option<String> {
        let status = self.daemon_status(0)?;
        find_string(&status, "backend").or_else(|| find_string(&status, "kind"))
    }

    /// The status of a host's daemon.
    #[must_use]
    pub fn daemon_status(&self, host: usize) -> Option<serde_json::Value> {
        let body = admin::get(&self.admin(&format!("h{}", host + 1)), "/status").ok()?;
        serde_json::from_str(&body).ok()
    }

    /// Write of a flowlet's first byte to its first paced transmission, all daemons' samples, in
    /// microseconds.
    #[must_use]
    pub fn first_paced_us(&self) -> Vec<f64> {
        let managed = self.managed.iter();
        managed
            .flat_map(|host| self.first_paced_us_of(*host))
            .collect()
    }

    /// As [`Control::first_paced_us`], of one host's daemon, oldest first.
    fn first_paced_us_of(&self, host: usize) -> Vec<f64> {
        admin::get(&self.admin(&format!("h{}", host + 1)), "/first-paced")
            .ok()
            .and_then(|body| serde_json::from_str(&body).ok())
            .unwrap_or_default()
    }

    /// Ends daemons first, so that they give their sockets back, then the allocator.
    pub fn stop(mut self) {
        // All are asked before any is waited for: they end side by side.
        for daemon in self.daemons.iter().flatten() {
            daemon.terminate();
        }
        for daemon in self.daemons.iter_mut().flatten() {
            daemon.wait(STOP_PATIENCE);
        }
        if let Some(allocator) = &mut self.allocator {
            allocator.terminate();
            allocator.wait(STOP_PATIENCE);
        }
    }

    fn admin(&self, name: &str) -> String {
        format!("unix:{}", self.dir.join(format!("{name}.sock")).display())
    }

    fn allocator_config(&self, lab: &Lab, plan: &NetworkPlan) -> String {
        format!(
            "listen = \"{}\"\nadmin = \"{}\"\ntopology = \"topology.toml\"\n\n\
             [tls]\nca = \"ca.pem\"\ncert = \"{name}.pem\"\nkey = \"{name}.key\"\n\n\
             [transport]\ncontrol_dscp = {dscp}\n\n\
             [allocation]\nengine = \"{engine}\"\nlease_ms = {LEASE_MS}\n\n\
             [[class]]\nid = 0\nname = \"default\"\nutility = \"log\"\nweight = 1.0\n",
            plan.allocator_addr(),
            self.admin("allocator"),
            dscp = plan.capacities.control_dscp,
            engine = lab.options.engine.name(),
            name = certs::ALLOCATOR_NAME,
        )
    }

    fn daemon_config(&self, testbed: &Testbed, host: usize, keys: &ControlKeys<'_>) -> String {
        let backend = keys.backend;
        let plan = &testbed.network.plan;
        let name = &plan.nodes[host].name;
        let mut out = format!(
            "host = \"{name}\"\nallocator = [\"{}\"]\nadmin = \"{}\"\n\n\
             [tls]\nca = \"ca.pem\"\ncert = \"{name}.pem\"\nkey = \"{name}.key\"\n\n\
             [transport]\ncontrol_dscp = {}\n\n\
             [pacing]\nbackend = \"{}\"\ninstance = \"{}\"\ncgroup = \"{}\"\n",
            plan.allocator_addr(),
            self.admin(name),
            plan.capacities.control_dscp,
            backend.name(),
            instance(self.first_instance + host as u32),
            testbed.cgroup(host).display(),
        );
        if let Some(bytes) = keys.min_flowlet_bytes {
            let _ = writeln!(out, "min_flowlet_bytes = {bytes}");
        }
        // Only tc needs to know which device to shape.
        if backend == Backend::TcHtb {
            let _ = writeln!(out, "device = \"{}\"", plan.links[host].lower.device);
        }
        out.push('\n');
        out + keys.daemons
    }
}

/// Names of kernel objects are global to the machine: each lab and daemon has its own. Eight
/// characters at most.
fn instance(daemon: u32) -> String {
    format!("{:04x}h{:x}", std::process::id() & 0xffff, daemon & 0xfff)
}

fn write(dir: &std::path::Path, file: &str, text: &str) -> Result<()> {
    let path = dir.join(file);
    std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}

/// The topology file's content for a plan: same hosts, addresses, capacities and path hash.
///
/// # Errors
/// When the plan is no topology (it always is).
pub fn topology_of(plan: &NetworkPlan, seed: u32) -> Result<Topology> {
    let addressing = Addressing {
        ipv4_base: Some(HOSTS_V4.parse().context("the hosts' IPv4 base")?),
        ipv6_base: Some(HOSTS_V6.parse().context("the hosts' IPv6 base")?),
    };
    let ecmp = EcmpConfig {
        seed,
        symmetric: true,
    };
    let hosts_per_rack = (plan.hosts / plan.racks) as u32;
    let topology = if plan.spines == 0 {
        BigSwitch {
            racks: 1,
            hosts_per_rack,
            host_capacity_bps: plan.capacities.host_bps,
            addressing,
            ecmp,
            ..BigSwitch::default()
        }
        .build()
    } else {
        TwoTierClos {
            racks: plan.racks as u32,
            hosts_per_rack,
            spines: plan.spines as u32,
            host_capacity_bps: plan.capacities.host_bps,
            fabric_capacity_bps: plan.capacities.fabric_bps,
            addressing,
            ecmp,
            ..TwoTierClos::default()
        }
        .build()
    };
    // The links' HTB counts frames with their headers, as rates do.
    Ok(topology
        .context("building the topology")?
        .with_frames(Frames::AS_COUNTED))
}

/// Sums the metrics that count names of links and hosts which are not as told.
fn names_in(metrics: &str) -> u64 {
    const COUNTED: [&str; 2] = [
        "ratewright_allocator_links_not_as_told_total{",
        "ratewright_allocator_hosts_not_as_told_total{",
    ];
    let counted = |line: &&str| COUNTED.iter().any(|name| line.starts_with(name));
    let values = metrics.lines().filter(counted);
    let values = values.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    values.sum::<f64>() as u64
}

/// The first string under `key`, at any depth.
fn find_string(value: &serde_json::Value, key: &str) -> Option<String> {
    let object = value.as_object()?;
    match object.get(key) {
        Some(serde_json::Value::String(text)) => Some(text.clone()),
        _ => object.values().find_map(|child| find_string(child, key)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::plan::{Capacities, Offload};

    const CAPACITIES: Capacities = Capacities {
        host_bps: 250_000_000,
        fabric_bps: 500_000_000,
        buffer_bytes: 65_536,
        shape_hosts: true,
        shape_links: true,
        burst_bytes: None,
        offload: Offload::Never,
        control_dscp: 48,
    };

    /// The allocator maps addresses to hosts by the topology file: it must say what was built.
    #[test]
    fn the_topology_file_has_the_addresses_that_are_built() {
        for plan in [
            NetworkPlan::big_switch(9, CAPACITIES),
            NetworkPlan::two_tier(2, 4, 2, CAPACITIES),
        ] {
            let topology = topology_of(&plan, 7).unwrap();
            assert_eq!(topology.hosts().len(), plan.hosts);
            for (host, node) in plan.nodes[..plan.hosts].iter().enumerate() {
                let id = topology.host_by_name(&node.name).unwrap();
                for v6 in [false, true] {
                    assert_eq!(topology.host_by_addr(plan.host_addr(host, v6)), Some(id));
                }
            }
            assert_eq!(topology.host_by_addr(plan.allocator_addr().ip()), None);
        }
    }

    #[test]
    fn names_of_links_and_hosts_count_though_they_are_taken_back() {
        let metrics = "# HELP ratewright_allocator_links_not_as_told_total text\n\
                       ratewright_allocator_links_not_as_told_total{state=\"carries_less\"} 2\n\
                       ratewright_allocator_links_not_as_told{state=\"carries_less\"} 1\n\
                       ratewright_allocator_hosts_not_as_told_total{fault=\"flows_beyond_bound\"} 3\n\
                       ratewright_allocator_hosts_not_as_told{fault=\"flows_beyond_bound\"} 0\n";
        assert_eq!(names_in(metrics), 5);
        assert_eq!(names_in(""), 0);
    }

    #[test]
    fn an_instance_fits_the_bound_of_kernel_names() {
        assert!(instance(63).len() <= 8);
    }
}
