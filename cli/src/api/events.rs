//! Server-sent events.

use std::io::{BufRead as _, BufReader, Read as _};

use anyhow::ensure;

use super::problem::Problem;

/// Largest event of a live stream.
const MAX_EVENT_BYTES: usize = 16 << 20;

/// A stream of server-sent events.
pub(crate) struct Events {
    body: BufReader<ureq::BodyReader<'static>>,
}

impl Events {
    pub(super) fn new(body: ureq::BodyReader<'static>) -> Self {
        Self { body: BufReader::new(body) }
    }

    /// Waits for the next event and returns its data; `None` at the end of the stream. An event called `error` is one.
    pub(crate) fn next(&mut self) -> anyhow::Result<Option<String>> {
        let (mut data, mut line, mut is_error) = (String::new(), String::new(), false);
        loop {
            line.clear();
            let room = MAX_EVENT_BYTES.saturating_sub(data.len());
            if self.body.by_ref().take(room as u64).read_line(&mut line)? == 0 {
                ensure!(room > 0, "an event has more than {MAX_EVENT_BYTES} bytes");
                return Ok(None);
            }
            ensure!(line.len() < room, "an event has more than {MAX_EVENT_BYTES} bytes");
            let line = line.trim_end_matches(['\r', '\n']);
            if let Some(rest) = line.strip_prefix("data:") {
                if !data.is_empty() {
                    data.push('\n');
                }
                data.push_str(rest.strip_prefix(' ').unwrap_or(rest));
            } else if let Some(name) = line.strip_prefix("event:") {
                is_error = name.trim() == "error";
            } else if line.is_empty() && !data.is_empty() {
                if is_error {
                    return Err(Problem::parse(&data).ended_stream().into());
                }
                return Ok(Some(data));
            }
        }
    }
}
