//! The live twins of lists: rows as they are recorded, as server-sent events whose `id:` is the cursor.
//!
//! A stream is a list without an end, oldest first: it reads a page, sends it, and waits for new rows when there are none.
//! Rows are read only as fast as the client takes them, so that a slow client costs nothing but its connection. After a
//! disconnect `Last-Event-ID` resumes after the last event, without gaps and duplicates.
//!
//! A permission that may be withdrawn is checked again every minute. A stream whose caller lost it, or that cannot be read any
//! more, ends with an event called `error`, whose data is a problem; while the aggregator is overloaded or the check cannot be
//! made, nothing is sent.

use std::{convert::Infallible, ops::ControlFlow, sync::atomic::Ordering};

use axum::{
    http::{HeaderMap, HeaderName, HeaderValue, header},
    response::{
        IntoResponse as _, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use chainscope_store::Order;
use futures::{StreamExt as _, stream};
use prometheus_client::metrics::gauge::Gauge;
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    time::timeout,
};

use super::{
    app::{Authorized, AuthorizedNode},
    params::{is_decimal, shown},
    problem::Problem,
    request_id::RequestId,
    rows::{Part, Rows},
};

/// Rows read at a time.
const PAGE: u64 = 256;
/// Bytes of JSON after which no more rows are read at a time.
const PAGE_BYTES: usize = 64 << 10;

/// Responds with the rows that the query selects, oldest first, from its cursor, the last event of the client or now on; ends
/// after `limit` of them.
pub(crate) async fn respond<R: Rows>(
    headers: &HeaderMap,
    node: AuthorizedNode<R::Policy>,
    rows: R,
    limit: Option<u64>,
) -> Result<Response, Problem> {
    let left = limit.unwrap_or(u64::MAX);
    let next = match last_event_id(headers)?.map(|id| id.saturating_add(1)).or(rows.cursor()) {
        Some(cursor) => cursor,
        None => node.read(|store, node, _| Ok(R::next_id(store, node))).await?,
    };
    let permit = node.app().streams().clone().try_acquire_owned().map_err(|_| {
        node.app().metrics().http.refused.inc();
        Problem::busy("too many streams are open")
    })?;
    let heartbeat = node.app().limits().heartbeat_interval;
    let open = OpenStream::new(node.app().metrics().http.streams.clone(), permit);
    let visible = node.app().visible();
    let authorized = Authorized::now();
    let feed = Feed { node, rows, next, left, visible, authorized, has_ended: false, held: None, _open: open };
    // The first bytes are sent at once: the client sees that the stream is open before there is an event.
    let opened = stream::iter([Event::default().comment("open")]);
    let events = stream::unfold(feed, |mut feed| async move { feed.next().await.map(|events| (events, feed)) });
    let events = opened.chain(events.flat_map(stream::iter)).map(Ok::<_, Infallible>);
    let keep_alive = KeepAlive::new().interval(heartbeat).text("still here");
    let mut response = Sse::new(events).keep_alive(keep_alive).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Disables nginx's buffering of the response.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}

/// The id in `Last-Event-ID`.
fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    if text.is_empty() {
        // Sent by browsers that have received no event yet.
        return Ok(None);
    }
    let id = is_decimal(text).then(|| text.parse().ok()).flatten();
    id.map(Some).ok_or_else(|| Problem::parameter("Last-Event-ID", format!("{} is no row's id", shown(text))))
}

/// An open stream, counted as long as this exists.
struct OpenStream {
    streams: Gauge,
    _permit: OwnedSemaphorePermit,
}

impl OpenStream {
    fn new(streams: Gauge, permit: OwnedSemaphorePermit) -> Self {
        streams.inc();
        Self { streams, _permit: permit }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.streams.dec();
    }
}

/// The source of a stream's events.
struct Feed<R: Rows> {
    node: AuthorizedNode<R::Policy>,
    rows: R,
    /// Id of the first row that was not read.
    next: u64,
    /// Events that are still to be sent.
    left: u64,
    visible: watch::Receiver<u64>,
    authorized: Authorized,
    /// The last event was sent.
    has_ended: bool,
    /// Memory of the events that are being sent, if it is much.
    held: Option<OwnedSemaphorePermit>,
    _open: OpenStream,
}

impl<R: Rows> Feed<R> {
    /// The next events, at least one; none at the end.
    async fn next(&mut self) -> Option<Vec<Event>> {
        let stop = self.node.app().stop().clone();
        loop {
            if self.left == 0 || self.has_ended {
                return None;
            }
            if stop.is_cancelled() {
                return self.end(Event::default().comment("the aggregator ends"));
            }
            let checked = tokio::select! {
                checked = self.authorized.check(&self.node) => checked,
                () = stop.cancelled() => continue,
            };
            if let Err(refusal) = checked {
                return self.fail(refusal.into());
            }
            self.visible.mark_unchanged();
            let events = tokio::select! {
                events = self.read() => events,
                () = stop.cancelled() => continue,
            };
            match events {
                Ok(events) if !events.is_empty() => return Some(events),
                Ok(_) => {}
                // The next attempt follows.
                Err(problem) if problem.is_temporary() => {
                    tracing::debug!(detail = problem.detail, "a stream could not be read");
                }
                Err(problem) => return self.fail(problem),
            }
            let heartbeat = self.node.app().limits().heartbeat_interval;
            let pause = self.authorized.due(&self.node).map_or(heartbeat, |due| due.min(heartbeat));
            tokio::select! {
                changed = timeout(pause, self.visible.changed()) => {
                    if matches!(changed, Ok(Err(_))) {
                        return None;
                    }
                }
                () = stop.cancelled() => {}
            }
        }
    }

    fn fail(&mut self, problem: Problem) -> Option<Vec<Event>> {
        let last = error_event(problem, self.node.request_id());
        self.end(last)
    }

    fn end(&mut self, last: Event) -> Option<Vec<Event>> {
        self.has_ended = true;
        Some(vec![last])
    }

    /// Reads the next events; none if there are no new ones.
    async fn read(&mut self) -> Result<Vec<Event>, Problem> {
        self.held = None;
        let (rows, cursor, limit) = (self.rows.clone(), self.next, self.left.min(PAGE));
        let (events, bytes, next) = self
            .node
            .read(move |store, node, budget| {
                // Before the read, so that rows that become visible meanwhile are read next time.
                let end = R::next_id(store, node);
                let (mut events, mut bytes, mut last) = (Vec::new(), 0, None);
                let part = Part { cursor: Some(cursor), limit, order: Order::OldestFirst, budget };
                rows.each(store, node, part, &mut |id, row| {
                    bytes += row.len();
                    // JSON is UTF-8.
                    events.push(Event::default().id(id.to_string()).data(String::from_utf8_lossy(row)));
                    last = Some(id);
                    if bytes < PAGE_BYTES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                })?;
                let seen = last.map_or(0, |id| id.saturating_add(1));
                // Fewer rows than the limits: everything up to the end was read.
                let is_complete = (events.len() as u64) < limit && bytes < PAGE_BYTES;
                Ok((events, bytes, if is_complete { seen.max(end) } else { seen }))
            })
            .await?;
        if bytes > 2 * PAGE_BYTES {
            self.held = Some(self.node.app().in_flight().hold(bytes)?);
        }
        let sent = events.len() as u64;
        self.next = self.next.max(next);
        self.left = self.left.saturating_sub(sent);
        self.node.app().metrics().http.streamed.fetch_add(sent, Ordering::Relaxed);
        Ok(events)
    }
}

/// The end of a stream that cannot go on.
fn error_event(problem: Problem, id: Option<&RequestId>) -> Event {
    let problem = match id {
        Some(id) => problem.with_request_id(id),
        None => problem,
    };
    // JSON is UTF-8.
    Event::default().event("error").data(String::from_utf8_lossy(&problem.json()))
}
