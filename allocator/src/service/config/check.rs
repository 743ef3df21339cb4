//! Conversion of the raw shape to a [`Config`]: checks every value, and reports errors with their
//! line.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use ratewright_io::admin::AdminAddress;
use ratewright_proto::control::{MAX_LEASE_NS, MAX_LIVENESS_NS, MIN_LEASE_NS};
use toml::Spanned;

use super::error::{ConfigError, line_of};
use super::raw::{Field, RawAllocation, RawConfig, RawLimits, RawTls};
use super::{
    Allocation, Config, EngineKind, Limits, TlsFiles, classes, collector, feeds, membership,
    rollout, transport, trust,
};
use crate::engine::parallel::{MOST_BLOCKS, MOST_WORKERS};
use crate::service::admin::logging;

/// Leases that daemons take, in milliseconds.
const LEASE_MS: RangeInclusive<u64> = MIN_LEASE_NS / 1_000_000..=MAX_LEASE_NS / 1_000_000;

/// Converts and checks values; locates errors in the text.
pub(super) struct Checker<'a> {
    pub(super) text: &'a str,
    pub(super) origin: &'a str,
    pub(super) folder: &'a Path,
}

impl Checker<'_> {
    pub(super) fn config(&self, raw: RawConfig) -> Result<Config, ConfigError> {
        let listen = self.need(
            raw.listen,
            "listen",
            r#"the UDP address of the service, such as listen = "10.0.0.1:7600""#,
        )?;
        let admin = self.need(
            raw.admin,
            "admin",
            r#"the address of the admin HTTP server, such as admin = "unix:/run/ratewright-allocator/admin.sock" or admin = "127.0.0.1:9600""#,
        )?;
        let topology = self.need(
            raw.topology,
            "topology",
            r#"the topology file, such as topology = "topology.toml""#,
        )?;
        let limits = self.limits(raw.limits)?;
        let mut feeds = raw.feeds;
        let collector = feeds.collector.take();
        Ok(Config {
            listen: self.socket_address("listen", &listen)?,
            admin: self.admin(&admin)?,
            topology: self.path("topology", &topology)?,
            log: self.log(raw.log)?,
            tls: self.tls(raw.tls)?,
            allocation: self.allocation(raw.allocation)?,
            transport: transport::checked(self, raw.transport)?,
            limits,
            feeds: feeds::checked(self, feeds)?,
            collector: collector
                .map(|raw| collector::checked(self, raw))
                .transpose()?,
            membership: membership::checked(self, raw.membership)?,
            trust: trust::checked(self, raw.trust)?,
            rollout: rollout::checked(self, raw.rollout)?,
            audit: raw
                .audit
                .map(|path| self.path("audit", &path))
                .transpose()?,
            classes: classes::checked(self, raw.class)?,
        })
    }

    pub(super) fn need<T>(
        &self,
        field: Field<T>,
        key: &str,
        expected: &str,
    ) -> Result<Spanned<T>, ConfigError> {
        field.ok_or_else(|| ConfigError::Missing {
            origin: self.origin.to_owned(),
            key: key.to_owned(),
            expected: expected.to_owned(),
        })
    }

    /// Makes the error for a value in the text.
    pub(super) fn wrong<T>(
        &self,
        key: &str,
        value: &Spanned<T>,
        expected: impl Into<String>,
    ) -> ConfigError {
        // The text, not the value, so that the user finds the spelling of the file in the error.
        // Only its first line: errors have one line.
        let span = value.span();
        let found = self
            .text
            .get(span.clone())
            .unwrap_or("?")
            .lines()
            .next()
            .unwrap_or("")
            .to_owned();
        ConfigError::Value {
            origin: self.origin.to_owned(),
            line: line_of(self.text, span.start),
            key: key.to_owned(),
            found,
            expected: expected.into(),
        }
    }

    pub(super) fn socket_address(
        &self,
        key: &str,
        value: &Spanned<String>,
    ) -> Result<SocketAddr, ConfigError> {
        value.get_ref().parse().map_err(|_| {
            self.wrong(
                key,
                value,
                r#"must be an IP address and a port, such as "10.0.0.1:7600" or "[::]:7600""#,
            )
        })
    }

    pub(super) fn admin(&self, value: &Spanned<String>) -> Result<AdminAddress, ConfigError> {
        let address: Result<AdminAddress, _> = value.get_ref().parse();
        address
            .map(|address| address.within(self.folder))
            .map_err(|error| self.wrong("admin", value, error.to_string()))
    }

    pub(super) fn log(&self, field: Field<String>) -> Result<String, ConfigError> {
        let Some(value) = field else {
            return Ok("info".to_owned());
        };
        if let Err(error) = logging::check(value.get_ref()) {
            let expected = format!(
                "is not a log filter: {}; {}",
                error.reason,
                logging::EXAMPLES
            );
            return Err(self.wrong("log", &value, expected));
        }
        Ok(value.into_inner())
    }

    fn path(&self, key: &str, value: &Spanned<String>) -> Result<PathBuf, ConfigError> {
        // Joined to the folder, an empty path would name the folder itself.
        if value.get_ref().is_empty() {
            return Err(self.wrong(key, value, "must name a file"));
        }
        Ok(self.folder.join(value.get_ref()))
    }

    pub(super) fn tls(&self, raw: RawTls) -> Result<TlsFiles, ConfigError> {
        let ca = self.need(
            raw.ca,
            "tls.ca",
            r#"the PEM file of the authority, such as ca = "ca.pem""#,
        )?;
        let cert = self.need(
            raw.cert,
            "tls.cert",
            r#"the allocator's PEM certificate, such as cert = "allocator.pem""#,
        )?;
        let key = self.need(
            raw.key,
            "tls.key",
            r#"the certificate's PEM key, such as key = "allocator.key""#,
        )?;
        Ok(TlsFiles {
            ca: self.path("tls.ca", &ca)?,
            cert: self.path("tls.cert", &cert)?,
            key: self.path("tls.key", &key)?,
        })
    }

    /// Returns a value that `good` accepts, or the default of an absent one.
    pub(super) fn within<T: PartialOrd + Copy>(
        &self,
        field: Field<T>,
        default: T,
        key: &str,
        good: impl Fn(T) -> bool,
        expected: &str,
    ) -> Result<T, ConfigError> {
        match field {
            None => Ok(default),
            // NaN fails every range check, as it should.
            Some(value) if good(*value.get_ref()) => Ok(value.into_inner()),
            Some(value) => Err(self.wrong(key, &value, expected)),
        }
    }

    fn allocation(&self, raw: RawAllocation) -> Result<Allocation, ConfigError> {
        let default = Allocation::default();
        let back_to_back = raw
            .back_to_back
            .as_ref()
            .is_some_and(|value| *value.get_ref());
        let interval_us = match (&raw.interval_us, back_to_back) {
            (Some(value), true) => {
                return Err(self.wrong(
                    "allocation.interval_us",
                    value,
                    "cannot stand beside back_to_back = true; keep one of them",
                ));
            }
            // `None` is back to back; `back_to_back = false` is the default and needs no interval.
            (_, true) => None,
            (_, false) => Some(self.within(
                raw.interval_us,
                default.interval_us.unwrap_or(100),
                "allocation.interval_us",
                |us| (1..=1_000_000).contains(&us),
                "must be 1 to 1000000 microseconds; 100 is the default",
            )?),
        };
        let engine = match &raw.engine {
            None => default.engine,
            Some(name) => match name.get_ref().as_str() {
                "reference" => EngineKind::Reference,
                "parallel" => EngineKind::Parallel,
                _ => {
                    return Err(self.wrong(
                        "allocation.engine",
                        name,
                        r#"must be "reference" or "parallel""#,
                    ));
                }
            },
        };
        let blocks = self.blocks(raw.blocks.as_ref())?;
        let workers = self.workers(raw.workers.as_ref(), blocks)?;
        let gamma = self.within(
            raw.gamma,
            default.gamma,
            "allocation.gamma",
            |gamma| gamma > 0.0 && gamma <= 1.0,
            "must be more than 0 and at most 1; 0.4 is the default, and above 0.6 prices may oscillate",
        )?;
        let threshold = self.within(
            raw.threshold,
            default.threshold,
            "allocation.threshold",
            |share| (0.0..=0.2).contains(&share),
            "must be from 0 to 0.2; 0.01 (a change of 1 %) is the default",
        )?;
        let mice_reserve = self.within(
            raw.mice_reserve,
            default.mice_reserve,
            "allocation.mice_reserve",
            |share| (0.0..=0.5).contains(&share),
            "must be from 0 to 0.5, a share of every link's capacity",
        )?;
        let external_share = self.within(
            raw.external_share,
            default.external_share,
            "allocation.external_share",
            |share| (0.0..=0.99).contains(&share),
            "must be from 0 to 0.99, a share of a link's capacity; 0.9 is the default",
        )?;
        let lease_ms = self.within(
            raw.lease_ms,
            default.lease_ms,
            "allocation.lease_ms",
            |ms| LEASE_MS.contains(&ms),
            "must be 10 to 10000 milliseconds; 300 is the default",
        )?;
        let update_interval_us = self.within(
            raw.update_interval_us,
            default.update_interval_us,
            "allocation.update_interval_us",
            |us| us <= 10_000_000,
            "must be 0 to 10000000 microseconds; 0 is the default",
        )?;
        let least_liveness = lease_ms * 2;
        let liveness_ms = self.within(
            raw.liveness_ms,
            // A long lease alone moves the default, so that it needs no second key.
            default.liveness_ms.max(least_liveness),
            "allocation.liveness_ms",
            |ms| ms >= least_liveness && ms <= MAX_LIVENESS_NS / 1_000_000,
            &format!("must be from two leases ({least_liveness}) to 60000 milliseconds"),
        )?;
        let ack_delay_ms = self.within(
            raw.ack_delay_ms,
            default.ack_delay_ms,
            "allocation.ack_delay_ms",
            |ms| ms >= 1 && ms <= liveness_ms,
            &format!("must be 1 to {liveness_ms} milliseconds, the liveness; 20 is the default"),
        )?;
        let start_grace_ms = self.within(
            raw.start_grace_ms,
            default.start_grace_ms,
            "allocation.start_grace_ms",
            |ms| ms <= 60_000,
            "must be 0 to 60000 milliseconds; 300 is the default",
        )?;
        // Of this machine: a configuration for another one is checked there.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let pin_core = match raw.pin_core {
            Some(core) if *core.get_ref() >= cores => {
                return Err(self.wrong(
                    "allocation.pin_core",
                    &core,
                    format!("must be below {cores}, the number of cores here"),
                ));
            }
            core => core.map(Spanned::into_inner),
        };
        let start_released = raw.start_released.is_some_and(Spanned::into_inner);
        Ok(Allocation {
            engine,
            blocks,
            workers,
            interval_us,
            update_interval_us,
            ack_delay_ms,
            gamma,
            threshold,
            mice_reserve,
            external_share,
            lease_ms,
            liveness_ms,
            start_grace_ms,
            pin_core,
            start_released,
        })
    }

    /// Checks the number of the parallel engine's blocks.
    fn blocks(&self, field: Option<&Spanned<u32>>) -> Result<Option<u32>, ConfigError> {
        let Some(blocks) = field else { return Ok(None) };
        let number = *blocks.get_ref();
        if number.is_power_of_two() && number <= MOST_BLOCKS {
            return Ok(Some(number));
        }
        Err(self.wrong(
            "allocation.blocks",
            blocks,
            format!(
                "must be a power of two from 1 to {MOST_BLOCKS}; without this key the hosts decide"
            ),
        ))
    }

    /// Checks the number of the parallel engine's threads.
    fn workers(
        &self,
        field: Option<&Spanned<usize>>,
        blocks: Option<u32>,
    ) -> Result<Option<usize>, ConfigError> {
        let Some(workers) = field else {
            return Ok(None);
        };
        let number = *workers.get_ref();
        if !(1..=MOST_WORKERS).contains(&number) {
            return Err(self.wrong(
                "allocation.workers",
                workers,
                format!(
                    "must be 1 to {MOST_WORKERS} threads; without this key the hosts and cores decide"
                ),
            ));
        }
        // A worker owns at least one of the B² FlowBlocks (flowtune §4).
        match blocks.map(|blocks| blocks as usize * blocks as usize) {
            Some(most) if number > most => Err(self.wrong(
                "allocation.workers",
                workers,
                format!("must be at most the square of allocation.blocks, {most}"),
            )),
            _ => Ok(Some(number)),
        }
    }

    /// Returns a count from one to `most`, or the default of an absent one.
    fn count(
        &self,
        field: Field<u64>,
        default: u32,
        key: &str,
        most: u32,
    ) -> Result<u32, ConfigError> {
        let value = self.within(
            field,
            u64::from(default),
            key,
            |count| count >= 1 && count <= u64::from(most),
            &format!("must be 1 to {most}; {default} is the default"),
        )?;
        // Never `most` here: the check has bounded the value.
        Ok(u32::try_from(value).unwrap_or(most))
    }

    fn limits(&self, raw: RawLimits) -> Result<Limits, ConfigError> {
        let default = Limits::default();
        Ok(Limits {
            max_sessions: self.count(
                raw.max_sessions,
                default.max_sessions,
                "limits.max_sessions",
                100_000,
            )?,
            max_flows_per_session: self.count(
                raw.max_flows_per_session,
                default.max_flows_per_session,
                "limits.max_flows_per_session",
                1 << 20,
            )?,
            max_flows: self.count(
                raw.max_flows,
                default.max_flows,
                "limits.max_flows",
                50_000_000,
            )?,
            max_starts_per_s: self.count(
                raw.max_starts_per_s,
                default.max_starts_per_s,
                "limits.max_starts_per_s",
                100_000_000,
            )?,
            max_total_starts_per_s: self.count(
                raw.max_total_starts_per_s,
                default.max_total_starts_per_s,
                "limits.max_total_starts_per_s",
                1_000_000_000,
            )?,
            max_demand_changes_per_s: self.count(
                raw.max_demand_changes_per_s,
                default.max_demand_changes_per_s,
                "limits.max_demand_changes_per_s",
                100_000_000,
            )?,
            max_datagrams_per_s: self.count(
                raw.max_datagrams_per_s,
                default.max_datagrams_per_s,
                "limits.max_datagrams_per_s",
                100_000_000,
            )?,
            max_control_bytes_per_s: self.count(
                raw.max_control_bytes_per_s,
                default.max_control_bytes_per_s,
                "limits.max_control_bytes_per_s",
                1 << 30,
            )?,
        })
    }
}
