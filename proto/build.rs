//! Compiles the protobuf definitions of the control stream.

fn main() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed=proto/control.proto");
    prost_build::Config::new().compile_protos(&["proto/control.proto"], &["proto"])
}
