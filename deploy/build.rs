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

    println!(
        "cargo::rustc-env=RATEWRIGHT_COMMIT={}",
        git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".to_owned())
    );
    // The log of HEAD grows with each commit and checkout, in a linked worktree at a place of its own;
    // a tree without .git simply keeps "unknown".
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(file) = git(&["rev-parse", "--git-path", name])
            && std::path::Path::new(&file).exists()
        {
            println!("cargo::rerun-if-changed={file}");
        }
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
