//! Memory of a recovery, measured in a process of its own.

use std::process::Command;

use super::*;

const LIMIT: u64 = 256 << 20;
const DIR: &str = "CHAINSCOPE_TEST_SPOOL";

#[test]
fn the_recovery_of_a_full_spool_holds_one_segment_at_a_time() {
    let dir = folder();
    let mut spool = open(dir.path(), LIMIT);
    let records: Vec<Record> = (0..8).map(|id| fact(id, 128 << 10)).collect();
    for _ in 0..96 {
        spool.append("a", &records);
        sync(&mut spool);
    }
    assert!(spool.bytes() >= 96 << 20 && files_of(&spool, "a").len() >= 20);
    drop(spool);
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["delivery::spool::tests::memory::recover", "--exact", "--ignored", "--nocapture"]);
    assert!(child.env(DIR, dir.path()).status().unwrap().success());
}

/// Not a test: the main function of the process whose memory is measured.
#[test]
#[ignore = "the main function of the measured process, run by the test"]
fn recover() {
    let peak_kib = || procfs::process::Process::myself().unwrap().status().unwrap().vmhwm.unwrap();
    let before = peak_kib();
    let spool = open(Path::new(&std::env::var(DIR).unwrap()), LIMIT);
    let grown = peak_kib() - before;
    assert!(spool.bytes() >= 96 << 20);
    assert!(grown < 24 << 10, "{grown} KiB more than before the spool was opened");
}
