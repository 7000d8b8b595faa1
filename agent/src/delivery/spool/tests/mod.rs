//! The spool against a model aggregator and a model disk: after drops, kills and cuts sequences are dense, a resend is
//! identical, and each appended record is delivered once or counted in one loss.

mod damage;
mod memory;
mod model;
mod shares;
mod streams;

use std::collections::BTreeMap;

use chainscope_proto::v1::{Chunk, Loss, record::Kind};

use super::*;

const NODES: [&str; 2] = ["a", "b"];
const EPOCH: Epoch = Epoch([7; 16]);
const NOW: i64 = 1_000_000;

/// A directory in memory if there is one: the tests sync often and do not depend on the durability.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn fact(id: i64, size: usize) -> Record {
    let chunk = Chunk { plain: vec![b'x'; size].into(), ..Chunk::default() };
    Record { time_ns: id, target: "t".to_owned(), kind: Some(Kind::Chunk(chunk)) }
}

fn losses(records: &[Record]) -> Vec<&Loss> {
    records.iter().filter_map(|r| if let Some(Kind::Loss(loss)) = &r.kind { Some(loss) } else { None }).collect()
}

fn open(dir: &Path, limit: u64) -> Spool {
    let mut spool = Spool::open(dir, &EPOCH, limit, NOW).unwrap();
    for node in NODES {
        spool.open_stream(node, true).unwrap();
    }
    spool
}

fn sync(spool: &mut Spool) {
    for (node, sync) in spool.unsynced() {
        sync.run().unwrap();
        spool.finish_sync(&node, true);
    }
}

/// The durable records of the model aggregator, by node.
#[derive(Default)]
struct Durable(BTreeMap<String, Vec<Record>>);

impl Durable {
    fn take(&mut self, batch: &Batch) -> u64 {
        let stream = self.0.entry(batch.node.clone()).or_default();
        assert!(batch.first_sequence <= stream.len() as u64, "a hole before {}", batch.first_sequence);
        for (place, record) in batch.records.iter().enumerate() {
            match stream.get(usize::try_from(batch.first_sequence).unwrap() + place) {
                Some(known) => assert_eq!(known, record, "a resend differs"),
                None => stream.push(record.clone()),
            }
        }
        stream.len() as u64
    }

    fn marks(&self) -> Vec<HighWaterMark> {
        let mark = |(node, stream): (&String, &Vec<Record>)| HighWaterMark {
            node: node.clone(),
            next_sequence: stream.len() as u64,
        };
        self.0.iter().map(mark).collect()
    }

    fn stream(&self, node: &str) -> &[Record] {
        self.0.get(node).map_or(&[], Vec::as_slice)
    }
}

/// Sends and acknowledges everything.
fn deliver(spool: &mut Spool, durable: &mut Durable) {
    sync(spool);
    spool.write_pending_losses();
    sync(spool);
    spool.begin_session(&durable.marks(), &spool.names());
    while let Some(batch) = spool.next_batch(&BTreeSet::new()) {
        let mark = durable.take(&batch);
        spool.acknowledge(&batch.node, mark).unwrap();
    }
    assert!(spool.is_empty());
}

fn files_of(spool: &Spool, node: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(spool.streams.by_node[node].dir()).unwrap().map(|item| item.unwrap().path()).collect();
    files.retain(|path| !path.ends_with("node"));
    files.sort();
    files
}

/// Appends `segments` segments of 100 KB, ten records each.
fn fill(spool: &mut Spool, node: &str, from: i64, segments: i64) {
    for id in from..from + 10 * segments {
        spool.append(node, &[fact(id, 10_000)]);
        sync(spool);
    }
}
