//! Rows and documents in the format that the command line selects.

use chainscope_hygiene::EscapedJson;

use crate::{args::Format, terminal};

/// Prints rows one after the other, as JSON in a list or by lines.
pub(crate) struct JsonRows {
    format: Format,
    count: u64,
}

impl JsonRows {
    /// Rows as `json` or `jsonl`.
    pub(crate) fn new(format: Format) -> Self {
        Self { format, count: 0 }
    }

    /// Prints a row, as the API returned it.
    pub(crate) fn row(&mut self, json: &str) -> anyhow::Result<()> {
        let row = EscapedJson(json);
        self.count += 1;
        match (self.format, self.count) {
            (Format::Json, 1) => terminal::write(format!("[\n{row}").as_bytes()),
            (Format::Json, _) => terminal::write(format!(",\n{row}").as_bytes()),
            _ => terminal::line(&row.to_string()),
        }
    }

    /// Ends the list.
    pub(crate) fn end(self) -> anyhow::Result<()> {
        match (self.format, self.count) {
            (Format::Json, 0) => terminal::line("[]"),
            (Format::Json, _) => terminal::line("\n]"),
            _ => Ok(()),
        }
    }
}

/// Prints a JSON document, as the API returned it.
pub(crate) fn document(json: &str) -> anyhow::Result<()> {
    terminal::line(&EscapedJson(json.trim_end()).to_string())
}
