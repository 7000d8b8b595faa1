//! The bridge between a pair of channels and an aggregator's gRPC service.

use std::time::Duration;

use chainscope_proto::v1::ingest_client::IngestClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;

use super::Uplink;
use crate::Error;

/// Messages on their way in each direction: with batches of at most 1 MiB, 4 MiB.
const DEPTH: usize = 4;

/// The address of an aggregator.
#[derive(Debug, Clone)]
pub struct Remote(Box<Endpoint>);

impl Remote {
    /// Takes an address such as `http://aggregator:17733`.
    ///
    /// # Errors
    /// [`Error::Address`] if it is none.
    pub fn new(uri: &str) -> Result<Self, Error> {
        let endpoint = Endpoint::from_shared(uri.to_owned())
            .map_err(|cause| Error::Address { uri: uri.to_owned(), cause: cause.to_string() })?;
        if endpoint.uri().scheme_str() != Some("http") {
            let cause = "only http:// addresses are supported".to_owned();
            return Err(Error::Address { uri: uri.to_owned(), cause });
        }
        let endpoint = endpoint
            .connect_timeout(Duration::from_secs(5))
            // A cut network shows without traffic too.
            .http2_keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(10))
            .keep_alive_while_idle(true);
        Ok(Self(Box::new(endpoint)))
    }

    pub(super) async fn connect(&self) -> Result<Uplink, String> {
        let channel = self.0.connect().await.map_err(|cause| whole(&cause))?;
        let mut client = IngestClient::new(channel);
        let (requests, outgoing) = mpsc::channel(DEPTH);
        let (incoming, replies) = mpsc::channel(DEPTH);
        // In a task: an aggregator may answer the call only when it has read the hello.
        tokio::spawn(async move {
            let answer = match client.record(ReceiverStream::new(outgoing)).await {
                Ok(answer) => answer,
                Err(status) => return refused(&status),
            };
            let mut stream = answer.into_inner();
            loop {
                match stream.message().await {
                    Ok(Some(reply)) => {
                        if incoming.send(reply).await.is_err() {
                            return;
                        }
                    }
                    Ok(None) => return,
                    Err(status) => return refused(&status),
                }
            }
        });
        Ok(Uplink { requests, replies })
    }
}

fn refused(status: &tonic::Status) {
    chainscope_quiet::warn_limited!(code = ?status.code(), message = %chainscope_quiet::Clean(status.message()), "the aggregator ended the call");
}

/// An error with its causes: the outermost alone says "transport error".
fn whole(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
