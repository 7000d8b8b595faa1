//! A process that executes code of damaged ELF files: its pages are counted, and a program beside it is recorded as without it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use chainscope_profile::Kind;
use chainscope_testing::program::hostile_code;
use chainscope_testing::usage;

use super::{program::resident_anonymous, *};

/// Damaged files.
const FILES: u64 = 400;
/// Pages that calls into them take, several of each.
const PAGES: u64 = 4_000;
/// What the agent may need for them; several claim to be 1 TiB.
const MAX_GROWTH: u64 = 256 << 20;

#[test]
fn damaged_code_is_profiled_without_harm() {
    let fixture = Fixture::new();
    let (dir, files) = (fixture.dir.path(), tempfile::tempdir().unwrap());
    let (hostile, holder) = (hostile_code(dir, "hostile"), Language::Cpp.build(dir));
    let observed = |name: &str, exe: &Path| NodeConfig {
        name: name.to_owned(),
        exe: Some(exe.to_owned()),
        memory: true,
        ..NodeConfig::default()
    };
    let nodes = vec![observed("hostile", &hostile), observed("node", &holder)];
    let config = Config { ring_bytes: 1 << 20, ..Config::new(dir.join("data"), nodes) };
    let agent = Agent::start(config, fixture.collector.link()).unwrap();
    let before = peak();

    let command = [FILES.to_string(), files.path().display().to_string(), PAGES.to_string()];
    let mut child = Command::new(&hostile).args(command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next(), Some(format!("mapped {FILES}")));
    fixture.collector.wait("the profile", |delivered| delivered.profiles("hostile").next_back().map(drop));
    writeln!(child.stdin.as_ref().unwrap()).unwrap();
    assert_eq!(lines.next(), Some(format!("holds {PAGES}")));

    let mut program = Program::start(&holder);
    fixture.wait_attached(&program);
    program.run("hold apply_block 1000");
    fixture.wait_pages(&program, &[("chain::apply_block(unsigned long)", 1000)]);

    // Each page that the kernel counts is of a stack, or before the attachment.
    let resident = resident_anonymous(child.id());
    let explained = fixture.collector.wait("the pages", |delivered| {
        let data = delivered.profiles("hostile").next_back()?;
        let kind = data.totals.kinds.iter().find(|kind| kind.kind == Kind::Anon.to_wire())?;
        let is_counted = data.totals.control_anon == resident && kind.attributed + kind.before_attach == resident;
        if !is_counted {
            chainscope_testing::flush_page_lists();
        }
        is_counted.then_some(kind.attributed)
    });
    assert!(explained >= PAGES, "{explained} of {PAGES} pages are of a stack");
    assert!(peak() - before < MAX_GROWTH, "{} MiB", (peak() - before) >> 20);
    child.kill().unwrap();
    child.wait().unwrap();
    drop(program);
    agent.shutdown(TIMEOUT).unwrap();
}

/// The peak resident memory of this process, which contains the agent, in bytes.
fn peak() -> u64 {
    usage::memory(std::process::id(), "VmHWM")
}
