//! The bridge between a pair of channels and an aggregator's gRPC service.

use std::path::PathBuf;

use chainscope_proto::v1::ingest_client::IngestClient;
use chainscope_tls::Token;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use super::Uplink;
use crate::Error;

/// Messages on their way in each direction: with batches of at most 1 MiB, 4 MiB.
const DEPTH: usize = 4;

/// The address of an aggregator, and how this agent and it prove who they are.
#[derive(Debug, Clone)]
pub struct Remote {
    server: chainscope_tls::Remote,
    /// Holds the token of this agent's service account.
    token_file: Option<PathBuf>,
}

impl Remote {
    /// Takes an address such as `http://aggregator:17733`: in plain text, and nobody proves anything.
    ///
    /// # Errors
    /// [`Error::Address`] if it is none.
    pub fn new(uri: &str) -> Result<Self, Error> {
        Self::secured(uri, None, None)
    }

    /// Takes an address such as `https://aggregator:17733`, the file of the certificate authorities that its certificate
    /// is believed by, and the file of the token that calls are made with. Both files are read at each connection.
    ///
    /// # Errors
    /// [`Error::Address`] if it is no such address, or the first file's presence contradicts it.
    pub fn secured(uri: &str, ca_file: Option<PathBuf>, token_file: Option<PathBuf>) -> Result<Self, Error> {
        if token_file.is_some() && ca_file.is_none() {
            tracing::warn!(uri, "the token goes over the network in plain text");
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
        let (requests, outgoing) = mpsc::channel(DEPTH);
        let (incoming, replies) = mpsc::channel(DEPTH);
        // In a task: an aggregator may answer the call only when it has read the hello.
        tokio::spawn(async move {
            let mut request = tonic::Request::new(ReceiverStream::new(outgoing));
            if let Some(token) = token {
                token.authorize(request.metadata_mut());
            }
            let answer = match client.record(request).await {
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
    let message = chainscope_hygiene::EscapedTruncated(status.message());
    let is_expiry =
        matches!(status.code(), Code::Unauthenticated | Code::Aborted) && status.message().contains("expired");
    if is_expiry {
        tracing::info!(%message, "the aggregator ended the call: the next one has the new token");
    } else {
        chainscope_hygiene::warn_limited!(code = ?status.code(), %message, "the aggregator ended the call");
    }
}
