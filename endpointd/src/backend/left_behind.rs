//! Search for what a killed daemon left.

use std::fs;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::BackendKind;
use super::htb_netlink::HtbNetlink;
use super::mounts::in_first_mount_namespace;
use super::tc_htb::{self, QDISC};

/// Places of the pins of a daemon's back ends, below a folder per instance.
const PIN_PLACES: [(&str, &str, BackendKind); 2] = [
    ("/sys/fs/bpf/ratewright", "sock_ops", BackendKind::SockOps),
    ("/run/ratewright", "bpf/sock_ops", BackendKind::SockOps),
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

/// Finds what daemons left here; of pins those of `instance`, or of all. While a daemon runs, that
/// is its own.
#[must_use]
pub fn find(instance: Option<&str>) -> Vec<LeftOver> {
    let mut found = pins(instance);
    found.extend(devices());
    found
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
