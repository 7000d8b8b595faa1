//! Lists of rows with ids, and their live streams.

use std::{convert::Infallible, thread, time::Duration};

use anyhow::Context as _;
use chainscope_hygiene::EscapedTruncated;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::{
    api::{Api, Events, Query},
    args::Format,
    failure,
    output::JsonRows,
    terminal,
};

/// Rows requested at a time.
const PAGE: u64 = 1000;
/// Pauses before a lost stream is opened again; the last one repeats.
const BACKOFF: [Duration; 4] =
    [Duration::from_millis(250), Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(10)];

/// The pause before the next attempt, after this number of failed ones.
pub(crate) fn backoff(failures: usize) -> Duration {
    BACKOFF.get(failures).or(BACKOFF.last()).copied().unwrap_or_default()
}

/// Rows of one kind of one node.
pub(crate) struct Source<'a> {
    pub(crate) api: &'a Api,
    /// Path of the list.
    pub(crate) list: &'static str,
    /// Path of the live stream.
    pub(crate) stream: &'static str,
    /// The parameter that names the node, if it is named.
    pub(crate) node: Query,
    /// The other filters.
    pub(crate) filters: Query,
}

/// What is common to all rows.
#[derive(Deserialize)]
struct Id {
    id: u64,
}

fn id(row: &str) -> anyhow::Result<u64> {
    let id: Id = serde_json::from_str(row).with_context(|| format!("not a row: {}", EscapedTruncated(row)))?;
    Ok(id.id)
}

/// The elements of a JSON array, each as its text.
pub(crate) fn elements(json: &str) -> anyhow::Result<Vec<&str>> {
    let mut rest = json.trim_start().strip_prefix('[').context("not a list")?.trim_start();
    let mut elements = Vec::new();
    while !rest.starts_with(']') {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<IgnoredAny>();
        values.next().context("a list without an end")??;
        let (element, after) = rest.split_at(values.byte_offset());
        elements.push(element);
        let after = after.trim_start();
        rest = after.strip_prefix(',').unwrap_or(after).trim_start();
    }
    Ok(elements)
}

impl Source<'_> {
    fn query(&self, more: &[(&'static str, Option<u64>)]) -> Query {
        let numbers = more.iter().filter_map(|(name, value)| Some((*name, value.as_ref()?.to_string())));
        self.node.iter().chain(&self.filters).cloned().chain(numbers).collect()
    }

    /// Id after the node's newest row, whatever its filters.
    fn end(&self) -> anyhow::Result<u64> {
        Ok(self.edge("backward")?.map_or(0, |newest| newest + 1))
    }

    /// Id of the node's newest (`backward`) or oldest (`forward`) row.
    fn edge(&self, direction: &str) -> anyhow::Result<Option<u64>> {
        let mut query = self.node.clone();
        query.extend([("limit", "1".to_owned()), ("direction", direction.to_owned())]);
        let text = self.api.text(self.list, &query)?;
        elements(&text)?.first().map(|row| id(row)).transpose()
    }

    /// Prints the newest `limit` rows, or without it all rows, oldest first, then each new one if they are followed. `line` prints a
    /// row as text.
    pub(crate) fn print(
        &self,
        format: Format,
        is_followed: bool,
        limit: Option<u64>,
        line: &mut dyn FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut json = JsonRows::new(format);
        let mut each = |row: &str| if format == Format::Table { line(row) } else { json.row(row) };
        if is_followed {
            self.past_and_follow(limit, &mut each)?;
        }
        self.past(limit, &mut each)?;
        json.end()
    }

    /// Passes the newest `limit` rows, or without it all rows, oldest first. Returns the id after the last one.
    pub(crate) fn past(
        &self,
        limit: Option<u64>,
        each: &mut dyn FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<Option<u64>> {
        match limit {
            Some(limit) => self.newest(limit, each),
            None => self.all(each),
        }
    }

    fn newest(&self, limit: u64, each: &mut dyn FnMut(&str) -> anyhow::Result<()>) -> anyhow::Result<Option<u64>> {
        let mut rows: Vec<String> = Vec::new();
        let (mut end, mut cursor) = (None, None);
        while (rows.len() as u64) < limit {
            let page = (limit - rows.len() as u64).min(PAGE);
            let text = self.api.text(self.list, &self.query(&[("limit", Some(page)), ("cursor", cursor)]))?;
            let page = elements(&text)?;
            let (Some(first), Some(last)) = (page.first(), page.last()) else { break };
            end = end.or(Some(id(first)? + 1));
            cursor = id(last)?.checked_sub(1);
            rows.extend(page.into_iter().map(str::to_owned));
            if cursor.is_none() {
                break;
            }
        }
        rows.iter().rev().try_for_each(|row| each(row))?;
        Ok(end)
    }

    fn all(&self, each: &mut dyn FnMut(&str) -> anyhow::Result<()>) -> anyhow::Result<Option<u64>> {
        let mut end = None;
        loop {
            let mut query = self.query(&[("limit", Some(PAGE)), ("cursor", end)]);
            query.push(("direction", "forward".to_owned()));
            let text = self.api.text(self.list, &query)?;
            let page = elements(&text)?;
            let Some(last) = page.last() else { return Ok(end) };
            end = Some(id(last)? + 1);
            page.iter().try_for_each(|row| each(row))?;
            if (page.len() as u64) < PAGE {
                return Ok(end);
            }
        }
    }

    /// Passes past rows as [`Source::past`] does, then each row as it is recorded; ends with an error only. A lost stream
    /// is opened again after the last row.
    fn past_and_follow(
        &self,
        limit: Option<u64>,
        each: &mut dyn FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<Infallible> {
        // Requested first: what is recorded after it is in the list or in the stream.
        let end = self.end()?;
        let next = self.past(limit, each)?.unwrap_or(end);
        self.follow(next, each)
    }

    /// Passes each row from id `next` on, as it is recorded.
    pub(crate) fn follow(
        &self,
        mut next: u64,
        each: &mut dyn FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<Infallible> {
        let mut events = self.open(next)?;
        loop {
            let lost = loop {
                match events.next() {
                    Ok(Some(row)) => {
                        let id = id(&row)?;
                        if id >= next {
                            each(&row)?;
                            next = id + 1;
                        }
                    }
                    Ok(None) => break anyhow::anyhow!("the server ended the stream"),
                    Err(error) => break error,
                }
            };
            events = self.reopen(&mut next, lost)?;
        }
    }

    fn open(&self, next: u64) -> anyhow::Result<Events> {
        self.api.events(self.stream, &self.query(&[("cursor", Some(next))]))
    }

    /// Opens the stream again, until it succeeds or cannot. One that ended with its token is opened with a new one, if there
    /// may be one.
    fn reopen(&self, next: &mut u64, lost: anyhow::Error) -> anyhow::Result<Events> {
        let has_new_token = failure::status(&lost) == Some(401) && self.api.renew_token();
        let mut error = lost;
        for failures in 0.. {
            if is_final(&error) && !(has_new_token && failures == 0) {
                return Err(error);
            }
            if failures == 0 {
                terminal::note(&format!("connection lost: {}; reconnecting", failure::one_line(&error)));
            } else {
                terminal::detail(&failure::one_line(&error));
            }
            thread::sleep(backoff(failures));
            match self.check_records(next).and_then(|()| self.open(*next)) {
                Ok(events) => {
                    terminal::note("reconnected");
                    return Ok(events);
                }
                Err(other) => error = other,
            }
        }
        Err(error)
    }

    /// Compares the records of the server with those before the connection was lost.
    fn check_records(&self, next: &mut u64) -> anyhow::Result<()> {
        let (oldest, end) = (self.edge("forward")?, self.end()?);
        if end < *next {
            terminal::note("the server has other records than before; all of them follow");
            *next = 0;
        } else if let Some(oldest) = oldest.filter(|oldest| *oldest > *next) {
            if self.filters.is_empty() {
                terminal::note(&format!("{} records were evicted meanwhile and are missing here", oldest - *next));
            } else {
                // The lost stream may have examined them: `next` is known of rows that match only.
                terminal::note("records after the last one here were evicted meanwhile; matching ones may be missing");
            }
        }
        Ok(())
    }
}

/// Whether another attempt would fail as well.
fn is_final(error: &anyhow::Error) -> bool {
    matches!(failure::status(error), Some(400 | 401 | 403 | 404))
}

#[cfg(test)]
mod tests {
    use super::elements;

    #[test]
    fn a_list_is_split_into_its_elements() {
        assert_eq!(elements(" [ ] ").unwrap(), [""; 0]);
        assert_eq!(
            elements(r#"[{"b":1,"a":"],\""},[2], "x" ,3]"#).unwrap(),
            [r#"{"b":1,"a":"],\""}"#, "[2]", "\"x\"", "3"]
        );
        for wrong in ["", "{}", "[", "[1", "[1 2", "[{]"] {
            assert!(elements(wrong).is_err(), "{wrong}");
        }
    }
}
