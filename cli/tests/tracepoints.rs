//! `chainscope tracepoints` on files and running processes, as a user calls it.

#![expect(clippy::unwrap_used, reason = "a failed test shows the line")]

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use chainscope_testing::{
    cgroup::Group,
    fakenode::{self, FakeNode, Flavour},
    program::compile,
};
use serde_json::Value;

/// Initial value of the semaphores of `tracepoint_forms.c`.
const SEMAPHORE: u64 = 4660;

fn program(folder: &Path, compiler: &str, source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testing/programs").join(source);
    compile(compiler, &source, folder, name, flags)
}

fn tracepoints(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_chainscope")).arg("tracepoints").args(arguments).output().expect("chainscope")
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&text(&tracepoints(&[arguments, &["--json"]].concat()))).unwrap()
}

/// The error line of a call that fails.
fn error(arguments: &[&str]) -> String {
    let output = tracepoints(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// A process that is killed when it is dropped.
struct Running(Child);

impl Running {
    /// Starts a program and waits until it has printed a line.
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The file of this name in a listing.
fn file<'a>(document: &'a Value, name: &str) -> &'a Value {
    let files = document["files"].as_array().unwrap();
    let is_it = |file: &&Value| file["path"].as_str().is_some_and(|path| path.ends_with(&format!("/{name}")));
    files.iter().find(is_it).unwrap_or_else(|| panic!("{name} in {document:#}"))
}

/// Values of all semaphores of a file.
fn semaphores(file: &Value) -> Vec<&Value> {
    let tracepoints = file["tracepoints"].as_array().unwrap();
    let locations = tracepoints.iter().flat_map(|tracepoint| tracepoint["locations"].as_array().unwrap());
    locations.flat_map(|location| location["semaphore"]["values"].as_array().unwrap()).collect()
}

#[test]
fn a_file_is_listed_with_names_and_specs() {
    let folder = tempfile::tempdir().unwrap();
    let path = fakenode::build(folder.path(), Flavour::Tapyrus);
    let listing = text(&tracepoints(&[path.to_str().unwrap()]));
    assert!(listing.contains("tapyrusd: 15 tracepoints, 17 locations; contract tapyrus\n"), "{listing}");
    let size = listing.lines().find(|line| line.contains("u32 bytes")).expect("the size of a message");
    assert!(size.trim_start().starts_with("size ") && size.contains(" 4@"), "{size}");
    assert!(listing.contains("bytes (length: size)") && listing.contains("u32 (0 NONE, 1 IF_NEEDED"), "{listing}");

    let document = json(&[path.to_str().unwrap(), "--provider", "memp*"]);
    let tracepoints = file(&document, "tapyrusd")["tracepoints"].as_array().unwrap();
    let names: Vec<&str> = tracepoints.iter().map(|tracepoint| tracepoint["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["added", "rejected", "removed", "replaced"]);
    let fee = &tracepoints[3]["locations"][0]["arguments"][2];
    assert_eq!((&fee["name"], &fee["kind"], &fee["unit"]), (&"replacement_fee".into(), &"i64".into(), &"sat".into()));
}

/// One name in common with a node says nothing about the arguments, unless the user does.
#[test]
fn a_contract_needs_most_tracepoints() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("small.c");
    fs::write(&source, "#include <sys/sdt.h>\nint main() { STAP_PROBE1(mempool, added, 1L); }\n").unwrap();
    let path = compile("gcc", &source, folder.path(), "small", &[]);
    let path = path.to_str().unwrap();
    let listing = text(&tracepoints(&[path]));
    assert!(listing.starts_with(&format!("{path}: 1 tracepoints, 1 locations; no contract\n")), "{listing}");
    let listing = text(&tracepoints(&[path, "--contract", "tapyrus"]));
    assert!(
        listing.contains("contract tapyrus\n") && listing.contains("! passes 1 arguments instead of 3"),
        "{listing}"
    );
}

#[test]
fn a_check_fails_if_anything_disagrees() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node");
    fs::rename(fakenode::build(folder.path(), Flavour::Tapyrus), &path).unwrap();
    let output = tracepoints(&[path.to_str().unwrap(), "--check"]);
    assert_eq!(output.status.code(), Some(1));
    let found = String::from_utf8(output.stdout).unwrap();
    for line in [
        "documentation  mempool:replaced: argument 3 is replacement_fee, which is documented as argument 7",
        "documentation  utxocache:utxocache_add: passes 6 arguments, 5 are documented",
        "documentation  net:inbound_message: argument 5 (size) is u32, documented as u64",
        ": known deviation: the address of the value is passed instead of the value",
    ] {
        assert!(found.contains(line), "{line} in {found}");
    }
    assert!(error(&[path.to_str().unwrap(), "--check"]).contains("29 differences"));

    // A user's file without the differing documentation.
    let contract = folder.path().join("mine.toml");
    let argument = |name: &str| format!("{{ name = \"{name}\", kind = \"i64\" }}");
    let mine = format!(
        "name = \"mine\"\ntitle = \"Mine\"\n[[tracepoints]]\nprovider = \"validation\"\nname = \"block_connected\"\n\
         arguments = [{{ name = \"hash\", kind = \"hash32\" }}, {{ name = \"height\", kind = \"i32\" }}, \
         {{ name = \"transactions\", kind = \"u64\" }}, {{ name = \"inputs\", kind = \"i32\" }}, {}, {}]\n",
        argument("sigops"),
        argument("duration")
    );
    fs::write(&contract, &mine).unwrap();
    let agreed = text(&tracepoints(&[path.to_str().unwrap(), "--check", "--contract", contract.to_str().unwrap()]));
    assert!(agreed.ends_with("contract mine\n  agrees with the contract\n"), "{agreed}");
    fs::write(&contract, mine.replace("title", "titel")).unwrap();
    let refused = error(&[path.to_str().unwrap(), "--contract", contract.to_str().unwrap()]);
    assert!(refused.contains("line 2") && refused.contains("titel"), "{refused}");
    assert!(error(&[path.to_str().unwrap(), "--contract", "bitcoin"]).contains("bitcoin-core-v31"));
    assert!(error(&[path.to_str().unwrap(), "--check", "--contract", "rippled"]).contains("no contract has"));
}

#[test]
fn semaphores_of_a_process_are_read_from_its_memory() {
    let folder = tempfile::tempdir().unwrap();
    for (name, flag) in [("pie", "-pie"), ("fixed", "-no-pie"), ("static-pie", "-static-pie")] {
        let path = program(folder.path(), "gcc", "tracepoint_forms.c", name, &["-O2", "-DSEMAPHORES", flag]);
        let process = Running::start(&mut Command::new(&path));
        let document = json(&["--pid", &process.pid()]);
        let values = semaphores(file(&document, name));
        assert_eq!(values.len(), 11, "{name}");
        assert!(values.iter().all(|value| value["value"] == SEMAPHORE), "{name}: {values:?}");
        let listing = text(&tracepoints(&["--pid", &process.pid()]));
        assert!(listing.contains(&format!(", = {SEMAPHORE} in process {}", process.pid())), "{listing}");
    }
}

#[test]
fn libraries_and_deleted_files_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["-O2", "-DSEMAPHORES", "-fPIC", "-shared"];
    let library = program(folder.path(), "gcc", "tracepoint_forms.c", "libforms.so", &flags);
    let path = fakenode::build(folder.path(), Flavour::Core(31));
    let process = FakeNode::start_command(Command::new(&path).env("LD_PRELOAD", &library));
    let pid = process.pid().to_string();
    let before = json(&["--pid", &pid]);
    assert_eq!(file(&before, "bitcoind")["contract"]["name"], "bitcoin-core-v31");
    assert!(semaphores(file(&before, "bitcoind")).iter().all(|value| value["value"] == 0));
    assert!(semaphores(file(&before, "libforms.so")).iter().all(|value| value["value"] == SEMAPHORE));

    fs::remove_file(&path).unwrap();
    // Another file takes the library's name.
    fs::remove_file(&library).unwrap();
    fs::write(&library, "not a library").unwrap();
    let after = json(&["--pid", &pid]);
    for name in ["bitcoind", "libforms.so"] {
        assert_eq!(file(&after, name)["deleted"], true);
        assert_eq!(file(&after, name)["tracepoints"], file(&before, name)["tracepoints"], "{name}");
    }
}

#[test]
fn a_process_in_another_mount_namespace_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    let hidden = folder.path().join("hidden");
    fs::create_dir(&hidden).unwrap();
    let path = program(folder.path(), "gcc", "tracepoint_forms.c", "outer", &["-O2"]);
    // Mounted inside only: the path does not exist outside.
    const INSIDE: &str = "mount -t tmpfs none \"$1\" && cp \"$0\" \"$1/inner\" && exec \"$1/inner\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", INSIDE]).arg(&path).arg(&hidden);
    let process = Running::start(&mut command);
    assert!(!hidden.join("inner").exists());
    let document = json(&["--pid", &process.pid()]);
    assert_eq!(file(&document, "inner")["tracepoints"].as_array().unwrap().len(), 10);
}

#[test]
fn every_process_of_a_container_is_listed() {
    let id = format!("{:064x}", std::process::id());
    let group = Group::of_container(&id);
    let folder = tempfile::tempdir().unwrap();
    let path = program(folder.path(), "gcc", "tracepoint_forms.c", "forms", &["-O2", "-DSEMAPHORES"]);
    let start = || Running::start(&mut group.command(&path));
    let processes = [start(), start()];
    let document = json(&["--container", &id]);
    let missing = error(&["--container", &"b7".repeat(32)]);
    let pids: Vec<u64> = processes.iter().map(|process| u64::from(process.0.id())).collect();
    let listed = file(&document, "forms")["processes"].as_array().unwrap();
    assert_eq!(listed.iter().map(|process| process["pid"].as_u64().unwrap()).collect::<Vec<_>>(), pids);
    assert_eq!(semaphores(file(&document, "forms")).len(), 2 * 11);
    assert!(missing.contains("container b7b7"), "{missing}");
}

#[test]
fn bad_input_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    assert!(error(&[own.to_str().unwrap()]).contains("Cargo.toml: not an ELF file"));
    assert!(error(&["/nonexistent"]).contains("/nonexistent: No such file"));
    assert!(error(&["/tmp"]).contains("/tmp: "));
    let pipe = folder.path().join("pipe");
    let mode = rustix::fs::Mode::RUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert!(error(&[pipe.to_str().unwrap()]).contains("not a regular file"));
    assert!(error(&["/bin/true"]).contains("no tracepoints of /bin/true found"));
    assert!(error(&["--pid", "4194305"]).contains("there is no process 4194305"));
    let mut ended = Command::new("true").spawn().unwrap();
    let pid = ended.id().to_string();
    chainscope_testing::wait::until_true("the process to end", || {
        fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") Z ")
    });
    assert!(error(&["--pid", &pid]).contains(&format!("no tracepoints of process {pid} found")));
    ended.wait().unwrap();
    assert!(error(&["--pid", &pid]).contains(&format!("there is no process {pid}")));
    assert_eq!(tracepoints(&[]).status.code(), Some(2));
    assert_eq!(tracepoints(&["/bin/true", "--pid", "1"]).status.code(), Some(2));
}

#[test]
fn texts_of_a_file_are_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let path = program(folder.path(), "gcc", "tracepoint_forms.c", "forms", &["-O2"]);
    let mut bytes = fs::read(&path).unwrap();
    let name = b"forms\0widths\0-1@";
    let at = bytes.windows(name.len()).position(|window| window == name).expect("the note");
    bytes[at..at + 5].copy_from_slice(b"\x1b[2J\n");
    bytes[at + 13] = 0x07;
    fs::write(&path, bytes).unwrap();
    for flags in [&[][..], &["--json"]] {
        let shown = text(&tracepoints(&[&[path.to_str().unwrap()], flags].concat()));
        assert!(!shown.contains(['\x1b', '\x07']), "{shown:?}");
        assert!(shown.contains(if flags.is_empty() { "\\u{1b}[2J\\u{a}:widths" } else { "\\u001b[2J\\n" }), "{shown}");
    }
}
