//! The admin interface over a unix socket, asked as a monitoring system asks it.

use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;

use ratewright_endpointd::admin::{LogFilter, router};
use ratewright_io::admin::{AdminAddress, Listener};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::allocator::ScriptedAllocator;
use super::recorder::recorder;
use super::{Running, config, on_one_thread, start_paced};
use crate::site::certificates;

#[derive(Default)]
struct Filter(Mutex<String>);

impl LogFilter for Filter {
    fn get(&self) -> String {
        self.0.lock().unwrap().clone()
    }

    fn set(&self, filter: &str) -> Result<(), String> {
        if filter.contains("loud") {
            return Err(format!("`{filter}` is no filter"));
        }
        filter.clone_into(&mut self.0.lock().unwrap());
        Ok(())
    }
}

/// One request; the status code and the body.
pub(super) async fn ask(socket: &Path, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (
        head.split(' ').nth(1).unwrap().parse().unwrap(),
        body.to_owned(),
    )
}

#[test]
fn operators_see_the_state_and_set_the_log_level() {
    on_one_thread(async {
        let folder = certificates();
        let socket = folder.path().join("admin.sock");
        // A socket file that is left from an earlier run is no obstacle.
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let listener = Listener::bind(&AdminAddress::Unix(socket.clone())).unwrap();

        let dead = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = dead.local_addr().unwrap();
        let (backend, kernel) = recorder();
        let daemon = Running::start(config(folder.path(), &[address], ""), backend);
        let log = Arc::new(Filter::default());
        tokio::task::spawn_local(
            listener.serve(router(daemon.requests.clone(), Some(log.clone()))),
        );

        assert_eq!(
            ask(&socket, "GET", "/live", "").await,
            (200, "live\n".to_owned())
        );
        let (code, why) = ask(&socket, "GET", "/ready", "").await;
        assert_eq!((code, &why[..11]), (503, "not ready: "));

        drop(dead);
        let allocator = ScriptedAllocator::start(folder.path(), 9, Some(address));
        start_paced(&kernel).await;
        assert_eq!(
            ask(&socket, "GET", "/ready", "").await,
            (200, "ready\n".to_owned())
        );

        let (code, body) = ask(&socket, "GET", "/v1/status", "").await;
        let status: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(code, 200);
        for (key, value) in [
            ("host", serde_json::json!("h1")),
            ("backend", serde_json::json!("sock_ops")),
            ("epoch", serde_json::json!(9)),
            ("topology_epoch", serde_json::json!(1)),
            ("flows", serde_json::json!(1)),
            ("paced_flows", serde_json::json!(1)),
            ("released", serde_json::json!(false)),
        ] {
            assert_eq!(status[key], value, "{key} in {body}");
        }
        assert_eq!(status["session"]["state"], "established");
        assert_eq!(status["first_paced_us"]["count"], 1);

        assert_eq!(
            ask(&socket, "GET", "/first-paced", "").await,
            (200, "[180]".to_owned())
        );
        let (_, metrics) = ask(&socket, "GET", "/metrics", "").await;
        for line in [
            "ratewright_endpointd_paced_flows 1",
            "ratewright_endpointd_session_established 1",
            "ratewright_endpointd_flowlets_started_total 1",
            "ratewright_endpointd_backend_adopted_total 3",
            "ratewright_endpointd_log_lines_dropped_total 0",
            "ratewright_endpointd_first_paced_seconds_bucket{le=\"0.0002\"} 1",
            "ratewright_endpointd_first_paced_seconds_count 1",
            "# TYPE ratewright_endpointd_first_paced_seconds histogram",
            "ratewright_endpointd_protocol_events_total{event=\"starts_sent\"} 1",
        ] {
            assert!(metrics.contains(line), "{line} in {metrics}");
        }

        assert_eq!(
            ask(&socket, "PUT", "/log-level", "debug").await,
            (200, "debug\n".to_owned())
        );
        assert_eq!(ask(&socket, "PUT", "/log-level", "loud").await.0, 400);
        assert_eq!(
            ask(&socket, "GET", "/log-level", "").await,
            (200, "debug\n".to_owned())
        );
        assert_eq!(ask(&socket, "GET", "/absent", "").await.0, 404);

        // Without the daemon's loop nothing is alive.
        daemon.stop().await.unwrap();
        assert_eq!(ask(&socket, "GET", "/live", "").await.0, 503);
        drop(allocator);
    });
}

#[test]
fn a_socket_on_which_somebody_listens_is_not_replaced_and_goes_with_its_owner() {
    use std::os::unix::fs::PermissionsExt;
    on_one_thread(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        let address = AdminAddress::Unix(path.clone());
        let first = Listener::bind(&address).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        let second = Listener::bind(&address).unwrap_err();
        assert_eq!(second.to_string(), "another process listens on it");
        assert!(UnixStream::connect(&path).await.is_ok());
        drop(first);
        assert!(!path.exists());

        // A file that someone else has put there since is not ours to remove.
        let first = Listener::bind(&address).unwrap();
        std::fs::remove_file(&path).unwrap();
        let other = folder.path().join("other");
        std::fs::write(&other, "data").unwrap();
        std::fs::rename(&other, &path).unwrap();
        drop(first);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "data");
    });
}

#[test]
fn a_path_that_is_no_socket_is_not_replaced() {
    on_one_thread(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("precious");
        std::fs::write(&path, "data").unwrap();
        assert!(Listener::bind(&AdminAddress::Unix(path.clone())).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "data");
    });
}
