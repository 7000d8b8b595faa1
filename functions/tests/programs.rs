//! Functions of programs that gcc compiled: names, exits and costs, stripped files, debug files, and what cannot be probed.
#![expect(clippy::unwrap_used, reason = "a panic shows the line of the failure")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use chainscope_functions::{Cost, Emulated, FindError, Function, Functions, Hazard, Note, Pattern, ProbeError};

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testing/programs").join(name)
}

fn compile(compiler: &str, source: &Path, name: &str, flags: &[&str]) -> PathBuf {
    chainscope_testing::program::compile(compiler, source, Path::new(env!("CARGO_TARGET_TMPDIR")), name, flags)
}

fn workload(name: &str) -> PathBuf {
    compile("g++", &source("latency_workload.cc"), name, &["-std=c++20", "-O2", "-g", "-pthread"])
}

fn pattern(text: &str) -> Pattern {
    text.parse().unwrap()
}

struct Program {
    data: Vec<u8>,
    functions: Functions,
}

impl Program {
    fn read(path: &Path) -> Self {
        let data = fs::read(path).unwrap();
        let functions = Functions::read(data.as_slice(), None).unwrap();
        Self { data, functions }
    }

    fn find(&self, text: &str, max: usize) -> Result<Vec<Function>, FindError> {
        self.functions.find(&pattern(text), max, Some(self.data.as_slice()))
    }

    fn names(&self, text: &str) -> Vec<String> {
        self.find(text, 100).unwrap().into_iter().map(|function| function.name).collect()
    }

    fn probes(&self, text: &str) -> Result<chainscope_functions::Probes, ProbeError> {
        let found = self.find(text, 1).unwrap();
        self.functions.probes(self.data.as_slice(), &found[0], found[0].parts[0])
    }
}

/// The instructions of a function, as objdump prints them: address, mnemonic, operands.
fn disassembly(program: &Path, symbol: &str) -> Vec<(u64, String)> {
    let arguments = ["-d", "--no-show-raw-insn", &format!("--disassemble={symbol}")];
    let output = Command::new("objdump").args(arguments).arg(program).output().expect("binutils");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter_map(|line| line.trim().split_once(":\t"));
    let instructions = lines.filter_map(|(at, what)| Some((u64::from_str_radix(at, 16).ok()?, what.trim().to_owned())));
    instructions.collect()
}

#[test]
fn names_overloads_and_templates() {
    let program = Program::read(&workload("functions_names"));
    assert_eq!(program.names("nap"), ["work::nap(long)"]);
    assert_eq!(program.names("work::over"), ["work::over(double)", "work::over(int)"]);
    assert_eq!(program.names("over(int)"), ["work::over(int)"]);
    assert_eq!(program.names("generic").len(), 2);
    assert_eq!(program.names("generic<long>"), ["long work::generic<long>(long)"]);
    assert_eq!(program.names("::main"), ["main"]);
    assert_eq!(program.functions.hazard(), Some(Hazard::Unwinding));
    // A coroutine is the function that starts it, unless its body is named.
    assert_eq!(program.names("steps"), ["work::steps(long)"]);
    assert!(program.names("*steps*actor*")[0].ends_with("[clone .actor]"));
    let found = program.find("steps", 1).unwrap();
    assert!(program.functions.is_coroutine(&found[0]));
    assert!(!program.functions.is_coroutine(&program.find("nap", 1).unwrap()[0]));
}

#[test]
fn errors_say_what_to_do() {
    let program = Program::read(&workload("functions_errors"));
    let message = program.find("work::napp", 10).unwrap_err().to_string();
    assert!(message.starts_with("no function matches work::napp; nearest: work::nap, "), "{message}");
    let message = program.find("Work::NAP", 10).unwrap_err().to_string();
    assert!(message.contains("work::nap"), "{message}");
    let message = program.find("vanished", 10).unwrap_err().to_string();
    assert!(message.contains("inlined everywhere") && message.ends_with(": vanished"), "{message}");
    let many = Program::read(&compile("gcc", &source("latency_plain.c"), "functions_many", &["-O2", "-pthread"]));
    assert_eq!(many.find("many_*", 1000).unwrap().len(), 1000);
    let error = many.find("many_*", 999).unwrap_err();
    assert!(matches!(&error, FindError::TooMany { count: 1000, max: 999, .. }), "{error}");
    assert!(error.to_string().contains("many_000, many_001"), "{error}");
    assert_eq!(many.functions.hazard(), None, "C without exceptions");
}

#[test]
fn exits_are_those_of_objdump() {
    let path = workload("functions_exits");
    let program = Program::read(&path);
    // gcc and ld put code at file offsets that equal addresses.
    let all = program.find("work::*", 100).unwrap();
    assert!(all.len() > 15, "{all:?}");
    for function in all {
        let part = function.parts[0];
        let mut code = disassembly(&path, &function.symbol);
        for cold in &function.cold {
            code.extend(disassembly(&path, &format!("{}.cold", function.symbol)));
            assert!(code.iter().any(|(at, _)| *at == cold.address), "{}", function.name);
        }
        let returns = code.iter().filter(|(_, what)| what.split(' ').next() == Some("ret")).map(|(at, _)| *at);
        let mut returns: Vec<u64> = returns.collect();
        returns.sort_unstable();
        let probes = program.functions.probes(program.data.as_slice(), &function, part).unwrap();
        assert_eq!(probes.returns, returns, "{}", function.name);
        assert!((part.address..part.address + part.size).contains(&probes.entry));
    }
    let chain = program.probes("chain").unwrap();
    assert_eq!(
        (chain.returns.len(), chain.tail_calls.len(), chain.notes.as_slice()),
        (0, 1, &[Note::TailCalls { count: 1 }][..])
    );
    assert_eq!(program.probes("jump").unwrap().notes, [Note::NeverReturns]);
}

#[test]
fn the_cheapest_entry_is_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let assembly = folder.path().join("entries.s");
    let functions = [
        ("emulated", "push %rbx; pop %rbx; ret"),
        ("shifted", "mov %rdi, %rax; lea 1(%rax), %rax; push %rbx; pop %rbx; ret"),
        ("stepped", "sub $8, %rsp; push %rbx; pop %rbx; add $8, %rsp; ret"),
        ("target", "mov %rdi, %rax; 1: push %rbx; pop %rbx; dec %rax; jnz 1b; ret"),
        ("loops", "loops: nop; dec %rdi; jnz loops; ret"),
        ("conditional", "test %rdi, %rdi; jz emulated; ret"),
        ("switches", "notrack jmp *%rax; ret"),
        // As OCaml does: to the handler, whose frame is another one.
        ("raises", "test %rax, %rax; je 1f; mov 8(%r14), %rsp; pop 8(%r14); ret; 1: push %rbx; pop %rbx; ret"),
    ];
    let text: String = functions
        .iter()
        .map(|(name, code)| {
            let label = if *name == "loops" { String::new() } else { format!("{name}:") };
            format!(".globl {name}\n.type {name}, @function\n{label} {code}\n.size {name}, .-{name}\n")
        })
        .collect();
    fs::write(&assembly, format!(".text\n{text}.globl unsized\n.type unsized, @function\nunsized: ret\n")).unwrap();
    let path = compile("gcc", &assembly, "functions_entries", &["-nostdlib", "-shared", "-fPIC"]);
    let program = Program::read(&path);
    let entry = |name: &str| {
        let found = program.find(name, 1).unwrap();
        let probes = program.probes(name).unwrap();
        (probes.entry - found[0].parts[0].address, probes.entry_cost)
    };
    assert_eq!(entry("emulated"), (0, Cost::Emulated(Emulated::Push)));
    assert_eq!(entry("shifted"), (7, Cost::Emulated(Emulated::Push)));
    assert_eq!(entry("stepped"), (0, Cost::SingleStepped));
    assert_eq!(entry("target"), (0, Cost::SingleStepped), "the push is executed again");
    assert_eq!(program.probes("loops"), Err(ProbeError::LoopsToEntry));
    assert!(matches!(program.probes("conditional"), Err(ProbeError::ConditionalTailCall { .. })));
    assert_eq!(program.probes("switches").unwrap().notes, [Note::ComputedJumps { count: 1 }]);
    assert_eq!(program.probes("unsized"), Err(ProbeError::NoSize));
    let raises = program.probes("raises").unwrap();
    assert_eq!(raises.returns.len(), 1, "{raises:?}");
    assert!(raises.returns[0] - raises.entry > 14, "{raises:?}");
}

#[test]
fn instructions_that_are_entry_and_exit_at_once() {
    let program = Program::read(&compile("gcc", &source("latency_tiny.c"), "functions_tiny", &["-O2"]));
    let empty = program.probes("tiny_empty").unwrap();
    assert_eq!((empty.entry_cost, empty.returns.as_slice()), (Cost::SingleStepped, &[empty.entry][..]));
    let thunk = program.probes("tiny_thunk").unwrap();
    assert_eq!((thunk.entry_cost, thunk.tail_calls.as_slice()), (Cost::Emulated(Emulated::Jump), &[thunk.entry][..]));
}

#[test]
fn symbols_of_assembly() {
    let folder = tempfile::tempdir().unwrap();
    let assembly = folder.path().join("symbols.s");
    let text = ".text\n.globl untyped\nuntyped: push %rbx; pop %rbx; ret\n.size untyped, .-untyped\n\
                .globl label\nlabel: ret\n\
                .globl indirect\n.type indirect, @gnu_indirect_function\nindirect: lea untyped(%rip), %rax; ret\n\
                .size indirect, .-indirect\n\
                .data\n.globl untyped_data\nuntyped_data: .quad 1\n.size untyped_data, .-untyped_data\n";
    fs::write(&assembly, text).unwrap();
    let program =
        Program::read(&compile("gcc", &assembly, "functions_symbols", &["-nostdlib", "-shared", "-Wl,-Bsymbolic"]));
    assert_eq!(program.names("untyped*"), ["untyped"], "code with a size, not data");
    assert_eq!(program.probes("untyped").unwrap().returns.len(), 1);
    for none in ["label", "indirect"] {
        assert!(matches!(program.find(none, 1), Err(FindError::Nothing { .. })), "{none}");
    }
}

#[test]
fn a_library_with_names_for_the_dynamic_linker_only() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("library.c");
    fs::write(
        &text,
        "static int hidden(int value) { return value * 3; }\nint shown(int value) { return hidden(value) + 1; }",
    )
    .unwrap();
    let library = compile("gcc", &text, "functions_dynsym.so", &["-O0", "-shared", "-fPIC"]);
    assert!(Command::new("strip").arg("--strip-all").arg(&library).status().unwrap().success());
    let program = Program::read(&library);
    assert!(program.functions.is_stripped());
    assert_eq!(program.names("shown"), ["shown"]);
    assert_eq!(program.probes("shown").unwrap().returns.len(), 1);
    let message = program.find("hidden", 1).unwrap_err().to_string();
    assert!(message.contains("the file is stripped"), "{message}");
}

#[test]
fn inlined_calls_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("inlined.c");
    let lines = [
        "inline int often(int value) { asm volatile(\"nop\"); return value * 3; }",
        "static inline int hidden(int value) { asm volatile(\"nop; nop\"); return value * 5; }",
        "__attribute__((noinline)) int never(int value) { asm volatile(\"\"); return value; }",
        "extern int often(int value);",
        "int (*volatile taken)(int) = hidden;",
        "int main(void) { return often(1) + often(2) + hidden(3) + taken(4) + never(5); }",
    ];
    fs::write(&text, lines.join("\n")).unwrap();
    for (compiler, version) in [("gcc", "-gdwarf-5"), ("gcc", "-gdwarf-4"), ("clang", "-gdwarf-5")] {
        let name = format!("functions_inlined_{compiler}{version}");
        let program = Program::read(&compile(compiler, &text, &name, &["-O2", version]));
        let count = |name: &str| {
            let address = program.find(name, 1).unwrap()[0].parts[0].address;
            Functions::inlined_calls(program.data.as_slice(), &[address].into()).get(&address).copied()
        };
        assert_eq!([count("often"), count("hidden"), count("never")], [Some(2), Some(1), None], "{name}");
        let stripped = Program::read(&compile(compiler, &text, &format!("{name}_none"), &["-O2", "-g0"]));
        let address = stripped.find("often", 1).unwrap()[0].parts[0].address;
        assert!(Functions::inlined_calls(stripped.data.as_slice(), &[address].into()).is_empty());
    }
}

#[test]
fn debug_information_compressed_with_zlib_is_read_but_not_with_zstd() {
    let path = workload("functions_compressed");
    let sections = |path: &Path| {
        let output = Command::new("readelf").args(["-t", path.to_str().unwrap()]).output().expect("binutils");
        String::from_utf8(output.stdout).unwrap()
    };
    for (format, is_read) in [("zlib", true), ("zlib-gnu", true), ("zstd", false)] {
        let compressed = path.with_extension(format);
        let how = format!("--compress-debug-sections={format}");
        let arguments = [how.as_str(), path.to_str().unwrap(), compressed.to_str().unwrap()];
        assert!(Command::new("objcopy").args(arguments).status().unwrap().success());
        let sign = if format == "zlib-gnu" { ".zdebug_info".to_owned() } else { format.to_uppercase() };
        assert!(sections(&compressed).contains(&sign), "{format}");
        let message = Program::read(&compressed).find("vanished", 1).unwrap_err().to_string();
        assert_eq!(message.contains("inlined everywhere"), is_read, "{format}: {message}");
    }
}

#[test]
fn debug_information_whose_units_have_too_many_abbreviations_is_not_read() {
    let path = workload("functions_abbreviations");
    let find = |path: &Path| Program::read(path).find("vanished", 1).unwrap_err().to_string();
    assert!(find(&path).contains("inlined everywhere"));
    // Abbreviations of a tag without attributes after those of the program, and units with abbreviations from different places of them.
    let folder = tempfile::tempdir().unwrap();
    let section = |name: &str| {
        let file = folder.path().join(name);
        let dump = format!("--dump-section=.{name}={}", file.display());
        let arguments = [dump.as_str(), path.to_str().unwrap(), "/dev/null"];
        assert!(Command::new("objcopy").args(arguments).status().unwrap().success());
        (fs::read(&file).unwrap(), file)
    };
    let (mut abbreviations, abbreviations_file) = section("debug_abbrev");
    let (mut info, info_file) = section("debug_info");
    let begin = abbreviations.len() as u32;
    abbreviations.extend([1, 0x2e, 0, 0, 0].repeat(200_000));
    for unit in 0..1000_u32 {
        let header = [&[4, 0][..], &(begin + unit * 5).to_le_bytes(), &[8]].concat();
        info.extend([&(header.len() as u32).to_le_bytes()[..], &header].concat());
    }
    fs::write(&abbreviations_file, abbreviations).unwrap();
    fs::write(&info_file, info).unwrap();
    let hostile = path.with_extension("hostile");
    let update = |name: &str, file: &Path| format!("--update-section=.{name}={}", file.display());
    let updates = [update("debug_abbrev", &abbreviations_file), update("debug_info", &info_file)];
    let status = Command::new("objcopy").args(&updates).args([&path, &hostile]).status().unwrap();
    assert!(status.success());
    assert!(!find(&hostile).contains("inlined everywhere"));
}

#[test]
fn stripped_and_with_a_debug_file() {
    let path = workload("functions_debug");
    let (stripped, debug) = (path.with_extension("stripped"), path.with_extension("debug"));
    let run = |arguments: &[&str]| assert!(Command::new("objcopy").args(arguments).status().unwrap().success());
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    run(&["--only-keep-debug", &text(&path), &text(&debug)]);
    run(&["--strip-all", &text(&path), &text(&stripped)]);
    let program = Program::read(&stripped);
    assert!(program.functions.is_stripped());
    let message = program.find("work::nap", 1).unwrap_err().to_string();
    assert!(message.contains("stripped"), "{message}");
    let (data, debug) = (fs::read(&stripped).unwrap(), fs::read(&debug).unwrap());
    let functions = Functions::read(data.as_slice(), Some(debug.as_slice())).unwrap();
    let found = functions.find(&pattern("work::nap"), 1, Some(debug.as_slice())).unwrap();
    let whole = Program::read(&path);
    assert_eq!(
        functions.probes(data.as_slice(), &found[0], found[0].parts[0]).unwrap(),
        whole.probes("work::nap").unwrap()
    );
    let error = functions.find(&pattern("vanished"), 1, Some(debug.as_slice())).unwrap_err().to_string();
    assert!(error.contains("inlined everywhere"), "{error}");
}

#[test]
fn programs_in_go_are_recognised() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("main.go");
    fs::write(&source, "package main\n\nfunc main() { println(1) }\n").unwrap();
    for (number, arguments) in [&[][..], &["-ldflags=-s -w"], &["-buildmode=pie", "-ldflags=-s -w"]].iter().enumerate()
    {
        let program = folder.path().join(format!("go{number}"));
        let mut go = Command::new("go");
        go.arg("build").args(*arguments).arg("-o").arg(&program).arg(&source).env("CGO_ENABLED", "0");
        go.env("PATH", format!("{}:/usr/local/go/bin", std::env::var("PATH").unwrap_or_default()));
        assert!(go.status().expect("`make setup` installs Go").success(), "{arguments:?}");
        let data = fs::read(&program).unwrap();
        let functions = Functions::read(data.as_slice(), None).unwrap();
        assert_eq!((functions.hazard(), functions.is_stripped()), (Some(Hazard::Go), number > 0), "{arguments:?}");
    }
}

#[test]
fn damaged_files_are_errors() {
    let data = fs::read(workload("functions_damaged")).unwrap();
    assert!(Functions::read(&b"no elf"[..], None).is_err());
    for length in (0..data.len()).step_by(9973) {
        if let Ok(functions) = Functions::read(&data[..length], None) {
            let _ = functions.find(&pattern("work::*"), 100, Some(&data[..length]));
        }
    }
    // Bytes changed one after the other, in the header and the tables behind it.
    let mut damaged = data;
    for at in (16..1024).step_by(7) {
        let old = std::mem::replace(&mut damaged[at], 0xff);
        if let Ok(functions) = Functions::read(damaged.as_slice(), None)
            && let Ok(found) = functions.find(&pattern("work::nap"), 100, None::<&[u8]>)
        {
            for part in &found[0].parts {
                let _ = functions.probes(damaged.as_slice(), &found[0], *part);
            }
        }
        damaged[at] = old;
    }
}
