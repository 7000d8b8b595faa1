//! The content of a message: decoded, as a tree, and its bytes.

use chainscope_hygiene::Escaped;
use chainscope_trace::view::{Direction, MonitorEntry};
use ratatui::{layout::Rect, text::Line};

use crate::{
    hex,
    keys::{Key, step},
    time, tree,
};

/// The content of a message, as it was when it was opened.
#[derive(Debug)]
pub(super) struct Content {
    title: String,
    decoded: Vec<String>,
    payload: Vec<u8>,
    /// The first line that is shown.
    top: usize,
}

impl Content {
    pub(super) fn of(entry: &MonitorEntry) -> Self {
        let time = time::of_day(entry.time.wall_ns);
        let title = format!(" {time} {} {} ({} bytes) ", arrow(entry.direction), entry.message_type, entry.size);
        let payload = entry.payload.as_deref().unwrap_or_default().to_vec();
        let mut decoded = match entry.content() {
            Ok(content) if content.as_object().is_some_and(serde_json::Map::is_empty) => vec!["no content".to_owned()],
            Ok(content) => tree::lines(&content),
            Err(_) if entry.payload.is_none() => vec!["not kept any more: it is too old".to_owned()],
            Err(error) => vec![format!("not decoded: {}", Escaped(&error.to_string()))],
        };
        if !payload.is_empty() {
            decoded.push(String::new());
        }
        Self { title, decoded, payload, top: 0 }
    }

    pub(super) fn title(&self) -> &str {
        &self.title
    }

    pub(super) fn scroll(&mut self, key: Key, page: usize) {
        let bytes = self.payload.len().div_ceil(hex::LINE_BYTES);
        self.top = step(key, self.top, self.decoded.len() + bytes, page);
    }

    /// The lines that fit; those of the tree are wrapped.
    pub(super) fn lines(&self, area: Rect) -> Vec<Line<'static>> {
        let (width, height) = (usize::from(area.width), usize::from(area.height));
        let decoded = self.decoded.iter().skip(self.top).flat_map(|line| tree::wrap(line, width));
        let first = self.top.saturating_sub(self.decoded.len());
        let per_line = if hex::columns(hex::LINE_BYTES) <= width { hex::LINE_BYTES } else { hex::LINE_BYTES / 2 };
        // The lines that are scrolled are of 16 bytes.
        let first = first * (hex::LINE_BYTES / per_line);
        let dump = hex::dump_from(&self.payload, per_line, first);
        decoded.chain(dump).take(height).map(Line::from).collect()
    }
}

/// An arrow as in the rows of messages.
fn arrow(direction: Direction) -> &'static str {
    match direction {
        Direction::Inbound => "<---",
        Direction::Outbound => "--->",
    }
}
