//! Display of a running scenario: lines ([`plain`]) or a live picture ([`tui`]) of the run's state
//! ([`live`]). Either asks the lab to end once its output is closed.

pub mod live;
pub mod plain;
pub mod tui;

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ratewright_cli::clock::now_ns;

use crate::cancel::Cancel;
use live::Live;

/// Error for a closed pipe or terminal: the lab ends without a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NobodyListens;

impl std::fmt::Display for NobodyListens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("nobody listens to standard output any more")
    }
}

impl std::error::Error for NobodyListens {}

/// Time-out for the view's thread to end. A thread that reads from a terminal which is gone may not
/// end.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// The view's thread.
#[derive(Debug)]
pub struct LiveView {
    stop: Arc<AtomicBool>,
    deaf: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LiveView {
    /// Starts the live picture, or lines if `plain` or standard output is no terminal.
    #[must_use]
    pub fn start(live: &Arc<Live>, cancel: &Cancel, plain: bool) -> LiveView {
        let stop = Arc::new(AtomicBool::new(false));
        let deaf = Arc::new(AtomicBool::new(false));
        let (live, cancel, stopped) = (Arc::clone(live), cancel.clone(), Arc::clone(&stop));
        let nobody_listens = Arc::clone(&deaf);
        let terminal = !plain && std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
        let show = move || {
            let picture = terminal.then(|| tui::show(&live, &cancel, &stopped));
            // Lines are the fall-back for a picture that failed.
            if let None | Some(Err(_)) = picture
                && plain::show(&live, &stopped).is_err()
            {
                nobody_listens.store(true, Ordering::Relaxed);
                cancel.set();
            }
        };
        LiveView {
            stop,
            deaf,
            thread: std::thread::Builder::new()
                .name("view".into())
                .spawn(show)
                .ok(),
        }
    }

    /// Ends the view and gives the terminal back.
    ///
    /// # Errors
    /// When the view ended because its output was closed.
    pub fn finish(mut self) -> Result<(), NobodyListens> {
        self.end();
        if self.deaf.load(Ordering::Relaxed) {
            return Err(NobodyListens);
        }
        Ok(())
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Not a plain join: a thread that reads from a closed terminal never returns.
        let until = now_ns() + END_PATIENCE.as_nanos() as u64;
        if let Some(thread) = self.thread.take() {
            while !thread.is_finished() && now_ns() < until {
                ratewright_cli::clock::sleep(Duration::from_millis(5));
            }
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
    }
}

impl Drop for LiveView {
    fn drop(&mut self) {
        self.end();
    }
}
