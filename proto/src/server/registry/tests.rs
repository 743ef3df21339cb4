use super::*;

const HOST: u32 = 3;
const LIVENESS_NS: u64 = 1_000;

fn claim(incarnation: u64, attempt: u64) -> Claim {
    Claim {
        incarnation,
        attempt,
    }
}

fn is_duplicate(decision: &Decision) -> bool {
    matches!(
        decision,
        Decision::Refuse(Refusal {
            code: RefusalCode::DuplicateHost,
            retry: true,
            ..
        })
    )
}

#[test]
fn a_newer_incarnation_or_connection_takes_over() {
    let mut registry = Registry::new(LIVENESS_NS);
    assert_eq!(registry.register(0, HOST, 1, claim(5, 1)), Decision::Accept);
    let decision = registry.register(1, HOST, 2, claim(6, 1));
    assert_eq!(decision, Decision::Supersede { session: 1 });
    let decision = registry.register(2, HOST, 3, claim(6, 2));
    assert_eq!(decision, Decision::Supersede { session: 2 });
    assert_eq!(registry.session_of(HOST), Some(3));
    // The end of a session that was replaced does not free the host.
    registry.remove(HOST, 1);
    assert_eq!(registry.session_of(HOST), Some(3));
    registry.remove(HOST, 3);
    assert!(registry.is_empty());
}

#[test]
fn an_older_or_equal_claim_waits_until_the_holder_falls_silent() {
    let mut registry = Registry::new(LIVENESS_NS);
    registry.register(0, HOST, 1, claim(5, 2));
    registry.heard(500, HOST, 1);
    for older in [claim(5, 2), claim(5, 1), claim(4, 9)] {
        assert!(is_duplicate(&registry.register(1_499, HOST, 2, older)));
    }
    assert_eq!(registry.session_of(HOST), Some(1));
    let decision = registry.register(1_500, HOST, 2, claim(4, 9));
    assert_eq!(decision, Decision::Supersede { session: 1 });
}

#[test]
fn only_the_holder_keeps_its_place_alive_and_hosts_are_apart() {
    let mut registry = Registry::new(LIVENESS_NS);
    registry.register(0, HOST, 1, claim(5, 1));
    registry.heard(900, HOST, 7);
    let decision = registry.register(1_000, HOST, 2, claim(1, 1));
    assert_eq!(decision, Decision::Supersede { session: 1 });
    assert_eq!(
        registry.register(0, HOST + 1, 3, claim(1, 1)),
        Decision::Accept
    );
    assert_eq!(registry.len(), 2);
}
