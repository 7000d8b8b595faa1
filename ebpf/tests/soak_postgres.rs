//! Debian's PostgreSQL under load: one process for each client, shared memory, and a dozen libraries without frame
//! pointers. Runs in `make soak`, which installs PostgreSQL.

mod memory_common;

use std::collections::BTreeMap;
use std::time::Duration;

use chainscope_ebpf::memory::{MemoryProbe, StackEnd};
use chainscope_testing::postgres::Postgres;

use memory_common::{Snapshot, probe};

/// Runs a client to completion while polling the probe.
fn serve(postgres: &Postgres, probe: &mut MemoryProbe, program: &str, arguments: &[&str]) {
    let mut client = postgres.client(program).args(arguments).spawn().expect("a child process");
    let status = loop {
        if let Some(status) = client.try_wait().expect("a child process") {
            break status;
        }
        probe.poll(Duration::from_millis(10)).expect("a successful poll");
    };
    assert!(status.success(), "{program} {arguments:?}");
}

#[test]
fn postgres_under_load() {
    let mut probe = probe();
    let postgres = Postgres::start(&[]);
    probe.watch(postgres.pid()).expect("the process is running");
    serve(&postgres, &mut probe, "pgbench", &["--initialize", "--scale=10", "postgres"]);
    serve(&postgres, &mut probe, "pgbench", &["--client=8", "--jobs=2", "--transactions=2000", "postgres"]);
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
