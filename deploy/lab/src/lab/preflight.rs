//! Checks before anything is built. A refusal is one line: what is missing and what to do.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use ratewright_cli::tool;

use crate::net::ns;
use crate::options::{Backend, LabOptions};

/// Programs of the control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    /// This program: it is the traffic programs as well.
    pub lab: PathBuf,
    /// ratewright-allocator.
    pub allocator: PathBuf,
    /// ratewright-endpointd.
    pub endpointd: PathBuf,
}

/// Checks that the lab can run here.
///
/// # Errors
/// A line that says what to do.
pub fn check(options: &LabOptions) -> Result<Binaries> {
    // Before the check for root, so that mistakes in the command line show without it.
    if options.scenario == crate::options::ScenarioKind::Mixed
        && options.hosts.is_some_and(|n| n % 2 == 1 || n < 8)
    {
        bail!("mixed needs an even number of hosts, at least 8: they stand in two racks");
    }
    if !nix::unistd::geteuid().is_root() {
        bail!("the lab needs root, for network namespaces: run it with sudo");
    }
    let missing = missing_tools(|program| tool::find(program).is_some());
    if !missing.is_empty() {
        bail!("not installed: {missing}; apt-get install iproute2");
    }
    let lab = std::env::current_exe().context("finding this program's own file")?;
    let directory = match &options.bin_dir {
        Some(directory) => directory.clone(),
        None => lab.parent().map(Path::to_owned).unwrap_or_default(),
    };
    let binaries = Binaries {
        lab,
        allocator: directory.join("ratewright-allocator"),
        endpointd: directory.join("ratewright-endpointd"),
    };
    check_kernel()?;
    // The baseline needs neither daemon nor allocator.
    if !options.only_baseline {
        check_control(options, &binaries)?;
    }
    Ok(binaries)
}

/// Lists the missing system tools.
fn missing_tools(is_there: impl Fn(&str) -> bool) -> String {
    let missing: Vec<&str> = ["ip", "tc"]
        .into_iter()
        .filter(|program| !is_there(program))
        .collect();
    missing.join(", ")
}

/// Builds one link with a queue in a throw-away namespace.
fn check_kernel() -> Result<()> {
    let cubic = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")
        .unwrap_or_default();
    if !cubic.split_whitespace().any(|name| name == "cubic") {
        bail!(
            "this kernel has no cubic congestion control, the lab's baseline: modprobe tcp_cubic"
        );
    }
    let mounts = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !mounts.split_whitespace().any(|word| word == "cgroup2") {
        bail!("this kernel has no cgroup v2 (CONFIG_CGROUPS): boot one that has");
    }
    let name = format!("{}{}-probe", crate::cleanup::PREFIX, std::process::id());
    let probe = || -> Result<()> {
        tool::run("ip", &["netns", "add", &name]).context("network namespaces (CONFIG_NET_NS)")?;
        tool::run(
            "ip",
            &[
                "-n", &name, "link", "add", "name", "probe0", "type", "veth", "peer", "name",
                "probe1",
            ],
        )
        .context("veth pairs (CONFIG_VETH)")?;
        let qdisc = [
            "-n", &name, "qdisc", "add", "dev", "probe0", "root", "handle", "1:", "htb",
        ];
        tool::run("tc", &qdisc).context("the HTB queueing discipline (CONFIG_NET_SCH_HTB)")
    };
    let result = probe();
    // Whether the probe failed or not.
    ns::delete(&name);
    result.map_err(|error| {
        let line = format!("{error:#}").replace('\n', " ");
        anyhow::anyhow!("this kernel lacks what the lab is built of: {line}")
    })
}

fn check_control(options: &LabOptions, binaries: &Binaries) -> Result<()> {
    for program in [&binaries.allocator, &binaries.endpointd] {
        if !program.is_file() {
            bail!(
                "{} is not there: build it (cargo build -p ratewright-allocator -p ratewright-endpointd), or say where \
                 it is with --bin-dir",
                program.display()
            );
        }
    }
    let table = probe(binaries)?;
    if let Err(reason) = usable(&table, options.backend) {
        bail!("{reason} (see `ratewright-endpointd probe`)");
    }
    Ok(())
}

/// The back ends that work on this kernel, best first.
///
/// # Errors
/// When the daemon's probe cannot be run.
pub fn working_backends(binaries: &Binaries) -> Result<Vec<Backend>> {
    let table = probe(binaries)?;
    Ok([Backend::SockOps, Backend::TcHtb]
        .into_iter()
        .filter(|backend| usable(&table, *backend).is_ok())
        .collect())
}

fn probe(binaries: &Binaries) -> Result<String> {
    let output = Command::new(&binaries.endpointd)
        .arg("probe")
        .output()
        .with_context(|| format!("running {}", binaries.endpointd.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Reads the table that `ratewright-endpointd probe` prints: mechanism, usable, chosen, remarks.
fn usable(table: &str, backend: Backend) -> Result<(), String> {
    let rows: Vec<Vec<&str>> = table
        .lines()
        // The table's header.
        .skip(1)
        .map(|line| line.split_whitespace().collect())
        .collect();
    // The daemon chooses the first that works.
    if backend == Backend::Auto {
        let any = rows.iter().any(|row| row.get(1) == Some(&"yes"));
        return if any {
            Ok(())
        } else {
            Err("this kernel offers no pacing back end".to_owned())
        };
    }
    match rows.iter().find(|row| row.first() == Some(&backend.name())) {
        Some(row) if row.get(1) == Some(&"yes") => Ok(()),
        Some(row) => {
            let reason = row.get(3..).unwrap_or_default().join(" ");
            Err(format!(
                "the back end `{}` does not work on this kernel: {reason}",
                backend.name()
            ))
        }
        None => Err(format!(
            "the probe does not know the back end `{}`",
            backend.name()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "mechanism    usable  chosen  remarks\n\
                         sock_ops     no      no      no BTF in this kernel\n\
                         tc_htb       yes     yes     \n";

    #[test]
    fn missing_tools_are_named() {
        assert_eq!(missing_tools(|_| false), "ip, tc");
        assert_eq!(missing_tools(|program| program == "ip"), "tc");
        assert_eq!(missing_tools(|_| true), "");
    }

    #[test]
    fn a_back_end_that_does_not_work_is_refused_with_the_probes_reason() {
        assert_eq!(usable(TABLE, Backend::Auto), Ok(()));
        assert_eq!(usable(TABLE, Backend::TcHtb), Ok(()));
        let reason = usable(TABLE, Backend::SockOps).unwrap_err();
        assert!(reason.contains("no BTF in this kernel"), "{reason}");
        assert!(usable("", Backend::Auto).is_err());
    }
}
