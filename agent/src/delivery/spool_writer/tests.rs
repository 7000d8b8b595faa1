//! What the spool asks of the disk, seen by strace. Needs the right to trace this process.

use std::{fs::File, io::Write as _, path::Path};

use chainscope_proto::v1::{Chunk, Record, record::Kind};
use chainscope_testing::syscalls::{Trace, acknowledged_after_sync};

use super::{Buffers, write_once};
use crate::{
    delivery::{queue::MemoryQueue, spool::Spool, stream::StreamBuffer as _},
    folder::Epoch,
};

const NODE: &str = "n";

#[test]
fn records_are_synced_before_they_can_be_sent() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = Spool::open(folder.path(), &Epoch([7; 16]), 1 << 20, 0).unwrap();
    spool.open_stream(NODE, false).unwrap();
    spool.begin_session(&[], &[NODE.to_owned()]);
    let mut queue = MemoryQueue::new(1 << 20);
    queue.open(NODE, Some(0));
    let buffers = Buffers::new(queue, Some(spool));
    let path = folder.path().join("sent");
    let mut sent = File::create(&path).unwrap();
    let trace = Trace::of_this_thread(&folder.path().join("calls"), &[]);
    for id in 0..5 {
        let chunk = Chunk { plain: vec![b'x'; 100].into(), ..Chunk::default() };
        let record = Record { time_ns: id, target: "t".to_owned(), kind: Some(Kind::Chunk(chunk)) };
        assert!(buffers.queue.lock().push(NODE, record.clone()));
        assert!(write_once(&buffers));
        let batch = buffers.outgoing().next_batch(&Default::default()).expect("it can be sent");
        assert_eq!(batch.records, [record]);
        sent.write_all(b"s").unwrap();
    }
    let is_spooled = |path: &Path| path.starts_with(folder.path().join("spool"));
    assert_eq!(acknowledged_after_sync(&trace.stop(), &path, is_spooled), 5);
}
