//! Errors as `application/problem+json` (RFC 9457).

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use chainscope_hygiene::{EscapedTruncated, warn_limited};
use chainscope_store::Error as StoreError;
use serde::Serialize;
use utoipa::ToSchema;

use super::code::Code;
use crate::{access::Refusal, nodes::ResolveError, pool::PoolError};

/// The body of an error response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// URI of the kind of error: `urn:chainscope:problem:` and the code. Never changes; it is no locator.
    #[serde(rename = "type")]
    #[schema(example = "urn:chainscope:problem:invalid_parameter")]
    kind: &'static str,
    /// The kind of error in words.
    #[schema(example = "A parameter is not valid")]
    title: &'static str,
    /// The HTTP status.
    pub(crate) status: u16,
    pub(crate) code: Code,
    /// What is wrong with this request.
    pub(crate) detail: String,
    /// Id of the request, as in the header `x-request-id` and the audit log.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    request_id: Option<Box<str>>,
    /// The malformed parameter.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub(crate) parameter: Option<Box<str>>,
    /// Where in the parameter, in characters from its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) position: Option<u32>,
    /// Names of the nodes that the request may mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    nodes: Option<Box<[String]>>,
}

impl Problem {
    /// The media type of error responses.
    pub(crate) const MEDIA_TYPE: &'static str = "application/problem+json";

    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        let (kind, status, title) = code.describe();
        let (status, detail) = (status.as_u16(), detail.into());
        Self { kind, title, status, code, detail, request_id: None, parameter: None, position: None, nodes: None }
    }

    /// A malformed parameter: 400.
    pub(crate) fn parameter(name: &str, why: impl std::fmt::Display) -> Self {
        Self::of_parameter(Code::InvalidParameter, name, why)
    }

    /// A problem with a parameter.
    pub(crate) fn of_parameter(code: Code, name: &str, why: impl std::fmt::Display) -> Self {
        Self { parameter: Some(name.into()), ..Self::new(code, format!("{name}: {why}")) }
    }

    /// Overload: 503.
    pub(crate) fn busy(detail: impl Into<String>) -> Self {
        Self::new(Code::Overloaded, detail)
    }

    /// Whether the same request may succeed later.
    pub(crate) fn is_temporary(&self) -> bool {
        self.status == StatusCode::SERVICE_UNAVAILABLE.as_u16()
    }

    /// The problem with the id of its request.
    pub(crate) fn with_request_id(self, id: impl std::fmt::Display) -> Self {
        Self { request_id: Some(id.to_string().into()), ..self }
    }

    /// The body.
    pub(crate) fn json(&self) -> Vec<u8> {
        let mut body = Vec::new();
        // Writing strings and numbers to memory does not fail.
        let _ = crate::json::write(&mut body, self);
        body
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, self.json()).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(Self::MEDIA_TYPE));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"chainscope\""));
        }
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        // For `RequestId::attach`.
        response.extensions_mut().insert(self);
        response
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let code = match &refusal {
            Refusal::NoToken => Code::TokenMissing,
            Refusal::BadToken => Code::TokenRejected,
            Refusal::Forbidden(_) => Code::Forbidden,
            Refusal::Unavailable(_) => Code::ReviewUnavailable,
        };
        Self::new(code, refusal.to_string())
    }
}

impl From<PoolError> for Problem {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Full => Self::busy("too many requests wait for the store: try again"),
            PoolError::Gone => Self::new(Code::InternalError, error.to_string()),
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Deadline { .. } | StoreError::Budget { .. } => {
                let how = "give a shorter range of time (from, to), a cursor near the rows, a smaller limit, or fewer filters";
                Self::new(Code::QueryTooWide, format!("{error}: {how}"))
            }
            StoreError::Cancelled => Self::busy("the query was cancelled"),
            other => {
                warn_limited!(error = %other, "a read of the store failed");
                Self::new(Code::StoreFailed, other.to_string())
            }
        }
    }
}

impl From<ResolveError> for Problem {
    fn from(error: ResolveError) -> Self {
        let with = |code, why: String, nodes| Self {
            nodes: Some(Vec::into_boxed_slice(nodes)),
            ..Self::of_parameter(code, "node_name", why)
        };
        match error {
            ResolveError::Unknown(name) => {
                Self::new(Code::UnknownNode, format!("no such node: \"{}\"", EscapedTruncated(&name)))
            }
            ResolveError::NoNodes => {
                Self::new(Code::UnknownNode, "no node is configured, and none has sent records yet")
            }
            ResolveError::Unspecified(nodes) => {
                let list = nodes.join(", ");
                with(Code::NodeRequired, format!("there are several nodes, say which: {list}"), nodes)
            }
            ResolveError::Ambiguous(name, nodes) => {
                let list = nodes.join(", ");
                with(Code::AmbiguousNode, format!("\"{}\" fits several nodes: {list}", EscapedTruncated(&name)), nodes)
            }
            ResolveError::TooMany(_) | ResolveError::InvalidName(..) => {
                Self::parameter("node_name", "no node can be called so")
            }
        }
    }
}
