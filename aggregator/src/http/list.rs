//! Lists as JSON arrays, page by page: a list of any length is sent in bounded memory, and a slow client holds no thread.
//!
//! The first page is read before the answer begins, so that an error has its status. If a later one fails the body is
//! broken off: a client never takes a part for the whole.

use std::{future::Future, io, sync::Arc};

use axum::{
    body::{Body, Bytes},
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use futures::stream;

use super::{app::App, problem::Problem};

/// Rows that are read at once. TezEdge Explorer asks for 1,000: one read.
pub(crate) const PAGE: u64 = 1000;

/// Some rows, as JSON without the brackets around them.
pub(crate) struct Page<C> {
    /// Rows, each but the list's first with a comma before it.
    pub(crate) json: Vec<u8>,
    /// Where to go on; none if the list is complete.
    pub(crate) next: Option<C>,
}

/// Answers with the list whose pages `read` gives, beginning at `start`.
pub(crate) async fn answer<C, F>(
    app: Arc<App>,
    start: C,
    read: impl Fn(Arc<App>, C) -> F + Send + 'static,
) -> Result<Response, Problem>
where
    C: Send + 'static,
    F: Future<Output = Result<Page<C>, Problem>> + Send + 'static,
{
    let first = read(Arc::clone(&app), start).await?;
    let mut json = vec![b'['];
    json.extend_from_slice(&first.json);
    let Some(next) = first.next else {
        json.push(b']');
        return Ok(self::json(Body::from(json)));
    };
    let rest = stream::try_unfold((app, Some(next), read), |(app, next, read)| async move {
        let Some(next) = next else { return Ok(None) };
        let page = read(Arc::clone(&app), next).await.map_err(|problem| io::Error::other(problem.detail))?;
        let mut json = page.json;
        if page.next.is_none() {
            json.push(b']');
        }
        Ok(Some((Bytes::from(json), (app, page.next, read))))
    });
    let first = stream::iter([Ok::<_, io::Error>(Bytes::from(json))]);
    Ok(self::json(Body::from_stream(futures::StreamExt::chain(first, rest))))
}

/// Appends a row.
pub(crate) fn push(json: &mut Vec<u8>, is_first: bool, row: &impl serde::Serialize) {
    if !is_first {
        json.push(b',');
    }
    // Rows are structs of strings and numbers: writing them to memory does not fail.
    let _ = super::json::write(json, row);
}

/// A body of JSON.
pub(crate) fn json(body: Body) -> Response {
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
