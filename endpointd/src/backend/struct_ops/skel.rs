//! The skeleton that `build.rs` generates from `bpf/struct_ops.bpf.c`.
#![allow(
    unsafe_code,
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::semicolon_if_nothing_returned,
    clippy::needless_pass_by_value,
    clippy::cast_lossless
)]

include!(concat!(env!("OUT_DIR"), "/struct_ops.skel.rs"));
