//! An allocator's name with several addresses, of which not all answer.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use ratewright_endpointd::config::Config;

use super::allocator::ScriptedAllocator;
use super::recorder::recorder;
use super::{Running, config, on_one_thread, until};
use crate::site::certificates;

const NAME: &str = "allocator.test";

/// Host table that this thread, and each that it starts, sees in place of `/etc/hosts`.
struct HostTable(tempfile::NamedTempFile);

impl HostTable {
    fn new() -> Self {
        // Threads share their view of the file system until one leaves it.
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).expect("root");
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("private");
        let file = tempfile::NamedTempFile::new().expect("a file");
        mount(
            Some(file.path()),
            "/etc/hosts",
            none,
            MsFlags::MS_BIND,
            none,
        )
        .expect("bound");
        Self(file)
    }

    fn tell(&self, addresses: &[&str]) {
        let lines = addresses.iter().map(|ip| format!("{ip} {NAME}\n"));
        // In place: the mount is of this very file.
        std::fs::write(self.0.path(), lines.collect::<String>()).expect("written");
    }
}

fn named(folder: &Path, allocator: SocketAddr) -> Config {
    let mut config = config(folder, &[allocator], "");
    config.allocator = vec![format!("{NAME}:{}", allocator.port())];
    config
}

/// A host in front of the allocator's, that takes packets and never answers.
fn silent(ip: &str, port: u16) -> UdpSocket {
    UdpSocket::bind(format!("{ip}:{port}")).expect("a free port")
}

#[test]
fn a_name_whose_other_addresses_are_silent_has_a_session_by_the_one_that_answers() {
    on_one_thread(async {
        let hosts = HostTable::new();
        let folder = certificates();
        let allocator = ScriptedAllocator::start(folder.path(), 1, None);
        let port = allocator.address.port();
        let _silent = [
            silent("[::1]", port),
            silent("127.0.0.2", port),
            silent("127.0.0.3", port),
        ];
        hosts.tell(&["::1", "127.0.0.2", "127.0.0.3", "127.0.0.1"]);
        let (backend, _kernel) = recorder();
        let daemon = Running::start(named(folder.path(), allocator.address), backend);
        until("a session is established", || {
            allocator.script.borrow().sessions == 1
        })
        .await;
        let status = daemon.status().await;
        assert_eq!(
            status.link.connect_failures, 0,
            "one attempt tries all addresses"
        );
        daemon.stop().await.unwrap();
    });
}

#[test]
fn a_name_is_looked_up_again_after_its_address_has_changed() {
    on_one_thread(async {
        let hosts = HostTable::new();
        let folder = certificates();
        let allocator = ScriptedAllocator::start(folder.path(), 1, None);
        let port = allocator.address.port();
        hosts.tell(&["127.0.0.1"]);
        let (backend, _kernel) = recorder();
        let daemon = Running::start(named(folder.path(), allocator.address), backend);
        until("a session is established", || {
            allocator.script.borrow().sessions == 1
        })
        .await;
        let _gone = allocator.vanish();
        let moved = SocketAddr::from(([127, 0, 0, 4], port));
        let successor = ScriptedAllocator::restart(folder.path(), 2, moved).await;
        hosts.tell(&["127.0.0.4"]);
        until("a session with the successor is established", || {
            successor.script.borrow().sessions == 1
        })
        .await;
        daemon.stop().await.unwrap();
    });
}
