//! Routes of the latency of functions: runs, and what follows from them.

mod params;
mod reports;
mod runs;
mod scrape;
mod transactions;

use std::sync::Arc;

use axum::{Router, response::Response, routing::get};
use chainscope_latency::{
    Run,
    report::{Report, RunSummary},
    verdict::{Comparison, Options, Side, compare},
};
use chainscope_store::Store;
use utoipa::OpenApi;

use self::params::{CompareParameters, ReportParameters, RunsParameters};
pub(super) use self::scrape::scrape;
use super::{
    app::{App, AuthorizedNode},
    params::{NodeParameters, Params},
    problem::Problem,
    response,
};
use crate::access::permission::ReadTrace;

/// All routes; each needs the layer [`super::app::authenticate`].
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v2/latency/runs", get(latency_runs))
        .route("/v2/latency/report", get(latency_report))
        .route("/v2/latency/compare", get(latency_comparison))
        .route("/v2/latency/compare/report", get(latency_comparison_report))
        .route("/v2/latency/transactions", get(transactions::latency_transactions))
}

/// Description of the routes.
#[derive(OpenApi)]
#[openapi(
    paths(
        latency_runs,
        latency_report,
        latency_comparison,
        latency_comparison_report,
        transactions::latency_transactions
    ),
    components(schemas(Problem))
)]
pub(super) struct Api;

/// Runs: recordings of the latency of functions, each of one process, by start.
///
/// A run without an end goes on, or its agent was killed.
#[utoipa::path(get, path = "/v2/latency/runs", params(NodeParameters, RunsParameters), responses(
    (status = 200, description = "The runs; possibly none.", body = Vec<RunSummary>),
    (status = 400, description = "A parameter is malformed, several nodes are meant, or the query takes too long.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 404, description = "There is no such node.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Overloaded.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
async fn latency_runs(
    Params(parameters): Params<RunsParameters>,
    node: AuthorizedNode<ReadTrace>,
) -> Result<Response, Problem> {
    let query = parameters.query();
    let runs: Vec<RunSummary> = node.read(move |store, node, budget| runs::list(store, node, &query, &budget)).await?;
    Ok(response::json_of(&runs))
}

/// Percentiles, histograms, return codes and losses of functions, by run and together.
#[utoipa::path(get, path = "/v2/latency/report", params(NodeParameters, ReportParameters), responses(
    (status = 200, description = "The functions, by total time.", body = Report),
    (status = 400, description = "A parameter is malformed, several nodes are meant, or the runs have too many blocks.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 404, description = "There is no such node, or no such run.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Overloaded.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
async fn latency_report(
    Params(parameters): Params<ReportParameters>,
    node: AuthorizedNode<ReadTrace>,
) -> Result<Response, Problem> {
    let query = parameters.query();
    let report = node.read_long(move |store, node, budget| reports::report(store, node, &query, &budget)).await??;
    Ok(response::json_of(&report))
}

/// Whether functions got slower from the runs `a` to the runs `b`.
///
/// The verdict is that of `chainscope latency compare`: the unit is a block of a run, and *same* is shown, not assumed.
#[utoipa::path(get, path = "/v2/latency/compare", params(NodeParameters, CompareParameters), responses(
    (status = 200, description = "The functions, most significant change first.", body = Comparison),
    (status = 400, description = "A parameter is malformed, several nodes are meant, a run is on both sides, or the runs have too many blocks.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 404, description = "There is no such node, or no such run.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Overloaded.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
async fn latency_comparison(
    Params(parameters): Params<CompareParameters>,
    node: AuthorizedNode<ReadTrace>,
) -> Result<Response, Problem> {
    let query = parameters.query()?;
    let comparison = node
        .read_long(move |store, node, budget| {
            Ok(runs::sides(store, node, &query, &budget)?.map(|[a, b]| compare_sides(&a, &b, &query.options)))
        })
        .await??;
    Ok(response::json_of(&comparison))
}

/// The same comparison with the runs, percentiles, histograms and return codes of both sides.
///
/// The document of `chainscope latency compare --output json`, of which the page of `--html` shows the numbers.
#[utoipa::path(get, path = "/v2/latency/compare/report", params(NodeParameters, CompareParameters), responses(
    (status = 200, description = "The functions, most significant change first.", body = Report),
    (status = 400, description = "A parameter is malformed, several nodes are meant, a run is on both sides, or the runs have too many blocks.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 404, description = "There is no such node, or no such run.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Overloaded.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
async fn latency_comparison_report(
    Params(parameters): Params<CompareParameters>,
    node: AuthorizedNode<ReadTrace>,
) -> Result<Response, Problem> {
    let query = parameters.query()?;
    let read = move |store: &Store, node: &str, budget| reports::comparison_report(store, node, &query, &budget);
    let report = node.read_long(read).await??;
    Ok(response::json_of(&report))
}

fn compare_sides(a: &[Run], b: &[Run], options: &Options) -> Comparison {
    compare(Side { runs: a }, Side { runs: b }, options)
}
