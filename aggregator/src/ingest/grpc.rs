//! The gRPC service for agents on other machines.

use std::pin::Pin;

use chainscope_hygiene::{EscapedTruncated, warn_limited};
use chainscope_proto::v1::{RecordReply, RecordRequest, ingest_server};
use chainscope_tls::{Acceptor, incoming};
use futures::Stream;
use tokio::net::TcpListener;
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming, transport::Server};

use super::{Ingest, IngestTrust, MAX_MESSAGE_BYTES, session_of, trust::AgentAuthenticator};
use crate::limits::Limits;

/// Maximum concurrent calls of one connection: one session, and a few that are ending.
const MAX_CALLS: u32 = 8;

struct Service {
    ingest: Ingest,
    authenticator: Option<AgentAuthenticator>,
}

#[tonic::async_trait]
impl ingest_server::Ingest for Service {
    type RecordStream = Pin<Box<dyn Stream<Item = Result<RecordReply, Status>> + Send>>;

    async fn record(&self, request: Request<Streaming<RecordRequest>>) -> Result<Response<Self::RecordStream>, Status> {
        let peer = request.remote_addr();
        let proof = match &self.authenticator {
            None => None,
            Some(authenticator) => Some(authenticator.prove(request.metadata(), peer.map(|peer| peer.ip())).await.inspect_err(|status| {
                warn_limited!(?peer, code = ?status.code(), reason = %EscapedTruncated(status.message()), "an agent was not authenticated");
            })?),
        };
        // A cut connection ends the requests. Those received before are stored; the agent sends the others again.
        let requests = request.into_inner().map_while(move |request| match request {
            Ok(request) => Some(request),
            Err(status) => {
                tracing::debug!(?peer, code = ?status.code(), "the connection of an agent was cut");
                None
            }
        });
        let replies = session_of(&self.ingest, proof, requests).map(move |reply| {
            reply.map_err(|error| {
                warn_limited!(?peer, %error, "the session of an agent ended");
                error.into()
            })
        });
        Ok(Response::new(Box::pin(replies)))
    }
}

/// Serves until `stop`; returns once the open sessions have ended.
pub(crate) async fn serve(
    listener: TcpListener,
    acceptor: Acceptor,
    ingest: Ingest,
    trust: Option<IngestTrust>,
    limits: &Limits,
    stop: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let service = ingest_server::IngestServer::new(Service { ingest, authenticator: trust.map(Into::into) })
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    Server::builder()
        .max_concurrent_streams(MAX_CALLS)
        .http2_keepalive_interval(Some(limits.heartbeat_interval))
        .http2_keepalive_timeout(Some(limits.client_timeout))
        .add_service(service)
        .serve_with_incoming_shutdown(incoming(listener, acceptor), stop.cancelled_owned())
        .await
}
