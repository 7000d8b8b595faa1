//! Routes of the logs pillar.

use std::sync::Arc;

use axum::{Router, body::Body, response::Response, routing::get};
use chainscope_proto::v1::{Record, record::Kind};
use chainscope_store::LogQuery;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, OpenApi, ToSchema};

use super::{
    app::{App, AuthorizedNode},
    list::{self, DEFAULT_LIMIT},
    params::{NodeParameters, Params, number},
    problem::Problem,
    response,
    time::shown_time,
};
use crate::access::permission::ReadLogs;

/// All routes; each needs the layer [`super::app::authenticate`].
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/v2/log", get(lines))
}

/// Description of the routes.
#[derive(OpenApi)]
#[openapi(paths(lines), components(schemas(Problem)))]
pub(super) struct Api;

/// Which lines.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
struct LogParameters {
    /// Maximum number of lines. Default: 100.
    #[serde(deserialize_with = "number")]
    limit: Option<u64>,
}

/// A log line.
#[derive(Debug, Serialize, ToSchema)]
struct LogMessageView {
    /// Position among the node's log lines, dense from 0.
    id: u64,
    /// Nanoseconds since 1970, in whole milliseconds.
    timestamp: i64,
    /// The line.
    text: String,
}

/// Log lines of a node, newest first.
#[utoipa::path(get, path = "/v2/log", params(NodeParameters, LogParameters), responses(
    (status = 200, description = "The lines; possibly none.", body = Vec<LogMessageView>),
    (status = 400, description = "A parameter is malformed, or several nodes are meant.", body = Problem),
    (status = 404, description = "There is no such node.", body = Problem),
))]
async fn lines(Params(parameters): Params<LogParameters>, node: AuthorizedNode<ReadLogs>) -> Result<Response, Problem> {
    let query = LogQuery { limit: parameters.limit.unwrap_or(DEFAULT_LIMIT), ..LogQuery::default() };
    let json = node.read(move |store, node, _| {
        let lines = store.log_messages(node, &query)?.into_iter().filter_map(|(id, record)| match record {
            Record { time_ns, kind: Some(Kind::LogMessage(message)), .. } => Some(LogMessageView {
                id,
                timestamp: shown_time(time_ns),
                text: String::from_utf8_lossy(&message.raw).into_owned(),
            }),
            _ => None,
        });
        Ok(list::array(lines))
    });
    Ok(response::json(Body::from(json.await?)))
}
