//! DPDK's environment abstraction layer (EAL): started once per process.
//!
//! EAL pins the thread that starts it and makes it the main lcore: start it on the thread that is
//! going to poll, never on an async runtime's.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};

use demikernel_dpdk_bindings as ffi;

use crate::DpdkError;

static STARTED: AtomicBool = AtomicBool::new(false);

/// Proof that EAL runs. Belongs to the thread that started it.
#[derive(Debug)]
pub struct Eal {
    /// The starting thread is EAL's main lcore: not `Send`.
    _thread: PhantomData<*const ()>,
}

impl Eal {
    /// Starts EAL with `options` (as on a DPDK program's command line, without the program's name):
    /// `["--no-huge", "-m", "128", "--no-pci", "--vdev=net_af_packet0,iface=eth1"]`.
    ///
    /// # Errors
    /// [`DpdkError::AlreadyStarted`] on the second call of a process, even if the first one failed:
    /// EAL cannot be started again.
    pub fn start(options: &[String]) -> Result<Self, DpdkError> {
        let mut arguments = vec![c"ratewright".to_owned()];
        for option in options {
            arguments.push(
                CString::new(option.as_str()).map_err(|_| DpdkError::BadOption(option.clone()))?,
            );
        }
        if STARTED.swap(true, Ordering::SeqCst) {
            return Err(DpdkError::AlreadyStarted);
        }
        let mut pointers: Vec<*mut c_char> = arguments.into_iter().map(CString::into_raw).collect();
        let count = pointers.len() as c_int;
        pointers.push(std::ptr::null_mut());
        // EAL keeps pointers into the arguments and may reorder the array: both live for ever.
        let argv = Box::leak(pointers.into_boxed_slice()).as_mut_ptr();
        // SAFETY: `argv` points to `count` NUL-terminated strings and a final null, all leaked.
        let parsed = unsafe { ffi::rte_eal_init(count, argv) };
        if parsed < 0 {
            return Err(DpdkError::Eal {
                options: options.to_vec(),
                reason: last_error(),
            });
        }
        Ok(Self {
            _thread: PhantomData,
        })
    }

    /// Ports that the options brought up.
    #[must_use]
    pub fn port_count(&self) -> u16 {
        // SAFETY: EAL runs.
        unsafe { ffi::rte_eth_dev_count_avail() }
    }
}

/// `rte_errno` in words.
pub(crate) fn last_error() -> String {
    // SAFETY: reads a per-lcore variable, which exists on every thread.
    error_text(unsafe { ffi::rte_errno() })
}

/// A DPDK error number (of either sign) in words.
pub(crate) fn error_text(number: c_int) -> String {
    // SAFETY: `rte_strerror` returns a NUL-terminated string in a per-thread buffer.
    let text = unsafe { CStr::from_ptr(ffi::rte_strerror(number.abs())) };
    text.to_string_lossy().into_owned()
}
