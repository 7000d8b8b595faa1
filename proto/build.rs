//! Compiles the `.proto` files with a compiler written in Rust: no `protoc` needed.

use std::{env, error::Error, fs, path::Path};

use protox::prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(
        ["chainscope/v1/record.proto", "chainscope/v1/journal.proto", "chainscope/v1/config.proto"],
        ["proto"],
    )?;
    let out = env::var("OUT_DIR")?;
    fs::write(Path::new(&out).join("descriptor.bin"), files.encode_to_vec())?;
    tonic_prost_build::configure()
        .bytes(".chainscope.v1.Chunk")
        .bytes(".chainscope.v1.Message.sha256")
        .bytes(".chainscope.v1.TraceEvent.attachment")
        .bytes(".chainscope.v1.TraceValue")
        .bytes(".chainscope.v1.TraceBytes")
        .btree_map(".chainscope.v1.TraceArgument")
        .btree_map(".chainscope.v1.LatencyCounts")
        // Written by hand: an identity is never printed.
        .skip_debug([".chainscope.v1.ObservedPod"])
        .compile_fds(files)?;
    Ok(())
}
