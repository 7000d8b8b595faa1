//! What return probes would break in programs and libraries, found in what compilers and linkers leave of it.
#![expect(clippy::unwrap_used, reason = "a panic shows the line of the failure")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use chainscope_functions::{Functions, Hazard};

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testing/programs").join(name)
}

fn compile(compiler: &str, source: &Path, name: &str, flags: &[&str]) -> PathBuf {
    chainscope_testing::program::compile(compiler, source, Path::new(env!("CARGO_TARGET_TMPDIR")), name, flags)
}

/// A program or library of this text, which is C, or assembly if the name of it ends with `.s`.
fn build(name: &str, text: &str, flags: &[&str]) -> PathBuf {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join(if name.ends_with(".s") { "source.s" } else { "source.c" });
    fs::write(&source, text).unwrap();
    compile("gcc", &source, name, flags)
}

fn hazard(path: &Path) -> Option<Hazard> {
    Functions::read(fs::read(path).unwrap().as_slice(), None).unwrap().hazard()
}

fn of_process(name: &str, path: &Path) -> Option<Hazard> {
    Hazard::of_process(name, fs::read(path).unwrap().as_slice()).unwrap()
}

fn strip(path: &Path) -> PathBuf {
    let stripped = path.with_extension("stripped");
    assert!(Command::new("objcopy").arg("--strip-all").args([path, &stripped]).status().unwrap().success());
    stripped
}

#[test]
fn c_without_exceptions_has_none() {
    let plain = compile("gcc", &source("latency_plain.c"), "hazards_plain", &["-O2", "-pthread"]);
    assert_eq!((hazard(&plain), of_process("plain", &plain)), (None, None));
    let functions = Functions::read(fs::read(&plain).unwrap().as_slice(), None).unwrap();
    assert!(functions.is_dynamic(), "other files are loaded with it");
    // What the C library has for all of this is no sign that it is used.
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.lines().find_map(|line| line.split_whitespace().last().filter(|path| path.ends_with("/libc.so.6")));
    assert_eq!(of_process("libc.so.6", Path::new(libc.unwrap())), None);
}

#[test]
fn coroutines_in_c() {
    let program = compile("gcc", &source("latency_stacks.c"), "hazards_stacks", &["-O2", "-pthread"]);
    assert_eq!(hazard(&program), Some(Hazard::Coroutines));
    // Imports remain in a stripped file.
    let stripped = strip(&program);
    assert_eq!(
        (hazard(&stripped), of_process("stacks", &stripped)),
        (Some(Hazard::Coroutines), Some(Hazard::Coroutines))
    );
    for (number, symbol) in ["jump_fcontext", "co_switch", "makecontext", "sigaltstack"].into_iter().enumerate() {
        let text = format!("void {symbol}(void); void work(void) {{ {symbol}(); }}");
        let library = build(&format!("hazards_switch{number}"), &text, &["-O2", "-shared", "-fPIC", "-w"]);
        assert_eq!(hazard(&library), Some(Hazard::Coroutines), "imports {symbol}");
        let text = format!("void {symbol}(void) {{}}");
        let library = build(&format!("hazards_switches{number}"), &text, &["-O2", "-shared", "-fPIC", "-w"]);
        assert_eq!(hazard(&library), Some(Hazard::Coroutines), "has {symbol}");
    }
}

#[test]
fn a_library_of_exceptions_that_is_needed() {
    // C, of which nothing throws: what the library calls may.
    let text = "int main(void) { return 0; }";
    let program = build("hazards_libstdcxx", text, &["-O2", "-Wl,--no-as-needed", "-lstdc++"]);
    assert_eq!(hazard(&program), Some(Hazard::Unwinding));
    assert_eq!(hazard(&strip(&program)), Some(Hazard::Unwinding), "the name of the library remains");
    assert_eq!(hazard(&build("hazards_needs_none", text, &["-O2"])), None);
    for (name, expected) in [
        ("libgcc_s.so.1", true),
        ("libunwind.so.8", true),
        ("libc++abi.so.1", true),
        ("libgcc.a", false),
        ("libz.so.1", false),
    ] {
        assert_eq!(Hazard::of_library(name), expected.then_some(Hazard::Unwinding), "{name}");
    }
}

/// Symbols of OCaml's run-time and of a module, as its compiler and linker leave them.
fn ocaml(name: &str, symbols: &[&str]) -> PathBuf {
    let function = |symbol: &&str| {
        format!(
            ".globl {symbol}\n.type {symbol}, @function\n{symbol}: push %rbx; pop %rbx; ret\n.size {symbol}, .-{symbol}\n"
        )
    };
    let text: String = symbols.iter().map(function).collect();
    build(name, &format!(".text\n{text}.section .note.GNU-stack,\"\",@progbits\n"), &["-nostdlib", "-shared", "-fPIC"])
}

#[test]
fn ocaml_of_each_version() {
    let four = ["caml_call_gc", "caml_start_program", "camlNode__apply_12"];
    let five = [&four[..], &["caml_try_realloc_stack", "caml_alloc_stack"]].concat();
    let effects = [&five[..], &["camlStdlib__Effect__continue_327"]].concat();
    for (name, symbols, expected) in [
        ("hazards_ocaml4.s", four.to_vec(), Hazard::Ocaml),
        ("hazards_ocaml5.s", five, Hazard::OcamlGrowing),
        ("hazards_effects.s", effects, Hazard::OcamlEffects),
    ] {
        let program = ocaml(name, &symbols);
        assert_eq!(hazard(&program), Some(expected), "{name}");
        assert!(expected.is_ocaml());
        // Functions in C of such a process have frames of their own.
        assert_eq!(of_process("node", &program), None);
        let data = fs::read(&program).unwrap();
        let functions = Functions::read(data.as_slice(), None).unwrap();
        let found = functions.find(&"Node.apply_12".parse().unwrap(), 1, None::<&[u8]>);
        assert_eq!(found.unwrap()[0].symbol, "camlNode__apply_12");
    }
    // A module named so without the run-time is none.
    assert_eq!(hazard(&ocaml("hazards_no_ocaml.s", &["camlNode__apply_12"])), None);
}

#[test]
fn the_worst_is_told() {
    assert!(Hazard::Go > Hazard::OcamlEffects && Hazard::Ocaml > Hazard::Unwinding);
    assert!(Hazard::Unwinding > Hazard::Coroutines && Hazard::Coroutines > Hazard::Unexamined);
    let cpp = compile("g++", &source("latency_workload.cc"), "hazards_cpp", &["-std=c++20", "-O2", "-pthread"]);
    assert_eq!(hazard(&cpp), Some(Hazard::Unwinding), "it has coroutines as well");
}
