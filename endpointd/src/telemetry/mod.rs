//! Telemetry of this host for the allocator's feeds, from the kernel's own counters.
//!
//! | module | what lives there |
//! |---|---|
//! | [`sockets`] | `tcp_info` of all TCP sockets, through sock_diag |
//! | [`interface`] | bytes, drops and queue of a network interface, through rtnetlink |
//! | [`own_interfaces`] | the interfaces that carry this host's traffic, and their sums |
//! | [`driver_statistics`] | allowance counters of Amazon's ENA, through ethtool |
//! | [`udp`] | datagrams of UDP, from `/proc` |
//! | [`host_faults`] | faults of the host itself |
//! | [`access_figures`] | what this host's own links carry, for operators |
//! | [`senders`] | the active senders towards this host (DART's AUSS); sans-IO |
//! | [`report`] | messages to the allocator; sans-IO |
//!
//! The sampler runs on the daemon's thread, in steps of bounded work. It stretches its interval so
//! that it takes at most [`MAX_COST_SHARE`] of a core, or [`MAX_USE_COST_SHARE`] where nobody but
//! the [`AccessUseMeter`] needs the measurements.

pub mod access_figures;
pub mod driver_statistics;
pub mod host_faults;
pub mod interface;
pub mod own_interfaces;
pub mod report;
pub mod senders;
pub mod sockets;
pub mod udp;

use std::io;
use std::sync::Arc;

use ratewright_proto::control::AccessCapacity;
use ratewright_proto::telemetry::{
    ACCESS_INTERVAL_NS, AccessCounters, AccessUse, AccessUseMeter, SenderName, SyncTerms, Telemetry,
};
use serde::Serialize;

use crate::backend::Usage;
use crate::clock;
use crate::config::TelemetryConfig;
use crate::flows::NetworkView;
use access_figures::AccessFigures;
use driver_statistics::{BANDWIDTH, HeldUp};
use host_faults::{HostFaultSearch, TableUse};
use interface::InterfaceCounters;
use own_interfaces::OwnInterfaces;
use report::{LinkReading, ManagedBytes, Reporter};
use senders::{ActiveSender, Senders, SocketTotals};
use sockets::SocketDump;
use udp::UdpReader;

/// Largest part of a core that measuring takes: one in this many.
pub const MAX_COST_SHARE: u64 = 20;
/// Likewise, where only the users of the host's own links are measured. A pass over 1,000 sockets
/// takes about 3 ms.
pub const MAX_USE_COST_SHARE: u64 = 100;
/// Pieces of the socket dump that one step reads: some hundred sockets.
const READS_PER_STEP: usize = 8;
/// While the link is idle, sockets are read in one of this many intervals.
const IDLE_PASSES: u32 = 10;
/// Interval at which a driver's counters and a device's speed are read: some drivers ask their
/// device. An interface that is gone is looked for as often.
const DRIVER_INTERVAL_NS: u64 = 1_000_000_000;
/// Interval at which further interfaces with the host's addresses are looked for.
const FIND_INTERVAL_NS: u64 = 10_000_000_000;
/// Shortest time between two warnings.
const WARN_EVERY_NS: u64 = 60_000_000_000;

/// State of the sampler for operators.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TelemetryStatus {
    /// The sampler measures.
    pub active: bool,
    /// Interface whose counters are read; several with commas between.
    pub interface: Option<String>,
    /// Newest counters of the interface, or sums over several.
    pub counters: InterfaceCounters,
    /// Figures of the host's links, against what the allocator was told.
    pub access: AccessFigures,
    /// Counters of the driver's allowances.
    pub allowances: Vec<(&'static str, u64)>,
    /// TCP sockets with other hosts.
    pub sockets: usize,
    /// Active senders that the topology knows, and their payload rate in bit/s.
    pub known_senders: u32,
    /// Payload rate of those.
    pub known_bps: u64,
    /// Active senders that no host of the topology is.
    pub unknown_senders: u32,
    /// Payload rate of those, in bit/s.
    pub unknown_bps: u64,
    /// Longest smoothed round-trip time of a socket, in microseconds.
    pub longest_rtt_us: u32,
    /// Mean of the sockets' smoothed round-trip times, in microseconds.
    pub mean_rtt_us: u64,
    /// Sums over all sockets since the start.
    pub totals: SocketTotals,
    /// Whole passes over the sockets.
    pub passes: u64,
    /// Messages to the allocator.
    pub messages: u64,
    /// Readings that the kernel refused.
    pub errors: u64,
    /// Time that measuring took so far, in nanoseconds.
    pub cost_ns: u64,
}

/// Measurements for one host and topology.
#[derive(Debug)]
struct Measuring {
    network: Arc<NetworkView>,
    access: AccessCapacity,
    interval_ns: u64,
    /// The allocator takes messages for its feeds.
    reports: bool,
    /// Part of a core that measuring may take: one in this many.
    cost_share: u64,
    due_ns: u64,
    reporter: Reporter,
    interfaces: OwnInterfaces,
    find_due_ns: u64,
    driver_due_ns: u64,
    held_up: HeldUp,
    reading: Option<LinkReading>,
    /// A pass over the sockets is under way.
    in_pass: bool,
    /// Intervals without a pass.
    skipped: u32,
    /// Time of the last whole pass.
    passed_ns: u64,
}

/// Result of one step of measuring.
#[derive(Debug, Default)]
pub struct Sample {
    /// The senders were measured anew.
    pub passed: bool,
    /// Message for the allocator, if there is something to tell.
    pub message: Option<Telemetry>,
}

/// Sampler of the kernel's counters.
#[derive(Debug)]
pub struct Sampler {
    config: TelemetryConfig,
    dump: Option<SocketDump>,
    udp: Option<UdpReader>,
    senders: Senders,
    managed: ManagedBytes,
    access_use: AccessUseMeter,
    host_faults: HostFaultSearch,
    measuring: Option<Box<Measuring>>,
    status: TelemetryStatus,
    warn_ns: u64,
}

impl Sampler {
    /// Makes a sampler that rests.
    #[must_use]
    pub fn new(config: &TelemetryConfig) -> Self {
        Self {
            config: config.clone(),
            dump: None,
            udp: None,
            senders: Senders::default(),
            managed: ManagedBytes::default(),
            access_use: AccessUseMeter::default(),
            host_faults: HostFaultSearch::new(),
            measuring: None,
            status: TelemetryStatus::default(),
            warn_ns: 0,
        }
    }

    /// Begins to measure for the host of `network`. `interval_ns` is the allocator's, 0 if it takes
    /// no messages for its feeds, and so are the `terms`; `for_others` says that somebody else
    /// needs the measurements. Who uses the host's own links is measured in any case.
    pub fn start(
        &mut self,
        now_ns: u64,
        network: &Arc<NetworkView>,
        access: AccessCapacity,
        interval_ns: u64,
        terms: Option<SyncTerms>,
        for_others: bool,
    ) {
        self.stop();
        let own_ns = self.config.period_ms * 1_000_000;
        let reports = interval_ns > 0;
        self.access_use.begin_session();
        if own_ns == 0 {
            return;
        }
        let interval_ns = match interval_ns {
            0 if for_others => own_ns,
            0 => own_ns.max(ACCESS_INTERVAL_NS),
            interval_ns => own_ns.max(interval_ns),
        };
        self.status.active = true;
        self.measuring = Some(Box::new(Measuring {
            reporter: Reporter::new(network.own_host, access, terms),
            network: network.clone(),
            access,
            interval_ns,
            reports,
            cost_share: if reports || for_others {
                MAX_COST_SHARE
            } else {
                MAX_USE_COST_SHARE
            },
            due_ns: now_ns,
            interfaces: OwnInterfaces::new(self.config.device.clone()),
            find_due_ns: now_ns,
            driver_due_ns: now_ns,
            held_up: HeldUp::default(),
            reading: None,
            in_pass: false,
            skipped: IDLE_PASSES,
            passed_ns: now_ns,
        }));
    }

    /// Replaces the network after a change of the topology.
    pub fn set_network(&mut self, network: &Arc<NetworkView>) {
        if let Some(measuring) = &mut self.measuring {
            measuring.network = network.clone();
            // Other addresses may be this host's.
            measuring.find_due_ns = 0;
            // The allocator forgets what it was told of another topology.
            measuring.reporter.restart();
        }
    }

    /// Replaces the capacities of the host's own links.
    pub fn set_access(&mut self, access: AccessCapacity) {
        if let Some(measuring) = &mut self.measuring {
            measuring.access = access;
            measuring.reporter.set_access(access);
        }
    }

    /// Tells who uses this host's own links anew: the allocator forgets that with a topology.
    pub fn repeat_access_use(&mut self) {
        self.access_use.begin_session();
    }

    /// Tells all anew in the next message, because the last one was not sent.
    pub fn tell_anew(&mut self) {
        if let Some(measuring) = &mut self.measuring {
            measuring.reporter.restart();
        }
    }

    /// Ends the messages to an allocator that is lost; the measuring goes on if others need it.
    pub fn stop_reports(&mut self, for_others: bool) {
        match &mut self.measuring {
            Some(measuring) if for_others => measuring.reports = false,
            _ => self.stop(),
        }
    }

    /// Ends the measuring.
    pub fn stop(&mut self) {
        self.measuring = None;
        self.dump = None;
        self.senders.pause();
        self.access_use.pause();
        self.status.active = false;
    }

    /// Returns the time at which [`sample`](Self::sample) is due.
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        self.measuring.as_ref().map(|measuring| measuring.due_ns)
    }

    /// Returns the active senders towards this host.
    #[must_use]
    pub fn active(&self, now_ns: u64) -> Vec<ActiveSender> {
        self.senders.active(now_ns)
    }

    /// Takes one step of measuring. `usages` are those of the flows with a rate.
    pub fn sample(
        &mut self,
        now_ns: u64,
        usages: &[Usage],
        table: impl FnOnce() -> TableUse,
    ) -> Sample {
        let Some(mut measuring) = self.measuring.take() else {
            return Sample::default();
        };
        if self.host_faults.is_due(now_ns) {
            let faults = (self.host_faults).look(now_ns, &measuring.network, table());
            self.access_use.set_faults(faults);
        }
        if !measuring.in_pass {
            self.read_interface(now_ns, &mut measuring, usages);
        }
        let passed = self.read_sockets(now_ns, &mut measuring);
        let message = if passed && measuring.reports {
            let active = self.senders.active(now_ns);
            let reading = measuring.reading.as_ref();
            measuring
                .reporter
                .report(now_ns, measuring.passed_ns, &active, reading)
        } else {
            None
        };
        self.status.messages += u64::from(message.is_some());
        let cost_ns = clock::now_ns().saturating_sub(now_ns);
        self.status.cost_ns += cost_ns;
        let rest_ns = cost_ns.saturating_mul(measuring.cost_share);
        measuring.due_ns = now_ns
            + if measuring.in_pass {
                rest_ns
            } else {
                rest_ns.max(measuring.interval_ns)
            };
        self.measuring = Some(measuring);
        Sample { passed, message }
    }

    fn read_interface(&mut self, now_ns: u64, measuring: &mut Measuring, usages: &[Usage]) {
        let managed_tx_bytes = self.managed.add(usages);
        if measuring.find_due_ns <= now_ns {
            self.find_interfaces(now_ns, measuring);
        }
        if measuring.driver_due_ns <= now_ns {
            measuring.driver_due_ns = now_ns + DRIVER_INTERVAL_NS;
            let read = measuring.interfaces.read_devices();
            self.status.allowances = self
                .note(now_ns, "read the driver's statistics", read)
                .unwrap_or_default();
            let held_up = measuring.held_up.take(&self.status.allowances);
            self.access_use.hold_up(held_up);
        }
        if measuring.interfaces.is_empty() {
            return;
        }
        let read = measuring.interfaces.read();
        let Some(counters) = self.note(now_ns, "read the interface", read) else {
            measuring.interfaces.close();
            measuring.find_due_ns = now_ns;
            self.forget_interfaces(now_ns, measuring);
            return;
        };
        let speed_bps = if self.config.tell_speed {
            measuring.interfaces.speed_bps()
        } else {
            0
        };
        self.access_use
            .carry(now_ns, counters.rx_bytes, counters.tx_bytes, speed_bps);
        let allowance = |wanted: &str| {
            let mut all = self.status.allowances.iter();
            all.find(|(name, _)| *name == wanted)
                .map_or(0, |(_, packets)| *packets)
        };
        let reading = LinkReading {
            at_ns: now_ns,
            counters,
            managed_tx_bytes,
            shaped_packets: [allowance(BANDWIDTH[1]), allowance(BANDWIDTH[0])],
        };
        measuring.skipped = match &measuring.reading {
            Some(before) if !reading.is_busy_since(before, measuring.access) => {
                measuring.skipped + 1
            }
            // Without a measurement the sockets are read.
            _ => IDLE_PASSES,
        };
        measuring.reading = Some(reading);
        self.status.counters = counters;
    }

    fn find_interfaces(&mut self, now_ns: u64, measuring: &mut Measuring) {
        let found = measuring.interfaces.find(&measuring.network);
        if self.note(now_ns, "open the interface", found) != Some(false) {
            self.forget_interfaces(now_ns, measuring);
        }
        measuring.find_due_ns = now_ns
            + if measuring.interfaces.is_empty() {
                DRIVER_INTERVAL_NS
            } else {
                FIND_INTERVAL_NS
            };
    }

    /// Forgets what was read, because the interfaces are others than before.
    fn forget_interfaces(&mut self, now_ns: u64, measuring: &mut Measuring) {
        measuring.reading = None;
        measuring.held_up = HeldUp::default();
        measuring.driver_due_ns = now_ns;
        self.access_use.lose_interface();
        self.status.interface = measuring.interfaces.names();
    }

    /// Goes on with the pass over the sockets, or leaves it out while the link is idle. Returns
    /// true if the senders are known as of now.
    fn read_sockets(&mut self, now_ns: u64, measuring: &mut Measuring) -> bool {
        let known = self.status.known_senders + self.status.unknown_senders;
        if !measuring.in_pass
            && !measuring.interfaces.is_empty()
            && known == 0
            && !self.access_use.has_users()
            && measuring.skipped < IDLE_PASSES
        {
            return true;
        }
        measuring.skipped = 0;
        if self.dump.is_none() {
            let opened = SocketDump::open();
            self.dump = self.note(now_ns, "open sock_diag", opened);
        }
        let Some(dump) = &mut self.dump else {
            return false;
        };
        let (senders, network) = (&mut self.senders, &measuring.network);
        let access_use = &mut self.access_use;
        let stepped = dump.step(READS_PER_STEP, |facts| {
            if let Some(moved) = senders.on_socket(facts, network) {
                access_use.add(&moved);
            }
        });
        match self.note(now_ns, "read the sockets", stepped) {
            Some(true) => {}
            Some(false) => {
                measuring.in_pass = true;
                return false;
            }
            None => {
                self.dump = None;
                measuring.in_pass = false;
                return false;
            }
        }
        measuring.in_pass = false;
        measuring.passed_ns = now_ns;
        self.senders.end_pass(now_ns, measuring.access.downlink_bps);
        self.status.passes += 1;
        self.look_at_users(now_ns, measuring);
        self.count_senders(now_ns);
        true
    }

    /// Judges who uses this host's own links, if that is due.
    fn look_at_users(&mut self, now_ns: u64, measuring: &Measuring) {
        if !self.access_use.is_due(now_ns) {
            return;
        }
        if self.udp.is_none() {
            self.udp = self.note(now_ns, "ask for devices", UdpReader::open());
        }
        let read = self.udp.as_mut().map(|udp| udp.read(now_ns));
        let udp = read.and_then(|read| self.note(now_ns, "read the counters of UDP", read));
        let counters = udp
            .zip(measuring.reading)
            .map(|(udp, reading)| AccessCounters {
                rx_bytes: reading.counters.rx_bytes,
                tx_bytes: reading.counters.tx_bytes,
                udp_in: udp.received,
                udp_out: udp.sent,
                tunnelled_in: udp.tunnelled,
            });
        self.access_use.look(now_ns, counters, measuring.access);
    }

    /// Returns who uses this host's own links, if that is to be told now. `observes` says that the
    /// host is configured to observe.
    #[must_use]
    pub fn access_use_to_tell(&self, now_ns: u64, observes: bool) -> Option<AccessUse> {
        self.access_use.to_tell(now_ns, observes)
    }

    /// Notes that the allocator was told who uses this host's own links.
    pub fn access_use_told(&mut self, now_ns: u64, access_use: AccessUse) {
        self.access_use.told(now_ns, access_use);
    }

    fn count_senders(&mut self, now_ns: u64) {
        let status = &mut self.status;
        (status.known_senders, status.known_bps) = (0, 0);
        (status.unknown_senders, status.unknown_bps) = (0, 0);
        for sender in self.senders.active(now_ns) {
            let (count, bps) = match sender.name {
                SenderName::Host(_) => (&mut status.known_senders, &mut status.known_bps),
                SenderName::Address(_) => (&mut status.unknown_senders, &mut status.unknown_bps),
            };
            *count += 1;
            *bps += sender.rate_bps;
        }
    }

    /// Counts a failure, and logs it now and then.
    fn note<T>(&mut self, now_ns: u64, what: &str, result: io::Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.status.errors += 1;
                if now_ns >= self.warn_ns {
                    self.warn_ns = now_ns + WARN_EVERY_NS;
                    tracing::warn!(%error, "telemetry: cannot {what}; trying again");
                }
                None
            }
        }
    }

    /// Returns the state for operators.
    #[must_use]
    pub fn status(&self) -> TelemetryStatus {
        let (longest_rtt_us, mean_rtt_us) = self.senders.rtt_us();
        TelemetryStatus {
            sockets: self.senders.socket_count(),
            longest_rtt_us,
            mean_rtt_us,
            totals: self.senders.totals(),
            access: AccessFigures::of(&self.access_use),
            ..self.status.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;
    const ACCESS: AccessCapacity = AccessCapacity::new(1_000_000_000, 1_000_000_000);

    /// Sampler at work, whose interface is the loopback one, and the time.
    fn sampler() -> (Sampler, u64) {
        let config = TelemetryConfig {
            device: Some("lo".to_owned()),
            ..TelemetryConfig::default()
        };
        let mut sampler = Sampler::new(&config);
        let now_ns = clock::now_ns();
        let network = Arc::new(NetworkView::default());
        sampler.start(now_ns, &network, ACCESS, 0, None, false);
        (sampler, now_ns)
    }

    /// Measures once, with a whole pass over the sockets.
    fn sample(sampler: &mut Sampler, now_ns: u64) {
        loop {
            sampler.sample(now_ns, &[], TableUse::default);
            if !sampler.measuring.as_ref().expect("it measures").in_pass {
                return;
            }
        }
    }

    fn carried(sampler: &Sampler) -> [bool; 2] {
        let AccessUse {
            uplink, downlink, ..
        } = sampler.access_use.present();
        [uplink, downlink].map(|link| link.carried_bps.is_some())
    }

    #[test]
    fn an_interface_that_is_gone_takes_its_words_back_until_it_is_there_again() {
        let (mut sampler, begin_ns) = sampler();
        let mut now_ns = begin_ns;
        for (device, carries, name) in [
            ("lo", false, Some("lo")),
            ("lo", true, Some("lo")),
            ("rw-none", false, None),
            ("rw-none", false, None),
            ("rw-none", false, None),
            ("lo", false, Some("lo")),
            ("lo", true, Some("lo")),
        ] {
            let measuring = sampler.measuring.as_mut().expect("it measures");
            if measuring.interfaces.device.as_deref() != Some(device) {
                measuring.interfaces.device = Some(device.to_owned());
                // The one before cannot be read any more.
                measuring.interfaces.close();
                measuring.find_due_ns = now_ns;
            }
            sample(&mut sampler, now_ns);
            assert_eq!(carried(&sampler), [carries; 2], "{device}");
            assert_eq!(sampler.status().interface.as_deref(), name);
            now_ns += SECOND_NS;
        }
    }

    #[test]
    fn links_are_compared_with_the_newest_capacities() {
        let (mut sampler, now_ns) = sampler();
        sample(&mut sampler, now_ns);
        assert_eq!(sampler.status().access.told_bps, [1_000_000_000; 2]);
        let access = AccessCapacity::new(25_000_000_000, 10_000_000_000);
        sampler.set_access(access.with_line_rates(26_000_000_000, 10_400_000_000));
        // While the link is idle, few samples look at the sockets.
        for second in 1..=u64::from(IDLE_PASSES) + 1 {
            sample(&mut sampler, now_ns + second * SECOND_NS);
        }
        let figures = sampler.status().access;
        assert_eq!(figures.told_bps, [25_000_000_000, 10_000_000_000]);
        assert_eq!(figures.line_rate_bps, [26_000_000_000, 10_400_000_000]);
    }

    #[test]
    fn another_topology_is_told_at_once_who_uses_the_links() {
        let (mut sampler, now_ns) = sampler();
        // No address of this machine is the host's.
        for second in 0..3 {
            sample(&mut sampler, now_ns + second * SECOND_NS);
        }
        let now_ns = now_ns + 2 * SECOND_NS;
        let told = sampler.access_use_to_tell(now_ns, false).expect("a fault");
        assert!(told.faults.no_address);
        sampler.access_use_told(now_ns, told.clone());
        assert_eq!(sampler.access_use_to_tell(now_ns, false), None);
        sampler.repeat_access_use();
        assert_eq!(sampler.access_use_to_tell(now_ns, false), Some(told));
    }
}
