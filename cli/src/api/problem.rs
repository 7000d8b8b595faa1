//! Responses with an error, and what to do about them.

use chainscope_hygiene::Escaped;
use serde::Deserialize;
use ureq::http::StatusCode;

use crate::{failure::Failure, program};

/// The body of an error response, `application/problem+json`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Problem {
    status: u16,
    detail: String,
    /// The malformed parameter.
    parameter: Option<String>,
    /// Names of the nodes that the request may mean.
    nodes: Option<Vec<String>>,
}

impl Problem {
    /// Reads the body of a response; one of another server is its detail.
    pub(super) fn parse(body: &str) -> Self {
        serde_json::from_str(body).unwrap_or_else(|_| Self { detail: body.trim().to_owned(), ..Self::default() })
    }

    /// The error of a response with this status to a request for `url`. A failure of the server names the request as the
    /// server's log does.
    pub(super) fn of_response(self, url: &str, status: StatusCode, request_id: Option<&str>) -> Failure {
        let request = request_id.filter(|_| status.is_server_error());
        let request = request.map(|id| format!(" (request {})", Escaped(id))).unwrap_or_default();
        let message = format!("{url}: {status}: {}{request}", Escaped(&self.detail));
        let failure = Failure::response(status.as_u16(), message);
        match self.hint(status.as_u16()) {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }

    /// The error of a stream that this is the last event of.
    pub(super) fn ended_stream(self) -> Failure {
        let message = format!("the server ended the stream: {}", Escaped(&self.detail));
        let status = self.status;
        match self.hint(status) {
            Some(hint) => Failure::response(status, message).hint(hint),
            None => Failure::response(status, message),
        }
    }

    fn hint(self, status: u16) -> Option<String> {
        let program = program::name();
        match status {
            400 if self.nodes.is_some() => Some("--node NAME says which one".to_owned()),
            400 if self.parameter.as_deref() == Some("node_name") => Some(format!("`{program} nodes` lists the nodes")),
            401 => Some(
                "--token-file FILE or CHAINSCOPE_TOKEN gives a token; --kube requests one from the cluster".to_owned(),
            ),
            403 => Some(
                "the account needs the ClusterRole chainscope-viewer in the namespace of the node; \
                 `kubectl auth can-i get tezosnodes/messages -n NAMESPACE` checks it"
                    .to_owned(),
            ),
            404 if self.detail.contains("node") => Some(format!("`{program} nodes` lists the nodes")),
            404 => Some("--api is the URL of a Chainscope API, without a path or with /nodes/NAME".to_owned()),
            503 => Some("the server is busy or starting: try again in some seconds".to_owned()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_the_server_names_the_request() {
        let shown = |status| {
            let problem = Problem::parse(r#"{"detail":"the database\nis busy"}"#);
            problem.of_response("http://a/nodes", status, Some("4711")).to_string()
        };
        assert_eq!(
            shown(StatusCode::SERVICE_UNAVAILABLE),
            "http://a/nodes: 503 Service Unavailable: the database\\u{a}is busy (request 4711)"
        );
        assert_eq!(shown(StatusCode::NOT_FOUND), "http://a/nodes: 404 Not Found: the database\\u{a}is busy");
    }
}
