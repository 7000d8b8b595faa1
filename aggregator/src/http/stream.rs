//! `/v2/p2p/stream`: messages as they are recorded, as server-sent events whose `id:` is the cursor.
//!
//! A stream is a list without an end, oldest first: it reads a page, sends it, and waits for new rows when there are none.
//! Rows are read only as fast as the client takes them, so that a slow one costs nothing but its connection. After a
//! break `Last-Event-ID` goes on where the last event was, nothing missing and nothing twice.
//!
//! Where callers need a right it is asked for again each minute. A stream whose caller lost it ends with an event called
//! `error`; while nobody can say whether they have it, nothing is sent.

use std::{
    io::Write as _,
    ops::ControlFlow,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};
use chainscope_proto::v1::record::Kind;
use chainscope_store::{MessageQuery, Order};
use futures::stream;
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    time::{Instant, sleep, timeout},
};

use super::{
    app::{App, Asked},
    form::shown,
    guard::Visit,
    openapi::StreamParameters,
    problem::Problem,
    query,
    wire::Row,
};
use crate::access::Refusal;

/// Events that are read at once.
const PAGE: u64 = 256;

/// A comment: shows that the server lives, and finds out whether the client does.
const HEARTBEAT: &[u8] = b": still here\n\n";

/// The last sign of life.
const FAREWELL: &[u8] = b": the aggregator ends\n\n";

/// Time between two questions whether the caller still may, while there is no answer.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// Messages of a node as they are recorded.
///
/// Server-sent events: `id` is the message's, `data` a row as in `/v2/p2p`. Begins with what is recorded from now on, or
/// at `cursor`; the header `Last-Event-ID` resumes behind that message. `limit` ends the stream after so many events.
#[utoipa::path(get, path = "/v2/p2p/stream", params(StreamParameters), responses(
    (status = 200, description = "The events.", content_type = "text/event-stream", body = String),
    (status = 400, description = "A parameter is malformed, or several nodes are meant.", body = Problem),
    (status = 404, description = "There is no such node.", body = Problem),
    (status = 503, description = "Too many streams are open.", body = Problem),
))]
pub(crate) async fn messages(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    asked: Asked,
) -> Result<Response, Problem> {
    let form = asked.form();
    let mut query = query::messages(&form)?;
    query.order = Order::OldestFirst;
    let left = if form.has("limit") { query.limit } else { u64::MAX };
    let node: Arc<str> = asked.node(&app, &form).await?.into();
    let start = match resume(&headers)?.or(query.cursor) {
        Some(cursor) => cursor,
        None => {
            let node = Arc::clone(&node);
            app.read(move |store, _| Ok(store.visible(&node).1)).await?
        }
    };
    let permit = Arc::clone(&app.streams).try_acquire_owned().map_err(|_| {
        app.metrics.http.refused.inc();
        Problem::busy("too many streams are open")
    })?;
    let visible = app.visible.clone();
    app.metrics.http.streams.inc();
    let visit = (!app.access.is_open()).then(|| asked.visit().clone());
    let checked = Instant::now();
    let live = Live { app, node, query, next: start, left, visible, visit, checked, has_ended: false, _permit: permit };
    // The first bytes go at once: the client sees that the stream is open before anything happens.
    let opened = stream::iter([Ok(Bytes::from_static(b": open\n\n"))]);
    let events = stream::unfold(live, |mut live| async move {
        live.step().await.map(|bytes| (Ok::<_, std::io::Error>(bytes), live))
    });
    let mut response = Body::from_stream(futures::StreamExt::chain(opened, events)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // nginx gathers answers otherwise.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// Where `Last-Event-ID` says to go on.
fn resume(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    if text.is_empty() {
        // What a browser sends that has seen no event yet.
        return Ok(None);
    }
    let id = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    let id = id.ok_or_else(|| Problem::parameter("Last-Event-ID", format!("{} is no message's id", shown(text))))?;
    Ok(Some(id.saturating_add(1)))
}

struct Live {
    app: Arc<App>,
    node: Arc<str>,
    query: MessageQuery,
    /// Id of the first message that was not looked at.
    next: u64,
    /// Events still to send.
    left: u64,
    visible: watch::Receiver<u64>,
    /// Who reads; none if nobody is asked.
    visit: Option<Visit>,
    /// When they were found to have the right.
    checked: Instant,
    /// The last block was sent.
    has_ended: bool,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Live {
    fn drop(&mut self) {
        self.app.metrics.http.streams.dec();
    }
}

impl Live {
    /// What is to be sent next; none at the end.
    async fn step(&mut self) -> Option<Bytes> {
        let stop = self.app.stop.clone();
        loop {
            if self.left == 0 || self.has_ended {
                return None;
            }
            if stop.is_cancelled() {
                return self.end(Bytes::from_static(FAREWELL));
            }
            match self.may_go_on().await {
                Ok(()) => {}
                Err(refusal @ Refusal::NoAnswer(_)) => {
                    tracing::debug!(%refusal, "a stream waits");
                    tokio::select! {
                        () = sleep(ASK_AGAIN.min(self.app.limits.heartbeat)) => {}
                        () = stop.cancelled() => continue,
                    }
                    return Some(Bytes::from_static(HEARTBEAT));
                }
                Err(refusal) => return self.end(error_event(refusal)),
            }
            self.visible.mark_unchanged();
            let events = tokio::select! {
                events = self.read() => events,
                () = stop.cancelled() => continue,
            };
            match events {
                Ok(events) if !events.is_empty() => return Some(events),
                // Nothing new; or the store is busy, which passes.
                Ok(_) => {}
                Err(problem) => tracing::debug!(detail = problem.detail, "a stream waits"),
            }
            let mut pause = self.app.limits.heartbeat;
            if self.visit.is_some() {
                pause = pause.min(self.app.limits.recheck.saturating_sub(self.checked.elapsed()));
            }
            let changed = timeout(pause, self.visible.changed());
            tokio::select! {
                changed = changed => match changed {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return None,
                    Err(_) => return Some(Bytes::from_static(HEARTBEAT)),
                },
                () = stop.cancelled() => {}
            }
        }
    }

    /// Whether the caller still has the right; asked now and then.
    async fn may_go_on(&mut self) -> Result<(), Refusal> {
        let Some(Visit { caller, right: Some(right), .. }) = &self.visit else { return Ok(()) };
        if self.checked.elapsed() >= self.app.limits.recheck {
            self.app.access.still_may(caller, *right, &self.node).await?;
            self.checked = Instant::now();
        }
        Ok(())
    }

    fn end(&mut self, last: Bytes) -> Option<Bytes> {
        self.has_ended = true;
        Some(last)
    }

    /// Reads the next events; none if there are no new ones.
    async fn read(&mut self) -> Result<Bytes, Problem> {
        let node = Arc::clone(&self.node);
        let limit = self.left.min(PAGE);
        let mut query = MessageQuery { cursor: Some(self.next), limit, ..self.query.clone() };
        let (events, rows, next) = self
            .app
            .read(move |store, budget| {
                query.budget = budget;
                // Before the read, so that what comes meanwhile is looked at next time.
                let (_, end) = store.visible(&node);
                let (mut events, mut rows, mut last) = (Vec::new(), 0, None);
                store.each_message(&node, &query, &mut |id, record| {
                    if let Some(Kind::Message(message)) = &record.kind {
                        event(&mut events, id, &Row::new(id, &record, message));
                    }
                    rows += 1;
                    last = Some(id);
                    ControlFlow::Continue(())
                })?;
                let seen = last.map_or(0, |id| id.saturating_add(1));
                // Not as many as asked for: everything up to the end was looked at.
                let next = if rows < limit { seen.max(end) } else { seen };
                Ok((Bytes::from(events), rows, next))
            })
            .await?;
        self.next = self.next.max(next);
        self.left -= rows;
        self.app.metrics.http.streamed.fetch_add(rows, Ordering::Relaxed);
        Ok(events)
    }
}

/// The end of a stream whose caller may not read on.
fn error_event(refusal: Refusal) -> Bytes {
    let mut event = b"event: error\ndata: ".to_vec();
    // Writing to memory does not fail, and JSON has no line breaks.
    let _ = super::json::write(&mut event, &Problem::from(refusal));
    event.extend_from_slice(b"\n\n");
    event.into()
}

fn event(events: &mut Vec<u8>, id: u64, row: &Row<'_>) {
    // Writing to memory does not fail, and JSON has no line breaks.
    let _ = write!(events, "id: {id}\ndata: ");
    let _ = super::json::write(events, row);
    events.extend_from_slice(b"\n\n");
}
