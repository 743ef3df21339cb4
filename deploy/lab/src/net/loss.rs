//! A lossy link: a BPF classifier that drops frames by chance.

#![allow(unsafe_code)] // the generated skeleton

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{TC_EGRESS, TcHookBuilder};

use super::ns::Netns;

#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    clippy::undocumented_unsafe_blocks,
    unused_qualifications
)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/loss.skel.rs"));
}
use skeleton::LossSkelBuilder;

/// Has `port` of `switch` drop `share` of the frames that leave it, for as long as the port lives.
///
/// # Errors
/// When the kernel refuses the program, or there is no such port.
pub fn attach(switch: &Netns, port: &str, share: f64) -> Result<()> {
    let mut object = MaybeUninit::uninit();
    let mut open = LossSkelBuilder::default()
        .open(&mut object)
        .context("opening the lossy link's BPF program")?;
    open.maps
        .rodata_data
        .as_deref_mut()
        .context("the lossy link's BPF program has no settings")?
        .threshold = threshold(share);
    let skel = open
        .load()
        .context("loading the lossy link's BPF program (needs root and CONFIG_NET_CLS_BPF)")?;
    let fd = skel.progs.drop_by_chance.as_fd();
    switch.within(|| -> Result<()> {
        let index = nix::net::if_::if_nametoindex(port).with_context(|| format!("port {port}"))?;
        let mut hook = TcHookBuilder::new(fd)
            .ifindex(index as i32)
            .replace(true)
            .handle(1)
            .priority(1)
            .hook(TC_EGRESS);
        hook.create().with_context(|| format!("clsact on {port}"))?;
        hook.attach()
            .with_context(|| format!("attaching the lossy link's program to {port}"))?;
        Ok(())
    })??;
    // The port holds the program from here on.
    Ok(())
}

/// The share as one of 2^32.
fn threshold(share: f64) -> u32 {
    // Saturates at the ends of the range.
    (share * (f64::from(u32::MAX) + 1.0)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_one_of_all_words() {
        assert_eq!(threshold(0.0), 0);
        assert_eq!(threshold(0.5), 1 << 31);
        assert_eq!(threshold(1.0), u32::MAX);
    }
}
