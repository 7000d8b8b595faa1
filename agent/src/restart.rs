//! Losses of the time between two runs: every record stream that may lack records gets one loss of unknown amount.

use std::collections::BTreeSet;

use chainscope_proto::v1::{Loss, Record, record::Kind};

use crate::{
    Error,
    clock::realtime_ns,
    delivery::{RecordStreams, StreamStatus},
    folder::Folder,
};

/// Records the loss in the streams of the configured nodes, and in those that still have records to send.
/// `nodes` is none where no configuration was kept: then it is unknown which streams are out of use.
pub(crate) fn report_loss(
    folder: &Folder,
    streams: &RecordStreams,
    nodes: Option<&BTreeSet<String>>,
) -> Result<(), Error> {
    let Some(from) = folder.settled_ns()? else { return Ok(()) };
    let is_concerned = |stream: &&StreamStatus| nodes.is_none_or(|nodes| missed_something(stream, nodes));
    for stream in streams.status().iter().filter(is_concerned) {
        streams.push(&stream.node, unknown_loss("agent restarted", from, realtime_ns()));
    }
    Ok(())
}

/// Whether records of a stream are missing while no agent runs: its node is configured, or it still has records to send.
/// The others are of nodes that were deleted, and a record would make them appear again.
fn missed_something(stream: &StreamStatus, nodes: &BTreeSet<String>) -> bool {
    // One entry can have several processes: the further ones are named NODE@NAMESPACE.
    let entry = stream.node.rsplit_once('@').map_or("", |(entry, _)| entry);
    nodes.contains(&stream.node) || nodes.contains(entry) || stream.pending_records > 0
}

fn unknown_loss(reason: &str, from_ns: i64, to_ns: i64) -> Record {
    let loss = Loss {
        stage: "agent".to_owned(),
        reason: reason.to_owned(),
        from_ns,
        to_ns,
        amount_unknown: true,
        ..Default::default()
    };
    Record { time_ns: to_ns, target: String::new(), kind: Some(Kind::Loss(loss)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Streams with a loss after the agent restarted: node and number of records.
    fn reported(nodes: Option<&[&str]>, streams: &[&str]) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path()).unwrap();
        let open = || RecordStreams::open(&folder, 1 << 20, Some(1 << 20), streams.iter().copied()).unwrap();
        let before = open();
        assert!(before.push("pending", unknown_loss("test", 1, 2)));
        before.close();
        drop(before);
        folder.set_settled_ns(1).unwrap();
        let streams = open();
        let nodes = nodes.map(|nodes| nodes.iter().map(|node| (*node).to_owned()).collect());
        report_loss(&folder, &streams, nodes.as_ref()).unwrap();
        streams.close();
        let reported = streams.status().into_iter().filter(|stream| stream.pending_records > 0);
        reported.map(|stream| format!("{} {}", stream.node, stream.pending_records)).collect()
    }

    #[test]
    fn a_restart_is_not_recorded_for_nodes_that_were_deleted() {
        let streams = ["default/octez", "default/gone", "pending"];
        assert_eq!(reported(Some(&["default/octez"]), &streams), ["default/octez 1", "pending 2"]);
        let all = ["default/gone 1", "default/octez 1", "pending 2"];
        assert_eq!(reported(None, &streams), all, "it is unknown which were deleted");
        let streams = ["9732", "9732@4026531840", "gone", "gone@4026531840", "pending"];
        assert_eq!(reported(Some(&["9732", "new"]), &streams), ["9732 1", "9732@4026531840 1", "pending 2"]);
    }
}
