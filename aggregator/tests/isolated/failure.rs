//! A database that fails while the program runs. Needs the right to trace the program.

use std::{
    fs::{self, File},
    process::{Child, Command},
};

use chainscope_proto::v1::{
    Batch, RecordRequest, ingest_client::IngestClient, record::Kind, record_reply::Reply, record_request::Request,
};
use chainscope_store::Store;
use chainscope_testing::{free_port, syscalls::Trace, wait::until};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use crate::common::{TIME, hello, message, record};

/// A program that is killed when dropped.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        // Fails if it has exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_program_exits_when_the_database_takes_no_more_writes() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let ingest = format!("127.0.0.1:{}", free_port());
    let program = Command::new(env!("CARGO_BIN_EXE_chainscope-aggregator"))
        .arg("--data-dir")
        .arg(dir.path())
        .args(["--listen", "127.0.0.1:0", "--ingest-listen", &ingest])
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let mut program = Program(program);
    let batch = |first_sequence| RecordRequest {
        request: Some(Request::Batch(Batch {
            node: "n".into(),
            first_sequence,
            records: vec![record(TIME, Kind::Message(message("advertise")))],
        })),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let endpoint = Channel::from_shared(format!("http://{ingest}")).unwrap();
    let channel = until("it listens", || runtime.block_on(endpoint.connect()).ok());
    let _failing = runtime.block_on(async {
        let (requests, stream) = mpsc::channel(4);
        requests.send(RecordRequest { request: Some(Request::Hello(hello(&["n"]))) }).await.unwrap();
        let mut client = IngestClient::new(channel);
        let mut replies = client.record(ReceiverStream::new(stream)).await.unwrap().into_inner();
        requests.send(batch(0)).await.unwrap();
        let acknowledged = |reply| matches!(reply, Some(Reply::Ack(ack)) if ack.next_sequence == 1);
        while !acknowledged(replies.message().await.unwrap().unwrap().reply) {}

        let failing = Trace::of_process(&dir.path().join("calls"), program.0.id(), &["inject=fdatasync:error=EIO"]);
        requests.send(batch(1)).await.unwrap();
        let refused = replies.message().await;
        assert!(refused.is_err(), "{refused:?}");
        failing
    });
    let status = until("it exits", || program.0.try_wait().unwrap());
    assert_eq!(status.code(), Some(1));
    let log = fs::read_to_string(&log).unwrap();
    assert!(log.contains("chainscope-aggregator: the database failed: "), "{log}");
    // It can be opened again, and has what was acknowledged.
    let store = Store::open(dir.path().join("db"), Default::default()).unwrap();
    assert!(store.visible("n").1 >= 1);
}
