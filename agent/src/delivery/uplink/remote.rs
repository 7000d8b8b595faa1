//! The bridge between a pair of channels and an aggregator's gRPC service.

use std::path::PathBuf;

use chainscope_proto::v1::ingest_client::IngestClient;
use chainscope_tls::Token;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use super::Uplink;
use crate::Error;

/// Capacity of the channels in each direction, in messages: 4 MiB of batches.
const CHANNEL_CAPACITY: usize = 4;

/// Address of an aggregator, and the files that the agent and the aggregator authenticate with.
#[derive(Debug, Clone)]
pub struct Remote {
    server: chainscope_tls::Remote,
    /// File of the token of this agent's service account.
    token_file: Option<PathBuf>,
}

impl Remote {
    /// An aggregator at an address such as `http://aggregator:17733`: neither encrypted nor authenticated.
    ///
    /// # Errors
    /// [`Error::Address`] if the address is invalid.
    pub fn new(uri: &str) -> Result<Self, Error> {
        Self::secured(uri, None, None)
    }

    /// An aggregator at an address such as `https://aggregator:17733`. `ca_file` is the CA bundle used to verify its
    /// certificate, `token_file` has the bearer token of the calls. Both files are read at each connection.
    ///
    /// # Errors
    /// [`Error::Address`] if the address is invalid, or has the scheme `https` without a CA bundle or `http` with one.
    pub fn secured(uri: &str, ca_file: Option<PathBuf>, token_file: Option<PathBuf>) -> Result<Self, Error> {
        if token_file.is_some() && ca_file.is_none() {
            tracing::warn!(uri, "the token is sent over the network in plain text");
        }
        let server = chainscope_tls::Remote::new(uri, ca_file).map_err(|error| match error {
            chainscope_tls::Error::Address { uri, cause } => Error::Address { uri, cause },
            other => Error::Address { uri: uri.to_owned(), cause: other.to_string() },
        })?;
        Ok(Self { server, token_file })
    }

    pub(super) async fn connect(&self) -> Result<Uplink, String> {
        let token = self.token_file.as_deref().map(Token::read).transpose().map_err(|error| error.to_string())?;
        let channel = self.server.connect().await.map_err(|error| error.to_string())?;
        let mut client = IngestClient::new(channel);
        let (requests, outgoing) = mpsc::channel(CHANNEL_CAPACITY);
        let (incoming, replies) = mpsc::channel(CHANNEL_CAPACITY);
        // In a task: an aggregator may respond to the call only after it has read the hello.
        tokio::spawn(async move {
            let mut request = tonic::Request::new(ReceiverStream::new(outgoing));
            if let Some(token) = token {
                token.authorize(request.metadata_mut());
            }
            let response = match client.record(request).await {
                Ok(response) => response,
                Err(status) => return log_end(&status),
            };
            let mut stream = response.into_inner();
            loop {
                match stream.message().await {
                    Ok(Some(reply)) => {
                        if incoming.send(reply).await.is_err() {
                            return;
                        }
                    }
                    Ok(None) => return,
                    Err(status) => return log_end(&status),
                }
            }
        });
        Ok(Uplink { requests, replies })
    }
}

/// Logs the status that ended a call.
fn log_end(status: &tonic::Status) {
    let message = chainscope_hygiene::EscapedTruncated(status.message());
    let is_expiry =
        matches!(status.code(), Code::Unauthenticated | Code::Aborted) && status.message().contains("expired");
    if is_expiry {
        tracing::info!(%message, "the token expired: the next call uses the new one");
    } else {
        chainscope_hygiene::warn_limited!(code = ?status.code(), %message, "the aggregator ended the call");
    }
}
