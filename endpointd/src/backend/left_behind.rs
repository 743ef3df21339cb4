//! Search for what a killed daemon left in this network namespace.

use std::fs;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::BackendKind;
use super::htb_netlink::HtbNetlink;
use super::mounts::in_first_mount_namespace;
use super::tc_htb::{self, QDISC};

/// Prefix of the names of daemons' congestion controls.
const CC_PREFIX: &str = "rw_";
const DEFAULT_CC: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
/// Places of the pins of a daemon's back ends, below a folder per instance.
const PIN_PLACES: [(&str, &str); 2] = [
    ("/sys/fs/bpf/ratewright", "sock_ops"),
    ("/run/ratewright", "bpf/sock_ops"),
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

/// Finds what daemons left here. While one runs, that is its own.
#[must_use]
pub fn find() -> Vec<LeftOver> {
    let mut found = Vec::new();
    found.extend(congestion_control());
    found.extend(pins());
    found.extend(devices());
    found
}

/// The namespace's default is a daemon's congestion control: new sockets take it.
fn congestion_control() -> Option<LeftOver> {
    let default = fs::read_to_string(DEFAULT_CC).ok()?;
    let name = default.trim().strip_prefix(CC_PREFIX)?;
    Some(LeftOver {
        backend: BackendKind::StructOps,
        // The part behind it tells the lives of one instance apart.
        instance: name.split('_').next().unwrap_or(name).to_owned(),
        device: None,
        what: format!(
            "the congestion control {CC_PREFIX}{name} is the default of this network namespace"
        ),
    })
}

fn pins() -> Vec<LeftOver> {
    let listed = in_first_mount_namespace(|| {
        let mut places = Vec::new();
        for (folder, below) in PIN_PLACES {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let place = entry.path().join(below);
                if place.is_dir() && !is_held(&place) {
                    places.push((entry.file_name().to_string_lossy().into_owned(), place));
                }
            }
        }
        Ok(places)
    });
    listed
        .unwrap_or_default()
        .into_iter()
        .map(|(instance, place)| LeftOver {
            backend: BackendKind::SockOps,
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
