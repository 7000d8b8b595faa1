//! The examples of `docs/tracepoints.md`: the code compiles to the tracepoints that it is about, and the contract describes them.

use std::{fs, path::Path};

use chainscope_testing::program::compile;
use chainscope_usdt::{Image, parse};

const DOCUMENT: &str = include_str!("../../../docs/tracepoints.md");

/// The blocks of code in a language.
fn blocks(language: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    let blocks = DOCUMENT.split(&fence).skip(1);
    blocks.map(|rest| rest.split_once("```").expect("the end of a block").0).collect()
}

/// A file with the example: lines that begin a file, or define variables, before a function with the others.
fn source(example: &str) -> String {
    let is_outside = |line: &&str| line.starts_with('#') || line.starts_with("unsigned short ");
    let outside: Vec<&str> = example.lines().filter(is_outside).collect();
    let inside: Vec<&str> = example.lines().filter(|line| !is_outside(line)).collect();
    format!(
        "#include <cstdint>\n#include <string>\n{}\nstruct Peer;\nstd::string describe(const Peer &peer);\n\
         void example(int64_t peer_id, uint64_t size, const Peer &peer) {{\n{}\n}}\n",
        outside.join("\n"),
        inside.join("\n"),
    )
}

#[test]
fn the_code_has_the_tracepoints() {
    let examples = blocks("cpp");
    assert_eq!(examples.len(), 2, "one without a semaphore, one with it");
    let folder = tempfile::tempdir().unwrap();
    for (number, example) in examples.into_iter().enumerate() {
        let path = folder.path().join(format!("example{number}.cc"));
        fs::write(&path, source(example)).unwrap();
        let flags = ["-std=c++20", "-O2", "-fPIC", "-shared", "-Wall", "-Wno-unused-parameter"];
        let library = compile("g++", &path, folder.path(), &format!("example{number}.so"), &flags);
        let image = Image::read(fs::read(&library).unwrap().as_slice()).unwrap();
        assert_eq!(image.errors, []);
        let [tracepoint] = &image.tracepoints[..] else { panic!("{:?}", image.tracepoints) };
        assert_eq!(tracepoint.full_name(), "net:message_received");
        for location in &tracepoint.locations {
            assert_eq!(location.arguments.len(), 2);
            assert_eq!(location.semaphore.is_some_and(|semaphore| semaphore.offset.is_some()), number == 1);
        }
    }
}

#[test]
fn the_contract_is_valid() {
    let contracts: Vec<&str> =
        blocks("toml").into_iter().filter(|block| block.contains("[[tracepoints.variants]]")).collect();
    let [contract] = contracts[..] else { panic!("{contracts:?}") };
    let releases = parse(contract).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(
        releases.iter().map(chainscope_usdt::Contract::name).collect::<Vec<_>>(),
        ["example-v1", "example-v2", "example-v3"]
    );
    let message = releases[0].tracepoint("net", "message").expect("of the first release");
    assert_eq!((message.arguments.len(), message.variants.len()), (6, 1));
    assert!(message.documented.is_some());
    assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/tracepoints.md").exists());
}
