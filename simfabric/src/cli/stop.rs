//! Ctrl-C: the first asks runs to stop, so that what there is gets written; the second ends the
//! program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};

/// A request to stop.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopRequest(Arc<AtomicBool>);

impl StopRequest {
    /// A request that Ctrl-C or SIGTERM sets.
    pub(crate) fn on_ctrl_c() -> Result<Self> {
        let stop = Self::default();
        let flag = stop.clone();
        ctrlc::set_handler(move || {
            // 130 is 128 plus SIGINT, as shells report a program that the signal ended.
            if flag.0.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
        })
        .context("cannot listen for Ctrl-C")?;
        Ok(stop)
    }

    /// True once the signal came.
    pub(crate) fn requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
