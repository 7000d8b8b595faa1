//! Memory of responses until their clients have taken them: all of them together are bounded.
//!
//! ```text
//! handler ─▶ limit ─┬─ length known:   permits for all of it, else 503 ─────────▶ slices ─▶ client
//!                   └─ length unknown: permits, then the next part is made ─┬──▶ slices ─▶ client
//!                                  ▲                                        │
//!                                  └──────── returned when it is taken ─────┘
//! ```
//!
//! Responses that are large or of unknown length have a half, and others the other half, so that slow readers of the largest do
//! not keep others from the rest. A client that holds permits has to read at a least rate ([`super::least_rate`]). Live streams are bounded by their number.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    http::{HeaderValue, header},
    response::{IntoResponse as _, Response},
};
use hyper::body::{Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::PollSemaphore;

use super::problem::Problem;

/// Bytes of a permit.
const PERMIT: usize = 1 << 10;
/// Bytes that are passed on at a time: what a connection buffers beside what has permits.
const SLICE: usize = 64 << 10;
/// Responses of this length or more are large.
const LARGE: usize = 1 << 20;
/// Bytes for which permits are taken before a part of unknown length is made.
const PART: usize = 1 << 20;

/// The bytes of all responses.
#[derive(Debug, Clone)]
pub(crate) struct InFlight {
    small: Share,
    large: Share,
}

#[derive(Debug, Clone)]
struct Share {
    permits: Arc<Semaphore>,
    max: usize,
}

impl Share {
    fn new(bytes: usize) -> Self {
        let max = (bytes / PERMIT).max(PART / PERMIT);
        Self { permits: Arc::new(Semaphore::new(max)), max }
    }

    /// Permits for these bytes; for a response that is larger than the share: all.
    fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Problem> {
        let permits = u32::try_from(count(bytes).min(self.max)).unwrap_or(u32::MAX);
        let full = |_| Problem::busy("too many responses wait for their clients to read them: try again");
        Arc::clone(&self.permits).try_acquire_many_owned(permits).map_err(full)
    }
}

fn count(bytes: usize) -> usize {
    bytes.div_ceil(PERMIT)
}

impl InFlight {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { small: Share::new(bytes / 2), large: Share::new(bytes / 2) }
    }

    /// Bytes that have permits.
    pub(crate) fn bytes(&self) -> u64 {
        let taken = |share: &Share| share.max.saturating_sub(share.permits.available_permits());
        ((taken(&self.small) + taken(&self.large)) * PERMIT) as u64
    }

    /// Permits for the source of a large response, to be dropped with it; 503 if there are none.
    pub(crate) fn hold(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Problem> {
        self.large.take(bytes)
    }

    /// The response with a body that has permits for what it keeps in memory, or a 503.
    pub(crate) fn limit(&self, response: Response) -> Response {
        let is_live =
            response.headers().get(header::CONTENT_TYPE) == Some(&HeaderValue::from_static("text/event-stream"));
        let length = response.body().size_hint().exact().map(|length| usize::try_from(length).unwrap_or(usize::MAX));
        if is_live || length.is_some_and(|length| length <= SLICE) {
            return response;
        }
        let share = if length.is_none_or(|length| length >= LARGE) { &self.large } else { &self.small };
        let permit = match share.take(length.unwrap_or(PART)) {
            Ok(permit) => permit,
            Err(problem) => return problem.into_response(),
        };
        let permits = length.is_none().then(|| PollSemaphore::new(Arc::clone(&share.permits)));
        response.map(|inner| Body::new(LimitedBody { inner, part: Bytes::new(), permit: Some(permit), permits }))
    }
}

/// A body that passes on slices of its parts.
struct LimitedBody {
    inner: Body,
    /// What was not passed on yet.
    part: Bytes,
    /// Permits for `part`, or for the next one.
    permit: Option<OwnedSemaphorePermit>,
    /// Where permits for further parts come from; none: `permit` is for all of them.
    permits: Option<PollSemaphore>,
}

impl LimitedBody {
    /// Adjusts the permits to the length of the part.
    fn adjust(&mut self) {
        let (Some(permits), Some(permit)) = (&self.permits, &mut self.permit) else { return };
        let (has, needs) = (permit.num_permits(), count(self.part.len()));
        match needs.checked_sub(has) {
            None => drop(permit.split(has - needs)),
            // A part that is longer than expected: beyond the limit if there are no more permits.
            Some(more) => {
                let more = permits.clone_inner().try_acquire_many_owned(u32::try_from(more).unwrap_or(u32::MAX));
                more.into_iter().for_each(|more| permit.merge(more));
            }
        }
    }
}

impl HttpBody for LimitedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        loop {
            if !this.part.is_empty() {
                let slice = this.part.split_to(this.part.len().min(SLICE));
                if this.part.is_empty() && this.permits.is_some() {
                    this.permit = None;
                }
                return Poll::Ready(Some(Ok(Frame::data(slice))));
            }
            if let (Some(permits), None) = (&mut this.permits, &this.permit) {
                this.permit = ready!(permits.poll_acquire_many(context, (PART / PERMIT) as u32));
            }
            match ready!(Pin::new(&mut this.inner).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(part) => {
                        this.part = part;
                        this.adjust();
                    }
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => {
                    this.permit = None;
                    return Poll::Ready(end);
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.part.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.inner.size_hint().exact() {
            Some(length) => SizeHint::with_exact(length.saturating_add(self.part.len() as u64)),
            None => SizeHint::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, response::Response};
    use futures::stream;
    use http_body_util::BodyExt as _;

    use super::{InFlight, LARGE, PART, SLICE};

    fn whole(length: usize) -> Response {
        Response::new(Body::from(vec![7; length]))
    }

    fn in_parts(parts: usize, length: usize) -> Response {
        let parts = (0..parts).map(move |_| Ok::<_, std::convert::Infallible>(vec![7; length]));
        Response::new(Body::from_stream(stream::iter(parts)))
    }

    #[tokio::test]
    async fn responses_are_unchanged_and_return_their_permits() {
        let in_flight = InFlight::new(8 << 20);
        for (response, length) in [
            (whole(0), 0),
            (whole(SLICE), SLICE),
            (whole(SLICE + 1), SLICE + 1),
            (whole(LARGE + 5), LARGE + 5),
            (whole(20 << 20), 20 << 20),
            (in_parts(3, 10), 30),
            (in_parts(20, PART + 1), 20 * (PART + 1)),
        ] {
            let expected = response.body().size_hint_of();
            let limited = in_flight.limit(response);
            assert_eq!((limited.status().as_u16(), limited.body().size_hint_of()), (200, expected));
            assert!(limited.into_body().collect().await.unwrap().to_bytes() == vec![7; length], "{length}");
            assert_eq!(in_flight.bytes(), 0, "{length}");
        }
    }

    #[tokio::test]
    async fn beyond_the_limit_responses_are_refused_and_small_ones_are_not() {
        let in_flight = InFlight::new(8 << 20);
        let held: Vec<Response> = (0..4).map(|_| in_flight.limit(whole(LARGE))).collect();
        assert!(held.iter().all(|response| response.status() == 200));
        let refused = in_flight.limit(whole(LARGE));
        assert_eq!((refused.status().as_u16(), &refused.headers()["retry-after"]), (503, &"1".parse().unwrap()));
        assert!(in_flight.hold(1).is_err());
        assert_eq!(in_flight.limit(whole(LARGE - 1)).status(), 200);
        assert_eq!(in_flight.limit(in_parts(1, 1)).status(), 503);
        drop(held);
        // Passing a part on releases its permits.
        let mut streams: Vec<Body> = (0..4).map(|_| in_flight.limit(in_parts(3, PART)).into_body()).collect();
        assert_eq!(in_flight.limit(in_parts(1, 1)).status(), 503);
        while let Some(frame) = streams[0].frame().await {
            frame.unwrap();
        }
        assert_eq!(in_flight.limit(in_parts(1, 1)).status(), 200);
        drop(streams);
        assert_eq!(in_flight.bytes(), 0);
    }

    trait SizeHintOf {
        fn size_hint_of(&self) -> Option<u64>;
    }

    impl SizeHintOf for Body {
        fn size_hint_of(&self) -> Option<u64> {
            axum::body::HttpBody::size_hint(self).exact()
        }
    }
}
