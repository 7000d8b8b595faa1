//! Who asks, and the log of what they read.
//!
//! Every route passes here before its handler: the table in `access::routes` says what it needs. The handler learns who
//! asks and for which right through the [`Visit`] among the request's extensions; which node is meant it finds out by
//! [`super::app::Asked`], which asks whether the caller may. A handler without a visit serves nothing.

use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

use axum::{
    body::Body,
    extract::{MatchedPath, State},
    http::{Request, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
};

use super::{app::App, problem::Problem};
use crate::access::{
    Caller,
    routes::{Need, Right, need},
};

/// Longest query string in the audit log, in bytes.
const LONGEST_QUERY: usize = 1 << 10;

/// Parameters whose value is not logged: nothing of ours, but people try.
const SECRETS: [&str; 6] = ["token", "access_token", "id_token", "authorization", "password", "secret"];

/// Who makes a request, and what for.
#[derive(Clone)]
pub(crate) struct Visit {
    pub(crate) caller: Caller,
    /// None if the route is about no node.
    pub(crate) right: Option<Right>,
    /// The node that was meant, for the log.
    pub(crate) node: Arc<OnceLock<String>>,
}

/// Lets a request through to its handler, if the caller may come in at all.
pub(crate) async fn guard(State(app): State<Arc<App>>, mut request: Request<Body>, next: Next) -> Response {
    let began = Instant::now();
    let route: Option<String> = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let right = match need(route.as_deref()) {
        Need::Nothing => return next.run(request).await,
        Need::Operation if app.access.is_open() => return next.run(request).await,
        Need::Operation => {
            return Problem::not_found("this is served on the port for metrics and health").into_response();
        }
        Need::Forgotten => return Problem::forbidden("nobody may read this").into_response(),
        Need::Caller => None,
        Need::Node(right) => Some(right),
    };
    let query = if app.audit { shown(request.uri().query().unwrap_or_default()) } else { String::new() };
    let mut read = Read { route, query, ..Read::default() };
    let response = match app.access.identify(request.headers()).await {
        Err(refusal) => Problem::from(refusal).into_response(),
        Ok(caller) => {
            caller.user().clone_into(&mut read.user);
            request.headers_mut().remove(header::AUTHORIZATION);
            let visit = Visit { caller, right, node: Arc::clone(&read.node) };
            request.extensions_mut().insert(visit);
            next.run(request).await
        }
    };
    if app.audit {
        read.log(response.status().as_u16(), began);
    }
    response
}

/// What the audit log says of a request.
#[derive(Default)]
struct Read {
    user: String,
    node: Arc<OnceLock<String>>,
    route: Option<String>,
    query: String,
}

impl Read {
    fn log(&self, status: u16, began: Instant) {
        let Self { user, node, route, query } = self;
        let (node, route) = (node.get().map_or("", String::as_str), route.as_deref().unwrap_or_default());
        let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::info!(target: "audit", user, node, route, query, status, ms);
    }
}

/// A query string as it is logged: cut, harmless, and without values that are none of the log's business.
fn shown(query: &str) -> String {
    let mut text = String::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        if text.len() >= LONGEST_QUERY {
            text.push('…');
            break;
        }
        if !text.is_empty() {
            text.push('&');
        }
        let key = pair.split_once('=').map_or(pair, |(key, _)| key);
        match SECRETS.iter().any(|secret| key.eq_ignore_ascii_case(secret)) {
            true => text.push_str(&format!("{key}=…")),
            false => text.extend(pair.chars().take(LONGEST_QUERY)),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn the_log_has_the_query_without_secrets() {
        assert_eq!(shown("limit=5&Token=abc&types=operation"), "limit=5&Token=…&types=operation");
        assert_eq!(shown("access_token=abc"), "access_token=…");
        assert_eq!(shown(""), "");
        assert!(shown(&"a=1&".repeat(10_000)).len() < 1100);
        assert!(shown(&"é".repeat(10_000)).len() <= 2048);
    }
}
