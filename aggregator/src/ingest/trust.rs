//! Whom records are taken from.
//!
//! An agent shows the token of its service account, which is bound to its pod: Kubernetes says whose it is and which host
//! the pod is on. Records are taken of that host alone, and of the nodes that the catalog has pods of there. A lane
//! that exists already goes on even if the pod has moved: the spool that it left behind belongs here.

use std::{
    collections::HashMap,
    fmt,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use chainscope_hygiene::EscapedTruncated;
use chainscope_proto::v1::Batch;
use tonic::{Status, metadata::MetadataMap};

use super::{SessionError, Shared, session::register};
use crate::{
    access::{AUDIENCE, Reviewer, expiry},
    catalog::Catalog,
    nodes::check_name,
};

/// Where Kubernetes says which node the pod of a token is on.
const HOST: &str = "authentication.kubernetes.io/node-name";

/// A session ends after this at the latest, if its token does not say when it does.
const LONGEST: Duration = Duration::from_secs(3600);

/// Whom records are taken from.
#[derive(Clone)]
pub struct IngestTrust {
    /// Who says whose a token is.
    pub reviewer: Arc<dyn Reviewer>,
    /// The agents' service account: `system:serviceaccount:<namespace>:<name>`.
    pub account: String,
}

impl fmt::Debug for IngestTrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IngestTrust({})", self.account)
    }
}

/// An agent that was found to be one.
#[derive(Debug, Clone)]
pub(crate) struct Proof {
    /// The host of its pod.
    pub(crate) host: String,
    /// When its token ends.
    pub(crate) until: Instant,
}

impl IngestTrust {
    /// Who calls.
    pub(super) async fn prove(&self, metadata: &MetadataMap) -> Result<Proof, Status> {
        let token = chainscope_tls::bearer(metadata)?;
        let identity = self.reviewer.authenticate(token, Some(AUDIENCE)).await;
        let identity = identity.map_err(|error| Status::unavailable(error.to_string()))?.ok_or_else(|| {
            Status::unauthenticated(format!("the token is expired, or not for the audience {AUDIENCE}"))
        })?;
        if identity.user != self.account {
            let text = format!("{} is not the agents' account {}", EscapedTruncated(&identity.user), self.account);
            return Err(Status::permission_denied(text));
        }
        let host = identity.extra(HOST).ok_or_else(|| {
            Status::permission_denied("the token does not say which host it is for: it must be bound to a pod")
        })?;
        let left = expiry(token).map_or(LONGEST, |end| end.duration_since(SystemTime::now()).unwrap_or_default());
        Ok(Proof { host: host.to_owned(), until: Instant::now() + left.min(LONGEST) })
    }
}

/// Which lanes of an agent are taken.
pub(super) struct Admission {
    proof: Proof,
    lanes: HashMap<String, Lane>,
}

#[derive(Default)]
struct Lane {
    /// There are records of it, or there were to be.
    exists: bool,
    /// Batches were refused: those before the next one are missing.
    has_hole: bool,
}

impl Admission {
    pub(super) fn new(proof: Proof) -> Self {
        Self { proof, lanes: HashMap::new() }
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

    /// Why a state of the node is not taken; none if it is.
    pub(super) fn refuses_state(&self, shared: &Shared, node: &str) -> Option<String> {
        match &shared.catalog {
            Some(catalog) if !catalog.lists(node, &self.proof.host) => Some(why_not(catalog, node, &self.proof.host)),
            _ => register(shared, node).err(),
        }
    }

    /// Why the batch is not taken; none if it is.
    pub(super) async fn refuses(
        &mut self,
        shared: &Shared,
        epoch: &Arc<[u8]>,
        batch: &Batch,
    ) -> Result<Option<String>, SessionError> {
        let Some(catalog) = &shared.catalog else { return Ok(register(shared, &batch.node).err()) };
        if check_name(&batch.node).is_err() {
            // Such a node is in no catalog: nothing of the lane is to be remembered.
            return Ok(register(shared, &batch.node).err());
        }
        let host = &self.proof.host;
        let mark = async || {
            let nodes = vec![batch.node.clone()];
            let marks = shared.writer.marks(host.as_str().into(), Arc::clone(epoch), nodes).await?;
            Ok::<_, SessionError>(marks.first().copied().unwrap_or(0))
        };
        if !self.lanes.contains_key(&batch.node) {
            // Of lanes that are refused there may be any number: they are forgotten, and looked up again.
            if self.lanes.len() >= shared.nodes.most() {
                self.lanes.retain(|_, lane| lane.exists);
            }
            let mark = mark().await?;
            let lane = Lane { exists: mark > 0, has_hole: batch.first_sequence > mark };
            self.lanes.insert(batch.node.clone(), lane);
        }
        let lane = self.lanes.entry(batch.node.clone()).or_default();
        let refused = match lane.exists || catalog.lists(&batch.node, host) {
            true => register(shared, &batch.node).err(),
            false => Some(why_not(catalog, &batch.node, host)),
        };
        if refused.is_some() {
            lane.has_hole = true;
            return Ok(refused);
        }
        if lane.has_hole {
            let mark = mark().await?;
            if batch.first_sequence > mark {
                return Ok(Some(format!("batches were refused before: the lane goes on at sequence {mark}")));
            }
        }
        *lane = Lane { exists: true, has_hole: false };
        Ok(None)
    }
}

fn why_not(catalog: &Catalog, node: &str, host: &str) -> String {
    match catalog.is_known() {
        true => format!("no pod of {} is on host {}", EscapedTruncated(node), EscapedTruncated(host)),
        false => "the operator has not said yet which nodes there are".to_owned(),
    }
}
