//! Debian's PostgreSQL under load: one process for each client, shared memory, and a dozen libraries without frame
//! pointers. Runs in `make soak`, which installs PostgreSQL.

mod memory_common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use chainscope_ebpf::memory::{MemoryProbe, StackEnd};
use chainscope_testing::wait;

use memory_common::{Snapshot, probe};

/// A server with its own database cluster, run as the user `postgres`.
struct Postgres {
    programs: PathBuf,
    folder: PathBuf,
    server: Child,
}

impl Postgres {
    fn start() -> Self {
        let versions = std::fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL is installed: scripts/setup-soak");
        let newest = versions.map(|entry| entry.expect("a folder").path()).max().expect("a version");
        let programs = newest.join("bin");
        let made = as_postgres(Path::new("mktemp")).args(["-d", "/tmp/chainscope-postgres-XXXXXX"]).output();
        let folder = PathBuf::from(String::from_utf8(made.expect("mktemp").stdout).expect("a path").trim());
        succeed(as_postgres(&programs.join("initdb")).args(["--auth=trust", "--pgdata"]).arg(&folder));
        let server = as_postgres(&programs.join("postgres"))
            .args(["-h", "", "-c", "fsync=off", "-k"])
            .arg(&folder)
            .arg("-D")
            .arg(&folder)
            .spawn()
            .expect("a child process");
        let postgres = Self { programs, folder, server };
        wait::until_true("the server", || postgres.client("pg_isready").status().is_ok_and(|status| status.success()));
        postgres
    }

    fn client(&self, program: &str) -> Command {
        let mut command = as_postgres(&self.programs.join(program));
        command.arg("-h").arg(&self.folder);
        command
    }

    /// Runs a client to completion while polling the probe.
    fn serve(&self, probe: &mut MemoryProbe, program: &str, arguments: &[&str]) {
        let mut client = self.client(program).args(arguments).spawn().expect("a child process");
        let status = loop {
            if let Some(status) = client.try_wait().expect("a child process") {
                break status;
            }
            probe.poll(Duration::from_millis(10)).expect("a successful poll");
        };
        assert!(status.success(), "{program} {arguments:?}");
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ =
            as_postgres(&self.programs.join("pg_ctl")).args(["stop", "-m", "fast", "-D"]).arg(&self.folder).status();
        let _ = self.server.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn as_postgres(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]).arg(program);
    command.current_dir("/tmp");
    command
}

fn succeed(command: &mut Command) {
    let output = command.output().expect("a child process");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn postgres_under_load() {
    let mut probe = probe();
    let postgres = Postgres::start();
    probe.watch(postgres.server.id()).expect("the process is running");
    postgres.serve(&mut probe, "pgbench", &["--initialize", "--scale=10", "postgres"]);
    postgres.serve(&mut probe, "pgbench", &["--client=8", "--jobs=2", "--transactions=2000", "postgres"]);
    let snapshot = Snapshot::take(&mut probe);
    let mut ends: BTreeMap<&str, u64> = BTreeMap::new();
    for (end, count) in snapshot.reading.targets.iter().flat_map(|target| &target.stacks) {
        *ends.entry(end.name()).or_default() += count;
    }
    let (all, complete) = (ends.values().sum::<u64>(), ends[StackEnd::Complete.name()]);
    let health = &snapshot.reading.health;
    println!("{complete} of {all} stacks complete in {} processes: {ends:?}", snapshot.reading.targets.len());
    assert!(health.checked > 0 && health.mismatches == 0, "{health:?}");
    assert!(snapshot.reading.targets.len() > 10 && all > 50_000, "{all} stacks");
    assert!(complete * 1000 >= all * 999, "{complete} of {all}: {ends:?}");
}
