//! Default back end: a cgroup sock_ops program and `SO_MAX_PACING_RATE` (`bpf/sock_ops.bpf.c`).
//!
//! It works with any congestion control, with or without the fq qdisc. Its limits:
//!
//! - Rates are 32-bit bytes per second: above 34 Gbit/s a socket runs unlimited.
//! - TCP sends bursts of up to 64 KiB on short paths, however low the rate: rates below 131 kbit/s
//!   are raised to that, so that a burst holds its socket up for 4 s at most.
//! - A raise waits for the next acknowledgement, and for the socket's congestion window.
//! - An application's own maximum above 34 Gbit/s comes back as "none".
//! - A socket that had a rate once is paced by TCP from then on, by its window (at up to twice that
//!   per round trip): no program may take that back.
//!
//! Link and maps are pinned. When the daemon is killed, the program stays and lifts every rate
//! whose lease has run out (flowtune §6). A restart finds the pins, swaps its own program into the
//! link, and continues with the same table. Pins of another layout are released and replaced.

mod pods;
mod socket_pass;

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;

use libbpf_rs::query::{LinkTypeInfo, ProgInfoIter};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, Map, MapCore, MapHandle, OpenMapMut, ProgramType};

use self::pods::Pods;
use self::socket_pass::SocketPass;
use super::cgroup::Cgroup;
use super::namespaces::NAMESPACES_MAX;
use super::pass_rest::PassRest;
use super::pins::PinDir;
use super::ring::EventRing;
use super::slots::{SlotMaps, SlotTable, ring_bytes, system};
use super::sys::netns_cookie;
use super::tunnels::Tunnels;
use super::{
    BackendConfig, BackendError, BackendKind, BackendStats, Conn, FlowEvent, FlowEventKind,
    PacingBackend, Usage,
};
use crate::clock;

include!(concat!(env!("OUT_DIR"), "/sock_ops.rs"));
use skel::SockOpsSkelBuilder;

const NAME: &str = "sock_ops";
/// Pin whose name states the layout of the maps: pins of another version are not adopted.
const LAYOUT: &str = "layout-7";
const LINK_PIN: &str = "link";
/// Name of the program that notices flowlets.
const PROGRAM: &str = "rw_sock_ops";
/// Pin of the program that gives a socket back, for any version. It is attached to be run: to read
/// the file is an error, and changes nothing.
const RELEASE_PIN: &str = "release-program";
/// Pin of that program's iterator in earlier versions, where reading the file ran it.
const EARLIER_RELEASE_PIN: &str = "release";
/// Pause between checks on running flowlets where transmit timestamps report their ends. Only a
/// full ring loses such a report.
const CHECK_NS: u64 = 100_000_000;
/// Shortest pause in transmission of a flowlet that is checked.
const SILENT_NS: u64 = 50_000_000;
/// Pause between checks where the kernel has no transmit timestamps.
const SCAN_NS: u64 = 5_000_000;
/// Interval of searches of the table for state that only a pass over the sockets can correct.
const MEND_NS: u64 = 1_000_000_000;
/// Time after which a connection whose flowlet was ended gives its slot back (`RW_QUIET_NS`).
const QUIET_NS: u64 = 1_000_000_000;

/// The back end.
#[derive(Debug)]
pub struct SockOps {
    table: SlotTable,
    ring: EventRing,
    adopt: SocketPass,
    release: SocketPass,
    link: Link,
    pods: Pods,
    tunnels: Tunnels,
    pins: Option<PinDir>,
    next_check_ns: u64,
    next_mend_ns: u64,
    rest: PassRest,
    passes: u64,
}

fn bpf(what: &'static str) -> impl Fn(libbpf_rs::Error) -> BackendError {
    move |error| BackendError::bpf(what, &error)
}

/// Returns the cookie of this thread's network namespace.
fn own_cookie() -> Result<u64, BackendError> {
    let probe = std::net::UdpSocket::bind("[::]:0")
        .or_else(|_| std::net::UdpSocket::bind("0.0.0.0:0"))
        .map_err(system("open a socket in the network namespace"))?;
    netns_cookie(probe.as_fd()).map_err(system("ask for the network namespace's cookie"))
}

/// Returns true if the pins are of this layout, this table size and this cgroup.
fn adoptable(pins: &PinDir, slots: u32, cgroup: &Cgroup) -> bool {
    if ![LAYOUT, RELEASE_PIN, LINK_PIN, "so_rates"]
        .iter()
        .all(|name| pins.holds(name))
    {
        return false;
    }
    let size_fits = MapHandle::from_pinned_path(pins.path("so_rates"))
        .is_ok_and(|map| map.max_entries() == slots);
    // A link cannot be moved to another cgroup.
    let cgroup_fits = Link::open(pins.path(LINK_PIN)).and_then(|link| link.info()).is_ok_and(|info| {
        matches!(info.info, LinkTypeInfo::Cgroup(attached) if attached.cgroup_id == cgroup.id)
    });
    size_fits && cgroup_fits
}

/// Undoes the installation of an earlier daemon: its own pinned program gives the sockets back.
/// Returns that program, for sockets of pods.
fn release_earlier(pins: &PinDir) -> Result<Option<SocketPass>, BackendError> {
    let release = if pins.holds(RELEASE_PIN) {
        Some(SocketPass::pinned(&pins.path(RELEASE_PIN))?)
    } else if pins.holds(EARLIER_RELEASE_PIN) {
        Some(SocketPass::pinned_link(&pins.path(EARLIER_RELEASE_PIN))?)
    } else {
        None
    };
    if let Some(release) = &release {
        // The program that took the sockets knows how to give them back, in any version.
        release.run()?;
    }
    pins.clear()
        .map_err(system("remove the pins of an earlier daemon"))?;
    Ok(release)
}

/// Returns true if nobody else on this machine has a sock_ops program. Daemons of other namespaces
/// leave this one's sockets alone.
fn is_alone() -> bool {
    let mut names = ProgInfoIter::default()
        .filter(|program| program.ty == ProgramType::SockOps)
        .map(|program| program.name)
        .peekable();
    // Not to see our own means to see nobody's.
    names.peek().is_some() && names.all(|name| name == PROGRAM)
}

/// Empty cgroup that is removed with this value.
struct TrialCgroup(PathBuf);

impl TrialCgroup {
    fn new(parent: &Cgroup, instance: &str) -> Result<Self, BackendError> {
        let path = parent.path.join(format!("ratewright-{instance}"));
        std::fs::create_dir(&path)
            .map_err(system(format!("create the cgroup {}", path.display())))?;
        Ok(Self(path))
    }
}

impl Drop for TrialCgroup {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir(&self.0) {
            tracing::warn!(%error, cgroup = %self.0.display(), "the trial cgroup stays behind");
        }
    }
}

impl SockOps {
    /// Attaches the program to the cgroup of `cfg`, and takes over sockets or adopts an earlier
    /// daemon's table.
    ///
    /// # Errors
    /// When cgroup v2, a BPF file system or the programs are not to be had.
    pub fn open(cfg: &BackendConfig) -> Result<Self, BackendError> {
        let cgroup = Cgroup::open(cfg.cgroup.as_deref())?;
        let pins = PinDir::open(&cfg.instance, NAME)?;
        let adopting = adoptable(&pins, cfg.max_flows, &cgroup);
        match Self::install(cfg, &cgroup, &pins, adopting) {
            Ok(backend) => Ok(Self {
                pins: Some(pins),
                ..backend
            }),
            Err(error) => {
                // An earlier daemon's installation still serves its leases and stays; half an
                // installation of our own does not.
                if !adopting && let Err(left) = release_earlier(&pins).and_then(|_| pins.remove()) {
                    tracing::warn!(error = %left, "pins stay behind");
                }
                Err(error)
            }
        }
    }

    fn install(
        cfg: &BackendConfig,
        cgroup: &Cgroup,
        pins: &PinDir,
        adopting: bool,
    ) -> Result<Self, BackendError> {
        let slots = cfg.max_flows;
        let released = if adopting {
            None
        } else {
            release_earlier(pins)?
        };

        let mut storage = MaybeUninit::uninit();
        let mut open = SockOpsSkelBuilder::default()
            .open(&mut storage)
            .map_err(bpf("open the sock_ops programs"))?;
        let rodata =
            open.maps
                .rodata_data
                .as_deref_mut()
                .ok_or_else(|| BackendError::Unavailable {
                    mechanism: NAME,
                    reason: "the programs' constants are missing; this build is broken".to_owned(),
                })?;
        // The cgroup may hold processes of other network namespaces, which have daemons of their
        // own.
        rodata.rw_netns_cookie = own_cookie()?;
        rodata.rw_cgroup_id = cgroup.id;
        rodata.rw_min_flowlet_bytes = cfg.min_flowlet_bytes.max(1);
        rodata.rw_take_over = u32::from(cfg.take_over);
        rodata.rw_has_pods = !cfg.network_namespaces.is_empty();

        // Adopted maps keep slots and leases: sockets under way neither lose nor repeat a flowlet.
        let prepare = |map: &mut OpenMapMut<'_>, name: &str, entries: Option<u32>| {
            if adopting {
                map.reuse_pinned_map(pins.path(name))
                    .map_err(bpf("adopt a pinned map"))
            } else {
                entries
                    .map_or(Ok(()), |entries| map.set_max_entries(entries))
                    .map_err(bpf("size a map"))
            }
        };
        prepare(&mut open.maps.so_socks, "so_socks", None)?;
        prepare(&mut open.maps.so_rates, "so_rates", Some(slots))?;
        prepare(&mut open.maps.so_states, "so_states", Some(slots))?;
        prepare(&mut open.maps.so_counts, "so_counts", None)?;
        prepare(&mut open.maps.so_free, "so_free", Some(slots))?;
        prepare(
            &mut open.maps.so_events,
            "so_events",
            Some(ring_bytes(slots)),
        )?;
        // Never adopted: namespaces are searched for anew.
        open.maps
            .so_pods
            .set_max_entries(NAMESPACES_MAX)
            .map_err(bpf("size a map"))?;

        let mut skel = open.load().map_err(|error| BackendError::Unavailable {
            mechanism: NAME,
            reason: format!("the kernel refused the programs ({error:#}); Linux 6.6 or newer, root and BTF (/sys/kernel/btf/vmlinux) are needed"),
        })?;

        let maps = SlotMaps {
            rates: skel.maps.so_rates.as_fd(),
            states: skel.maps.so_states.as_fd(),
            counters: skel.maps.so_counts.as_fd(),
        };
        let table = SlotTable::new(&maps, slots)?;
        let ring = EventRing::new(&skel.maps.so_events)?;
        let adopt = SocketPass::of(skel.progs.rw_adopt.as_fd())?;
        let release = SocketPass::of(skel.progs.rw_release.as_fd())?;
        if !adopting {
            let free =
                MapHandle::try_from(&skel.maps.so_free).map_err(bpf("open the free list"))?;
            table.free_all(&free)?;
            let pin = |map: &Map<'_>, name: &str| {
                let mut handle = MapHandle::try_from(map).map_err(bpf("open a map"))?;
                handle.pin(pins.path(name)).map_err(bpf("pin a map"))
            };
            pin(&skel.maps.so_socks, "so_socks")?;
            pin(&skel.maps.so_rates, "so_rates")?;
            pin(&skel.maps.so_states, "so_states")?;
            pin(&skel.maps.so_counts, "so_counts")?;
            pin(&skel.maps.so_free, "so_free")?;
            pin(&skel.maps.so_events, "so_events")?;
            // A second name of a map, whose presence states the layout.
            pin(&skel.maps.so_counts, LAYOUT)?;
        }
        // The newest release program is the one to leave behind.
        if pins.holds(RELEASE_PIN) {
            std::fs::remove_file(pins.path(RELEASE_PIN))
                .map_err(system("replace the pinned release program"))?;
        }
        skel.progs
            .rw_release
            .pin(pins.path(RELEASE_PIN))
            .map_err(bpf("pin the release program"))?;
        let link = if adopting {
            let mut link = Link::open(pins.path(LINK_PIN)).map_err(bpf("open the pinned link"))?;
            link.update_prog(&skel.progs.rw_sock_ops)
                .map_err(bpf("swap the program of the pinned link"))?;
            link
        } else {
            let mut link = skel
                .progs
                .rw_sock_ops
                .attach_cgroup(cgroup.directory.as_raw_fd())
                .map_err(|error| BackendError::Unavailable {
                    mechanism: NAME,
                    reason: format!(
                        "no program can be attached to the cgroup {} ({error:#})",
                        cgroup.path.display()
                    ),
                })?;
            link.pin(pins.path(LINK_PIN)).map_err(bpf("pin the link"))?;
            link
        };

        let mut backend = Self {
            table,
            ring,
            adopt,
            release,
            link,
            pods: Pods::new(cfg, &skel.maps.so_pods)?,
            tunnels: Tunnels::open(cfg.tunnel_bytes)
                .map_err(system("open a socket that tells routes"))?,
            pins: None,
            next_check_ns: 0,
            next_mend_ns: 0,
            rest: PassRest::default(),
            passes: 0,
        };
        if adopting {
            // Events for the earlier daemon are of no use: running flowlets are reported again
            // below.
            backend.ring.drain(drop)?;
            let report = SocketPass::of(skel.progs.rw_report.as_fd())?;
            report.run()?;
            backend.pods.run_first(report);
        }
        if let Some(release) = released {
            backend.pods.run_first(release);
        }
        backend.table.observe(cfg.observe);
        if cfg.observe {
            // An adopted table may hold an earlier daemon's rates.
            backend.table.clear_all();
        }
        // After the program is attached: a socket that is followed before would get no callback.
        backend.adopt.run()?;
        Ok(backend)
    }

    /// Returns true if this kernel gives callbacks to connections from before the daemon. Others
    /// leave them plain TCP.
    #[must_use]
    pub fn takes_connections_over() -> bool {
        // The option is a member of an enum without a name, which has to be found by its own.
        let option = b"TCP_BPF_SOCK_OPS_CB_FLAGS\0";
        std::fs::read("/sys/kernel/btf/vmlinux")
            .is_ok_and(|types| types.windows(option.len()).any(|part| part == option))
    }

    /// Installs the back end on an empty cgroup made for it, and removes it again, to learn if this
    /// kernel can run it.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`] with the reason.
    pub fn probe() -> Result<(), BackendError> {
        if !nix::unistd::geteuid().is_root() {
            return Err(BackendError::Unavailable {
                mechanism: NAME,
                reason: "needs root (CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN and CAP_SYS_ADMIN)"
                    .to_owned(),
            });
        }
        // At most 8 characters, and unique among the probes that run.
        let instance = format!("p{}", std::process::id() % 10_000_000);
        let cgroup = TrialCgroup::new(&Cgroup::open(None)?, &instance)?;
        let config = BackendConfig {
            instance,
            max_flows: 1,
            min_flowlet_bytes: 1,
            cgroup: Some(cgroup.0.clone()),
            device: None,
            take_over: false,
            network_namespaces: Vec::new(),
            tunnel_bytes: 0,
            observe: false,
        };
        Self::open(&config)?.shut_down()
    }

    /// Passes over the sockets of the daemon's namespace and of one pod: over every pod at once, a
    /// pass could hold the daemon up.
    fn pass_over_sockets(&mut self) -> Result<(), BackendError> {
        let begun_ns = clock::now_ns();
        let own = self.adopt.run();
        let walked = own.and_then(|()| self.pods.walk_next(&self.adopt));
        let ended_ns = clock::now_ns();
        self.rest
            .begin(ended_ns, ended_ns.saturating_sub(begun_ns), 0);
        self.passes += 1;
        walked
    }

    /// Returns true if running flowlets must be checked, because their ends may go unreported.
    fn check_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_check_ns
            && self.table.connections().any(|(slot, connection)| {
                connection.active
                    && (!self.table.has_timestamps()
                        || self.table.state(slot).last_ns.saturating_add(SILENT_NS) < now_ns)
            })
    }
}

impl PacingBackend for SockOps {
    fn kind(&self) -> BackendKind {
        BackendKind::SockOps
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.ring.fd()
    }

    fn poll_events(&mut self, now_ns: u64, out: &mut Vec<FlowEvent>) -> Result<(), BackendError> {
        if self.rest.is_over(now_ns) {
            // One pass serves both purposes: it runs the program once per socket of the namespace.
            let mut walk = self.check_due(now_ns);
            if now_ns >= self.next_mend_ns {
                self.next_mend_ns = now_ns + MEND_NS;
                walk |= self.table.needs_socket_walk(now_ns, QUIET_NS);
            }
            if walk {
                self.pass_over_sockets()?;
            }
            if now_ns >= self.next_check_ns {
                let pause_ns = if self.table.has_timestamps() {
                    CHECK_NS
                } else {
                    SCAN_NS
                };
                // After a pass, from its end on.
                let from_ns = if walk { clock::now_ns() } else { now_ns };
                self.next_check_ns = from_ns + pause_ns;
            }
        }
        let followed = self.pods.follow(now_ns, &self.adopt);
        let from = out.len();
        let drained = self.ring.drain(|event| self.table.apply(event, out));
        // Also after an error: events that were read are gone from the ring.
        for event in &out[from..] {
            if let FlowEventKind::Start(facts) = &event.kind {
                let bytes = self.tunnels.bytes_to(facts.tuple.dst, now_ns);
                self.table.set_tunnel_bytes(event.conn.slot.0, bytes);
            }
        }
        // Only after the events in the ring: what those report is not lost.
        self.table.resync(now_ns, out);
        self.table.report_omitted_idles(now_ns, out);
        drained.and(followed)
    }

    fn next_poll_ns(&self) -> Option<u64> {
        let check = self.table.any_active().then_some(self.next_check_ns);
        let mend = self.table.connections().next().map(|_| self.next_mend_ns);
        let pass = check.into_iter().chain(mend).min();
        pass.map(|pass_ns| pass_ns.max(self.rest.until_ns()))
            .into_iter()
            .chain(self.table.next_idle_check_ns())
            .chain(self.pods.next_ns())
            .min()
    }

    fn set_rate(&mut self, conn: Conn, rate_bps: u64, expires_ns: u64) -> Result<(), BackendError> {
        // Bit/s to bytes/s, the unit of `SO_MAX_PACING_RATE`.
        self.table.set_rate(conn, rate_bps / 8, expires_ns);
        Ok(())
    }

    fn renew(&mut self, expires_ns: u64) -> Result<(), BackendError> {
        self.table.renew(clock::now_ns(), expires_ns);
        Ok(())
    }

    fn observe(&mut self, observing: bool) -> Result<(), BackendError> {
        self.table.observe(observing);
        self.clear_all()
    }

    fn clear(&mut self, conn: Conn) -> Result<(), BackendError> {
        self.table.clear(conn);
        Ok(())
    }

    fn clear_all(&mut self) -> Result<(), BackendError> {
        self.table.clear_all();
        // Sockets that send nothing more run no callback: the pass lifts their rates as well.
        let own = self.adopt.run();
        own.and(self.pods.walk_all(&self.adopt))
    }

    fn usage(&mut self, _now_ns: u64, out: &mut Vec<Usage>) {
        self.table.usage(out);
    }

    fn watch(&mut self, conn: Conn) {
        self.table.watch(conn);
    }

    fn stats(&self) -> BackendStats {
        BackendStats {
            pods: self.pods.count(),
            socket_passes: self.passes,
            ..self.table.stats()
        }
    }

    fn shut_down(&mut self) -> Result<(), BackendError> {
        let Some(pins) = self.pins.take() else {
            return Ok(());
        };
        // New sockets first: one that appeared behind the pass would keep its state.
        let detached = self
            .link
            .detach()
            .map_err(bpf("detach the program from its cgroup"));
        self.table.set_alone(is_alone());
        let released = self.release.run().and(self.pods.walk_all(&self.release));
        let removed = pins.remove();
        detached.and(released).and(removed)
    }
}
