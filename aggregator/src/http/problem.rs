//! Errors as `application/problem+json` (RFC 9457).

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use chainscope_hygiene::{EscapedTruncated, warn_limited};
use chainscope_store::Error as StoreError;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{access::Refusal, nodes::ResolveError, pool::PoolError};

/// The body of an error response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// Always `about:blank`: the kind of error is the status.
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    /// The status as text.
    pub(crate) title: &'static str,
    /// The HTTP status.
    pub(crate) status: u16,
    /// What is wrong with this request.
    pub(crate) detail: String,
    /// The malformed parameter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) parameter: Option<String>,
    /// Where in the parameter, in characters from its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) position: Option<u32>,
    /// Names of the nodes that the request may mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nodes: Option<Vec<String>>,
}

impl Problem {
    /// The media type of error responses.
    pub(crate) const MEDIA_TYPE: &'static str = "application/problem+json";

    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or("Error");
        let status = status.as_u16();
        Self { kind: "about:blank", title, status, detail: detail.into(), parameter: None, position: None, nodes: None }
    }

    /// A malformed parameter: 400.
    pub(crate) fn parameter(name: &str, why: impl std::fmt::Display) -> Self {
        let mut problem = Self::new(StatusCode::BAD_REQUEST, format!("{name}: {why}"));
        problem.parameter = Some(name.to_owned());
        problem
    }

    /// Whether the same request may succeed later.
    pub(crate) fn is_temporary(&self) -> bool {
        self.status == StatusCode::SERVICE_UNAVAILABLE.as_u16()
    }

    /// 404.
    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// The caller lacks the permission: 403.
    pub(crate) fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, detail)
    }

    /// Overload, or not ready: 503.
    pub(crate) fn busy(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut body = Vec::new();
        // Writing strings and numbers to memory does not fail.
        let _ = crate::json::write(&mut body, &self);
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(Self::MEDIA_TYPE));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"chainscope\""));
        }
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let status = match &refusal {
            Refusal::NoToken | Refusal::BadToken => StatusCode::UNAUTHORIZED,
            Refusal::Forbidden(_) => StatusCode::FORBIDDEN,
            Refusal::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, refusal.to_string())
    }
}

impl From<PoolError> for Problem {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Full => Self::busy("too many requests wait for the store: try again"),
            PoolError::Gone => Self::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Deadline { .. } | StoreError::Budget { .. } => {
                let how = "give a shorter range of time (from, to), a cursor near the rows, a smaller limit, or fewer filters";
                Self::new(StatusCode::BAD_REQUEST, format!("{error}: {how}"))
            }
            StoreError::Cancelled => Self::busy("the query was cancelled"),
            other => {
                warn_limited!(error = %other, "a read of the store failed");
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, other.to_string())
            }
        }
    }
}

impl From<ResolveError> for Problem {
    fn from(error: ResolveError) -> Self {
        let with = |mut problem: Self, nodes| {
            problem.nodes = Some(nodes);
            problem
        };
        match error {
            ResolveError::Unknown(name) => Self::not_found(format!("no such node: \"{}\"", EscapedTruncated(&name))),
            ResolveError::NoNodes => Self::not_found("no node is configured, and none has sent records yet"),
            ResolveError::Unspecified(nodes) => {
                let list = nodes.join(", ");
                with(Self::parameter("node_name", format!("there are several nodes, say which: {list}")), nodes)
            }
            ResolveError::Ambiguous(name, nodes) => {
                let list = nodes.join(", ");
                with(
                    Self::parameter("node_name", format!("\"{}\" fits several nodes: {list}", EscapedTruncated(&name))),
                    nodes,
                )
            }
            ResolveError::TooMany(_) | ResolveError::InvalidName(..) => {
                Self::parameter("node_name", "no node can be called so")
            }
        }
    }
}
