//! End-to-end test of memory profiles: the agent profiles programs that allocate known amounts in known functions.
//!
//! Requires root, a kernel with BTF and the memory tracepoints, and compilers for C++, Rust and Go; fails if one is
//! missing. The agent runs with the four capabilities that it has in a cluster.
#![expect(clippy::print_stdout, reason = "prints the measured shares")]
#![expect(clippy::unwrap_used, reason = "a panic shows the line of the failure")]

#[path = "../common/collector.rs"]
#[expect(dead_code, reason = "the kernel tests use the rest")]
mod collector;
mod hostile;
mod program;
mod tree;

use std::{path::Path, time::Duration};

use chainscope_agent::{Agent, Config, NodeConfig, Running};
use chainscope_profile::{Kind, ProfileData};
use collector::Collector;
use program::{Language, Program};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use tree::ProfileTree;

const TIMEOUT: Duration = Duration::from_secs(60);
/// Tolerance per function, in pages.
const TOLERANCE_PAGES: u64 = 1;

struct Fixture {
    dir: tempfile::TempDir,
    collector: Collector,
}

impl Fixture {
    fn new() -> Self {
        let _ = tracing_subscriber::fmt().with_test_writer().with_env_filter("info").try_init();
        drop_capabilities();
        Self { dir: tempfile::tempdir().unwrap(), collector: Collector::default() }
    }

    fn start(&self, node: NodeConfig) -> Running {
        let node = NodeConfig { name: "node".to_owned(), memory: true, ..node };
        let config = Config { ring_bytes: 1 << 20, ..Config::new(self.dir.path().join("data"), vec![node]) };
        Agent::start(config, self.collector.link()).unwrap()
    }

    /// Starts an agent that observes processes of an executable.
    fn start_for(&self, exe: &Path) -> Running {
        self.start(NodeConfig { exe: Some(exe.to_owned()), ..NodeConfig::default() })
    }

    /// Waits until `found` returns a value for the latest profile of a process.
    #[track_caller]
    fn wait_profile<T>(&self, what: &str, pid: u32, mut found: impl FnMut(&ProfileData) -> Option<T>) -> T {
        self.collector.wait(what, |delivered| {
            let data = delivered.profiles("node").rev().find(|data| data.process.pid == pid)?;
            found(data)
        })
    }

    fn wait_attached(&self, program: &Program) {
        self.wait_profile("the profile", program.pid(), |_| Some(()));
    }

    /// Waits until each function holds the expected pages within the tolerance, and the totals equal the kernel's
    /// counters.
    #[track_caller]
    fn wait_pages(&self, program: &Program, expected: &[(&str, u64)]) {
        let mut seen = String::new();
        let is_expected = |data: &ProfileData| {
            let held = ProfileTree::of(data, Kind::Anon);
            let functions: Vec<(&str, u64, u64)> =
                expected.iter().map(|(name, pages)| (*name, held.inclusive(name), *pages)).collect();
            seen = format!("{functions:?} of {held:#?}, {:?}", data.totals);
            let is_each_function =
                functions.iter().all(|(_, held, expected)| held.abs_diff(*expected) <= TOLERANCE_PAGES);
            let total = program.resident_anonymous();
            let kind = data.totals.kinds.iter().find(|kind| kind.kind == Kind::Anon.to_wire()).unwrap();
            let explained = kind.attributed + kind.before_attach;
            let is_total = data.totals.control_anon == total && explained == total && kind.unattributed == 0;
            let is_expected = is_each_function && is_total && held.total() == kind.attributed;
            if !is_expected {
                chainscope_testing::flush_page_lists();
            }
            is_expected.then_some(())
        };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            self.wait_profile("the amounts", program.pid(), is_expected);
        }));
        if result.is_err() {
            panic!("{}: expected {expected:?}, found {seen}", program.pid());
        }
    }

    /// Waits until the profile has ended without remaining anonymous memory.
    #[track_caller]
    fn wait_ended(&self, pid: u32) {
        let attributed = self.wait_profile("the end", pid, |data| (!data.runs()).then(|| data.attributed()));
        assert_eq!(attributed[Kind::Anon.index()], 0, "anonymous memory of a process that ended");
    }

    /// Returns the share of complete stacks in percent, and the counts by unwind result.
    fn complete(&self, program: &Program) -> (f64, String) {
        self.wait_profile("stacks", program.pid(), |data| {
            let stacks = &data.totals.stacks;
            let all: u64 = stacks.iter().map(|stack| stack.count).sum();
            let complete = stacks.iter().find(|stack| stack.reason == "complete").map_or(0, |stack| stack.count);
            (all > 0).then(|| (complete as f64 * 100.0 / all as f64, format!("{stacks:?}")))
        })
    }
}

/// Drops all capabilities except those of an agent in a cluster, for this thread and its descendants.
fn drop_capabilities() {
    let required =
        CapabilitySet::BPF | CapabilitySet::PERFMON | CapabilitySet::SYS_PTRACE | CapabilitySet::DAC_READ_SEARCH;
    let current = capabilities(None).unwrap();
    assert!(current.permitted.contains(required), "needs root");
    let sets = CapabilitySets { effective: required, permitted: required, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).unwrap();
}

fn pages_are_attributed_within_tolerance(language: Language, names: [&str; 3]) {
    let fixture = Fixture::new();
    let program = language.build(fixture.dir.path());
    // The agent starts before the program.
    let agent = fixture.start_for(&program);
    let mut first = Program::start(&program);
    fixture.wait_attached(&first);
    let [apply, commit, validate] = names;
    first.run("hold apply_block 1000");
    fixture.wait_pages(&first, &[(apply, 1000), (commit, 0), (validate, 0)]);
    first.run("hold commit 37");
    first.run("hold validate 20000");
    first.run("hold apply_block 100");
    fixture.wait_pages(&first, &[(apply, 1100), (commit, 37), (validate, 20_000)]);
    let (complete, ends) = fixture.complete(&first);
    println!("{language:?}: {complete:.3} % of the stacks reach their entry point");
    assert!(complete >= 99.9, "{complete} %: {ends}");
    first.run("release");
    fixture.wait_pages(&first, &[(apply, 0), (commit, 0), (validate, 0)]);
    let pid = first.end();
    fixture.wait_ended(pid);

    // The restarted program is profiled, also by an agent that attaches while it holds memory.
    let mut second = Program::start(&program);
    fixture.wait_attached(&second);
    second.run("hold apply_block 500");
    fixture.wait_pages(&second, &[(apply, 500)]);
    agent.shutdown(TIMEOUT).unwrap();
    let fixture = Fixture { collector: Collector::default(), dir: tempfile::tempdir().unwrap() };
    let agent = fixture.start(NodeConfig { pid: Some(second.pid()), ..NodeConfig::default() });
    fixture.wait_attached(&second);
    second.run("hold commit 700");
    fixture.wait_pages(&second, &[(apply, 0), (commit, 700)]);
    let before = fixture.wait_profile("what was before", second.pid(), |data| Some(data.before_attach()));
    assert!(before[Kind::Anon.index()] >= 4 * 500, "{before:?}");
    second.run("release");
    // Memory from before the attach decreases when it is freed.
    fixture.wait_profile("less of before", second.pid(), |data| {
        (data.before_attach()[Kind::Anon.index()] + 4 * 490 <= before[Kind::Anon.index()]).then_some(())
    });
    fixture.wait_pages(&second, &[(apply, 0), (commit, 0)]);
    fixture.wait_ended(second.end());
    agent.shutdown(TIMEOUT).unwrap();
}

#[test]
fn cpp_without_frame_pointers() {
    let names = [
        "chain::apply_block(unsigned long)",
        "chain::Context::commit(unsigned long)",
        "chain::validate(unsigned long)",
    ];
    pages_are_attributed_within_tolerance(Language::Cpp, names);
}

#[test]
fn release_rust() {
    // Names end with a hash.
    pages_are_attributed_within_tolerance(
        Language::Rust,
        ["holder::chain::apply_block::h", "holder::chain::Context::commit::h", "holder::chain::validate::h"],
    );
}

#[test]
fn go_without_eh_frame() {
    pages_are_attributed_within_tolerance(
        Language::Go,
        ["main.applyBlock", "main.(*context).commit", "main.validate.func1"],
    );
}

#[test]
fn deep_recursion_is_a_single_chain() {
    let fixture = Fixture::new();
    let exe = Language::Cpp.build(fixture.dir.path());
    let agent = fixture.start_for(&exe);
    let mut program = Program::start(&exe);
    fixture.wait_attached(&program);
    program.run("deep 120 50");
    fixture.wait_pages(&program, &[("bottom(unsigned long)", 50)]);
    let depth = fixture.wait_profile("the chain", program.pid(), |data| {
        let depth = ProfileTree::of(data, Kind::Anon).depth_below("descend(unsigned long, unsigned long)");
        (depth >= 121).then_some(depth)
    });
    // 121 calls, some of which the compiler may have unrolled, and their callees.
    assert!(depth <= 130, "{depth}");
    fixture.wait_ended(program.end());
    agent.shutdown(TIMEOUT).unwrap();
}

#[test]
fn a_deleted_library_is_symbolized() {
    let fixture = Fixture::new();
    let exe = Language::Cpp.build(fixture.dir.path());
    let library = program::plugin(fixture.dir.path());
    let agent = fixture.start_for(&exe);
    let mut program = Program::start(&exe);
    fixture.wait_attached(&program);
    program.run(&format!("load {} 300", library.display()));
    fixture.wait_pages(&program, &[("plugin_hold", 300)]);
    // Both files are replaced; later allocations are still symbolized.
    for path in [&library, &exe] {
        std::fs::remove_file(path).unwrap();
        std::fs::write(path, "another file").unwrap();
    }
    program.run("hold validate 60");
    program.run("again 1");
    fixture.wait_pages(&program, &[("plugin_hold", 301), ("chain::validate(unsigned long)", 60)]);
    fixture.wait_ended(program.end());
    agent.shutdown(TIMEOUT).unwrap();
}

#[test]
fn a_replaced_executable_is_symbolized() {
    let fixture = Fixture::new();
    let exe = Language::Cpp.build(fixture.dir.path());
    let mut program = Program::start(&exe);
    std::fs::remove_file(&exe).unwrap();
    std::fs::write(&exe, "another file").unwrap();
    let agent = fixture.start(NodeConfig { pid: Some(program.pid()), ..NodeConfig::default() });
    fixture.wait_attached(&program);
    program.run("hold validate 80");
    fixture.wait_pages(&program, &[("chain::validate(unsigned long)", 80)]);
    fixture.wait_ended(program.end());
    agent.shutdown(TIMEOUT).unwrap();
}

#[test]
fn a_chrooted_process_is_symbolized_within_its_root() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    program::contained(&root);
    // Requires the capability to change the root, which the fixture drops.
    let mut program = Program::start_in(&root, "/holder");
    let fixture = Fixture::new();
    let agent = fixture.start(NodeConfig { pid: Some(program.pid()), ..NodeConfig::default() });
    fixture.wait_attached(&program);
    program.run("hold validate 80");
    program.run("hold commit 20");
    let names = [("chain::validate(unsigned long)", 80), ("chain::Context::commit(unsigned long)", 20)];
    fixture.wait_pages(&program, &names);
    fixture.wait_ended(program.end());
    agent.shutdown(TIMEOUT).unwrap();
}

#[test]
fn a_child_has_its_own_profile() {
    let fixture = Fixture::new();
    let exe = Language::Cpp.build(fixture.dir.path());
    let agent = fixture.start_for(&exe);
    let mut program = Program::start(&exe);
    fixture.wait_attached(&program);
    program.run("hold validate 400");
    fixture.wait_pages(&program, &[("chain::validate(unsigned long)", 400)]);
    let child: u32 = program.request("fork").parse().unwrap();
    program.run("hold commit 90");
    let name = "chain::Context::commit(unsigned long)";
    fixture.wait_profile("the child's own", child, |data| {
        let held = ProfileTree::of(data, Kind::Anon);
        assert!(data.target.ends_with(&format!(", child {child}")), "{}", data.target);
        (held.inclusive(name).abs_diff(90) <= TOLERANCE_PAGES && held.inclusive("chain::validate(unsigned long)") == 0)
            .then_some(())
    });
    fixture.wait_profile("the parent's", program.pid(), |data| {
        (ProfileTree::of(data, Kind::Anon).inclusive("chain::validate(unsigned long)") == 400).then_some(())
    });
    let parent = program.end();
    fixture.wait_ended(child);
    fixture.wait_ended(parent);
    agent.shutdown(TIMEOUT).unwrap();
}

#[test]
fn metrics_report_the_profile() {
    let fixture = Fixture::new();
    let exe = Language::Cpp.build(fixture.dir.path());
    let agent = fixture.start_for(&exe);
    let mut program = Program::start(&exe);
    fixture.wait_attached(&program);
    program.run("hold validate 512");
    fixture.wait_pages(&program, &[("chain::validate(unsigned long)", 512)]);
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
    assert_eq!(agent.status().error, None);
    // The agent stops before the program, which ends the profile.
    let pid = program.pid();
    agent.shutdown(TIMEOUT).unwrap();
    let by = fixture.wait_profile("the end", pid, |data| (!data.runs()).then(|| data.process.ended_by.clone()));
    assert_eq!(by, "agent stopped");
    program.end();
}
