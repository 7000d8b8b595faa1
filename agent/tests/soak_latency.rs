//! Verdicts on real programs that are slower by a known share: naps, recorded at the same time and one after the other, and Debian's
//! PostgreSQL under pgbench with settings that differ. 20 pairs of runs each. Runs in `make soak`, as root.
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
    verdict::{Design, Options, Side, Verdict, compare},
};
use chainscope_testing::{postgres::Postgres, program::compile, wait};

/// Pairs of runs, unless CHAINSCOPE_SOAK_PAIRS says another number.
const PAIRS: usize = 20;
/// How long a run is.
#[derive(Debug, Clone, Copy)]
struct Length {
    blocks: u32,
    block: Duration,
}

/// Twice as many blocks as a verdict needs.
const NAPS: Length = Length { blocks: 16, block: Duration::from_millis(500) };
/// Runs one after the other are no pairs, so that what the machine did meanwhile makes their intervals wider.
const NAPS_LATER: Length = Length { blocks: 32, block: Duration::from_millis(500) };
/// Queries compete for processors, so that their blocks differ by more: a change of 9 % is 4 % beyond the margin.
const QUERIES: Length = Length { blocks: 80, block: Duration::from_secs(1) };
/// Queries a second of each server.
const RATE: u32 = 200;

fn is_long() -> bool {
    let is_long = std::env::var_os("CHAINSCOPE_SOAK").is_some();
    if !is_long {
        eprintln!("not run: CHAINSCOPE_SOAK is not set (`make soak`)");
    }
    is_long
}

fn pairs() -> usize {
    std::env::var("CHAINSCOPE_SOAK_PAIRS").ok().and_then(|text| text.parse().ok()).unwrap_or(PAIRS)
}

/// Runs of a function of some processes, recorded at the same time.
fn record(processes: &[u32], function: &str, length: Length) -> Vec<Run> {
    let options = RecordOptions { block: length.block, ..RecordOptions::default() };
    let request = SpanRequest {
        name: None,
        entry: function.parse().unwrap(),
        exit: None,
        counts_returns: false,
        is_optional: false,
    };
    let plan =
        |pid: &u32| Plan::new(Program::open(Some(*pid), None).unwrap(), std::slice::from_ref(&request), &options);
    let mut recorders: Vec<Recorder> =
        processes.iter().map(|pid| Recorder::attach(&plan(pid).unwrap(), &options).unwrap()).collect();
    let mut blocks = vec![Vec::new(); processes.len()];
    for _ in 1..length.blocks {
        std::thread::park_timeout(length.block);
        for (recorder, blocks) in recorders.iter_mut().zip(&mut blocks) {
            blocks.extend(recorder.sample().unwrap());
        }
    }
    std::thread::park_timeout(length.block);
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
    fn add(&mut self, name: &'static str, a: &Run, b: &Run, is_simultaneous: bool) {
        let side = |run| Side { runs: std::slice::from_ref(run) };
        let comparison = compare(side(a), side(b), &Options::default());
        let design = if is_simultaneous { Design::Paired } else { Design::Blocks };
        assert_eq!(comparison.functions[0].design, design);
        let quantiles = comparison.functions[0].quantiles.iter();
        let changes: Vec<String> = quantiles
            .map(|quantile| [quantile.change_percent, quantile.low_percent, quantile.high_percent])
            .map(|percents| percents.map(|percent| percent.map_or("-".to_owned(), |percent| format!("{percent:.1}"))))
            .map(|[change, low, high]| format!("{change} ({low} to {high})"))
            .collect();
        eprintln!("{name}: {}, {} %", comparison.verdict.as_str(), changes.join(", "));
        *self.0.entry(name).or_default().entry(comparison.verdict).or_default() += 1;
    }

    fn count(&self, name: &str, verdict: Verdict) -> usize {
        self.0[name].get(&verdict).copied().unwrap_or(0)
    }

    /// No change is judged as one in at most 1 pair of 20, 2 % with a margin of 5 % never, 10 % always.
    fn verify(&self, pairs: usize) {
        eprintln!("{self:?}");
        assert!(
            self.count("0 %", Verdict::Slower) + self.count("0 %", Verdict::Faster) <= pairs.div_ceil(20),
            "{self:?}"
        );
        assert_eq!(self.count("2 %", Verdict::Slower), 0, "{self:?}");
        assert_eq!(self.count("10 %", Verdict::Slower), pairs, "{self:?}");
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

fn naps(name: &str, is_simultaneous: bool) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testing/programs/latency_plain.c");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = compile("gcc", &source, folder, name, &["-O2", "-pthread"]);
    let mut verdicts = Verdicts::default();
    for _ in 0..pairs() {
        let napping = [1000, 1000, 1020, 1100].map(|permille| Napping::start(&program, permille));
        let processes = napping.each_ref().map(|napping| napping.0.id());
        let runs = match is_simultaneous {
            true => record(&processes, "plain_nap", NAPS),
            false => processes.iter().flat_map(|process| record(&[*process], "plain_nap", NAPS_LATER)).collect(),
        };
        for (name, slower) in [("0 %", &runs[1]), ("2 %", &runs[2]), ("10 %", &runs[3])] {
            verdicts.add(name, &runs[0], slower, is_simultaneous);
        }
    }
    verdicts.verify(pairs());
}

#[test]
fn a_program_that_is_slower_by_a_known_share() {
    if is_long() {
        naps("soak_latency", true);
    }
}

/// Blocks are no pairs then: what the machine did meanwhile differs.
#[test]
fn a_program_that_was_recorded_earlier() {
    if is_long() {
        naps("soak_latency_later", false);
    }
}

/// A server under load, and the process that serves its client.
struct Served {
    client: Child,
    backend: u32,
}

impl Served {
    fn start(postgres: &Postgres, script: &Path) -> Self {
        let mut client = postgres.client("pgbench");
        let rate = format!("--rate={RATE}");
        client.args(["--no-vacuum", "--client=1", &rate, "--time=3600", "--file"]).arg(script).arg("postgres");
        let client = client.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let backend = wait::until("the client", || {
            // Not the connection by which pgbench looks at the server first.
            let serving = "application_name = 'pgbench' AND query LIKE 'SELECT sum(n)%'";
            postgres.query(&format!("SELECT pid FROM pg_stat_activity WHERE {serving}")).trim().parse().ok()
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

/// A query that reads as many rows as a setting says.
#[test]
fn postgres_with_settings_that_differ() {
    if !is_long() {
        return;
    }
    let script = tempfile::Builder::new().prefix("chainscope-query").tempfile_in("/tmp").unwrap();
    let query = "SELECT sum(n) FROM numbers WHERE n <= current_setting('soak.rows')::int;";
    std::fs::write(script.path(), query).unwrap();
    std::fs::set_permissions(script.path(), PermissionsExt::from_mode(0o644)).unwrap();
    let servers = [10_000, 10_000, 10_200, 11_000].map(|rows| {
        let rows = format!("soak.rows={rows}");
        // Reads of the index only, in one process.
        Postgres::start(&[
            &rows,
            "enable_seqscan=off",
            "enable_bitmapscan=off",
            "max_parallel_workers_per_gather=0",
            "jit=off",
        ])
    });
    for server in &servers {
        let _ = server.query("CREATE TABLE numbers AS SELECT generate_series(1, 20000) AS n");
        let _ = server.query("CREATE INDEX ON numbers (n)");
        let _ = server.query("VACUUM ANALYZE numbers");
    }
    let mut verdicts = Verdicts::default();
    for _ in 0..pairs() {
        let served = servers.each_ref().map(|server| Served::start(server, script.path()));
        let runs = record(&served.each_ref().map(|served| served.backend), "standard_ExecutorRun", QUERIES);
        for (name, slower) in [("0 %", &runs[1]), ("2 %", &runs[2]), ("10 %", &runs[3])] {
            verdicts.add(name, &runs[0], slower, true);
        }
        drop(served);
        for server in &servers {
            wait::until_true("the client has left", || {
                server.query("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'").trim() == "0"
            });
        }
    }
    verdicts.verify(pairs());
}
