//! The daemon's configuration: strict TOML; every error names the key and a right value.

mod instance;
mod retired;
mod telemetry;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ratewright_io::admin::AdminAddress;
use ratewright_io::dscp::Dscp;
use serde::Deserialize;

use crate::backend::{BackendConfig, BackendKind, tc_htb};
use crate::policy::RuleConfig;
use instance::{instance_name, is_instance_name};
use retired::Retired;

pub use telemetry::{SecondLineConfig, TelemetryConfig};

/// A commented configuration with every key, as `example-config` prints it.
pub const EXAMPLE: &str = include_str!("example.toml");

/// Most flows: flow ids carry 20 bits of slot number.
const MAX_FLOWS_LIMIT: u32 = 1 << 20;
/// Most bytes of tunnels' headers: a tunnel in a tunnel over IPv6, and room.
const TUNNEL_BYTES_LIMIT: u64 = 256;
/// Most policy rules: they are tried in order for every flowlet.
const MAX_RULES: usize = 256;

/// Reason why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        reason: String,
    },
    /// Not TOML, an unknown key, or a value of the wrong type.
    #[error("{origin}:{line}: {message} (in `{excerpt}`)")]
    Syntax {
        /// The file.
        origin: String,
        /// Line, counted from one.
        line: usize,
        /// Text that the parser found, and what it expected.
        message: String,
        /// The line's text.
        excerpt: String,
    },
    /// A value that cannot be used.
    #[error("{origin}: `{key}`: {problem}")]
    Value {
        /// The file.
        origin: String,
        /// Path of the key, as `pacing.max_flows`.
        key: String,
        /// Description of the defect, and of a right value.
        problem: String,
    },
}

/// The configuration file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// This host's name in the topology and in its certificate.
    #[serde(default)]
    pub host: String,
    /// The allocator's addresses, `host:port`, tried in order.
    pub allocator: Vec<String>,
    /// Address of the admin interface; none if absent.
    #[serde(default)]
    pub admin: Option<AdminAddress>,
    /// Certificates.
    pub tls: TlsConfig,
    /// The session with the allocator.
    #[serde(default)]
    pub session: SessionConfig,
    /// Transport of the session's datagrams.
    #[serde(default)]
    pub transport: TransportConfig,
    /// Detection and pacing.
    #[serde(default)]
    pub pacing: PacingConfig,
    /// Measurements for the allocator's feeds.
    #[serde(default)]
    pub telemetry: TelemetryConfig,
    /// Shares from receivers' daemons while the allocator is lost.
    #[serde(default)]
    pub second_line: SecondLineConfig,
    /// The policy, first match wins.
    #[serde(default)]
    pub policy: Vec<RuleConfig>,
}

/// `[tls]`: PEM files; relative paths are relative to the configuration's folder.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The authority that signed the allocator's certificate.
    pub ca: PathBuf,
    /// This host's certificate chain.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The name that the allocator's certificate must carry.
    #[serde(default = "default_server_name")]
    pub server_name: String,
}

fn default_server_name() -> String {
    "ratewright-allocator".to_owned()
}

/// `[session]`: timers of the connection to the allocator.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SessionConfig {
    /// Local address to connect from; the kernel chooses if absent.
    pub bind: Option<IpAddr>,
    /// Duration of the first attempt to connect; later ones wait longer.
    pub handshake_timeout_ms: u64,
    /// No attempt to connect waits longer than this.
    pub handshake_timeout_max_ms: u64,
    /// First pause after a failed attempt; grows from there, with jitter.
    pub retry_min_ms: u64,
    /// Longest pause between attempts.
    pub retry_max_ms: u64,
    /// The transport closes after this long without a packet from the allocator.
    pub idle_timeout_ms: u64,
    /// Round-trip time assumed until one was measured.
    pub initial_rtt_us: u64,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            bind: None,
            handshake_timeout_ms: 250,
            handshake_timeout_max_ms: 4_000,
            retry_min_ms: 20,
            retry_max_ms: 2_000,
            idle_timeout_ms: 3_000,
            initial_rtt_us: 30_000,
        }
    }
}

/// `[transport]`: transport of the session's datagrams. Control messages always use QUIC.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransportConfig {
    /// Transport of datagrams.
    pub hot: HotTransport,
    /// DSCP of all datagrams to the allocator, over both transports.
    pub control_dscp: Dscp,
}

/// The value of `transport.hot`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HotTransport {
    /// Sealed UDP if the allocator offers it and it gets through, QUIC otherwise.
    #[default]
    Udp,
    /// QUIC, even if the allocator offers sealed UDP.
    Quic,
}

/// The value of `pacing.mode`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PacingMode {
    /// The allocator's rates are applied, unless the allocator wants otherwise.
    #[default]
    Pace,
    /// Rates are got, compared with what plain TCP achieves, and not applied.
    Observe,
}

/// `[pacing]`: which back end, and what counts as a flowlet.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PacingConfig {
    /// Application of rates.
    pub mode: PacingMode,
    /// The mechanism, or `auto` for the best that this kernel offers.
    pub backend: BackendChoice,
    /// Size from which a flowlet is reported; smaller ones never cost a message.
    pub min_flowlet_bytes: u64,
    /// A flowlet ends when its socket had nothing to send for this long.
    pub idle_gap_us: u64,
    /// Demands follow measured use; otherwise flows hold capacity that they do not use.
    pub measure_demand: bool,
    /// Bound of the flow table.
    pub max_flows: u32,
    /// cgroup v2 directory whose sockets are paced (sock_ops).
    pub cgroup: Option<PathBuf>,
    /// Network device whose egress is paced (tc_htb).
    pub device: Option<String>,
    /// Connections that exist at start are taken over.
    pub take_over: bool,
    /// Patterns of files that network namespaces of pods are bound to, whose sockets are paced
    /// besides those of the daemon's own namespace.
    pub network_namespaces: Vec<String>,
    /// Least bytes that tunnels add to each frame, for tunnels that no device of this host shows.
    pub tunnel_bytes: u16,
    /// Names the daemon's kernel objects; derived from `host` if absent.
    pub instance: Option<String>,
    #[serde(rename = "max_burst_us")]
    retired_max_burst_us: Option<Retired>,
    #[serde(rename = "procfs")]
    retired_procfs: Option<Retired>,
}

impl Default for PacingConfig {
    fn default() -> Self {
        Self {
            mode: PacingMode::Pace,
            backend: BackendChoice::Auto,
            min_flowlet_bytes: 15_000,
            idle_gap_us: 1_000,
            measure_demand: true,
            max_flows: 16_384,
            cgroup: None,
            device: None,
            take_over: true,
            network_namespaces: Vec::new(),
            tunnel_bytes: 0,
            instance: None,
            retired_max_burst_us: None,
            retired_procfs: None,
        }
    }
}

/// The value of `pacing.backend` and of `--backend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum BackendChoice {
    /// The best usable one.
    Auto,
    /// BPF sock_ops with `SO_MAX_PACING_RATE`.
    SockOps,
    /// tc HTB classes.
    TcHtb,
    /// A back end of the release before; the best usable one takes its place.
    #[value(hide = true)]
    StructOps,
}

impl BackendChoice {
    /// Says what to write in place of a value of the release before.
    #[must_use]
    pub fn retired(self) -> Option<&'static str> {
        (self == Self::StructOps)
            .then_some("--backend struct_ops is no more, and counts as auto; write that")
    }

    /// The mechanism, or `None` for the best usable one.
    #[must_use]
    pub fn kind(self) -> Option<BackendKind> {
        match self {
            Self::Auto | Self::StructOps => None,
            Self::SockOps => Some(BackendKind::SockOps),
            Self::TcHtb => Some(BackendKind::TcHtb),
        }
    }
}

/// Converts a parser error to one line, with the line of the file that it points at.
fn syntax_error(text: &str, origin: &str, error: &toml::de::Error) -> ConfigError {
    let start = error.span().map_or(0, |span| span.start).min(text.len());
    let before = text.as_bytes()[..start].iter();
    let line = 1 + before.filter(|&&byte| byte == b'\n').count();
    ConfigError::Syntax {
        origin: origin.to_owned(),
        line,
        message: error.message().replace('\n', ", "),
        excerpt: text.lines().nth(line - 1).unwrap_or("").trim().to_owned(),
    }
}

impl Config {
    /// Reads and checks a file. `host` replaces the file's, so that many hosts can share one.
    ///
    /// # Errors
    /// When it cannot be read, is not valid TOML, has unknown keys or impossible values.
    pub fn load(path: &Path, host: Option<&str>) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::Read {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
        let mut config = Self::parse(&text, &path.display().to_string(), host)?;
        let folder = path.parent().unwrap_or(Path::new("."));
        let tls = &mut config.tls;
        for file in [&mut tls.ca, &mut tls.cert, &mut tls.key] {
            // An absolute path replaces the folder, so only relative ones change.
            *file = folder.join(&*file);
        }
        config.admin = config.admin.map(|address| address.within(folder));
        Ok(config)
    }

    /// Reads and checks a text; `origin` names it in errors.
    ///
    /// # Errors
    /// As for [`Config::load`].
    pub fn from_toml_str(text: &str, origin: &str) -> Result<Self, ConfigError> {
        Self::parse(text, origin, None)
    }

    fn parse(text: &str, origin: &str, host: Option<&str>) -> Result<Self, ConfigError> {
        let mut config: Self =
            toml::from_str(text).map_err(|error| syntax_error(text, origin, &error))?;
        if let Some(host) = host {
            host.clone_into(&mut config.host);
        }
        config.check(origin)?;
        Ok(config)
    }

    fn check(&self, origin: &str) -> Result<(), ConfigError> {
        let bad = |key: &str, problem: String| {
            Err(ConfigError::Value {
                origin: origin.to_owned(),
                key: key.to_owned(),
                problem,
            })
        };
        // The certificate carries it as a DNS name, which has at most 253 bytes (RFC 1035).
        if self.host.is_empty() || self.host.len() > 253 {
            return bad(
                "host",
                "must be this host's name in the topology, 1 to 253 bytes; write it there, or give --host"
                    .into(),
            );
        }
        if self.allocator.is_empty() {
            return bad("allocator", "must list at least one `host:port`".into());
        }
        for address in &self.allocator {
            let port = address
                // From the right: IPv6 addresses contain colons themselves.
                .rsplit_once(':')
                .and_then(|(_, port)| port.parse::<u16>().ok());
            if port.is_none_or(|port| port == 0) {
                return bad(
                    "allocator",
                    format!("`{address}` is not `host:port`, as in \"10.0.0.1:7600\""),
                );
            }
        }
        let session = &self.session;
        for (key, value, low, high) in [
            (
                "session.handshake_timeout_ms",
                session.handshake_timeout_ms,
                10,
                60_000,
            ),
            (
                "session.handshake_timeout_max_ms",
                session.handshake_timeout_max_ms,
                session.handshake_timeout_ms,
                60_000,
            ),
            ("session.retry_min_ms", session.retry_min_ms, 1, 60_000),
            (
                "session.retry_max_ms",
                session.retry_max_ms,
                session.retry_min_ms,
                600_000,
            ),
            (
                "session.idle_timeout_ms",
                session.idle_timeout_ms,
                100,
                600_000,
            ),
            (
                "session.initial_rtt_us",
                session.initial_rtt_us,
                10,
                1_000_000,
            ),
            ("pacing.idle_gap_us", self.pacing.idle_gap_us, 0, 10_000_000),
            (
                "pacing.min_flowlet_bytes",
                self.pacing.min_flowlet_bytes,
                0,
                1 << 40,
            ),
            ("telemetry.period_ms", self.telemetry.period_ms, 0, 10_000),
            (
                "second_line.port",
                u64::from(self.second_line.port),
                1,
                u64::from(u16::MAX),
            ),
            (
                "pacing.tunnel_bytes",
                u64::from(self.pacing.tunnel_bytes),
                0,
                TUNNEL_BYTES_LIMIT,
            ),
            (
                "pacing.max_flows",
                u64::from(self.pacing.max_flows),
                1,
                u64::from(MAX_FLOWS_LIMIT),
            ),
        ] {
            if value < low || value > high {
                return bad(key, format!("{value} is outside {low}..={high}"));
            }
        }
        if self.pacing.backend == BackendChoice::TcHtb {
            if self.pacing.device.is_none() {
                return bad(
                    "pacing.device",
                    "tc_htb needs the network device that faces the network, as in \"eth0\"".into(),
                );
            }
            if self.pacing.max_flows > tc_htb::MAX_SLOTS {
                return bad(
                    "pacing.max_flows",
                    format!(
                        "{} is outside 1..={}, the classes that tc_htb has for flows",
                        self.pacing.max_flows,
                        tc_htb::MAX_SLOTS
                    ),
                );
            }
        }
        for pattern in &self.pacing.network_namespaces {
            let problem = if !pattern.starts_with('/') {
                "must begin with /".to_owned()
            } else if let Err(error) = glob::Pattern::new(pattern) {
                error.to_string()
            } else {
                continue;
            };
            return bad(
                "pacing.network_namespaces",
                format!(
                    "`{pattern}` is no pattern of files, as in \"/run/netns/cni-*\": {problem}"
                ),
            );
        }
        if !self.pacing.network_namespaces.is_empty() && !self.pacing.take_over {
            return bad(
                "pacing.network_namespaces",
                "needs take_over = true: pods' namespaces are taken over".into(),
            );
        }
        if let Some(instance) = &self.pacing.instance
            && !is_instance_name(instance)
        {
            return bad(
                "pacing.instance",
                format!("`{instance}` must be 1 to 8 characters of a-z and 0-9"),
            );
        }
        if self.policy.len() > MAX_RULES {
            return bad(
                "policy",
                format!(
                    "{} rules; at most {MAX_RULES} are allowed",
                    self.policy.len()
                ),
            );
        }
        for (index, rule) in self.policy.iter().enumerate() {
            if let Err(problem) = rule.check() {
                return bad(&format!("policy[{index}].{}", problem.key), problem.problem);
            }
            // The first match decides: rules behind one without conditions are surely a mistake.
            if rule.matches_everything() && index + 1 < self.policy.len() {
                return bad(
                    &format!("policy[{index}]"),
                    "matches every flow, so that the rules after it can never apply; put it last"
                        .into(),
                );
            }
        }
        Ok(())
    }

    /// Returns the back end's part of the configuration.
    #[must_use]
    pub fn backend_config(&self) -> BackendConfig {
        let pacing = &self.pacing;
        BackendConfig {
            instance: pacing
                .instance
                .clone()
                .unwrap_or_else(|| instance_name(&self.host)),
            max_flows: pacing.max_flows,
            min_flowlet_bytes: pacing.min_flowlet_bytes,
            cgroup: pacing.cgroup.clone(),
            device: pacing.device.clone(),
            take_over: pacing.take_over,
            network_namespaces: pacing.network_namespaces.clone(),
            tunnel_bytes: pacing.tunnel_bytes,
            observe: pacing.mode == PacingMode::Observe,
        }
    }
}

#[cfg(test)]
mod tests;
