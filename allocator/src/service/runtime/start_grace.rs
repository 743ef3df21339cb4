//! Grace time after the start, in which no rate is sent.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::Sleep;

/// Grace time after the start, whose end [`end`](Self::end) reports exactly once.
///
/// The timer alone does not show if its end was reported: in a `select!`, another branch may have
/// won at that moment.
pub(super) struct StartGrace {
    sleep: Pin<Box<Sleep>>,
    has_fired: bool,
}

impl StartGrace {
    /// Starts the grace time.
    pub(super) fn new(grace: Duration) -> Self {
        Self {
            sleep: Box::pin(tokio::time::sleep(grace)),
            has_fired: false,
        }
    }

    /// Waits for the end of the grace time; later calls wait for ever. Cancel-safe.
    pub(super) async fn end(&mut self) {
        if self.has_fired {
            std::future::pending::<()>().await;
        }
        self.sleep.as_mut().await;
        self.has_fired = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_came_together_with_something_else_is_told_afterwards() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let mut grace = StartGrace::new(Duration::from_millis(20));
            tokio::select! {
                biased;
                () = grace.end() => panic!("it has only begun"),
                () = std::future::ready(()) => {}
            }
            // The timer fires while no call waits for it.
            tokio::time::sleep(Duration::from_millis(40)).await;
            assert!(grace.sleep.is_elapsed());
            grace.end().await;
            tokio::select! {
                biased;
                () = grace.end() => panic!("it is told once"),
                () = std::future::ready(()) => {}
            }
        });
    }
}
