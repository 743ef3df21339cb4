//! Loads and registers the congestion control.

use std::mem::MaybeUninit;

use libbpf_rs::btf::types::{Struct, Typedef};
use libbpf_rs::btf::{Btf, HasSize};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, OpenObject};

use super::names::{NAME_PREFIX, SETTING_ABSENT, SETTINGS_LAYOUT, kernel_name};
use super::skel::{OpenStructOpsSkel, StructOpsSkel, StructOpsSkelBuilder};
use super::take_over::InitialSettings;
use crate::backend::namespaces::{NAMESPACES_MAX, own_inode};
use crate::backend::sysctls::Sysctls;
use crate::backend::{BackendConfig, BackendError};

/// Offset at which cubic's private state must end for ours to fit behind it (`PRIV_OFFSET`).
const CUBIC_STATE_MAX: usize = 64;

/// Suffixes with which a name is tried.
const SUFFIXES: [&str; 10] = ["", "1", "2", "3", "4", "5", "6", "7", "8", "9"];

/// The loaded program and its registration.
pub(super) struct RegisteredProgram {
    /// The program and its maps.
    pub(super) skel: StructOpsSkel<'static>,
    /// Keeps the congestion control's name registered.
    pub(super) registration: Link,
    /// Records the time of first writes, if the kernel has that tracepoint.
    pub(super) first_write: Option<Link>,
    /// The congestion control's name.
    pub(super) name: String,
}

fn unavailable(reason: impl Into<String>) -> BackendError {
    BackendError::Unavailable {
        mechanism: "struct_ops",
        reason: reason.into(),
    }
}

/// Checks the kernel without loading anything.
pub(super) fn check_kernel() -> Result<(), BackendError> {
    if !nix::unistd::geteuid().is_root() {
        return Err(unavailable(
            "needs root (CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN)",
        ));
    }
    let btf = Btf::from_vmlinux().map_err(|error| {
        unavailable(format!(
            "the kernel has no BTF (CONFIG_DEBUG_INFO_BTF): {error:#}"
        ))
    })?;
    // Such a link is what unregisters the congestion control of a daemon that is killed.
    if btf
        .type_by_name::<Struct<'_>>("bpf_struct_ops_link")
        .is_none()
    {
        return Err(unavailable(
            "the kernel has no links of struct_ops (Linux 6.4 or newer)",
        ));
    }
    let Some(cubic) = btf.type_by_name::<Struct<'_>>("bictcp") else {
        return Err(unavailable(
            "cubic is not built into the kernel (CONFIG_TCP_CONG_CUBIC=y)",
        ));
    };
    if cubic.size() > CUBIC_STATE_MAX {
        return Err(unavailable(format!(
            "cubic's state has {} bytes in this kernel, at most {CUBIC_STATE_MAX} are supported",
            cubic.size()
        )));
    }
    tx_start().map(drop)
}

/// Computes the ring buffer's size: two events per flow, rounded up to a power of two of pages.
fn ring_bytes(max_flows: u32) -> u32 {
    // A record has 80 bytes, and the ring adds a header of 8.
    const EVENT: u32 = 88;
    max_flows
        .saturating_mul(2 * EVENT)
        .clamp(64 << 10, 16 << 20)
        .next_power_of_two()
}

fn configure(
    open: &mut OpenStructOpsSkel<'_>,
    config: &BackendConfig,
    name: &str,
    found: &InitialSettings,
) -> Result<(), BackendError> {
    let original = &found.original;
    let size = |error| BackendError::bpf("size the flow table", &error);
    open.maps
        .slots
        .set_max_entries(config.max_flows)
        .map_err(size)?;
    open.maps
        .free_slots
        .set_max_entries(config.max_flows)
        .map_err(size)?;
    open.maps
        .pods
        .set_max_entries(NAMESPACES_MAX)
        .map_err(size)?;
    open.maps
        .events
        .set_max_entries(ring_bytes(config.max_flows))
        .map_err(size)?;
    let rodata = open
        .maps
        .rodata_data
        .as_mut()
        .ok_or_else(|| unavailable("no read-only data"))?;
    rodata.settings_layout = SETTINGS_LAYOUT;
    rodata.lifted = found.lifted;
    rodata.min_flowlet_bytes = config.min_flowlet_bytes.max(1);
    rodata.max_flows = config.max_flows;
    rodata.max_burst_ns = config.max_burst_ns;
    rodata.netns_inum = own_inode()?;
    rodata.has_pods = !config.network_namespaces.is_empty();
    rodata.cc_name = kernel_name(name);
    rodata.default_cc = kernel_name(&original.default_cc);
    rodata.tso_rtt_log = original.bursts.rtt_log.unwrap_or(SETTING_ABSENT);
    rodata.min_tso_segs = original.bursts.min_segments.unwrap_or(SETTING_ABSENT);
    open.struct_ops.rw_cc_mut().name = kernel_name(name);
    Ok(())
}

/// Hook by which a kernel reports a transmission into an empty pipe to a congestion control.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub enum TxStart {
    /// As one of several events of the member `cwnd_event`, with cubic's `cubictcp_cwnd_event`
    /// (until Linux 7.0).
    CwndEvent,
    /// By a member of its own, with cubic's `cubictcp_cwnd_event_tx_start` (from Linux 7.1 on).
    CwndEventTxStart,
}

impl TxStart {
    /// Returns the hook's member of `tcp_congestion_ops`.
    #[must_use]
    pub fn member(self) -> &'static str {
        match self {
            TxStart::CwndEvent => OPTIONAL_MEMBERS[0],
            TxStart::CwndEventTxStart => OPTIONAL_MEMBERS[1],
        }
    }
}

/// Members of `tcp_congestion_ops` in the program that only some kernels have.
const OPTIONAL_MEMBERS: [&str; 2] = ["cwnd_event", "cwnd_event_tx_start"];

/// Chooses the hook by the members of the kernel's `tcp_congestion_ops`.
fn tx_start_of(members: &[&str]) -> Option<TxStart> {
    // A kernel with both raises the event only by the newer member.
    if members.contains(&OPTIONAL_MEMBERS[1]) {
        Some(TxStart::CwndEventTxStart)
    } else if members.contains(&OPTIONAL_MEMBERS[0]) {
        Some(TxStart::CwndEvent)
    } else {
        None
    }
}

/// Returns the members of [`OPTIONAL_MEMBERS`] that this kernel has.
fn optional_members() -> Result<Vec<&'static str>, BackendError> {
    let btf = Btf::from_vmlinux()
        .map_err(|error| unavailable(format!("the kernel's BTF cannot be read: {error:#}")))?;
    let ops = btf
        .type_by_name::<Struct<'_>>("tcp_congestion_ops")
        .ok_or_else(|| unavailable("the kernel has no tcp_congestion_ops"))?;
    Ok(OPTIONAL_MEMBERS
        .into_iter()
        .filter(|wanted| {
            ops.iter()
                .any(|member| member.name.is_some_and(|name| name == *wanted))
        })
        .collect())
}

/// Returns the hook by which this kernel reports a transmission into an empty pipe.
///
/// # Errors
/// [`BackendError::Unavailable`] when it has none of the hooks that the program knows.
pub(super) fn tx_start() -> Result<TxStart, BackendError> {
    tx_start_of(&optional_members()?).ok_or_else(|| {
        unavailable("tcp_congestion_ops has neither cwnd_event nor cwnd_event_tx_start")
    })
}

/// Returns true if this kernel traces writes (`tcp_sendmsg_locked`), by its type information.
pub(super) fn traces_writes() -> bool {
    Btf::from_vmlinux().is_ok_and(|btf| {
        btf.type_by_name::<Typedef<'_>>("btf_trace_tcp_sendmsg_locked")
            .is_some()
    })
}

/// Removes members from the congestion control that this kernel does not have.
fn fit_members(open: &mut OpenStructOpsSkel<'_>, members: &[&str]) {
    let ops = open.struct_ops.rw_cc_mut();
    if !members.contains(&OPTIONAL_MEMBERS[0]) {
        // libbpf accepts a member that the kernel lacks only if it is zero.
        ops.cwnd_event = std::ptr::null_mut();
        open.progs.rw_cwnd_event.set_autoload(false);
    }
    let ops = open.struct_ops.rw_cc_mut();
    if !members.contains(&OPTIONAL_MEMBERS[1]) {
        ops.cwnd_event_tx_start = std::ptr::null_mut();
        open.progs.rw_cwnd_event_tx_start.set_autoload(false);
    }
}

/// Sends libbpf's messages to the daemon's log instead of standard error.
#[allow(clippy::needless_pass_by_value)] // The signature is libbpf-rs's.
fn log(_level: libbpf_rs::PrintLevel, text: String) {
    tracing::debug!(target: "libbpf", "{}", text.trim_end());
}

/// Loads the program, with or without the tracepoint of first writes.
fn load_once(
    config: &BackendConfig,
    name: &str,
    found: &InitialSettings,
    trace_writes: bool,
) -> Result<StructOpsSkel<'static>, libbpf_rs::Error> {
    // The skeleton borrows this for its whole life and drops the object inside it. One pointer per
    // load remains.
    let object: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
    let mut open = StructOpsSkelBuilder::default().open(object)?;
    configure(&mut open, config, name, found)
        .map_err(|error| libbpf_rs::Error::from(std::io::Error::other(error.to_string())))?;
    let members = optional_members()
        .map_err(|error| libbpf_rs::Error::from(std::io::Error::other(error.to_string())))?;
    fit_members(&mut open, &members);
    open.progs.rw_first_write.set_autoload(trace_writes);
    open.load()
}

/// Loads the program and registers it under the first free name. The namespace's present default is
/// not free: sockets of a killed daemon still have it, though it is no longer registered.
pub(super) fn load(
    config: &BackendConfig,
    sysctls: &Sysctls,
    found: &InitialSettings,
) -> Result<RegisteredProgram, BackendError> {
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Warn, log)));
    check_kernel()?;
    let registered = sysctls.registered()?;
    let mut last = unavailable("every name for the congestion control is taken");
    for suffix in SUFFIXES {
        let name = format!("{NAME_PREFIX}{}{suffix}", config.instance);
        if name == found.current_cc || registered.contains(&name) {
            continue;
        }
        let mut skel = match load_once(config, &name, found, true) {
            Ok(skel) => skel,
            Err(error) => {
                // One program that cannot be loaded makes libbpf give up the whole object.
                tracing::debug!("no first-write tracepoint: {error:#}");
                load_once(config, &name, found, false)
                    .map_err(|error| unavailable(format!("the kernel refused it: {error:#}")))?
            }
        };
        // Another daemon can be faster with the name.
        match skel.maps.rw_cc.attach_struct_ops() {
            Ok(registration) => {
                // Without it latencies count from the first transmission, which is no reason to
                // refuse.
                let first_write = skel.progs.rw_first_write.attach().ok();
                return Ok(RegisteredProgram {
                    skel,
                    registration,
                    first_write,
                    name,
                });
            }
            Err(error) => last = BackendError::bpf(format!("register {name}"), &error),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hook_of_an_empty_pipe_is_chosen_by_the_kernel_s_members() {
        let common = ["ssthresh", "cong_avoid", "set_state", "pkts_acked"];
        let with = |more: &[&'static str]| tx_start_of(&[&common[..], more].concat());
        assert_eq!(with(&["cwnd_event"]), Some(TxStart::CwndEvent));
        let both = ["cwnd_event", "cwnd_event_tx_start"];
        assert_eq!(with(&both), Some(TxStart::CwndEventTxStart));
        assert_eq!(with(&both[1..]), Some(TxStart::CwndEventTxStart));
        assert_eq!(with(&[]), None);
        assert_eq!(with(&["cwnd_event_tx"]), None);
    }

    #[test]
    fn ring_is_a_power_of_two_within_bounds() {
        assert_eq!(ring_bytes(1), 64 << 10);
        assert_eq!(ring_bytes(16_384), 4 << 20);
        assert_eq!(ring_bytes(u32::MAX), 16 << 20);
    }
}
