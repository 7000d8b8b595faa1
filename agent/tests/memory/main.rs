//! Memory profiles of programs that hold known amounts in known functions, through the whole agent. Needs root, a kernel
//! with BTF and the memory tracepoints, and compilers for C++, Rust and Go; fails where one is missing.
//!
//! The agent has the four capabilities only that it has on a cluster.
#![allow(clippy::print_stdout)] // shares and amounts that were seen
#![allow(clippy::unwrap_used)] // a test shows the line at which it fails

#[path = "../common/collector.rs"]
#[allow(dead_code)]
mod collector;
mod program;
mod tree;

use std::{path::Path, time::Duration};

use chainscope_agent::{Agent, Config, NodeConfig, Running};
use chainscope_profile::{Kind, ProfileData};
use collector::Collector;
use program::{Language, Program};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use tree::Held;

const PATIENCE: Duration = Duration::from_secs(60);
/// What an agent may be off by at a function, in pages.
const ONE_PAGE: u64 = 1;

struct Stage {
    dir: tempfile::TempDir,
    collector: Collector,
}

impl Stage {
    fn new() -> Self {
        let _ = tracing_subscriber::fmt().with_test_writer().with_env_filter("info").try_init();
        least_rights();
        Self { dir: tempfile::tempdir().unwrap(), collector: Collector::default() }
    }

    fn start(&self, node: NodeConfig) -> Running {
        let node = NodeConfig { name: "node".to_owned(), memory: true, ..node };
        let config = Config { ring_bytes: 1 << 20, ..Config::new(self.dir.path().join("data"), vec![node]) };
        Agent::start(config, self.collector.link()).unwrap()
    }

    /// Observes whatever executes this file.
    fn start_for(&self, exe: &Path) -> Running {
        self.start(NodeConfig { exe: Some(exe.to_owned()), ..NodeConfig::default() })
    }

    /// Waits until the profile of a process is so.
    #[track_caller]
    fn profile<T>(&self, what: &str, pid: u32, mut found: impl FnMut(&ProfileData) -> Option<T>) -> T {
        self.collector.wait(what, |delivered| {
            let data = delivered.profiles("node").rev().find(|data| data.process.pid == pid)?;
            found(data)
        })
    }

    fn attached(&self, program: &Program) {
        self.profile("the profile", program.pid(), |_| Some(()));
    }

    /// Waits until each function holds so many pages, each within one; and the process as a whole as the kernel counts it.
    #[track_caller]
    fn holds(&self, program: &Program, expected: &[(&str, u64)]) {
        let mut seen = String::new();
        let is_right = |data: &ProfileData| {
            let held = Held::of(data, Kind::Anon);
            let functions: Vec<(&str, u64, u64)> =
                expected.iter().map(|(name, pages)| (*name, held.inclusive(name), *pages)).collect();
            seen = format!("{functions:?} of {held:#?}, {:?}", data.totals);
            let is_each = functions.iter().all(|(_, held, expected)| held.abs_diff(*expected) <= ONE_PAGE);
            let total = program.resident_anonymous();
            let kind = data.totals.kinds.iter().find(|kind| kind.kind == Kind::Anon.to_wire()).unwrap();
            let explained = kind.attributed + kind.before_attach;
            let is_total = data.totals.control_anon == total && explained == total && kind.unattributed == 0;
            let is_right = is_each && is_total && held.total() == kind.attributed;
            if !is_right {
                chainscope_testing::flush_page_lists();
            }
            is_right.then_some(())
        };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            self.profile("the amounts", program.pid(), is_right);
        }));
        if result.is_err() {
            panic!("{}: expected {expected:?}, found {seen}", program.pid());
        }
    }

    /// Waits until the program's end is told, with nothing left.
    #[track_caller]
    fn ended(&self, pid: u32) {
        let attributed = self.profile("the end", pid, |data| (!data.runs()).then(|| data.attributed()));
        assert_eq!(attributed[Kind::Anon.index()], 0, "anonymous memory of a process that ended");
    }

    /// The share of complete stacks, in percent, and how all of them ended.
    fn complete(&self, program: &Program) -> (f64, String) {
        self.profile("stacks", program.pid(), |data| {
            let stacks = &data.totals.stacks;
            let all: u64 = stacks.iter().map(|stack| stack.count).sum();
            let complete = stacks.iter().find(|stack| stack.reason == "complete").map_or(0, |stack| stack.count);
            (all > 0).then(|| (complete as f64 * 100.0 / all as f64, format!("{stacks:?}")))
        })
    }
}

/// Takes every right from this thread, and those that it starts, but those of an agent on a cluster.
fn least_rights() {
    let four = CapabilitySet::BPF | CapabilitySet::PERFMON | CapabilitySet::SYS_PTRACE | CapabilitySet::DAC_READ_SEARCH;
    let mine = capabilities(None).unwrap();
    assert!(mine.permitted.contains(four), "needs root");
    let sets = CapabilitySets { effective: four, permitted: four, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).unwrap();
}

fn every_function_is_within_one_page(language: Language, names: [&str; 3]) {
    let stage = Stage::new();
    let program = language.build(stage.dir.path());
    // Before the program starts.
    let agent = stage.start_for(&program);
    let mut first = Program::start(&program);
    stage.attached(&first);
    let [apply, commit, validate] = names;
    first.say("hold apply_block 1000");
    stage.holds(&first, &[(apply, 1000), (commit, 0), (validate, 0)]);
    first.say("hold commit 37");
    first.say("hold validate 20000");
    first.say("hold apply_block 100");
    stage.holds(&first, &[(apply, 1100), (commit, 37), (validate, 20_000)]);
    let (complete, ends) = stage.complete(&first);
    println!("{language:?}: {complete:.3} % of the stacks reach their entry point");
    assert!(complete >= 99.9, "{complete} %: {ends}");
    first.say("release");
    stage.holds(&first, &[(apply, 0), (commit, 0), (validate, 0)]);
    let pid = first.end();
    stage.ended(pid);

    // A restart is followed; and an agent that comes while the program holds something.
    let mut second = Program::start(&program);
    stage.attached(&second);
    second.say("hold apply_block 500");
    stage.holds(&second, &[(apply, 500)]);
    agent.shutdown(PATIENCE).unwrap();
    let stage = Stage { collector: Collector::default(), dir: tempfile::tempdir().unwrap() };
    let agent = stage.start(NodeConfig { pid: Some(second.pid()), ..NodeConfig::default() });
    stage.attached(&second);
    second.say("hold commit 700");
    stage.holds(&second, &[(apply, 0), (commit, 700)]);
    let before = stage.profile("what was before", second.pid(), |data| Some(data.before_attach()));
    assert!(before[Kind::Anon.index()] >= 4 * 500, "{before:?}");
    second.say("release");
    // What was there before shrinks when it is freed.
    stage.profile("less of before", second.pid(), |data| {
        (data.before_attach()[Kind::Anon.index()] + 4 * 490 <= before[Kind::Anon.index()]).then_some(())
    });
    stage.holds(&second, &[(apply, 0), (commit, 0)]);
    stage.ended(second.end());
    agent.shutdown(PATIENCE).unwrap();
}

#[test]
fn cpp_without_frame_pointers() {
    let names = [
        "chain::apply_block(unsigned long)",
        "chain::Context::commit(unsigned long)",
        "chain::validate(unsigned long)",
    ];
    every_function_is_within_one_page(Language::Cpp, names);
}

#[test]
fn release_rust() {
    // Names end with a hash.
    every_function_is_within_one_page(
        Language::Rust,
        ["holder::chain::apply_block::h", "holder::chain::Context::commit::h", "holder::chain::validate::h"],
    );
}

#[test]
fn go_without_eh_frame() {
    every_function_is_within_one_page(
        Language::Go,
        ["main.applyBlock", "main.(*context).commit", "main.validate.func1"],
    );
}

#[test]
fn deep_recursion_is_one_chain_of_calls() {
    let stage = Stage::new();
    let exe = Language::Cpp.build(stage.dir.path());
    let agent = stage.start_for(&exe);
    let mut program = Program::start(&exe);
    stage.attached(&program);
    program.say("deep 120 50");
    stage.holds(&program, &[("bottom(unsigned long)", 50)]);
    let depth = stage.profile("the chain", program.pid(), |data| {
        let depth = Held::of(data, Kind::Anon).depth_below("descend(unsigned long, unsigned long)");
        (depth >= 121).then_some(depth)
    });
    // 121 calls, of which the compiler may have unrolled some, and what they call.
    assert!(depth <= 130, "{depth}");
    stage.ended(program.end());
    agent.shutdown(PATIENCE).unwrap();
}

#[test]
fn a_library_that_is_opened_later_and_deleted_has_names() {
    let stage = Stage::new();
    let exe = Language::Cpp.build(stage.dir.path());
    let library = program::plugin(stage.dir.path());
    let agent = stage.start_for(&exe);
    let mut program = Program::start(&exe);
    stage.attached(&program);
    program.say(&format!("load {} 300", library.display()));
    stage.holds(&program, &[("plugin_hold", 300)]);
    // Both files are gone, and others are in their place; what is allocated then still has its name.
    for path in [&library, &exe] {
        std::fs::remove_file(path).unwrap();
        std::fs::write(path, "another file").unwrap();
    }
    program.say("hold validate 60");
    program.say("again 1");
    stage.holds(&program, &[("plugin_hold", 301), ("chain::validate(unsigned long)", 60)]);
    stage.ended(program.end());
    agent.shutdown(PATIENCE).unwrap();
}

#[test]
fn a_replaced_executable_is_named_by_what_runs() {
    let stage = Stage::new();
    let exe = Language::Cpp.build(stage.dir.path());
    let mut program = Program::start(&exe);
    std::fs::remove_file(&exe).unwrap();
    std::fs::write(&exe, "another file").unwrap();
    let agent = stage.start(NodeConfig { pid: Some(program.pid()), ..NodeConfig::default() });
    stage.attached(&program);
    program.say("hold validate 80");
    stage.holds(&program, &[("chain::validate(unsigned long)", 80)]);
    stage.ended(program.end());
    agent.shutdown(PATIENCE).unwrap();
}

#[test]
fn in_a_root_of_its_own_names_come_from_there() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    program::contained(&root);
    // While there is a right to change the root.
    let mut program = Program::start_in(&root, "/holder");
    let stage = Stage::new();
    let agent = stage.start(NodeConfig { pid: Some(program.pid()), ..NodeConfig::default() });
    stage.attached(&program);
    program.say("hold validate 80");
    program.say("hold commit 20");
    let names = [("chain::validate(unsigned long)", 80), ("chain::Context::commit(unsigned long)", 20)];
    stage.holds(&program, &names);
    stage.ended(program.end());
    agent.shutdown(PATIENCE).unwrap();
}

#[test]
fn a_child_has_a_profile_of_its_own() {
    let stage = Stage::new();
    let exe = Language::Cpp.build(stage.dir.path());
    let agent = stage.start_for(&exe);
    let mut program = Program::start(&exe);
    stage.attached(&program);
    program.say("hold validate 400");
    stage.holds(&program, &[("chain::validate(unsigned long)", 400)]);
    let child: u32 = program.ask("fork").parse().unwrap();
    program.say("hold commit 90");
    let name = "chain::Context::commit(unsigned long)";
    stage.profile("the child's own", child, |data| {
        let held = Held::of(data, Kind::Anon);
        assert!(data.target.ends_with(&format!(", child {child}")), "{}", data.target);
        (held.inclusive(name).abs_diff(90) <= ONE_PAGE && held.inclusive("chain::validate(unsigned long)") == 0)
            .then_some(())
    });
    stage.profile("the parent's", program.pid(), |data| {
        (Held::of(data, Kind::Anon).inclusive("chain::validate(unsigned long)") == 400).then_some(())
    });
    let parent = program.end();
    stage.ended(child);
    stage.ended(parent);
    agent.shutdown(PATIENCE).unwrap();
}

#[test]
fn figures_say_what_is_profiled() {
    let stage = Stage::new();
    let exe = Language::Cpp.build(stage.dir.path());
    let agent = stage.start_for(&exe);
    let mut program = Program::start(&exe);
    stage.attached(&program);
    program.say("hold validate 512");
    stage.holds(&program, &[("chain::validate(unsigned long)", 512)]);
    let metrics = agent.monitor().metrics();
    let value = |name: &str| -> f64 {
        let line = metrics.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} in {metrics}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert_eq!(value("chainscope_agent_memory_processes{node=\"node\"}"), 1.0);
    assert_eq!(value("chainscope_agent_memory_failed"), 0.0);
    assert_eq!(value("chainscope_agent_memory_unattributed_bytes{node=\"node\"}"), 0.0);
    let attributed = value("chainscope_agent_memory_attributed_bytes{node=\"node\",kind=\"anonymous\"}");
    assert!(attributed >= 512.0 * 4096.0, "{attributed}");
    assert!(value("chainscope_agent_memory_stacks{node=\"node\",end=\"complete\"}") >= 512.0);
    assert_eq!(agent.status().memory_error, None);
    // The agent ends before the program: so does the profile.
    let pid = program.pid();
    agent.shutdown(PATIENCE).unwrap();
    let by = stage.profile("the end", pid, |data| (!data.runs()).then(|| data.process.ended_by.clone()));
    assert_eq!(by, "agent stopped");
    program.end();
}
