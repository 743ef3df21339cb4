//! Compiles the lab's BPF program and writes its Rust skeleton; records the commit for reports.

use std::path::PathBuf;
use std::process::Command;

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

    let commit = Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .output()
        .ok();
    let commit = commit
        .filter(|o| o.status.success())
        .and_then(|o| String::from_utf8(o.stdout).ok());
    println!(
        "cargo::rustc-env=RATEWRIGHT_COMMIT={}",
        commit.as_deref().map_or("unknown", str::trim)
    );
    // HEAD moves with each commit; a tree without .git simply keeps "unknown".
    for file in ["../.git/HEAD", "../.git/logs/HEAD"] {
        if std::path::Path::new(file).exists() {
            println!("cargo::rerun-if-changed={file}");
        }
    }
}
