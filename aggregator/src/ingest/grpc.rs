//! The gRPC service for agents on other machines.

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};

use axum::http;
use chainscope_hygiene::{EscapedTruncated, warn_limited};
use chainscope_proto::v1::{RecordReply, ingest_server::SERVICE_NAME};
use chainscope_tls::{Acceptor, incoming};
use futures::{Stream, future::BoxFuture};
use tokio::net::TcpListener;
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    server::{Grpc, NamedService},
    transport::Server,
};

use super::{
    Ingest, IngestTrust, MAX_MESSAGE_BYTES, Received, codec::RecordCodec, connections::limited, session_of,
    trust::AgentAuthenticator,
};
use crate::limits::Limits;

/// Maximum concurrent calls of one connection: one session, and a few that are ending.
const MAX_CALLS: u32 = 8;

/// Maximum number of open connections: each agent has one.
const MAX_CONNECTIONS: usize = 4096;

/// Path of the method `Record`.
const RECORD_PATH: &str = "/chainscope.v1.Ingest/Record";

struct Service {
    ingest: Ingest,
    authenticator: Option<AgentAuthenticator>,
}

impl Service {
    async fn record(
        &self,
        request: Request<Streaming<Received>>,
    ) -> Result<Response<impl Stream<Item = Result<RecordReply, Status>> + Send + use<>>, Status> {
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
        Ok(Response::new(replies))
    }
}

/// The service as a server calls it. The generated one decodes a message before its records can be counted.
#[derive(Clone)]
struct Endpoint(Arc<Service>);

impl NamedService for Endpoint {
    const NAME: &'static str = SERVICE_NAME;
}

impl tower::Service<http::Request<Body>> for Endpoint {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = Arc::clone(&self.0);
        Box::pin(async move {
            if request.uri().path() != RECORD_PATH {
                return Ok(Status::unimplemented("there is no such method").into_http());
            }
            let record = tower::service_fn(move |request| {
                let service = Arc::clone(&service);
                async move { service.record(request).await }
            });
            let mut grpc = Grpc::new(RecordCodec)
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES);
            Ok(grpc.streaming(record, request).await)
        })
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
    let service = Endpoint(Arc::new(Service { ingest, authenticator: trust.map(Into::into) }));
    let connections = limited(incoming(listener, acceptor), MAX_CONNECTIONS);
    Server::builder()
        .max_concurrent_streams(MAX_CALLS)
        .http2_keepalive_interval(Some(limits.heartbeat_interval))
        .http2_keepalive_timeout(Some(limits.client_timeout))
        .add_service(service)
        .serve_with_incoming_shutdown(connections, stop.cancelled_owned())
        .await
}
