//! Contract files: a contract that is read refers to its own arguments only.
#![no_main]
use chainscope_usdt::{Kind, Length, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(contracts) = parse(text) else { return };
    for tracepoint in contracts.iter().flat_map(|contract| &contract.tracepoints) {
        for argument in &tracepoint.arguments {
            if let Kind::Bytes(Some(Length::Argument(index))) = argument.kind {
                assert!(index < tracepoint.arguments.len());
            }
        }
    }
});
