//! Compiles every `bpf/*.bpf.c`, and those of `tests/bpf`, with clang and generates its Rust
//! skeleton `$OUT_DIR/<stem>.skel.rs`, and `$OUT_DIR/<stem>.rs`, which is that as a module `skel`.
//!
//! Needs clang (14 or newer), libelf and zlib; not the running kernel's BTF: the few kernel types
//! in use are declared in `bpf/kernel.h` and relocated when the program is loaded (CO-RE).

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("set by cargo");
    let clang = env::var_os("CLANG").unwrap_or_else(|| OsString::from("clang"));
    println!("cargo::rerun-if-env-changed=CLANG");

    let mut entries: Vec<PathBuf> = Vec::new();
    for folder in ["bpf", "tests/bpf"] {
        println!("cargo::rerun-if-changed={folder}");
        let files = fs::read_dir(manifest.join(folder)).expect("it is part of the source");
        entries.extend(files.map(|entry| entry.expect("readable directory").path()));
    }
    entries.sort();
    for source in entries {
        println!("cargo::rerun-if-changed={}", source.display());
        let Some(stem) = source
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(|name| name.strip_suffix(".bpf.c"))
        else {
            continue;
        };
        SkeletonBuilder::new()
            .source(&source)
            .clang(&clang)
            .clang_args([
                OsString::from("-Wall"),
                OsString::from("-Werror"),
                // Atomics that return the old value.
                OsString::from("-mcpu=v3"),
                OsString::from("-I"),
                manifest.join("bpf").into_os_string(),
                // Debian's place of <asm/types.h>; other distributions have it in /usr/include.
                OsString::from("-idirafter"),
                OsString::from(format!("/usr/include/{arch}-linux-gnu")),
            ])
            .build_and_generate(out.join(format!("{stem}.skel.rs")))
            .unwrap_or_else(|error| panic!("{stem}.bpf.c: {error:?}"));
        fs::write(out.join(format!("{stem}.rs")), module(stem))
            .unwrap_or_else(|error| panic!("{stem}.rs: {error}"));
    }
}

/// Returns the source of a module with a skeleton, whose code keeps other rules than ours.
fn module(stem: &str) -> String {
    format!(
        "/// The generated loader of `{stem}.bpf.c`.
#[allow(
    missing_docs,
    unsafe_code,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::semicolon_if_nothing_returned,
    clippy::needless_pass_by_value,
    clippy::cast_lossless
)]
mod skel {{
    include!(\"{stem}.skel.rs\");
}}
"
    )
}
