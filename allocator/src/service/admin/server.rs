//! The admin server's thread.

use std::thread::JoinHandle;

use axum::Router;
use ratewright_io::admin::{AdminAddress, Listener, SocketFile};

/// Error for an admin server that cannot run.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The server cannot listen on the address.
    #[error("admin = \"{address}\": cannot listen: {reason}")]
    Listen {
        /// The address.
        address: AdminAddress,
        /// Reason, in words.
        reason: String,
    },
    /// The thread or its runtime could not be made.
    #[error("cannot start the admin thread")]
    Thread(#[from] std::io::Error),
}

/// A running admin server. Drop removes its socket file; its thread ends with the process.
#[derive(Debug)]
pub struct AdminServer {
    address: AdminAddress,
    _file: Option<SocketFile>,
    _thread: JoinHandle<()>,
}

impl AdminServer {
    /// Returns the address, with the actual port if the configured one was 0.
    pub fn address(&self) -> &AdminAddress {
        &self.address
    }
}

/// Binds the address, and serves `app` and drives `beside` on a thread of their own.
pub fn serve(
    address: &AdminAddress,
    app: Router,
    beside: impl Future<Output = ()> + Send + 'static,
) -> Result<AdminServer, AdminError> {
    let mut listener = Listener::bind(address).map_err(|source| AdminError::Listen {
        address: address.clone(),
        reason: source.to_string(),
    })?;
    // Bound before the thread starts, so that a mistake in the address ends the start of the
    // process.
    let bound = listener.address().clone();
    let file = listener.take_file();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let thread = std::thread::Builder::new()
        .name("admin".to_owned())
        .spawn(move || {
            runtime.block_on(async {
                tokio::join!(listener.serve(app), beside);
            });
        })?;
    Ok(AdminServer {
        address: bound,
        _file: file,
        _thread: thread,
    })
}
