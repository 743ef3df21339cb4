//! Compiles the lab's BPF programs and writes their Rust skeletons.

use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let machine = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    let include = format!("-I/usr/include/{machine}-linux-gnu");
    for name in ["ecmp", "loss"] {
        let source = format!("bpf/{name}.bpf.c");
        println!("cargo::rerun-if-changed={source}");
        SkeletonBuilder::new()
            .source(&source)
            .clang_args([include.as_str(), "-Wall", "-Werror"])
            .build_and_generate(out.join(format!("{name}.skel.rs")))
            .unwrap_or_else(|error| {
                panic!("compiling {source} with clang (Debian: apt install clang libelf-dev zlib1g-dev linux-libc-dev): {error}")
            });
    }
}
