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
    /// The kind of error, which never changes; the detail may. Empty in a response of another server.
    code: String,
    detail: String,
    /// The malformed parameter.
    parameter: Option<String>,
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
        match (status, self.code.as_str()) {
            (_, "node_required" | "ambiguous_node") => Some("--node NAME says which one".to_owned()),
            (_, "unknown_node") => Some(format!("`{program} nodes` lists the nodes")),
            (400, _) if self.parameter.as_deref() == Some("node_name") => {
                Some(format!("`{program} nodes` lists the nodes"))
            }
            (401, _) => Some(
                "--token-file FILE or CHAINSCOPE_TOKEN gives a token; --kube requests one from the cluster".to_owned(),
            ),
            (403, _) => Some(format!(
                "the account needs the ClusterRole chainscope-viewer in the namespace of the node; {}",
                check_of_permission(&self.detail)
            )),
            (404, "" | "unknown_path") => {
                Some("--api is the URL of a Chainscope API, without a path or with /nodes/NAME".to_owned())
            }
            (503, _) => Some("the server is busy or starting: try again in some seconds".to_owned()),
            _ => None,
        }
    }
}

/// How to check the permission that the detail of a 403 names, such as `tezosnodes/messages`; if it names none, how to list all.
fn check_of_permission(detail: &str) -> String {
    let permission = detail.split(' ').filter_map(|word| word.split_once('/')).find(|(resource, subresource)| {
        let is_name = !subresource.is_empty() && subresource.bytes().all(|byte| byte.is_ascii_lowercase());
        is_name && matches!(*resource, "tezosnodes" | "nodetraces")
    });
    match permission {
        Some((resource, subresource)) => format!(
            "`kubectl auth can-i get {resource}.chainscope.dev --subresource={subresource} -n NAMESPACE` checks it"
        ),
        None => "`kubectl auth can-i --list -n NAMESPACE` lists what an account may do".to_owned(),
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

    fn hint(status: u16, body: &str) -> Option<String> {
        Problem::parse(body).hint(status)
    }

    #[test]
    fn the_code_of_an_error_decides_on_its_hint() {
        let nodes = Some("`chainscope nodes` lists the nodes".to_owned());
        assert_eq!(hint(404, r#"{"code":"unknown_node","detail":"gone"}"#), nodes);
        assert_eq!(hint(400, r#"{"code":"invalid_parameter","parameter":"node_name"}"#), nodes);
        let ambiguous = r#"{"code":"ambiguous_node","parameter":"node_name","nodes":["a","b"]}"#;
        assert_eq!(hint(400, ambiguous), Some("--node NAME says which one".to_owned()));
        assert_eq!(hint(404, r#"{"code":"unknown_process","detail":"no such process of the node"}"#), None);
        assert!(hint(404, "<p>no such node</p>").is_some_and(|hint| hint.starts_with("--api is the URL")));
    }

    #[test]
    fn the_refused_permission_is_checked() {
        let check = |detail: &str| hint(403, &serde_json::json!({ "code": "forbidden", "detail": detail }).to_string());
        for (resource, subresource) in [("tezosnodes", "logs"), ("nodetraces", "trace")] {
            let shown = check(&format!("alice may not get {resource}/{subresource} of a/b: no"));
            let command =
                format!("`kubectl auth can-i get {resource}.chainscope.dev --subresource={subresource} -n NAMESPACE`");
            assert!(shown.as_ref().is_some_and(|hint| hint.contains(&command)), "{shown:?}");
        }
        for other in ["there is no node that alice may get logs of", "tezosnodes/`rm`", "pods/log"] {
            let shown = check(other);
            assert!(shown.as_ref().is_some_and(|hint| hint.contains("can-i --list")), "{shown:?}");
        }
    }
}
