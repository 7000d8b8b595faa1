//! What a request for messages asks: the parameters of `/v2/p2p` and its twins.
//!
//! Times are whole milliseconds in answers, so they are compared as whole milliseconds: a row is in `from..=to` exactly
//! if the time it shows is.

use std::net::SocketAddr;

use chainscope_proto::v1::Initiator;
use chainscope_store::{MessageQuery, Order};
use chainscope_tezos::message::{KINDS, canonical_kind};

use super::{
    form::{Form, shown},
    problem::Problem,
};

/// Rows of a list without `limit`.
pub(crate) const DEFAULT_LIMIT: u64 = 100;

const NS_PER_MS: i64 = 1_000_000;

/// Times below are seconds.
const SECONDS_BELOW: u64 = 100_000_000_000;
/// Times below (and not seconds) are milliseconds, others nanoseconds.
const MILLIS_BELOW: u64 = 100_000_000_000_000;
/// A `from` this great with an explicit direction is TezEdge Explorer's search by time.
const EXPLORER_FROM: u64 = 1_000_000_000_000_000;

/// Reads the parameters of a list of messages. Its budget is left to the caller.
pub(crate) fn messages(form: &Form<'_>) -> Result<MessageQuery, Problem> {
    let direction = form.text("direction")?;
    let order = if direction == Some("forward") { Order::OldestFirst } else { Order::NewestFirst };
    let mut query = MessageQuery {
        cursor: cursor(form)?,
        limit: limit(form)?,
        order,
        kinds: kinds(form)?,
        incoming: form.boolean("incoming")?,
        initiator: initiator(form)?,
        remote: remote(form)?,
        peer_id: form.text("peer_id")?.map(str::to_owned),
        target: form.text("target")?.map(str::to_owned),
        ..MessageQuery::default()
    };
    let (from, to, pivot) = (form.number("from")?, form.number("to")?, form.number("timestamp")?);
    // The Explorer searches by a time T with two requests, `from=<T in ns>` backward and forward, and means a pivot.
    let (from, pivot) = match from {
        Some(time) if time >= EXPLORER_FROM && direction.is_some() && to.is_none() && pivot.is_none() => (None, from),
        _ => (from, pivot),
    };
    query.from_ns = from.map(nanoseconds).map(first_shown_at_least);
    query.to_ns = to.map(nanoseconds).map(first_shown_after);
    if let Some(edge) = pivot.map(nanoseconds).map(first_shown_after) {
        match order {
            Order::NewestFirst => query.to_ns = Some(query.to_ns.map_or(edge, |to| to.min(edge))),
            Order::OldestFirst => query.from_ns = Some(query.from_ns.map_or(edge, |from| from.max(edge))),
        }
    }
    Ok(query)
}

/// The parameter `limit`.
pub(crate) fn limit(form: &Form<'_>) -> Result<u64, Problem> {
    Ok(form.number("limit")?.unwrap_or(DEFAULT_LIMIT))
}

/// The parameter `cursor`, or `cursor_id` as older documents call it.
pub(crate) fn cursor(form: &Form<'_>) -> Result<Option<u64>, Problem> {
    match (form.number("cursor")?, form.number("cursor_id")?) {
        (Some(_), Some(_)) => Err(Problem::parameter("cursor_id", "given beside cursor, which means the same")),
        (cursor, old) => Ok(cursor.or(old)),
    }
}

fn kinds(form: &Form<'_>) -> Result<Vec<String>, Problem> {
    let Some(list) = form.text("types")? else { return Ok(Vec::new()) };
    list.split(',')
        .filter(|name| !name.is_empty())
        .map(|name| {
            canonical_kind(name).map(str::to_owned).ok_or_else(|| {
                Problem::parameter("types", format!("unknown type {}; known are {}", shown(name), KINDS.join(", ")))
            })
        })
        .collect()
}

fn initiator(form: &Form<'_>) -> Result<Option<Initiator>, Problem> {
    match form.text("source_type")? {
        None => Ok(None),
        Some("local") => Ok(Some(Initiator::Local)),
        Some("remote") => Ok(Some(Initiator::Remote)),
        Some(other) => Err(Problem::parameter("source_type", format!("{} is neither local nor remote", shown(other)))),
    }
}

fn remote(form: &Form<'_>) -> Result<Option<SocketAddr>, Problem> {
    let parse = |text: &str| {
        text.parse()
            .map_err(|_| Problem::parameter("remote_addr", format!("{} is neither ip:port nor [ip]:port", shown(text))))
    };
    form.text("remote_addr")?.map(parse).transpose()
}

/// A time of unsaid unit as nanoseconds since 1970.
pub(crate) fn nanoseconds(time: u64) -> i64 {
    let factor = match time {
        0..SECONDS_BELOW => 1_000_000_000,
        SECONDS_BELOW..MILLIS_BELOW => 1_000_000,
        _ => 1,
    };
    i64::try_from(u128::from(time) * factor).unwrap_or(i64::MAX)
}

/// The time that an answer shows: whole milliseconds.
pub(crate) fn shown_time(time_ns: i64) -> i64 {
    time_ns.div_euclid(NS_PER_MS).saturating_mul(NS_PER_MS)
}

/// The first time that is shown as `time_ns` or later.
fn first_shown_at_least(time_ns: i64) -> i64 {
    let floor = shown_time(time_ns);
    if floor == time_ns { time_ns } else { floor.saturating_add(NS_PER_MS) }
}

/// The first time that is shown as later than `time_ns`.
fn first_shown_after(time_ns: i64) -> i64 {
    shown_time(time_ns).saturating_add(NS_PER_MS)
}

#[cfg(test)]
#[path = "query_tests.rs"]
mod tests;
