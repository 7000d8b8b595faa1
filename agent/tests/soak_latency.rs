//! Verdicts on real programs: one that is slower by a known share, and Debian's PostgreSQL with two settings. 20 pairs of runs each,
//! recorded at the same time. Runs in `make soak`, as root.
#![expect(clippy::unwrap_used, reason = "a panic shows the line of the failure")]

use std::{
    collections::BTreeMap,
    io::Write as _,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use chainscope_agent::latency::{Plan, Program, RecordOptions, Recorder, SpanRequest};
use chainscope_latency::{
    Run,
    verdict::{Options, Side, Verdict, compare},
};
use chainscope_testing::{postgres::Postgres, program::compile, wait};

/// Pairs of runs.
const PAIRS: usize = 20;
/// Blocks of a run: twice as many as a verdict needs.
const BLOCKS: u32 = 16;
const BLOCK: Duration = Duration::from_millis(500);

fn is_long() -> bool {
    let is_long = std::env::var_os("CHAINSCOPE_SOAK").is_some();
    if !is_long {
        eprintln!("not run: CHAINSCOPE_SOAK is not set (`make soak`)");
    }
    is_long
}

/// Runs of a function of some processes, recorded at the same time.
fn record(processes: &[u32], function: &str) -> Vec<Run> {
    let options = RecordOptions { block: BLOCK, ..RecordOptions::default() };
    let request = SpanRequest { name: None, entry: function.parse().unwrap(), exit: None, counts_returns: false };
    let plan =
        |pid: &u32| Plan::new(Program::open(Some(*pid), None).unwrap(), std::slice::from_ref(&request), &options);
    let mut recorders: Vec<Recorder> =
        processes.iter().map(|pid| Recorder::attach(&plan(pid).unwrap(), &options).unwrap()).collect();
    let mut blocks = vec![Vec::new(); processes.len()];
    for _ in 1..BLOCKS {
        std::thread::park_timeout(BLOCK);
        for (recorder, blocks) in recorders.iter_mut().zip(&mut blocks) {
            blocks.extend(recorder.sample().unwrap());
        }
    }
    std::thread::park_timeout(BLOCK);
    let runs = recorders.into_iter().zip(blocks).map(|(recorder, mut blocks)| {
        let functions = recorder.functions().to_vec();
        let (info, last) = recorder.finish().unwrap();
        blocks.extend(last);
        Run { info, functions, blocks, transactions: Vec::new() }
    });
    runs.collect()
}

/// Verdicts by the name of what was compared.
#[derive(Debug, Default)]
struct Verdicts(BTreeMap<&'static str, BTreeMap<Verdict, usize>>);

impl Verdicts {
    fn add(&mut self, name: &'static str, a: &Run, b: &Run) {
        let side = |run| Side { runs: std::slice::from_ref(run) };
        let comparison = compare(side(a), side(b), &Options::default());
        let changes: Vec<Option<f64>> =
            comparison.functions[0].quantiles.iter().map(|quantile| quantile.change_percent).collect();
        eprintln!("{name}: {}, {changes:.1?} %", comparison.verdict.as_str());
        *self.0.entry(name).or_default().entry(comparison.verdict).or_default() += 1;
    }

    fn count(&self, name: &str, verdict: Verdict) -> usize {
        self.0[name].get(&verdict).copied().unwrap_or(0)
    }

    fn changed(&self, name: &str) -> usize {
        self.count(name, Verdict::Slower) + self.count(name, Verdict::Faster)
    }
}

/// A process that naps, for longer by a share. It is woken in time whatever else the machine does: a real-time process is not kept
/// waiting by others, which would make the share unknown.
struct Napping(Child);

impl Napping {
    fn start(program: &Path, permille: u32) -> Self {
        let mut command = Command::new("chrt");
        let mut child =
            command.args(["--fifo", "10"]).arg(program).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        writeln!(child.stdin.as_mut().unwrap(), "vary 10000000 {permille}").unwrap();
        let executable = PathBuf::from(format!("/proc/{}/exe", child.id()));
        wait::until_true("the program", || {
            executable.read_link().is_ok_and(|running| running.file_name() == program.file_name())
        });
        Self(child)
    }
}

impl Drop for Napping {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_program_that_is_slower_by_a_known_share() {
    if !is_long() {
        return;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testing/programs/latency_plain.c");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = compile("gcc", &source, folder, "soak_latency", &["-O2", "-pthread"]);
    let mut verdicts = Verdicts::default();
    for _ in 0..PAIRS {
        let napping = [1000, 1000, 1020, 1100].map(|permille| Napping::start(&program, permille));
        let runs = record(&napping.each_ref().map(|napping| napping.0.id()), "plain_nap");
        for (name, slower) in [("0 %", &runs[1]), ("2 %", &runs[2]), ("10 %", &runs[3])] {
            verdicts.add(name, &runs[0], slower);
        }
    }
    println!("{verdicts:?}");
    assert!(verdicts.changed("0 %") <= 1, "{verdicts:?}");
    assert_eq!(verdicts.count("2 %", Verdict::Slower), 0, "{verdicts:?}");
    assert_eq!(verdicts.count("10 %", Verdict::Slower), PAIRS, "{verdicts:?}");
}

/// A server under load, and the process that serves its client.
struct Served {
    client: Child,
    backend: u32,
}

impl Served {
    /// 100 queries a second.
    fn start(postgres: &Postgres, script: &Path) -> Self {
        let mut client = postgres.client("pgbench");
        client.args(["--no-vacuum", "--client=1", "--rate=100", "--time=3600", "--file"]).arg(script).arg("postgres");
        let client = client.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let backend = wait::until("the client", || {
            postgres.query("SELECT pid FROM pg_stat_activity WHERE application_name = 'pgbench'").trim().parse().ok()
        });
        Self { client, backend }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.client.kill();
        let _ = self.client.wait();
    }
}

/// A query that may not use an index with one of the settings.
#[test]
fn postgres_with_two_settings() {
    if !is_long() {
        return;
    }
    let script = tempfile::Builder::new().prefix("chainscope-query").tempfile_in("/tmp").unwrap();
    std::fs::write(script.path(), "SELECT sum(n) FROM numbers WHERE n <= 2000;").unwrap();
    std::fs::set_permissions(script.path(), PermissionsExt::from_mode(0o644)).unwrap();
    let without = ["enable_indexscan=off", "enable_indexonlyscan=off", "enable_bitmapscan=off"];
    let servers = [&[][..], &[], &without].map(Postgres::start);
    for server in &servers {
        let _ = server.query("CREATE TABLE numbers AS SELECT generate_series(1, 20000) AS n");
        let _ = server.query("CREATE INDEX ON numbers (n)");
        let _ = server.query("VACUUM ANALYZE numbers");
    }
    let mut verdicts = Verdicts::default();
    for _ in 0..PAIRS {
        let served = servers.each_ref().map(|server| Served::start(server, script.path()));
        let runs = record(&served.each_ref().map(|served| served.backend), "standard_ExecutorRun");
        verdicts.add("equal", &runs[0], &runs[1]);
        verdicts.add("without index", &runs[0], &runs[2]);
        drop(served);
        for server in &servers {
            wait::until_true("the client has left", || {
                server.query("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'").trim() == "0"
            });
        }
    }
    println!("{verdicts:?}");
    assert!(verdicts.changed("equal") <= 1, "{verdicts:?}");
    assert_eq!(verdicts.count("without index", Verdict::Slower), PAIRS, "{verdicts:?}");
}
