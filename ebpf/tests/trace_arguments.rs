//! Arguments of tracepoints: every operand form, strings, bytes and payloads, whole or marked where they end.

mod trace_common;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use chainscope_ebpf::trace::{Data, End, Event, Fetch, Reads, TraceOptions, Value};

use trace_common::{
    Target, Watcher, compile, data, image, known, letters, locations, pattern, target_program, values, whole,
};

const TEXT: (&str, &[Fetch]) = ("text", &[Fetch::Value, Fetch::String]);
const PAYLOAD: (&str, &[Fetch]) = ("payload", &[Fetch::Value, Fetch::Payload(0)]);

/// A probe that is attached to a tracepoint of a program of this name, and a process of it.
fn watched(name: &str, tracepoint: (&str, &[Fetch]), options: &TraceOptions) -> (Watcher, Target) {
    let program = target_program(name);
    (Watcher::attach(&program, None, &[tracepoint], options), Target::start(&program))
}

/// Runs a command that hits a tracepoint once.
fn hit(watcher: &mut Watcher, target: &mut Target, command: &str) -> Event {
    target.call(command);
    let mut events = watcher.settle();
    assert_eq!(events.len(), 1, "{command}");
    events.pop().expect("one")
}

/// Tracepoints with constant arguments, and these arguments. Floating-point numbers are given as their bits.
fn constant_forms() -> Vec<(&'static str, Vec<Vec<i64>>)> {
    let float = |number: f32| i64::from(number.to_bits());
    let double = |number: f64| number.to_bits().cast_signed();
    vec![
        ("none", vec![vec![]]),
        ("widths", vec![vec![-1, 1, -2, 2, -4, 4, -8, 8, 1]]),
        ("constants", vec![vec![-7, 100_000, 1, -1, -1, 0]]),
        ("indexed", vec![vec![2, 3, 1, 2]]),
        ("floats", vec![vec![double(1.0), float(2.0), double(2.5)]]),
        ("twelve", vec![(1..=12).collect()]),
        ("unrolled", (0..4).map(|i| vec![i, 1]).collect()),
        ("inlined", vec![vec![1, 1], vec![3, 1]]),
    ]
}

/// Each compiler and optimisation chooses other operands; position-independent code, other addresses of variables.
#[test]
fn operand_forms() {
    let mut operands = BTreeSet::new();
    for (compiler, flags) in [
        ("gcc", &["-O2", "-fPIE", "-pie"][..]),
        ("gcc", &["-O2", "-fno-pie", "-no-pie"]),
        ("gcc", &["-O0", "-DSEMAPHORES"]),
        ("gcc", &["-O1", "-static-pie"]),
        ("clang", &["-O2", "-DSEMAPHORES"]),
    ] {
        let name = format!("forms_{compiler}{}", flags.concat());
        let program = compile(compiler, "tracepoint_forms.c", &name, flags);
        operands.extend(forms(&program));
    }
    for form in ["%", "$", "(%)", "1(%)", "(%,%,1)", "1(%,%,1)", "v(%)"] {
        assert!(operands.contains(form), "no {form} in {operands:?}");
    }
}

/// Runs a program that hits every tracepoint, and compares. Returns the forms of its operands.
fn forms(program: &Path) -> BTreeSet<String> {
    let found = image(program);
    let (mut points, mut tracepoints) = (Vec::new(), Vec::new());
    let variables = ("variables", &[Fetch::Value, Fetch::Value, Fetch::Bytes(8)][..]);
    let stack = ("stack", &[Fetch::String, Fetch::String][..]);
    let constant = constant_forms();
    for (name, fetches) in constant.iter().map(|(name, _)| (*name, &[][..])).chain([variables, stack]) {
        let of = locations(&found, "forms", name, fetches);
        tracepoints.extend(of.iter().map(|_| name));
        points.extend(of);
    }
    let mut watcher = Watcher::attach_to(program, None, &points, &TraceOptions::default());
    assert!(Command::new(program).stdin(Stdio::null()).output().expect("the program runs").status.success());
    let events = watcher.settle();
    let of = |name: &str| -> Vec<&Event> {
        let index = |event: &Event| watcher.locations.iter().position(|location| *location == event.location);
        events.iter().filter(|event| index(event).is_some_and(|index| tracepoints[index] == name)).collect()
    };
    for (tracepoint, expected) in &constant {
        let hits: Vec<Vec<i64>> = of(tracepoint).into_iter().map(values).collect();
        assert_eq!(hits, *expected, "{program:?} {tracepoint}");
    }
    // Arguments that depend on where the program is loaded, judged by what they point to.
    let variables = of("variables")[0];
    assert_eq!((known(&variables.arguments[0]), known(&variables.arguments[1])), (11, 2), "{program:?}");
    assert_eq!(whole(variables, 2), 11_i64.to_ne_bytes(), "{program:?}");
    let (stack, path) = (of("stack")[0], program.as_os_str().as_encoded_bytes());
    assert_eq!((whole(stack, 0), whole(stack, 1)), (path, path));
    assert_eq!(known(&stack.arguments[2]), i64::from(path[3]));
    points.iter().flat_map(|point| &point.arguments).map(|(argument, _)| shorten(&argument.raw)).collect()
}

/// The form of an operand: numbers are `1`, registers `%`, symbols `v`.
fn shorten(raw: &str) -> String {
    let operand = raw.split_once('@').map_or(raw, |(_, operand)| operand);
    if operand.starts_with('$') {
        return "$".to_owned();
    }
    let (before, inside) = operand.split_once('(').map_or((operand, None), |(before, inside)| (before, Some(inside)));
    let kind = match before.chars().next() {
        None => "",
        Some('%') => "%",
        Some(first) if first == '-' || first.is_ascii_digit() => "1",
        Some(_) => "v",
    };
    match inside {
        None => kind.to_owned(),
        Some(inside) if inside.contains(',') => format!("{kind}(%,%,1)"),
        Some(_) => format!("{kind}(%)"),
    }
}

#[test]
fn strings_are_read_to_their_end() {
    let (mut watcher, mut target) = watched("target_strings", TEXT, &TraceOptions::default());
    for length in [0, 1, 63, 64, 68, 118, 255, 4095, 4096] {
        let event = hit(&mut watcher, &mut target, &format!("text {length}"));
        assert_eq!(known(&event.arguments[0]), length as i64);
        assert_eq!(whole(&event, 1), letters(length), "{length}");
    }
    for length in [4097, 5000, 100_000] {
        let event = hit(&mut watcher, &mut target, &format!("text {length}"));
        assert_eq!(*data(&event, 1), Data { bytes: letters(4096), end: End::Limit }, "{length}");
    }
    // After the longest one: nothing of it is left.
    let event = hit(&mut watcher, &mut target, "text 3");
    assert_eq!(whole(&event, 1), b"abc");
}

#[test]
fn the_limit_of_strings_is_an_option() {
    let options = TraceOptions { max_string: 10, ..TraceOptions::default() };
    let (mut watcher, mut target) = watched("target_short_strings", TEXT, &options);
    assert_eq!(whole(&hit(&mut watcher, &mut target, "text 10"), 1), letters(10));
    let cut = hit(&mut watcher, &mut target, "text 11");
    assert_eq!(*data(&cut, 1), Data { bytes: letters(10), end: End::Limit });
    let options = TraceOptions { max_string: 16384, ..TraceOptions::default() };
    let (mut watcher, mut target) = watched("target_long_strings", TEXT, &options);
    assert_eq!(whole(&hit(&mut watcher, &mut target, "text 16384"), 1), letters(16384));
    let cut = hit(&mut watcher, &mut target, "text 16385");
    assert_eq!(*data(&cut, 1), Data { bytes: letters(16384), end: End::Limit });
}

#[test]
fn what_cannot_be_read_is_marked() {
    for reads in [Reads::Sleepable, Reads::Atomic] {
        let options = TraceOptions { reads: Some(reads), ..TraceOptions::default() };
        let (mut watcher, mut target) = watched(&format!("target_unreadable_{reads:?}"), TEXT, &options);
        assert_eq!(watcher.probe.reads(), reads);
        // What a read could leave behind.
        assert_eq!(whole(&hit(&mut watcher, &mut target, "text 4000"), 1), letters(4000));
        // Null, an unmapped address, one of the kernel, one that is none.
        for address in [0_i64, 0x1000, -4096, 0x7fff_ffff_ffff_0000] {
            let event = hit(&mut watcher, &mut target, &format!("text_at {address}"));
            assert_eq!(event.arguments[1].value, Value::Known(address.cast_unsigned()));
            assert_eq!(*data(&event, 1), Data { bytes: vec![], end: End::Unreadable }, "{address:#x}");
        }
        let event = hit(&mut watcher, &mut target, "text_in_protected_page");
        assert_eq!(*data(&event, 1), Data { bytes: vec![], end: End::Unreadable });
        for there in [1, 5, 4095, 4096] {
            let event = hit(&mut watcher, &mut target, &format!("text_at_edge {there}"));
            assert_eq!(*data(&event, 1), Data { bytes: letters(there), end: End::Unreadable }, "{there}");
        }
        assert_eq!(whole(&hit(&mut watcher, &mut target, "text 3"), 1), b"abc");
    }
}

/// The first hit of a string literal whose pages the process has not touched.
#[test]
fn untouched_pages_are_read_with_page_faults() {
    let (mut watcher, mut target) = watched("target_untouched", TEXT, &TraceOptions::default());
    assert_eq!(target.call("untouched_text"), 0, "a page is present");
    let events = watcher.settle();
    assert_eq!(whole(&events[0], 1), b"never touched");

    let options = TraceOptions { reads: Some(Reads::Atomic), ..TraceOptions::default() };
    let (mut watcher, mut target) = watched("target_untouched_atomic", TEXT, &options);
    assert_eq!(target.call("untouched_text"), 0, "a page is present");
    let events = watcher.settle();
    assert_eq!(*data(&events[0], 1), Data { bytes: vec![], end: End::Unreadable });
}

#[test]
fn bytes_of_fixed_length() {
    for (length, name) in [(0, "target_bytes_0"), (8, "target_bytes_8"), (32, "target_bytes_32")] {
        let (mut watcher, mut target) = watched(name, ("bytes", &[Fetch::Bytes(length)]), &TraceOptions::default());
        let event = hit(&mut watcher, &mut target, "bytes 9");
        assert_eq!(whole(&event, 0), pattern(9, length as usize));
        assert_eq!(known(&event.arguments[1]), 5);
        if length > 0 {
            let event = hit(&mut watcher, &mut target, "bytes_at 0");
            assert_eq!(*data(&event, 0), Data { bytes: vec![], end: End::Unreadable });
        }
    }
}

#[test]
fn payloads_are_whole() {
    let (mut watcher, mut target) = watched("target_payloads", PAYLOAD, &TraceOptions::default());
    for (seed, size) in
        [0, 1, 255, 32_567, 32_568, 32_768, 32_769, 65_536, 1_000_000, 4_194_304].into_iter().enumerate()
    {
        let event = hit(&mut watcher, &mut target, &format!("payload {size} {seed} 1"));
        assert_eq!(known(&event.arguments[0]), size as i64);
        assert!(whole(&event, 1) == pattern(seed as u64, size), "{size}");
    }
}

#[test]
fn the_limit_of_payloads_is_an_option() {
    let (mut watcher, mut target) = watched("target_payload_limit", PAYLOAD, &TraceOptions::default());
    let cut = hit(&mut watcher, &mut target, "payload 4194305 1 1");
    assert_eq!(data(&cut, 1).end, End::Limit);
    assert!(data(&cut, 1).bytes == pattern(1, 4_194_304));
    let options = TraceOptions { max_payload: 20_000_000, ..TraceOptions::default() };
    let (mut watcher, mut target) = watched("target_large_payload", PAYLOAD, &options);
    assert!(whole(&hit(&mut watcher, &mut target, "payload 10000000 2 1"), 1) == pattern(2, 10_000_000));
}

/// The length says more than there is, up to the end of the address space.
#[test]
fn a_lying_payload_length() {
    for reads in [Reads::Sleepable, Reads::Atomic] {
        let options = TraceOptions { reads: Some(reads), ..TraceOptions::default() };
        let (mut watcher, mut target) = watched(&format!("target_lie_{reads:?}"), PAYLOAD, &options);
        for there in [0, 1, 100, 4096, 5000, 32_768, 40_000, 100_000] {
            for claimed in [200_000, i64::MAX, -1] {
                let event = hit(&mut watcher, &mut target, &format!("payload_lie {claimed} {there}"));
                assert_eq!(known(&event.arguments[0]), claimed);
                let payload = data(&event, 1);
                assert_eq!((payload.bytes.len(), payload.end), (there, End::Unreadable), "{claimed}");
                assert!(payload.bytes == letters(there), "{there} of {claimed}");
            }
        }
    }
}

/// The argument with the length may be signed, smaller, and after the pointer.
#[test]
fn a_signed_length() {
    let narrow: (&str, &[Fetch]) = ("narrow", &[Fetch::Payload(1)]);
    let (mut watcher, mut target) = watched("target_narrow", narrow, &TraceOptions::default());
    let event = hit(&mut watcher, &mut target, "narrow 90");
    assert_eq!((whole(&event, 0), known(&event.arguments[1])), (&letters(90)[..], 90));
    let event = hit(&mut watcher, &mut target, "narrow -90");
    assert_eq!(*data(&event, 0), Data { bytes: vec![], end: End::Unknown });
    assert_eq!(known(&event.arguments[1]), -90);
}

/// An operand that is not supported has no value, and neither has a payload whose length it is.
#[test]
fn unsupported_operands() {
    let program = target_program("target_unsupported");
    let mut points = locations(&image(&program), "target", "payload", PAYLOAD.1);
    points[0].arguments[0].0.operand = Err(chainscope_usdt::Unsupported::Operand);
    let mut watcher = Watcher::attach_to(&program, None, &points, &TraceOptions::default());
    let mut target = Target::start(&program);
    let event = hit(&mut watcher, &mut target, "payload 100 1 1");
    assert_eq!(event.arguments[0].value, Value::Unsupported);
    assert!(matches!(event.arguments[1].value, Value::Known(_)));
    assert_eq!(*data(&event, 1), Data { bytes: vec![], end: End::Unknown });
}
