//! Checks of a host for the daemon: what would keep it from pacing, and what to do about it.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ratewright_io::quic::client::QuicClient;
use ratewright_io::quic::named::{self, AttemptSettings, NamedConnectError, RemoteName};
use ratewright_io::tls::{read_certificates, validity};

use crate::backend::probe::probe;
use crate::cleanup::{self, Places};
use crate::config::Config;
use crate::session_io::tls::{attempt, check_host_name, client_config};

mod told;

/// Certificates that end sooner are worth a warning.
const SOON: Duration = Duration::from_secs(14 * 24 * 3_600);
/// Longest wait for an allocator.
const PATIENCE: Duration = Duration::from_secs(2);
/// Oldest kernel on which a back end runs.
const OLDEST_KERNEL: (u32, u32) = (5, 17);
/// Files that a daemon and its sockets need at least.
const FEWEST_FILES: u64 = 1_024;

/// Weight of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// It works, but not as well as it could, or not for long.
    Warn,
    /// The daemon cannot pace.
    Fail,
}

/// Result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Weight.
    pub verdict: Verdict,
    /// Subject.
    pub subject: &'static str,
    /// Observation, and what to do about it.
    pub text: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = match self.verdict {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "fail",
        };
        write!(f, "{word:<5} {:<13} {}", self.subject, self.text)
    }
}

fn ok(subject: &'static str, text: impl Into<String>) -> Finding {
    finding(Verdict::Ok, subject, text)
}

fn warn(subject: &'static str, text: impl Into<String>) -> Finding {
    finding(Verdict::Warn, subject, text)
}

fn fail(subject: &'static str, text: impl Into<String>) -> Finding {
    finding(Verdict::Fail, subject, text)
}

fn finding(verdict: Verdict, subject: &'static str, text: impl Into<String>) -> Finding {
    Finding {
        verdict,
        subject,
        text: text.into(),
    }
}

/// Makes all checks, with `host` in place of the configuration's. Touches no socket, cgroup or
/// device of the host; connects to the allocators.
#[must_use]
pub fn examine(config_path: &Path, host: Option<&str>) -> Vec<Finding> {
    let mut findings = vec![
        ok(
            "version",
            format!("ratewright-endpointd {}", env!("CARGO_PKG_VERSION")),
        ),
        kernel(&read("/proc/sys/kernel/osrelease")),
        root(),
        exists(
            "btf",
            "/sys/kernel/btf/vmlinux",
            "the kernel needs CONFIG_DEBUG_INFO_BTF",
        ),
        cgroup2(&read("/proc/mounts")),
        queue(&read("/proc/sys/net/core/default_qdisc")),
        files(),
        clock(),
    ];
    findings.extend(mechanisms());
    match Config::load(config_path, host) {
        Ok(config) => {
            findings.push(leftovers(&Places {
                instance: None,
                ..Places::from(&config.backend_config())
            }));
            findings.extend(configured(&config));
            findings.extend(told::findings(config.admin.as_ref()));
        }
        Err(error) => {
            findings.push(leftovers(&Places::default()));
            findings.push(fail("config", error.to_string()));
        }
    }
    findings
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn kernel(release: &str) -> Finding {
    let release = release.trim();
    let mut numbers = release
        .split(|letter: char| !letter.is_ascii_digit())
        .map_while(|digits| digits.parse::<u32>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) if (major, minor) < OLDEST_KERNEL => fail(
            "kernel",
            format!(
                "Linux {release}: {}.{} is the oldest on which a back end runs; upgrade it",
                OLDEST_KERNEL.0, OLDEST_KERNEL.1
            ),
        ),
        (Some(_), Some(_)) => ok("kernel", format!("Linux {release}")),
        _ => warn("kernel", format!("its version {release:?} cannot be read")),
    }
}

fn root() -> Finding {
    if nix::unistd::geteuid().is_root() {
        ok("user", "root")
    } else {
        fail(
            "user",
            "not root: the daemon needs it, and so do these checks (sudo)",
        )
    }
}

fn exists(subject: &'static str, path: &str, remedy: &str) -> Finding {
    if Path::new(path).exists() {
        ok(subject, path)
    } else {
        fail(subject, format!("{path} is not there: {remedy}"))
    }
}

fn cgroup2(mounts: &str) -> Finding {
    let mounted = mounts
        .lines()
        .find(|line| line.split(' ').nth(2) == Some("cgroup2"))
        .and_then(|line| line.split(' ').nth(1));
    match mounted {
        Some(place) => ok("cgroup2", format!("mounted at {place}")),
        None => warn(
            "cgroup2",
            "not mounted: policy by cgroup and sock_ops need it (mount -t cgroup2 none /sys/fs/cgroup/unified)",
        ),
    }
}

fn queue(default: &str) -> Finding {
    match default.trim() {
        "fq" => ok(
            "queue",
            "new devices have fq, which paces in time with the device",
        ),
        other => ok(
            "queue",
            format!("new devices have {other}; TCP paces by itself, and fq is not needed"),
        ),
    }
}

fn files() -> Finding {
    use nix::sys::resource::{Resource, getrlimit};
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((soft, _)) if soft < FEWEST_FILES => warn(
            "limits",
            format!("{soft} open files: raise it to {FEWEST_FILES} (LimitNOFILE= of the unit)"),
        ),
        Ok((soft, _)) => ok("limits", format!("{soft} open files")),
        Err(error) => warn(
            "limits",
            format!("the limit of open files cannot be read: {error}"),
        ),
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "a certificate's dates are of the wall clock"
)]
fn wall_s() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
        })
}

/// Judges whether the clock is kept in time, by which certificates are judged.
#[allow(unsafe_code)]
fn clock() -> Finding {
    // SAFETY: all-zero is a valid `timex`: it asks for no change.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: a valid pointer to a `timex` that outlives the call.
    let result = unsafe { libc::adjtimex(&raw mut state) };
    if result < 0 {
        return warn(
            "clock",
            "the kernel does not tell whether it is kept in time",
        );
    }
    if result == libc::TIME_ERROR || state.status & libc::STA_UNSYNC != 0 {
        return warn(
            "clock",
            "nothing keeps it in time: a certificate may look expired or not valid yet (start chronyd or systemd-timesyncd)",
        );
    }
    ok(
        "clock",
        format!("kept in time, within {} ms", state.maxerror / 1_000),
    )
}

fn mechanisms() -> Vec<Finding> {
    let results = probe();
    let any = results.iter().any(|result| result.usable);
    results
        .into_iter()
        .map(|result| {
            let name = crate::status::backend_name(result.kind);
            if result.usable {
                ok("back end", format!("{name} can be used"))
            } else {
                let weight = if any { Verdict::Warn } else { Verdict::Fail };
                finding(
                    weight,
                    "back end",
                    format!("{name}: {}", result.reasons.join("; ")),
                )
            }
        })
        .collect()
}

fn leftovers(places: &Places) -> Finding {
    let found = cleanup::left_overs(places);
    match cleanup::daemon_runs() {
        Ok(true) => ok("daemon", "runs in this network namespace"),
        Ok(false) if found.is_empty() => ok("left-overs", "none; no daemon runs here"),
        Ok(false) => warn(
            "left-overs",
            format!(
                "{}: a daemon that starts takes them over; without one, ratewright-endpointd cleanup --yes removes them",
                found
                    .into_iter()
                    .map(|left| left.what)
                    .collect::<Vec<_>>()
                    .join("; ")
            ),
        ),
        Err(error) => warn("daemon", error.to_string()),
    }
}

fn configured(config: &Config) -> Vec<Finding> {
    let mut findings = vec![ok("config", format!("host {}", config.host))];
    let retired = config.retired().into_iter();
    findings.extend(retired.map(|note| warn("config", note)));
    for (what, path) in [
        ("authority", &config.tls.ca),
        ("certificate", &config.tls.cert),
    ] {
        findings.push(match read_certificates(path) {
            Ok(chain) => lifetime(
                &format!("{what} {}", path.display()),
                chain.iter().filter_map(validity),
                wall_s(),
            ),
            Err(error) => fail("certificates", error.to_string()),
        });
    }
    if let Err(error) = check_host_name(&config.tls, &config.host) {
        findings.push(fail("certificates", error.to_string()));
    }
    for address in &config.allocator {
        findings.push(reach(config, address));
    }
    findings
}

/// Judges the earliest end of these lifetimes, in seconds since 1970.
fn lifetime(what: &str, lifetimes: impl Iterator<Item = (i64, i64)>, now_s: i64) -> Finding {
    let Some((begins, ends)) = lifetimes.min_by_key(|(_, ends)| *ends) else {
        return fail("certificates", format!("{what}: its dates cannot be read"));
    };
    let days = (ends - now_s) / 86_400;
    if now_s < begins {
        fail(
            "certificates",
            format!("{what}: not valid yet; is the clock right?"),
        )
    } else if now_s >= ends {
        fail(
            "certificates",
            format!(
                "{what}: expired {} days ago; renew it and reload the daemon",
                -days
            ),
        )
    } else if u64::try_from(ends - now_s).unwrap_or(0) < SOON.as_secs() {
        warn(
            "certificates",
            format!("{what}: expires in {days} days; renew it and reload the daemon"),
        )
    } else {
        ok("certificates", format!("{what}: valid for {days} days"))
    }
}

/// Shakes hands with an allocator, without a session.
fn reach(config: &Config, address: &str) -> Finding {
    let connected = handshake(config, address);
    match connected {
        Ok(rtt) => ok(
            "allocator",
            format!("{address} answers, round trip {} µs", rtt.as_micros()),
        ),
        Err(error) => fail("allocator", format!("{address}: {error:#}")),
    }
}

fn handshake(config: &Config, address: &str) -> anyhow::Result<Duration> {
    let crypto = client_config(&config.tls)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let settings = AttemptSettings {
            client: attempt(&crypto, &config.session, PATIENCE, PATIENCE),
            server_name: &config.tls.server_name,
            patience: PATIENCE,
            queue_patience: PATIENCE,
        };
        let mut endpoints = Vec::new();
        let socket = |ipv6: bool| {
            let any: IpAddr = if ipv6 {
                Ipv6Addr::UNSPECIFIED.into()
            } else {
                Ipv4Addr::UNSPECIFIED.into()
            };
            let local = config.session.bind.unwrap_or(any);
            if local.is_ipv6() != ipv6 {
                return Err("session.bind is of the other family".to_owned());
            }
            let client = QuicClient::bind((local, 0).into(), config.transport.control_dscp)
                .map_err(|error| error.to_string())?;
            endpoints.push(client.endpoint().clone());
            Ok(client)
        };
        let connection = named::connect(&RemoteName::new(address), &settings, socket)
            .await
            .map_err(|error| match error {
                NamedConnectError::Timeout(_) => anyhow::Error::new(error)
                    .context("is it running, and does a firewall drop UDP?"),
                error => error.into(),
            })?;
        let rtt = connection.rtt();
        connection.close(quinn::VarInt::from_u32(0), b"doctor");
        for endpoint in endpoints {
            endpoint.wait_idle().await;
        }
        Ok(rtt)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_before_5_17_run_no_back_end() {
        for (release, verdict) in [
            ("6.1.0-40-cloud-amd64\n", Verdict::Ok),
            ("5.17", Verdict::Ok),
            ("5.16.20-generic", Verdict::Fail),
            ("4.19.0", Verdict::Fail),
            ("", Verdict::Warn),
        ] {
            assert_eq!(kernel(release).verdict, verdict, "{release}");
        }
    }

    #[test]
    fn a_certificate_is_judged_by_the_earliest_end_of_its_chain() {
        let day = 86_400;
        for (lifetimes, verdict) in [
            (vec![(0, 100 * day), (0, 300 * day)], Verdict::Ok),
            (vec![(0, 300 * day), (0, 60 * day)], Verdict::Warn),
            (vec![(0, 300 * day), (0, 50 * day)], Verdict::Fail),
            (vec![(51 * day, 300 * day)], Verdict::Fail),
            (vec![], Verdict::Fail),
        ] {
            let found = lifetime("it", lifetimes.into_iter(), 50 * day);
            assert_eq!(found.verdict, verdict, "{found}");
        }
    }

    #[test]
    fn a_hierarchy_beside_the_old_one_counts() {
        let hybrid =
            "cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\nnone /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(cgroup2(hybrid).verdict, Verdict::Ok);
        assert_eq!(cgroup2("proc /proc proc rw 0 0\n").verdict, Verdict::Warn);
    }
}
