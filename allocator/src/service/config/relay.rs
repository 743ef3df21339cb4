//! Configuration of a relay: a TOML file, checked as strictly as the allocator's.

use std::net::SocketAddr;
use std::path::Path;

use ratewright_io::admin::AdminAddress;
use serde::Deserialize;
use toml::Spanned;

use super::check::Checker;
use super::error::{self, ConfigError};
use super::raw::{Field, RawTls, RawTransport};
use super::{TlsFiles, TransportConfig, transport};

/// A checked configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct RelayConfig {
    /// UDP address that the hosts connect to.
    pub listen: SocketAddr,
    /// Address of the admin HTTP server.
    pub admin: AdminAddress,
    /// Allocators as `address:port`, in the order of attempts.
    pub allocators: Vec<String>,
    /// Log filter (the syntax of `RUST_LOG`).
    pub log: String,
    /// Certificates.
    pub tls: TlsFiles,
    /// Transport of datagrams between the hosts and the relay.
    pub transport: TransportConfig,
    /// Most hosts with a connection at a time.
    pub max_hosts: usize,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRelay {
    listen: Field<String>,
    admin: Field<String>,
    allocator: Field<Vec<Spanned<String>>>,
    log: Field<String>,
    #[serde(default)]
    tls: RawTls,
    #[serde(default)]
    transport: RawRelayTransport,
    #[serde(default)]
    limits: RawRelayLimits,
}

/// Keys of the allocator's `[transport]` that a relay has too.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRelayTransport {
    hot: Field<String>,
    udp_port: Field<u16>,
    cipher: Field<String>,
    control_dscp: Field<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRelayLimits {
    max_hosts: Field<usize>,
}

const MAX_HOSTS: usize = 4_096;

impl RelayConfig {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// The file cannot be read, or has a mistake.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        let folder = path.parent().unwrap_or_else(|| Path::new(""));
        Self::from_toml_str(&text, &path.display().to_string(), folder)
    }

    /// Checks a text. `origin` is its name in errors; relative paths start from `folder`.
    ///
    /// # Errors
    /// The first mistake.
    pub fn from_toml_str(text: &str, origin: &str, folder: &Path) -> Result<Self, ConfigError> {
        let raw: RawRelay =
            toml::from_str(text).map_err(|source| error::syntax_error(text, origin, &source))?;
        let checker = Checker {
            text,
            origin,
            folder,
        };
        let listen = checker.need(
            raw.listen,
            "listen",
            r#"the UDP address that hosts connect to, such as listen = "10.0.0.9:7600""#,
        )?;
        let admin = checker.need(
            raw.admin,
            "admin",
            r#"the address of the admin HTTP server, such as admin = "unix:/run/ratewright-relay/admin.sock""#,
        )?;
        let allocators = checker.need(
            raw.allocator,
            "allocator",
            r#"the addresses of allocators, such as allocator = ["10.0.0.1:7600"]"#,
        )?;
        if allocators.get_ref().is_empty() {
            return Err(checker.wrong("allocator", &allocators, "needs one address at least"));
        }
        for address in allocators.get_ref() {
            // Names are allowed: they are resolved at each attempt.
            let good = address
                .get_ref()
                .rsplit_once(':')
                .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
            if !good {
                return Err(checker.wrong(
                    "allocator",
                    address,
                    r#"must be addresses or names with a port, such as "10.0.0.1:7600""#,
                ));
            }
        }
        // The allocator's check would accept "dpdk", which a relay cannot drive.
        if let Some(hot) = &raw.transport.hot
            && !matches!(hot.get_ref().as_str(), "quic" | "udp")
        {
            return Err(checker.wrong("transport.hot", hot, r#"must be "quic" or "udp""#));
        }
        let raw_transport = RawTransport {
            hot: raw.transport.hot,
            udp_port: raw.transport.udp_port,
            cipher: raw.transport.cipher,
            control_dscp: raw.transport.control_dscp,
            ..RawTransport::default()
        };
        let transport = transport::checked(&checker, raw_transport)?;
        let max_hosts = checker.within(
            raw.limits.max_hosts,
            MAX_HOSTS,
            "limits.max_hosts",
            |hosts| (1..=100_000).contains(&hosts),
            "must be 1 to 100000; 4096 is the default",
        )?;
        Ok(Self {
            listen: checker.socket_address("listen", &listen)?,
            admin: checker.admin(&admin)?,
            allocators: allocators
                .into_inner()
                .into_iter()
                .map(Spanned::into_inner)
                .collect(),
            log: checker.log(raw.log)?,
            tls: checker.tls(raw.tls)?,
            transport,
            max_hosts,
        })
    }
}

/// Returns a commented configuration of a relay with every key.
pub fn example_relay_config() -> String {
    EXAMPLE.to_owned()
}

const EXAMPLE: &str = r#"# Configuration of ratewright-allocator relay. Paths are relative to this file's folder.

# UDP address that the hosts' daemons connect to, as to an allocator.
listen = "0.0.0.0:7600"
# Admin HTTP: /live /ready /metrics /status.
admin = "unix:/run/ratewright-relay/admin.sock"
# Allocators, in the order in which they are tried; one is connected to at a time.
allocator = ["10.0.0.1:7600"]
log = "info"

[tls]
# Authority of the allocator's and of the hosts' certificates.
ca = "ca.pem"
# The relay's own certificate and key. Its SAN DNS names are "ratewright-allocator", which hosts look for, and
# the relay's own name, which the allocator looks for in its trust.relays.
cert = "relay.pem"
key = "relay.key"

# How datagrams travel between the hosts and this relay.
[transport]
# "udp" offers hosts sealed UDP datagrams; those that they do not reach go on with QUIC, which "quic" leaves alone.
hot = "udp"
# udp_port = 7601           # the port of sealed datagrams, for firewalls to know; else whichever is free
# "aes-128-gcm", or "chacha20-poly1305" for processors without AES instructions.
cipher = "aes-128-gcm"
# DSCP of every datagram to hosts and to the allocator, so that queues let it pass data: 0 to 63; 48 is CS6, 0 marks
# none.
control_dscp = 48

[limits]
# Hosts with a connection at a time; others are turned away and try their next server.
max_hosts = 4096
"#;

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<RelayConfig, ConfigError> {
        RelayConfig::from_toml_str(text, "relay.toml", Path::new("/etc"))
    }

    #[test]
    fn the_example_is_a_configuration_and_shows_every_default() {
        let config = load(EXAMPLE).expect("good");
        assert_eq!(config.allocators, ["10.0.0.1:7600"]);
        assert_eq!(config.tls.cert, Path::new("/etc/relay.pem"));
        assert_eq!(config.transport, TransportConfig::default());
        assert_eq!(config.max_hosts, MAX_HOSTS);
        // The fuzz target's seed must follow the example.
        let seed = include_str!("../../../../fuzz/seeds/relay_toml/example.toml");
        assert_eq!(seed, EXAMPLE);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (from, to, complaint) in [
            (
                r#"["10.0.0.1:7600"]"#,
                "[]",
                "relay.toml:8: allocator = []: needs one address",
            ),
            (r#"["10.0.0.1:7600"]"#, r#"["10.0.0.1"]"#, "with a port"),
            (
                "max_hosts = 4096",
                "max_hosts = 0",
                "limits.max_hosts = 0: must be",
            ),
            ("max_hosts = 4096", "hosts = 1", "unknown field"),
            (r#"listen = "0.0.0.0:7600""#, "", "listen is missing"),
            (
                r#"hot = "udp""#,
                r#"hot = "tcp""#,
                r#"must be "quic" or "udp""#,
            ),
            (
                "control_dscp = 48",
                "control_dscp = 64",
                "transport.control_dscp = 64: must be 0 to 63",
            ),
            // A key of the allocator that a relay does not have.
            (
                r#"hot = "udp""#,
                "hot = \"udp\"\nshards = 2",
                "unknown field `shards`, expected one of `hot`, `udp_port`, `cipher`, `control_dscp`",
            ),
        ] {
            let error = load(&EXAMPLE.replace(from, to)).expect_err(to).to_string();
            assert!(error.contains(complaint), "{error}");
        }
    }
}
