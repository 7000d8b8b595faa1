//! Configuration files from arbitrary text: an accepted file has distinct, harmless names, and a comment changes nothing.
#![no_main]
use std::collections::HashSet;

use chainscope_spec::Config;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok((config, warnings)) = Config::parse(text) else { return };
    let names: HashSet<_> = config.nodes.iter().map(|node| node.name.as_str()).collect();
    assert!(!names.is_empty() && names.len() == config.nodes.len());
    for node in &config.nodes {
        let all = std::iter::once(&node.name).chain(&node.aliases);
        assert!(
            all.clone().all(|name| !name.is_empty() && name.len() <= 253 && name.chars().all(|c| c.is_ascii_graphic()))
        );
        assert!(node.target.is_specified());
    }
    let commented = Config::parse(&format!("{text}\n# the end\n")).expect("a comment is no error");
    assert_eq!(commented, (config, warnings));
});
