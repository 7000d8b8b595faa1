//! Which programs and functions can be recorded, and how: what return probes would break, libraries of a process, functions that the
//! kernel refuses. Needs root, a kernel with BTF, gcc and binutils; fails where these are missing.
#![expect(clippy::unwrap_used, reason = "a panic shows the line of the failure")]

mod latency_common;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use chainscope_agent::latency::{
    Exits, Hazard, Plan, ProcessState, Program, RecordError, RecordOptions, Recorder, SpanRequest,
};
use chainscope_testing::{program::compile, wait::until_true};
use latency_common::{Target, assert_agrees, folder, merged, plain, plan, request, source, workload};

/// A program or library of this text: assembly if its name ends with `.s`, otherwise C.
fn build(name: &str, text: &str, flags: &[&str]) -> PathBuf {
    let texts = tempfile::tempdir().unwrap();
    let source = texts.path().join(if name.ends_with(".s") { "source.s" } else { "source.c" });
    fs::write(&source, text).unwrap();
    // Libraries after the text that needs them.
    let (before, after): (Vec<&str>, Vec<&str>) = flags.iter().partition(|flag| !flag.ends_with(".so"));
    let mut wrapped = before;
    wrapped.extend(["-Wl,--no-as-needed", "-Wl,--push-state"]);
    wrapped.extend(after);
    wrapped.push("-Wl,--pop-state");
    compile("gcc", &source, folder(), name, &wrapped)
}

/// A program that calls `library_nap` of a library: `nap COUNT US`.
const CALLER: &str = r#"
#include <stdio.h>
void library_nap(long us);
int main(void)
{
	char name[64];
	long count, us;

	setvbuf(stdout, NULL, _IOLBF, 0);
	while (scanf("%63s %ld %ld", name, &count, &us) == 3) {
		for (long i = 0; i < count && us; i++)
			library_nap(us);
		printf("%ld\n", count);
	}
	return 0;
}
"#;

/// A library with `library_nap`, which calls a function of its own. Its only names are those for the dynamic linker.
fn library(name: &str, inner: &str, rest: &str) -> PathBuf {
    let text = format!(
        "#include <time.h>\n__attribute__((noipa)) void {inner}(long us)\n{{\n\tstruct timespec time = {{ 0, us * 1000 }};\n
         \tnanosleep(&time, NULL);\n}}\nvoid library_nap(long us) {{ {inner}(us); }}\n{rest}\n"
    );
    let library = build(name, &text, &["-O2", "-shared", "-fPIC"]);
    assert!(Command::new("strip").arg("--strip-all").arg(&library).status().unwrap().success());
    library
}

/// How the functions of a process, or of a file, would be recorded, and why.
fn choice(pid: Option<u32>, path: Option<&Path>, function: &str) -> (bool, Option<Hazard>) {
    let plan = plan(pid, path, &[request(function, None)]).unwrap();
    (plan.has_return_probes, plan.hazard)
}

#[test]
fn return_probes_are_chosen_where_nothing_is_against_them() {
    let program = plain("choice_plain");
    let target = Target::start(&program);
    assert_eq!(choice(Some(target.child.id()), None, "plain_nap"), (true, None));
    assert_eq!(choice(Some(target.child.id()), Some(&program), "plain_nap"), (true, None));
    // Without a process it is not known what is loaded with it.
    assert_eq!(choice(None, Some(&program), "plain_nap"), (false, Some(Hazard::Unexamined)));
    let text = ".text\n.globl fixed\n.type fixed, @function\nfixed: ret\n.size fixed, .-fixed\n.globl _start\n_start: jmp fixed\n";
    let fixed = build("choice_fixed.s", text, &["-nostdlib", "-static", "-no-pie"]);
    assert_eq!(choice(None, Some(&fixed), "fixed"), (true, None), "nothing is");
    // It links to the library of C++, which may throw through it.
    let linked = compile(
        "gcc",
        &source("latency_plain.c"),
        folder(),
        "choice_linked",
        &["-O2", "-pthread", "-Wl,--no-as-needed", "-lstdc++"],
    );
    let target = Target::start(&linked);
    assert_eq!(choice(Some(target.child.id()), None, "plain_nap"), (false, Some(Hazard::Unwinding)));
    let stacks = compile("gcc", &source("latency_stacks.c"), folder(), "choice_stacks", &["-O2", "-pthread"]);
    let target = Target::start(&stacks);
    assert_eq!(choice(Some(target.child.id()), None, "stack_turn"), (false, Some(Hazard::Coroutines)));
}

#[test]
fn coroutines_in_c_are_recorded() {
    let program = compile("gcc", &source("latency_stacks.c"), folder(), "record_stacks", &["-O2", "-pthread"]);
    let mut target = Target::start(&program);
    let plan = plan(Some(target.child.id()), None, &[request("stack_turn", None)]).unwrap();
    let recorder = Recorder::attach(&plan, &RecordOptions::default()).unwrap();
    target.answer("turns 20 3000");
    let (_, blocks) = recorder.finish().unwrap();
    assert_eq!(blocks[0].unended, 0);
    assert_agrees(&merged(&blocks, 0), &target.answer("exact turn"));
}

#[test]
fn libraries_of_a_process() {
    let first = library("librecord_first.so", "library_first", "");
    let second = library("librecord_second.so", "library_second", "");
    let caller = build("record_caller", CALLER, &["-O2", second.to_str().unwrap()]);
    // In its mount namespace the path of the second one is the first one.
    let mut command = Command::new("unshare");
    let script = format!("mount --bind '{}' '{}' && exec '{}'", first.display(), second.display(), caller.display());
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    let mut target = Target::spawn(&mut command);
    let pid = target.child.id();
    let found = plan(Some(pid), Some(&second), &[request("library_first", None)]).unwrap();
    assert!(found.program.functions().is_stripped() && found.has_return_probes);
    let recorder = Recorder::attach(&found, &RecordOptions::default()).unwrap();
    target.answer("nap 12 2000");
    let (info, blocks) = recorder.finish().unwrap();
    assert_eq!(info.executable, second.display().to_string());
    let naps = merged(&blocks, 0);
    assert_eq!(naps.count(), 12);
    assert!(naps.min() > Some(2_000_000), "{:?}", naps.min());
    let error = plan(Some(pid), Some(&second), &[request("library_second", None)]).unwrap_err().to_string();
    assert!(error.contains("no function matches library_second; the file is stripped"), "{error}");

    // A file that it has not loaded, though another one of this name.
    let elsewhere = tempfile::tempdir().unwrap();
    let copy = elsewhere.path().join("librecord_second.so");
    fs::copy(&second, &copy).unwrap();
    let error = plan(Some(pid), Some(&copy), &[request("library_second", None)]).unwrap_err().to_string();
    let expected = format!("process {pid} has not loaded {}: it has loaded {}", copy.display(), second.display());
    assert_eq!(error, expected);
    let error = plan(Some(pid), Some(Path::new("/bin/true")), &[request("main", None)]).unwrap_err();
    assert!(matches!(error, RecordError::NotMapped { known: None, .. }), "{error}");
    // A symbolic link to one that it has.
    let link = elsewhere.path().join("link.so");
    std::os::unix::fs::symlink(&first, &link).unwrap();
    assert_eq!(plan(Some(pid), Some(&link), &[request("library_first", None)]).unwrap().program.path(), second);
}

#[test]
fn what_another_library_of_the_process_does() {
    let nap = library("librecord_nap.so", "library_inner", "");
    let text = "#include <ucontext.h>\nucontext_t a, b;\nvoid take_turns(void) { swapcontext(&a, &b); }";
    let switching = build("librecord_switching.so", text, &["-O2", "-shared", "-fPIC"]);
    for (name, libraries, expected) in [
        ("record_alone", vec![&nap], (true, None)),
        ("record_beside", vec![&nap, &switching], (false, Some(Hazard::Coroutines))),
    ] {
        let mut flags = vec!["-O2"];
        flags.extend(libraries.iter().map(|library| library.to_str().unwrap()));
        let target = Target::start(&build(name, CALLER, &flags));
        assert_eq!(choice(Some(target.child.id()), Some(&nap), "library_inner"), expected, "{name}");
        assert_eq!(choice(Some(target.child.id()), None, "main"), expected, "{name}");
    }
}

/// A library with the symbols of OCaml's run-time.
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
fn ocaml_gets_no_return_probes() {
    let symbols = ["caml_call_gc", "caml_start_program", "camlNode__apply_12", "caml_try_realloc_stack"];
    let four = ocaml("record_ocaml4.s", &symbols[..3]);
    let five = ocaml("record_ocaml5.s", &symbols);
    let effects = ocaml("record_effects.s", &[&symbols[..], &["camlStdlib__Effect__continue_327"]].concat());
    let requests = [request("Node.apply_12", None)];
    let forced = |path: &Path| {
        let options = RecordOptions { exits: Exits::Returns, ..RecordOptions::default() };
        Plan::new(Program::open(None, Some(path)).unwrap(), &requests, &options).unwrap_err()
    };
    let found = plan(None, Some(&four), &requests).unwrap();
    assert_eq!((found.has_return_probes, found.hazard, found.notes.len()), (false, Some(Hazard::Ocaml), 0));
    assert!(
        matches!(forced(&four), RecordError::OcamlReturns(_)) && matches!(forced(&five), RecordError::OcamlReturns(_))
    );
    let found = plan(None, Some(&five), &requests).unwrap();
    assert!(!found.has_return_probes && found.notes[0].contains("moves a stack"), "{:?}", found.notes);
    let error = plan(None, Some(&effects), &requests).unwrap_err();
    assert!(matches!(error, RecordError::OcamlEffects(_)), "{error}");
    assert!(error.to_string().ends_with(
        "an OCaml program with effects, whose stacks move while a function runs: its functions cannot be timed"
    ));
}

/// Functions of which the kernel refuses one: a `lock` prefix cannot be executed out of line.
const REFUSED: &str = r#"
#include <stdio.h>
int spins;
asm(".text\n.globl refused_lock\n.type refused_lock, @function\nrefused_lock: lock incl spins(%rip); ret\n.size refused_lock, .-refused_lock\n"
    ".globl accepted_one\n.type accepted_one, @function\naccepted_one: push %rbx; pop %rbx; ret\n.size accepted_one, .-accepted_one\n"
    ".globl accepted_two\n.type accepted_two, @function\naccepted_two: push %rbx; pop %rbx; ret\n.size accepted_two, .-accepted_two\n");
void refused_lock(void); void accepted_one(void); void accepted_two(void);
int main(void)
{
	char name[64];
	long count, argument;

	setvbuf(stdout, NULL, _IOLBF, 0);
	while (scanf("%63s %ld %ld", name, &count, &argument) == 3) {
		for (long i = 0; i < count && argument; i++) {
			accepted_one();
			refused_lock();
			accepted_two();
		}
		printf("%ld\n", count);
	}
	return 0;
}
"#;

#[test]
fn a_function_that_the_kernel_refuses_is_named_and_left_out() {
    let mut target = Target::start(&build("record_refused", REFUSED, &["-O2"]));
    let pid = Some(target.child.id());
    let plan_of =
        |names: &[&str]| plan(pid, None, &names.iter().map(|name| request(name, None)).collect::<Vec<_>>()).unwrap();
    let found = plan_of(&["accepted_one", "refused_lock", "accepted_two"]);
    let mut parts = Vec::new();
    let recorder =
        Recorder::attach_with(&found, &RecordOptions::default(), &mut |done, all| parts.push((done, all))).unwrap();
    assert_eq!(parts, [(0, 3), (3, 3)]);
    assert_eq!(recorder.skipped().len(), 1);
    let skipped = &recorder.skipped()[0];
    assert!(
        skipped.function == "refused_lock" && skipped.reason.contains("cannot probe the instruction at file offset 0x"),
        "{skipped:?}"
    );
    let names: Vec<&str> = recorder.functions().iter().map(|function| function.name.as_str()).collect();
    assert_eq!(names, ["accepted_one", "accepted_two"]);
    target.answer("all 9 1");
    let (_, blocks) = recorder.finish().unwrap();
    assert_eq!((merged(&blocks, 0).count(), merged(&blocks, 1).count()), (9, 9));
    assert!(blocks.iter().all(|block| block.unended == 0 && block.lost.is_empty()), "{blocks:?}");
    let error = Recorder::attach(&plan_of(&["refused_lock"]), &RecordOptions::default()).unwrap_err().to_string();
    assert!(error.starts_with("no function can be timed; refused_lock: cannot probe"), "{error}");
}

#[test]
fn more_spans_than_a_recording_has() {
    let function = |number: u32| {
        format!(
            ".globl many_{number}\n.type many_{number}, @function\nmany_{number}: ret\n.size many_{number}, .-many_{number}\n"
        )
    };
    let text: String = (0..4097).map(function).collect();
    let text = format!(".text\n{text}.section .note.GNU-stack,\"\",@progbits\n");
    let library = build("record_spans.s", &text, &["-nostdlib", "-shared", "-fPIC"]);
    let options = RecordOptions { max_functions: 10_000, ..RecordOptions::default() };
    let of = |entry: &str| Plan::new(Program::open(None, Some(&library)).unwrap(), &[request(entry, None)], &options);
    let error = of("many_*").unwrap_err().to_string();
    assert_eq!(error, "4097 functions and spans are selected, more than the 4096 of a recording: select fewer");
    assert_eq!(of("many_?*0").unwrap().functions.len(), 409);
}

#[test]
fn what_the_program_does_not_have_may_be_optional() {
    let program = plain("record_optional");
    let optional = |name: &str, entry: &str| SpanRequest {
        name: Some(name.to_owned()),
        is_optional: true,
        ..request(entry, None)
    };
    let found =
        plan(None, Some(&program), &[optional("naps", "plain_nap"), optional("offers", "CreateOffer::doApply")])
            .unwrap();
    assert_eq!((found.functions[0].timed.name.as_str(), found.skipped.len()), ("naps", 1));
    assert!(
        found.skipped[0].function == "offers" && found.skipped[0].reason.starts_with("no function matches"),
        "{:?}",
        found.skipped
    );
    let error = plan(None, Some(&program), &[optional("offers", "CreateOffer::doApply")]).unwrap_err().to_string();
    assert!(error.starts_with("no function can be timed; offers: no function matches CreateOffer::doApply"), "{error}");
    assert!(plan(None, Some(&program), &[optional("naps", "plain_nap"), request("plain_nup", None)]).is_err());
}

#[test]
fn plans_say_which_probes_that_is_and_what_was_inlined() {
    let text = "#include <stdio.h>\n
        static __attribute__((noinline)) int seldom(int value) { asm volatile(\"\"); return value + 1; }\n
        inline int often(int value) { asm volatile(\"nop\"); return value * 3; }\n
        int (*volatile taken)(int) = often;\n
        extern int often(int value);\n
        int main(void) { return often(1) + often(2) + taken(3) + seldom(4); }";
    let program = build("record_inlined", text, &["-O2", "-g"]);
    let mut found = plan(None, Some(&program), &[request("often", None), request("seldom", None)]).unwrap();
    found.note_inlined();
    assert_eq!(found.functions[0].notes, ["2 calls of it were inlined into others, and are not timed"]);
    assert!(found.functions[1].notes.is_empty());
    let program = workload("record_probes");
    let found = plan(None, Some(&program), &[request("work::nap", None), request("work::code", None)]).unwrap();
    let probes: Vec<&str> = found.functions.iter().map(|function| function.probes.as_str()).collect();
    assert_eq!(
        probes,
        ["entry: push, emulated; exit: jmp, emulated", "entry: single-stepped; exit: ret, single-stepped"]
    );
    let target = Target::start(&plain("record_probes_c"));
    let found = plan(Some(target.child.id()), None, &[request("plain_hit", None)]).unwrap();
    assert_eq!(found.functions[0].probes, "entry: nop, emulated; exit: return probe");
}

#[test]
fn a_process_that_executes_another_program() {
    let text = "#include <stdio.h>\n#include <unistd.h>\n
        __attribute__((noipa)) void work(void) { asm volatile(\"\"); }\n
        int main(void)\n{\n\tlong count;\n\tchar name[64];\n\tsetvbuf(stdout, NULL, _IOLBF, 0);\n
        \twhile (scanf(\"%63s %ld %*d\", name, &count) == 2) {\n\t\tfor (long i = 0; i < count; i++)\n\t\t\twork();\n
        \t\tprintf(\"%ld\\n\", count);\n\t\tif (name[0] == 'e')\n\t\t\texecl(\"/bin/sleep\", \"sleep\", \"1000\", NULL);\n\t}\n\treturn 0;\n}";
    let program = build("record_executes", text, &["-O2"]);
    let mut target = Target::start(&program);
    let found = plan(Some(target.child.id()), None, &[request("work", None)]).unwrap();
    let recorder = Recorder::attach(&found, &RecordOptions::default()).unwrap();
    target.answer("work 4 0");
    assert_eq!(recorder.state(), ProcessState::Running);
    target.answer("execute 3 0");
    until_true("the other program", || recorder.state() == ProcessState::Executed);
    let (info, blocks) = recorder.finish().unwrap();
    assert_eq!((merged(&blocks, 0).count(), info.pid), (7, target.child.id()));
}
