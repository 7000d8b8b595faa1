//! Lists as JSON arrays, page by page: a list of any length is sent in bounded memory, and a slow client holds no thread.
//!
//! The first page is read before the response begins, so that an error has its status. If a later page fails the body is
//! aborted: a client never takes a part for the whole. A permission that may be withdrawn is checked again every minute, and
//! the body is aborted if the caller lost it.

use std::{future::Future, io};

use axum::{
    body::{Body, Bytes},
    response::Response,
};
use futures::{StreamExt as _, stream};
use serde::Serialize;

use super::{
    app::{Authorized, AuthorizedNode},
    problem::Problem,
    response,
};
use crate::{access::permission::AccessPolicy, json};

/// Rows of a list without `limit`.
pub(crate) const DEFAULT_LIMIT: u64 = 100;

/// Rows read at a time. TezEdge Explorer requests 1,000: one read.
pub(crate) const PAGE: u64 = 1000;

/// Rows, as JSON without the brackets around them.
pub(crate) struct Page<C> {
    /// Rows, each but the list's first with a comma before it.
    pub(crate) json: Vec<u8>,
    /// Where the next page begins; none if the list is complete.
    pub(crate) next: Option<C>,
}

/// Responds with the list whose pages `read` gives, beginning at `start`. `node` is passed to each call.
pub(crate) async fn respond<P, C, F>(
    node: AuthorizedNode<P>,
    start: C,
    read: impl Fn(AuthorizedNode<P>, C) -> F + Send + 'static,
) -> Result<Response, Problem>
where
    P: AccessPolicy,
    C: Send + 'static,
    F: Future<Output = Result<Page<C>, Problem>> + Send + 'static,
{
    let authorized = Authorized::now();
    let first = read(node.clone(), start).await?;
    let mut json = vec![b'['];
    json.extend_from_slice(&first.json);
    let Some(next) = first.next else {
        json.push(b']');
        return Ok(response::json(Body::from(json)));
    };
    let rest =
        stream::try_unfold((node, authorized, Some(next), read), |(node, mut authorized, next, read)| async move {
            let Some(next) = next else { return Ok(None) };
            authorized.check(&node).await.map_err(|refusal| io::Error::other(Problem::from(refusal).detail))?;
            let page = read(node.clone(), next).await.map_err(|problem| io::Error::other(problem.detail))?;
            let mut json = page.json;
            if page.next.is_none() {
                json.push(b']');
            }
            Ok(Some((Bytes::from(json), (node, authorized, page.next, read))))
        });
    let first = stream::iter([Ok::<_, io::Error>(Bytes::from(json))]);
    Ok(response::json(Body::from_stream(first.chain(rest))))
}

/// Appends a row.
pub(crate) fn push(json: &mut Vec<u8>, is_first: bool, row: &impl Serialize) {
    if !is_first {
        json.push(b',');
    }
    // Rows are structs of strings and numbers: writing them to memory does not fail.
    let _ = json::write(json, row);
}

/// The JSON array of these rows.
pub(crate) fn array<T: Serialize>(rows: impl IntoIterator<Item = T>) -> Vec<u8> {
    let mut json = vec![b'['];
    for row in rows {
        let is_first = json.len() == 1;
        push(&mut json, is_first, &row);
    }
    json.push(b']');
    json
}
