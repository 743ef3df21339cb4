//! The log filter, which can be changed at run time.

use std::sync::{Arc, Mutex, PoisonError};

use ratewright_io::log::{LogWriter, RepeatLimit};
use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt, reload};

/// Examples of filters, for error messages.
pub const EXAMPLES: &str = "examples: info; warn,ratewright_allocator=debug";

/// Handle to the process's log filter.
#[derive(Clone)]
pub struct LogControl {
    current: Arc<Mutex<String>>,
    handle: Option<reload::Handle<EnvFilter, Registry>>,
}

/// Error for a log filter that cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[error("{filter:?} is not a log filter: {reason}; {EXAMPLES}")]
pub struct LogFilterError {
    /// Text of the filter.
    pub filter: String,
    /// Reason of the refusal.
    pub reason: String,
}

impl std::fmt::Debug for LogControl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogControl")
            .field("current", &self.current())
            .finish_non_exhaustive()
    }
}

fn parse(filter: &str) -> Result<EnvFilter, LogFilterError> {
    let error = |reason: String| LogFilterError {
        filter: filter.to_owned(),
        reason,
    };
    // The parser would accept an empty filter and log errors only.
    if filter.trim().is_empty() {
        return Err(error("it is empty".to_owned()));
    }
    EnvFilter::try_new(filter).map_err(|source| error(source.to_string()))
}

/// Checks a filter without installing it.
///
/// # Errors
/// A filter that is empty or cannot be parsed.
pub fn check(filter: &str) -> Result<(), LogFilterError> {
    parse(filter).map(drop)
}

impl LogControl {
    /// Installs the process's logger. It writes to standard error, without colours, on a thread of
    /// its own.
    pub fn install(filter: &str) -> Result<Self, LogFilterError> {
        let (layer, handle) = reload::Layer::new(parse(filter)?);
        let installed = tracing_subscriber::registry()
            .with(layer)
            .with(RepeatLimit::standard_error())
            .with(
                fmt::layer()
                    .with_writer(LogWriter::standard_error)
                    .with_ansi(false)
                    .with_target(false),
            )
            .try_init()
            .is_ok();
        Ok(Self {
            current: Arc::new(Mutex::new(filter.to_owned())),
            // Tests in one process share the first logger that was installed.
            handle: installed.then_some(handle),
        })
    }

    /// Returns the filter in force.
    pub fn current(&self) -> String {
        self.current
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Puts another filter in force.
    pub fn set(&self, filter: &str) -> Result<(), LogFilterError> {
        // Parsed first: a filter with a mistake leaves the one in force.
        let parsed = parse(filter)?;
        if let Some(handle) = &self.handle {
            handle.reload(parsed).map_err(|source| LogFilterError {
                filter: filter.to_owned(),
                reason: source.to_string(),
            })?;
        }
        filter.clone_into(&mut self.current.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(())
    }
}
