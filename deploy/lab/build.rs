//! Compiles the lab's BPF program and writes its Rust skeleton.

use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

const SOURCE: &str = "bpf/ecmp.bpf.c";

fn main() {
    println!("cargo::rerun-if-changed={SOURCE}");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"))
        .join("ecmp.skel.rs");
    let machine = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    let include = format!("-I/usr/include/{machine}-linux-gnu");
    SkeletonBuilder::new()
        .source(SOURCE)
        .clang_args([include.as_str(), "-Wall", "-Werror"])
        .build_and_generate(&out)
        .expect("compiling bpf/ecmp.bpf.c with clang (Debian: apt install clang libelf-dev zlib1g-dev linux-libc-dev)");
}
