//! What is left behind by agents, and by a launcher that is killed. One by one: these count objects of the whole kernel, and expect
//! that no other launcher cleans up.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use chainscope_e2e::cluster::release::{RELEASE, pods_of};
use chainscope_e2e::cluster::scene::{NODE, Scene};
use chainscope_e2e::cluster::{Level, Setup};
use chainscope_e2e::harness::program::Program;
use chainscope_e2e::harness::{binary, wait};

#[test]
fn agents_come_and_go_and_leave_nothing() {
    const TIMES: u32 = 20;
    let scene = Scene::new(1, &[]);
    scene.play_load(1_000_000, 20);
    scene.until_count(100);
    let before = HostState::now(&scene);
    for time in 0..TIMES {
        let agent = agent_of(&scene, None);
        // SIGTERM and SIGKILL in turn.
        let options = if time % 2 == 0 { "" } else { "--force --grace-period 0" };
        scene.cluster.kubectl(&format!("delete pod {agent} --namespace {RELEASE} {options}"));
        agent_of(&scene, Some(&agent));
        let count = scene.count();
        scene.until_count(count + 20);
    }
    wait::until("the same kernel objects as before", || {
        let now = HostState::now(&scene);
        let is_same = now == before;
        if !is_same {
            eprintln!("before: {before:?}\nnow: {now:?}");
        }
        is_same.then_some(())
    });
    assert!(scene.undecryptable().is_empty(), "{:?}", scene.undecryptable());
    assert_eq!(scene.reader.connections(NODE).len(), 1, "one session is one connection");
}

/// The name of a ready agent pod other than `not`.
fn agent_of(scene: &Scene, not: Option<&str>) -> String {
    scene.cluster.until("an agent to be ready", &pods_of("agent"), |found| {
        let mut pods = found["items"].as_array()?.iter();
        let ready = pods.find(|pod| {
            let name = pod["metadata"]["name"].as_str();
            name != not && pod["status"]["containerStatuses"][0]["ready"] == true
        })?;
        ready["metadata"]["name"].as_str().map(str::to_owned)
    })
}

/// Kernel objects and mounts that an agent could leave on its host.
#[derive(Debug, PartialEq, Eq)]
struct HostState {
    mounts: BTreeSet<String>,
    pins: String,
    programs: usize,
    maps: usize,
    links: usize,
}

impl HostState {
    fn now(scene: &Scene) -> Self {
        let host = scene.cluster.hosts().first().expect("a host");
        let output = |program: &str, arguments: &[&str]| {
            let output = host.command(program).args(arguments).output().expect("a program of the host");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let mounts = output("cat", &["/proc/self/mountinfo"]);
        // Mounts of pods and containers have their ids in the path.
        let mount_point = |line: &str| line.split(' ').nth(4).map(str::to_owned);
        let of_pods =
            |path: &String| path.contains("/pods/") || path.contains("/k8s.io/") || path.contains("/sandboxes/");
        Self {
            mounts: mounts
                .lines()
                .filter_map(mount_point)
                .filter(|path| !of_pods(path) && !path.contains("cni-"))
                .collect(),
            pins: output("find", &["/sys/fs/bpf", "-mindepth", "1"]),
            programs: aya::programs::loaded_programs().count(),
            maps: aya::maps::loaded_maps().count(),
            links: aya::programs::loaded_links().count(),
        }
    }
}

#[test]
fn a_killed_launcher_leaves_nothing() {
    let up = || {
        let mut command = Command::new(binary("chainscope-cluster"));
        let program = Program::start("chainscope-cluster", command.args(["up", "--bare", "--hosts", "2"]));
        let config = program.wait_stdout("KUBECONFIG", |lines| {
            lines.iter().find_map(|line| line.strip_prefix("export KUBECONFIG=")).map(PathBuf::from)
        });
        (program, config.parent().expect("a folder").to_owned())
    };
    // After SIGTERM the launcher cleans up.
    let (program, folder) = up();
    assert!(!groups(&folder).is_empty());
    program.terminate().expect_success("chainscope-cluster");
    assert!(!folder.exists() && groups(&folder).is_empty(), "{:?}", groups(&folder));
    // After SIGKILL the next launcher cleans up.
    let (program, folder) = up();
    drop(program.kill());
    assert!(folder.exists() && !groups(&folder).is_empty());
    drop(Setup::new(Level::Api).start());
    assert!(!folder.exists() && groups(&folder).is_empty(), "{:?}", groups(&folder));
}

/// Cgroups of a cluster.
fn groups(folder: &Path) -> Vec<PathBuf> {
    let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
            let ours = path.file_name().is_some_and(|file| file.to_string_lossy().contains(&name));
            match path.is_dir() && !path.is_symlink() {
                true if ours => found.push(path),
                true => folders.push(path),
                false => {}
            }
        }
    }
    found
}
