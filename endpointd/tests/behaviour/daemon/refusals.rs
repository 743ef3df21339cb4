//! Allocators that refuse this host, and certificates that do not fit.

use std::time::Duration;

use ratewright_endpointd::backend::FlowEventKind;
use ratewright_endpointd::config::{Config, TlsConfig};
use ratewright_endpointd::daemon::{DaemonError, Exit};
use ratewright_proto::control::RefusalCode;

use super::allocator::ScriptedAllocator;
use super::recorder::recorder;
use super::{Running, config, conn, facts, on_one_thread, until};
use crate::site::{TestAuthority, certificates};

async fn refused(code: RefusalCode) -> Result<Exit, DaemonError> {
    let folder = certificates();
    let allocator = ScriptedAllocator::start(folder.path(), 1, None);
    allocator.script.borrow_mut().refuse = Some(code);
    let (backend, kernel) = recorder();
    kernel.event(conn(4), FlowEventKind::Start(facts("10.0.2.1", 5_201)));
    let ended = Running::start(config(folder.path(), &[allocator.address], ""), backend)
        .ended()
        .await;
    let calls = kernel.calls.borrow();
    assert!(calls.shut_down, "connections are given back");
    assert_eq!(calls.rates, 0, "none was ever paced");
    ended
}

/// The program itself, its exit code and what it leaves: `left_overs`.
#[test]
fn a_refusal_without_hope_ends_the_daemon_before_any_flow_has_a_rate() {
    on_one_thread(async {
        for code in [
            RefusalCode::VersionMismatch,
            RefusalCode::UnknownHost,
            RefusalCode::DuplicateHost,
        ] {
            let error = refused(code).await.unwrap_err();
            assert!(matches!(&error, DaemonError::Refused { code: found, .. } if *found == code));
            assert!(
                error.to_string().contains("because the test says so"),
                "{error}"
            );
        }
        assert!(matches!(
            refused(RefusalCode::Superseded).await.unwrap(),
            Exit::Superseded(_)
        ));
    });
}

#[test]
fn what_could_not_be_given_back_is_told_whatever_ended_the_daemon() {
    on_one_thread(async {
        for refuse in [None, Some(RefusalCode::UnknownHost)] {
            let folder = certificates();
            let allocator = ScriptedAllocator::start(folder.path(), 1, None);
            allocator.script.borrow_mut().refuse = refuse;
            let (backend, kernel) = recorder();
            kernel.calls.borrow_mut().refuse_shut_down = true;
            let daemon = Running::start(config(folder.path(), &[allocator.address], ""), backend);
            let ended = match refuse {
                None => daemon.stop().await,
                Some(_) => daemon.ended().await,
            };
            let error = ended.expect_err("not all is well");
            assert!(matches!(error, DaemonError::NotGivenBack(_)), "{error}");
            assert!(error.to_string().contains("says the test"), "{error}");
        }
    });
}

#[test]
fn a_refusal_with_hope_is_tried_again() {
    on_one_thread(async {
        let folder = certificates();
        let allocator = ScriptedAllocator::start(folder.path(), 1, None);
        allocator.script.borrow_mut().refuse = Some(RefusalCode::Draining);
        let (backend, _kernel) = recorder();
        let daemon = Running::start(config(folder.path(), &[allocator.address], ""), backend);
        tokio::time::sleep(Duration::from_millis(300)).await;
        let status = daemon.status().await;
        assert!(status.link.connect_attempts > 1, "{:?}", status.link);
        assert!(status.session.last_error.unwrap().contains("Draining"));
        allocator.script.borrow_mut().refuse = None;
        until("the session is established", || {
            allocator.script.borrow().sessions == 1
        })
        .await;
        daemon.stop().await.unwrap();
    });
}

#[test]
fn after_a_session_a_refusal_is_the_allocators_and_is_tried_again() {
    on_one_thread(async {
        for code in [
            RefusalCode::UnknownHost,
            RefusalCode::VersionMismatch,
            RefusalCode::CertificateMismatch,
        ] {
            let folder = certificates();
            let allocator = ScriptedAllocator::start(folder.path(), 1, None);
            let (backend, kernel) = recorder();
            let daemon = Running::start(config(folder.path(), &[allocator.address], ""), backend);
            until("a session is established", || {
                allocator.script.borrow().sessions == 1
            })
            .await;
            let address = allocator.vanish();
            let allocator = ScriptedAllocator::restart(folder.path(), 2, address).await;
            allocator.script.borrow_mut().refuse = Some(code);
            let refused = format!("{code:?}");
            let mut status = daemon.status().await;
            while !status
                .session
                .last_error
                .is_some_and(|error| error.contains(&refused))
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
                status = daemon.status().await;
            }
            // Not at the pace of an allocator that is merely away.
            let before = status.link.connect_attempts;
            tokio::time::sleep(Duration::from_millis(400)).await;
            let status = daemon.status().await;
            assert_eq!(status.link.connect_attempts, before, "{code:?}");
            assert!(!kernel.calls.borrow().shut_down);

            allocator.script.borrow_mut().refuse = None;
            until("the session is established again", || {
                allocator.script.borrow().sessions == 1
            })
            .await;
            daemon.stop().await.unwrap();
        }
    });
}

#[test]
fn after_a_session_a_successor_still_ends_the_daemon() {
    on_one_thread(async {
        let folder = certificates();
        let allocator = ScriptedAllocator::start(folder.path(), 1, None);
        let (backend, _kernel) = recorder();
        let daemon = Running::start(config(folder.path(), &[allocator.address], ""), backend);
        until("a session is established", || {
            allocator.script.borrow().sessions == 1
        })
        .await;
        let address = allocator.vanish();
        let allocator = ScriptedAllocator::restart(folder.path(), 2, address).await;
        allocator.script.borrow_mut().refuse = Some(RefusalCode::Superseded);
        assert!(matches!(daemon.ended().await, Ok(Exit::Superseded(_))));
    });
}

#[test]
fn wrong_certificates_on_either_side_end_the_daemon_with_one_clear_line() {
    on_one_thread(async {
        // This host's certificate comes from an authority that the allocator does not know.
        let folder = certificates();
        let allocator = ScriptedAllocator::start(folder.path(), 1, None);
        let stranger = TestAuthority::new();
        stranger.issue(folder.path(), "h1", "h1");
        let (backend, kernel) = recorder();
        let error = Running::start(config(folder.path(), &[allocator.address], ""), backend)
            .ended()
            .await
            .unwrap_err();
        assert!(matches!(error, DaemonError::Certificate(_)), "{error}");
        assert!(kernel.calls.borrow().shut_down);

        // The allocator's certificate carries another name.
        let folder = certificates();
        let allocator = ScriptedAllocator::start(folder.path(), 1, None);
        let (backend, _kernel) = recorder();
        let config: Config = config(folder.path(), &[allocator.address], "");
        let tls = TlsConfig {
            server_name: "other".to_owned(),
            ..config.tls.clone()
        };
        let error = Running::start(Config { tls, ..config }, backend)
            .ended()
            .await
            .unwrap_err();
        assert!(matches!(error, DaemonError::Certificate(_)), "{error}");
    });
}
