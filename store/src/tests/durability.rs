//! What the store asks of the disk, seen by strace. Needs the right to trace this process.

use std::{fs::File, io::Write as _};

use chainscope_testing::syscalls::{Trace, acknowledged_after_sync};

use super::support::*;

#[test]
fn the_log_is_synced_between_a_write_and_its_acknowledgement() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("db"), options());
    let path = dir.path().join("acknowledged");
    let mut acknowledged = File::create(&path).unwrap();
    let trace = Trace::of_this_thread(&dir.path().join("calls"), &[]);
    for counter in 0..5 {
        put(&store, &traffic(1, counter, 1));
        assert_eq!(store.durable_high_water_mark(NODE, AGENT, EPOCH), 2 * (counter + 1));
        acknowledged.write_all(b"a").unwrap();
    }
    let is_log = |path: &std::path::Path| path.extension().is_some_and(|extension| extension == "log");
    assert_eq!(acknowledged_after_sync(&trace.stop(), &path, is_log), 5);
}
