//! Lists of rows with ids, page by page. [`super::stream`] has their live twins.

use std::ops::ControlFlow;

use axum::response::Response;
use chainscope_store::{Budget, Error as StoreError, Order, Store};

use super::{
    app::AuthorizedNode,
    list::{self, PAGE, Page},
    problem::Problem,
};
use crate::access::permission::AccessPolicy;

/// Bytes of JSON after which a page ends.
const PAGE_BYTES: usize = 1 << 20;

/// Rows of a kind that a query of the store selects.
pub(crate) trait Rows: Clone + Send + Sync + 'static {
    /// What the caller needs.
    type Policy: AccessPolicy;

    /// Id of the first row of the list; none: from its end.
    fn cursor(&self) -> Option<u64>;

    /// Maximum number of rows.
    fn limit(&self) -> u64;

    /// The order of the list.
    fn order(&self) -> Order;

    /// Id that the node's next row will get.
    fn next_id(store: &Store, node: &str) -> u64;

    /// Reads a part of the list and passes each row's id and JSON, until `each` breaks off.
    fn each(
        self,
        store: &Store,
        node: &str,
        part: Part,
        each: &mut dyn FnMut(u64, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), StoreError>;
}

/// A part of a list.
pub(crate) struct Part {
    pub(crate) cursor: Option<u64>,
    pub(crate) limit: u64,
    pub(crate) order: Order,
    pub(crate) budget: Budget,
}

/// Responds with the list.
pub(crate) async fn respond<R: Rows>(node: AuthorizedNode<R::Policy>, rows: R) -> Result<Response, Problem> {
    let start = Position { cursor: rows.cursor(), left: rows.limit(), is_first: true };
    list::respond(node, start, move |node, position| page(node, rows.clone(), position)).await
}

/// Where the next page of a list begins.
struct Position {
    /// Id of the first row to read.
    cursor: Option<u64>,
    /// Rows that are still wanted.
    left: u64,
    is_first: bool,
}

async fn page<R: Rows>(
    node: AuthorizedNode<R::Policy>,
    rows: R,
    position: Position,
) -> Result<Page<Position>, Problem> {
    let Position { cursor, left, is_first } = position;
    let (limit, order) = (left.min(PAGE), rows.order());
    node.read(move |store, node, budget| {
        let (mut json, mut count, mut last) = (Vec::new(), 0, None);
        rows.each(store, node, Part { cursor, limit, order, budget }, &mut |id, row| {
            if !is_first || count > 0 {
                json.push(b',');
            }
            json.extend_from_slice(row);
            count += 1;
            last = Some(id);
            if json.len() < PAGE_BYTES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        let left = left.saturating_sub(count);
        let cursor = last.and_then(|id| match order {
            Order::NewestFirst => id.checked_sub(1),
            Order::OldestFirst => id.checked_add(1),
        });
        let is_complete = (count < limit && json.len() < PAGE_BYTES) || left == 0 || cursor.is_none();
        let next = (!is_complete).then_some(Position { cursor, left, is_first: false });
        Ok(Page { json, next })
    })
    .await
}
