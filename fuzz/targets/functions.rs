//! Symbols and code of arbitrary ELF files: functions by pattern, and where they can be probed. Offsets are in the file.
#![no_main]
use chainscope_functions::{Functions, Hazard, Pattern};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let functions = match Functions::read(data, None) {
        Ok(functions) => functions,
        Err(error) => return assert!(error.to_string().lines().count() == 1),
    };
    assert!(Hazard::of_process("library.so", data).is_ok());
    let pattern: Pattern = "*a*".parse().expect("a pattern");
    match functions.find(&pattern, 16, Some(data)) {
        Ok(found) => {
            for function in &found {
                for part in &function.parts {
                    let Ok(probes) = functions.probes(data, function, *part) else { continue };
                    let mut offsets = probes.returns.iter().chain(&probes.tail_calls).chain([&probes.entry]);
                    assert!(offsets.all(|offset| *offset < data.len() as u64));
                }
                let _ = functions.is_coroutine(function);
            }
            let addresses = found.iter().flat_map(|function| &function.parts).map(|part| part.address);
            let _ = Functions::inlined_calls(data, &addresses.collect());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
