//! The kinds of error. They are part of the API: a code and its URI never change, and docs/api.md lists all of them.

use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

/// The kind of error, for programs. Further ones may be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Code {
    InvalidParameter,
    NodeRequired,
    AmbiguousNode,
    QueryTooWide,
    TokenMissing,
    TokenRejected,
    Forbidden,
    UnknownPath,
    UnknownNode,
    UnknownProcess,
    UnknownSnapshot,
    UnknownRun,
    MethodNotAllowed,
    UriTooLong,
    HostNotAllowed,
    InternalError,
    StoreFailed,
    UpstreamFailed,
    Overloaded,
    NotReady,
    ReviewUnavailable,
}

impl Code {
    /// All of them, in the order of their statuses.
    #[cfg(test)]
    const ALL: [Self; 21] = [
        Self::InvalidParameter,
        Self::NodeRequired,
        Self::AmbiguousNode,
        Self::QueryTooWide,
        Self::TokenMissing,
        Self::TokenRejected,
        Self::Forbidden,
        Self::UnknownPath,
        Self::UnknownNode,
        Self::UnknownProcess,
        Self::UnknownSnapshot,
        Self::UnknownRun,
        Self::MethodNotAllowed,
        Self::UriTooLong,
        Self::HostNotAllowed,
        Self::InternalError,
        Self::StoreFailed,
        Self::UpstreamFailed,
        Self::Overloaded,
        Self::NotReady,
        Self::ReviewUnavailable,
    ];

    /// URI of the type, which is no locator; the status; a summary, the same for each error of the kind.
    pub(crate) fn describe(self) -> (&'static str, StatusCode, &'static str) {
        match self {
            Self::InvalidParameter => {
                ("urn:chainscope:problem:invalid_parameter", StatusCode::BAD_REQUEST, "A parameter is not valid")
            }
            Self::NodeRequired => {
                ("urn:chainscope:problem:node_required", StatusCode::BAD_REQUEST, "The request does not name its node")
            }
            Self::AmbiguousNode => {
                ("urn:chainscope:problem:ambiguous_node", StatusCode::BAD_REQUEST, "The name fits several nodes")
            }
            Self::QueryTooWide => {
                ("urn:chainscope:problem:query_too_wide", StatusCode::BAD_REQUEST, "The query is too wide")
            }
            Self::TokenMissing => {
                ("urn:chainscope:problem:token_missing", StatusCode::UNAUTHORIZED, "A token is needed")
            }
            Self::TokenRejected => {
                ("urn:chainscope:problem:token_rejected", StatusCode::UNAUTHORIZED, "The token is not accepted")
            }
            Self::Forbidden => {
                ("urn:chainscope:problem:forbidden", StatusCode::FORBIDDEN, "The caller lacks the permission")
            }
            Self::UnknownPath => {
                ("urn:chainscope:problem:unknown_path", StatusCode::NOT_FOUND, "There is no such path")
            }
            Self::UnknownNode => {
                ("urn:chainscope:problem:unknown_node", StatusCode::NOT_FOUND, "There is no such node")
            }
            Self::UnknownProcess => {
                ("urn:chainscope:problem:unknown_process", StatusCode::NOT_FOUND, "There is no such process")
            }
            Self::UnknownSnapshot => {
                ("urn:chainscope:problem:unknown_snapshot", StatusCode::NOT_FOUND, "There is no such snapshot")
            }
            Self::UnknownRun => ("urn:chainscope:problem:unknown_run", StatusCode::NOT_FOUND, "There is no such run"),
            Self::MethodNotAllowed => (
                "urn:chainscope:problem:method_not_allowed",
                StatusCode::METHOD_NOT_ALLOWED,
                "The method is not supported",
            ),
            Self::UriTooLong => {
                ("urn:chainscope:problem:uri_too_long", StatusCode::URI_TOO_LONG, "Path and query are too long")
            }
            Self::HostNotAllowed => (
                "urn:chainscope:problem:host_not_allowed",
                StatusCode::MISDIRECTED_REQUEST,
                "The host name is not allowed",
            ),
            Self::InternalError => (
                "urn:chainscope:problem:internal_error",
                StatusCode::INTERNAL_SERVER_ERROR,
                "The request met a defect of the server",
            ),
            Self::StoreFailed => {
                ("urn:chainscope:problem:store_failed", StatusCode::INTERNAL_SERVER_ERROR, "The database failed")
            }
            Self::UpstreamFailed => {
                ("urn:chainscope:problem:upstream_failed", StatusCode::BAD_GATEWAY, "The proxy's upstream failed")
            }
            Self::Overloaded => {
                ("urn:chainscope:problem:overloaded", StatusCode::SERVICE_UNAVAILABLE, "The server is overloaded")
            }
            Self::NotReady => {
                ("urn:chainscope:problem:not_ready", StatusCode::SERVICE_UNAVAILABLE, "The server is not ready")
            }
            Self::ReviewUnavailable => (
                "urn:chainscope:problem:review_unavailable",
                StatusCode::SERVICE_UNAVAILABLE,
                "The permission cannot be checked now",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Code;

    /// Rows of the table in docs/api.md: status, code.
    fn documented() -> Vec<(u16, String)> {
        let page = include_str!("../../../docs/api.md");
        let (_, rest) = page.split_once("| status | `code` |").expect("the table");
        let rows = rest.lines().skip(2).take_while(|line| line.starts_with('|'));
        let cells = rows.map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
        cells.map(|cells| (cells[1].parse().unwrap(), cells[2].trim_matches('`').to_owned())).collect()
    }

    #[test]
    fn every_code_is_documented_and_ends_the_uri_of_its_type() {
        let codes: Vec<_> = Code::ALL
            .map(|code| {
                let (uri, status, _) = code.describe();
                let name = serde_json::to_value(code).unwrap().as_str().unwrap().to_owned();
                assert_eq!(uri, format!("urn:chainscope:problem:{name}"));
                (status.as_u16(), name)
            })
            .into();
        assert_eq!(documented(), codes);
        assert!(codes.is_sorted_by_key(|(status, _)| *status), "docs/api.md is in the order of statuses");
        let last = Code::ReviewUnavailable as usize;
        assert_eq!(codes.len(), last + 1, "a code is missing in `ALL`");
    }
}
