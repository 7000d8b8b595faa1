//! Authentication of the caller, and the audit log of what they read.
//!
//! This layer is on every route whose response depends on the caller. The extractors of `request` take the caller from the
//! [`AuthContext`] that it adds to the request, and refuse a request without one.

use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

use axum::{
    body::Body,
    extract::{MatchedPath, State},
    http::{Request, header, request::Parts},
    middleware::Next,
    response::{IntoResponse as _, Response},
};

use super::App;
use crate::{
    access::Caller,
    http::{code::Code, problem::Problem, request_id::RequestId, server::PeerAddress},
};

/// Longest query string in the audit log, in bytes.
const MAX_LOGGED_QUERY: usize = 1 << 10;

/// Parameters whose value is not logged. The API has none of them, but callers try.
const SECRETS: [&str; 6] = ["token", "access_token", "id_token", "authorization", "password", "secret"];

/// The authenticated caller of a request.
#[derive(Clone)]
pub(super) struct AuthContext {
    caller: Caller,
    /// The node that the request is about, for the audit log.
    node: Arc<OnceLock<String>>,
    request_id: Option<RequestId>,
}

impl AuthContext {
    /// The context that [`authenticate`] added to the request.
    pub(super) fn of(parts: &Parts) -> Result<Self, Problem> {
        parts.extensions.get().cloned().ok_or_else(|| Problem::new(Code::Forbidden, "the caller was not authenticated"))
    }

    pub(super) fn caller(&self) -> &Caller {
        &self.caller
    }

    pub(super) fn request_id(&self) -> Option<&RequestId> {
        self.request_id.as_ref()
    }

    /// Records the node for the audit log. A request is about one node: the first call counts.
    pub(super) fn set_node(&self, name: &str) {
        let _ = self.node.set(name.to_owned());
    }
}

/// Passes a request on with its [`AuthContext`]; 401 without a valid token.
pub(crate) async fn authenticate(State(app): State<Arc<App>>, mut request: Request<Body>, next: Next) -> Response {
    let began = Instant::now();
    let route: Option<String> = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let audit = app.services.audit;
    let query = if audit { logged(request.uri().query().unwrap_or_default()) } else { String::new() };
    let request_id = request.extensions().get::<RequestId>().cloned();
    let mut entry = AuditEntry { request_id, route, query, ..AuditEntry::default() };
    let peer = request.extensions().get::<PeerAddress>().map(|peer| peer.0);
    let response = match app.services.access.authenticate(request.headers(), peer).await {
        Err(refusal) => Problem::from(refusal).into_response(),
        Ok(caller) => {
            caller.user().clone_into(&mut entry.user);
            request.headers_mut().remove(header::AUTHORIZATION);
            request.extensions_mut().insert(AuthContext {
                caller,
                node: Arc::clone(&entry.node),
                request_id: entry.request_id.clone(),
            });
            next.run(request).await
        }
    };
    if audit {
        entry.log(response.status().as_u16(), began);
    }
    response
}

/// A line of the audit log.
#[derive(Default)]
struct AuditEntry {
    request_id: Option<RequestId>,
    user: String,
    node: Arc<OnceLock<String>>,
    route: Option<String>,
    query: String,
}

impl AuditEntry {
    fn log(&self, status: u16, began: Instant) {
        let Self { request_id, user, node, route, query } = self;
        let request_id = request_id.as_ref().map(tracing::field::display);
        let (node, route) = (node.get().map_or("", String::as_str), route.as_deref().unwrap_or_default());
        let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::info!(target: "audit", request_id, user, node, route, query, status, ms);
    }
}

/// A query string for the audit log: truncated, and without values of secrets.
fn logged(query: &str) -> String {
    let mut text = String::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        if text.len() >= MAX_LOGGED_QUERY {
            text.push('…');
            break;
        }
        if !text.is_empty() {
            text.push('&');
        }
        let key = pair.split_once('=').map_or(pair, |(key, _)| key);
        match SECRETS.iter().any(|secret| key.eq_ignore_ascii_case(secret)) {
            true => text.push_str(&format!("{key}=…")),
            false => text.extend(pair.chars().take(MAX_LOGGED_QUERY)),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::logged;

    #[test]
    fn the_log_has_the_query_without_secrets() {
        assert_eq!(logged("limit=5&Token=abc&types=operation"), "limit=5&Token=…&types=operation");
        assert_eq!(logged("access_token=abc"), "access_token=…");
        assert_eq!(logged(""), "");
        assert!(logged(&"a=1&".repeat(10_000)).len() < 1100);
        assert!(logged(&"é".repeat(10_000)).len() <= 2048);
    }
}
