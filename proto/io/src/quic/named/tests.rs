use std::cell::RefCell;
use std::future::ready;
use std::pin::Pin;

use super::*;

fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
    let parse = |text: &&str| text.parse().expect("an address");
    texts.iter().map(parse).collect()
}

#[test]
fn families_take_turns_from_the_first_ones_on() {
    let ordered = in_order_of_trial(addresses(&[
        "[::1]:1",
        "[::2]:1",
        "[::1]:1",
        "[::3]:1",
        "10.0.0.1:1",
    ]));
    let expected = ["[::1]:1", "10.0.0.1:1", "[::2]:1", "[::3]:1"];
    assert_eq!(Vec::from(ordered), addresses(&expected));
}

#[test]
fn a_name_with_thousands_of_addresses_costs_eight_attempts() {
    let many = (0..5_000_u32).map(|n| SocketAddr::from((n.to_be_bytes(), 1)));
    let one = addresses(&["[::1]:1"]);
    let ordered = in_order_of_trial(many.chain(one.clone()).collect());
    assert_eq!(ordered.len(), MOST_ADDRESSES);
    assert_eq!(ordered[1], one[0], "the other family has its turn");
    assert!(in_order_of_trial(Vec::new()).is_empty());
}

type Later<T> = Pin<Box<dyn Future<Output = T>>>;
type Attempt = Later<Result<Step<u16, Later<Result<u16, u16>>>, u16>>;

fn after<T: 'static>(ms: u64, value: T) -> Later<T> {
    Box::pin(async move {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        value
    })
}

/// Races ports 1, 2, … by what `attempt` does with each. Returns the outcome, its time, and when
/// each attempt began, in milliseconds.
async fn raced(
    count: u16,
    attempt: impl Fn(u16) -> Attempt,
) -> (Result<u16, Vec<u16>>, u128, Vec<u128>) {
    let began = Instant::now();
    let ports = (1..=count).map(|port| SocketAddr::from(([10, 0, 0, 1], port)));
    let beginnings = RefCell::new(Vec::new());
    let outcome = race(ports.collect(), |to| {
        beginnings.borrow_mut().push(began.elapsed().as_millis());
        attempt(to.port())
    })
    .await;
    (
        outcome,
        began.elapsed().as_millis(),
        beginnings.into_inner(),
    )
}

#[tokio::test(start_paused = true)]
async fn a_silent_address_delays_the_next_by_a_quarter_of_a_second() {
    let (outcome, took_ms, began_ms) = raced(3, |port| match port {
        3 => after(5, Ok(Step::Up(3))),
        silent => after(4_000, Err(silent)),
    })
    .await;
    assert_eq!((outcome, took_ms), (Ok(3), 505));
    assert_eq!(began_ms, [0, 250, 500]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_begins_the_next_attempt_at_once() {
    let (outcome, took_ms, began_ms) = raced(3, |port| match port {
        3 => after(5, Ok(Step::Up(3))),
        refused => after(10, Err(refused)),
    })
    .await;
    assert_eq!((outcome, took_ms), (Ok(3), 25));
    assert_eq!(began_ms, [0, 10, 20]);
}

#[tokio::test(start_paused = true)]
async fn the_first_that_is_up_wins_though_it_began_first() {
    let (outcome, took_ms, began_ms) = raced(4, |port| match port {
        1 => after(300, Ok(Step::Up(1))),
        silent => after(4_000, Err(silent)),
    })
    .await;
    assert_eq!((outcome, took_ms), (Ok(1), 300));
    assert_eq!(began_ms, [0, 250], "no attempt begins after the end");
}

#[tokio::test(start_paused = true)]
async fn a_server_with_a_queue_gets_one_handshake_however_many_addresses_it_has() {
    let (outcome, took_ms, began_ms) = raced(8, |port| {
        after(1, Ok(Step::Answered(after(3_000, Ok(port)))))
    })
    .await;
    assert_eq!((outcome, took_ms), (Ok(1), 3_001));
    assert_eq!(began_ms, [0]);
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_fails_gives_the_turn_to_the_others() {
    let (outcome, _, began_ms) = raced(3, |port| match port {
        2 => after(1, Ok(Step::Answered(after(1_000, Err(2))))),
        3 => after(1, Ok(Step::Up(3))),
        silent => after(600, Err(silent)),
    })
    .await;
    assert_eq!(outcome, Ok(3));
    assert_eq!(began_ms, [0, 250, 1_251]);
}

#[tokio::test(start_paused = true)]
async fn all_failures_end_it_and_are_told() {
    let (outcome, took_ms, _) = raced(3, |port| after(250, Err(port))).await;
    assert_eq!(outcome, Err(vec![1, 2, 3]));
    assert_eq!(took_ms, 750);
    let none = race(VecDeque::new(), |_| -> Attempt { Box::pin(ready(Err(0))) });
    assert_eq!(none.await, Err(vec![]));
}

#[tokio::test]
async fn a_name_that_is_looked_up_too_slowly_has_one_look_up_under_way() {
    let name = RemoteName::new("192.0.2.1:7600");
    let (answer, looked_up) = tokio::sync::oneshot::channel();
    let slow = tokio::spawn(async move { Ok(looked_up.await.expect("an answer")) });
    *name.late.lock().expect("no panic") = Some(slow);
    for _ in 0..3 {
        let late = name.resolve(Duration::from_millis(1)).await;
        assert!(matches!(late, Err(NamedConnectError::Unusable(_))));
    }
    answer.send(addresses(&["10.0.0.1:1"])).expect("waited for");
    let patience = Duration::from_secs(10);
    let found = name.resolve(patience).await.expect("in time");
    assert_eq!(found, addresses(&["10.0.0.1:1"]));
    // The next one is asked for anew: addresses change.
    let found = name.resolve(patience).await.expect("a literal");
    assert_eq!(found, addresses(&["192.0.2.1:7600"]));
}
