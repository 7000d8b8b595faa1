//! Which records of an agent are accepted: those of nodes with a valid name, and, with an operator, of nodes that have pods
//! on the agent's host. A stream that exists is accepted although the pod has moved: its agent may have spooled records.

use std::{collections::HashMap, sync::Arc, time::Instant};

use chainscope_hygiene::{EscapedTruncated, warn_limited};
use chainscope_proto::v1::Batch;

use super::{SessionError, shared::Shared, trust::Proof};
use crate::{
    catalog::Catalog,
    nodes::{ResolveError, check_name},
};

/// Decides which streams of an authenticated agent are accepted in a session.
pub(super) struct Admission {
    proof: Proof,
    streams: HashMap<String, StreamState>,
}

#[derive(Default)]
struct StreamState {
    /// Records of it were accepted in this session, or before.
    exists: bool,
    /// Batches were refused, so that the next one may not continue the sequence.
    has_hole: bool,
}

impl Admission {
    pub(super) fn new(proof: Proof) -> Self {
        Self { proof, streams: HashMap::new() }
    }

    pub(super) fn until(&self) -> Instant {
        self.proof.until
    }

    pub(super) fn check_agent(&self, agent: &str) -> Result<(), SessionError> {
        if agent == self.proof.host {
            return Ok(());
        }
        Err(SessionError::OtherHost { agent: agent.to_owned(), host: self.proof.host.clone() })
    }

    /// Why a state of the node is refused; none if it is accepted.
    pub(super) fn refuses_state(&self, shared: &Shared, node: &str) -> Option<String> {
        match &shared.catalog {
            Some(catalog) if !catalog.lists(node, &self.proof.host) => Some(refusal(catalog, node, &self.proof.host)),
            _ => register(shared, node).err(),
        }
    }

    /// Why the batch is refused; none if it is accepted.
    pub(super) async fn refuses(
        &mut self,
        shared: &Shared,
        epoch: &Arc<[u8]>,
        batch: &Batch,
    ) -> Result<Option<String>, SessionError> {
        let Some(catalog) = &shared.catalog else { return Ok(register(shared, &batch.node).err()) };
        if check_name(&batch.node).is_err() {
            // Such a node is in no catalog: the stream needs no state here.
            return Ok(register(shared, &batch.node).err());
        }
        let host = &self.proof.host;
        let mark = async || {
            let nodes = vec![batch.node.clone()];
            let marks = shared.writer.marks(host.as_str().into(), Arc::clone(epoch), nodes).await?;
            Ok::<_, SessionError>(marks.first().copied().unwrap_or(0))
        };
        if !self.streams.contains_key(&batch.node) {
            // The number of refused streams is unlimited: their state is dropped, and read again with their next batch.
            if self.streams.len() >= shared.nodes.max() {
                self.streams.retain(|_, stream| stream.exists);
            }
            let mark = mark().await?;
            let stream = StreamState { exists: mark > 0, has_hole: batch.first_sequence > mark };
            self.streams.insert(batch.node.clone(), stream);
        }
        let stream = self.streams.entry(batch.node.clone()).or_default();
        let refused = match stream.exists || catalog.lists(&batch.node, host) {
            true => register(shared, &batch.node).err(),
            false => Some(refusal(catalog, &batch.node, host)),
        };
        if refused.is_some() {
            stream.has_hole = true;
            return Ok(refused);
        }
        if stream.has_hole {
            let mark = mark().await?;
            if batch.first_sequence > mark {
                return Ok(Some(format!("batches were refused before: the stream continues at sequence {mark}")));
            }
        }
        *stream = StreamState { exists: true, has_hole: false };
        Ok(None)
    }
}

/// Why the node is not accepted from the host.
fn refusal(catalog: &Catalog, node: &str, host: &str) -> String {
    match catalog.is_known() {
        true => format!("no pod of {} is on host {}", EscapedTruncated(node), EscapedTruncated(host)),
        false => "the operator has not sent the catalog of nodes yet".to_owned(),
    }
}

/// Adds the node unless it is known. The error is the reason why it cannot be. It does not end the session: otherwise an
/// invalid name of one node would stop the delivery of all nodes of the host.
pub(super) fn register(shared: &Shared, node: &str) -> Result<(), String> {
    let Err(error) = shared.nodes.register(node) else { return Ok(()) };
    let name = EscapedTruncated(node);
    let reason = match error {
        ResolveError::TooMany(max) => {
            format!("node {name} would be one more than the {max} nodes that this aggregator accepts")
        }
        ResolveError::InvalidName(_, why) => format!("{name} cannot be the name of a node: {why}"),
        _ => format!("{name} cannot be the name of a node"),
    };
    warn_limited!(%reason, "records of a node are refused");
    Err(reason)
}
