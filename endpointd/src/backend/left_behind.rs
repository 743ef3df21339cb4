//! Search for what a killed daemon left in this network namespace, and in those of pods.

use std::fs;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::BackendKind;
use super::htb_netlink::HtbNetlink;
use super::mounts::in_first_mount_namespace;
use super::namespaces::{find_all, own_inode};
use super::struct_ops::NAME_PREFIX;
use super::sysctls::Sysctls;
use super::tc_htb::{self, QDISC};

/// Places of the pins of a daemon's back ends, below a folder per instance.
const PIN_PLACES: [(&str, &str, BackendKind); 4] = [
    ("/sys/fs/bpf/ratewright", "sock_ops", BackendKind::SockOps),
    ("/run/ratewright", "bpf/sock_ops", BackendKind::SockOps),
    (
        "/sys/fs/bpf/ratewright",
        "struct_ops",
        BackendKind::StructOps,
    ),
    ("/run/ratewright", "bpf/struct_ops", BackendKind::StructOps),
];

/// Something that a killed daemon left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOver {
    /// The back end that it belongs to, and that can give it back.
    pub backend: BackendKind,
    /// Name of the daemon's kernel objects.
    pub instance: String,
    /// Device, for tc_htb.
    pub device: Option<String>,
    /// Description for people.
    pub what: String,
}

/// Finds what daemons left here, and in the namespaces of pods, whose files match one of `pods`;
/// of pins those of `instance`, or of all. While a daemon runs, that is its own.
#[must_use]
pub fn find(pods: &[String], instance: Option<&str>) -> Vec<LeftOver> {
    let mut found = Vec::new();
    // First: a pinned program reads what later ones may not know.
    found.extend(pins(instance));
    found.extend(congestion_control(pods));
    found.extend(devices());
    found
}

/// Returns the default congestion control of the calling thread's namespace, without its prefix, if
/// it is a daemon's.
fn default_of_daemon(sysctls: &Sysctls) -> Option<String> {
    let default = sysctls.default_congestion_control().ok()?;
    Some(default.strip_prefix(NAME_PREFIX)?.to_owned())
}

/// A daemon's congestion control is the default of namespaces: new sockets take it.
fn congestion_control(pods: &[String]) -> Option<LeftOver> {
    let sysctls = Sysctls::below(Path::new("/proc"));
    let own = default_of_daemon(&sysctls);
    let mut of_pods: Vec<String> = Vec::new();
    if let Ok(inode) = own_inode() {
        for namespace in find_all(pods, inode) {
            of_pods.extend(
                namespace
                    .run(|| Ok(default_of_daemon(&sysctls)))
                    .ok()
                    .flatten(),
            );
        }
    }
    // The daemon of one that is registered runs.
    let registered = sysctls.registered().unwrap_or_default();
    of_pods.retain(|name| !registered.contains(&format!("{NAME_PREFIX}{name}")));
    let count = of_pods.len();
    let places = match (&own, count) {
        (Some(_), 0) => "this network namespace".to_owned(),
        (Some(_), count) => format!("this network namespace and of {count} of pods"),
        (None, count) => format!("{count} network namespaces of pods"),
    };
    let name = own.or_else(|| of_pods.pop())?;
    Some(LeftOver {
        backend: BackendKind::StructOps,
        // The part behind it tells the lives of one instance apart.
        instance: name.split('_').next().unwrap_or(&name).to_owned(),
        what: format!("the congestion control {NAME_PREFIX}{name} is the default of {places}"),
        device: None,
    })
}

fn pins(instance: Option<&str>) -> Vec<LeftOver> {
    let listed = in_first_mount_namespace(|| {
        let mut places = Vec::new();
        for (folder, below, backend) in PIN_PLACES {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let place = entry.path().join(below);
                let name = entry.file_name().to_string_lossy().into_owned();
                let wanted = instance.is_none_or(|instance| instance == name);
                if wanted && place.is_dir() && !is_held(&place) {
                    places.push((name, place, backend));
                }
            }
        }
        Ok(places)
    });
    listed
        .unwrap_or_default()
        .into_iter()
        .map(|(instance, place, backend)| LeftOver {
            backend,
            instance,
            device: None,
            what: format!("BPF programs and maps are pinned in {}", place.display()),
        })
        .collect()
}

/// Returns true if a daemon holds the folder: it is that daemon's, in whatever namespace it runs.
fn is_held(place: &Path) -> bool {
    fs::File::open(place).is_ok_and(|folder| {
        matches!(
            Flock::lock(folder, FlockArg::LockExclusiveNonblock),
            Err((_, Errno::EWOULDBLOCK))
        )
    })
}

fn devices() -> Vec<LeftOver> {
    let names = fs::read_dir(Path::new("/sys/class/net"))
        .into_iter()
        .flatten()
        .flatten();
    names
        .filter_map(|entry| {
            let device = entry.file_name().to_string_lossy().into_owned();
            let index = tc_htb::index_of(&device).ok()?;
            let root = HtbNetlink::new(index).ok()?.root().ok()??;
            (root.kind == "htb" && root.handle == QDISC).then(|| LeftOver {
                backend: BackendKind::TcHtb,
                instance: "cleanup".to_owned(),
                what: format!("the queue discipline htb {:x}: paces {device}", QDISC >> 16),
                device: Some(device),
            })
        })
        .collect()
}
