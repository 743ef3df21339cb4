//! Path choice at a leaf: a BPF classifier that computes [`ratewright_topology::ecmp::flow_hash`]
//! over real packets and marks each with its spine.

#![allow(unsafe_code)] // the generated skeleton

use std::mem::MaybeUninit;

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{ProgramInput, TC_INGRESS, TcHookBuilder};
use std::os::fd::AsFd;

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
    include!(concat!(env!("OUT_DIR"), "/ecmp.skel.rs"));
}
use skeleton::{EcmpSkel, EcmpSkelBuilder};

/// Parameters of a leaf's path choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafConfig {
    /// Seed of the hash, as in the topology file.
    pub seed: u32,
    /// True if a flow and its acknowledgements take the same spine.
    pub symmetric: bool,
    /// Number of spines.
    pub spines: u32,
    /// Mark of the first spine.
    pub mark_base: u32,
}

/// The loaded program. The kernel keeps it for as long as a port holds it.
pub struct EcmpProgram {
    skel: EcmpSkel<'static>,
}

impl std::fmt::Debug for EcmpProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EcmpProgram").finish_non_exhaustive()
    }
}

impl EcmpProgram {
    /// Loads the program for a leaf.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn load(config: LeafConfig) -> Result<EcmpProgram> {
        // Lives as long as the process: a handful of leaves, a few kilobytes each.
        let object = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = EcmpSkelBuilder::default()
            .open(object)
            .context("opening the leaf's BPF program")?;
        let settings = open
            .maps
            .rodata_data
            .as_deref_mut()
            .context("the leaf's BPF program has no settings")?;
        settings.hash_seed = config.seed;
        settings.symmetric = u32::from(config.symmetric);
        settings.spines = config.spines;
        settings.mark_base = config.mark_base;
        let skel = open
            .load()
            .context("loading the leaf's BPF program (needs root and CONFIG_NET_CLS_BPF)")?;
        Ok(EcmpProgram { skel })
    }

    /// Loads the program and attaches it to the ingress of `ports` in `leaf`.
    ///
    /// # Errors
    /// When the kernel refuses it, or a port does not exist.
    pub fn attach(config: LeafConfig, leaf: &Netns, ports: &[String]) -> Result<EcmpProgram> {
        let program = EcmpProgram::load(config)?;
        let fd = program.skel.progs.choose_spine.as_fd();
        leaf.within(|| -> Result<()> {
            for port in ports {
                let index = nix::net::if_::if_nametoindex(port.as_str())
                    .with_context(|| format!("port {port}"))?;
                let mut hook = TcHookBuilder::new(fd)
                    .ifindex(index as i32)
                    .replace(true)
                    .handle(1)
                    .priority(1)
                    .hook(TC_INGRESS);
                hook.create().with_context(|| format!("clsact on {port}"))?;
                hook.attach()
                    .with_context(|| format!("attaching the leaf's classifier to {port}"))?;
            }
            Ok(())
        })??;
        Ok(program)
    }

    /// Runs the program on one packet (an Ethernet frame) and returns (hash, mark).
    ///
    /// # Errors
    /// When the kernel cannot run it.
    pub fn test_run(&self, frame: &[u8]) -> Result<(u32, u32)> {
        const CONTEXT_BYTES: usize = 192;
        const MARK_AT: usize = 8;
        // Offsets in `struct __sk_buff`: `mark` and `cb[0]`, where the program leaves its hash.
        const CB_AT: usize = 48;
        let mut context = [0u8; CONTEXT_BYTES];
        let mut context_in = [0u8; CONTEXT_BYTES];
        let mut frame_out = vec![0u8; frame.len()];
        let input = ProgramInput {
            context_in: Some(&mut context_in),
            context_out: Some(&mut context),
            data_in: Some(frame),
            data_out: Some(&mut frame_out),
            ..Default::default()
        };
        self.skel
            .progs
            .choose_spine
            .test_run(input)
            .context("running the leaf's BPF program on a test packet")?;
        let word = |at: usize| {
            u32::from_ne_bytes([
                context[at],
                context[at + 1],
                context[at + 2],
                context[at + 3],
            ])
        };
        Ok((word(CB_AT), word(MARK_AT)))
    }
}
