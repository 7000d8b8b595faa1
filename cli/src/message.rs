//! `chainscope message ID`: a message, decoded, beside its bytes.

use anyhow::Context as _;
use bytesize::ByteSize;
use chainscope_hygiene::Escaped;
use serde::Deserialize;
use serde_json::Value;
use unicode_width::UnicodeWidthStr as _;

use crate::{
    api::{Api, Query},
    args::{Format, MessageArgs},
    failure::Failure,
    hex,
    message_row::Row,
    output, program, rows, terminal, time, tree,
};

/// Largest response that is shown as a tree: about a mebibyte of message.
const MAX_BYTES: u64 = 16 << 20;
/// Columns without a terminal.
const DEFAULT_COLUMNS: usize = 120;
/// Least columns of the tree beside the bytes.
const MIN_TREE_COLUMNS: usize = 28;
/// Columns of the tree from which on a line has 16 bytes instead of 8.
const WIDE_TREE_COLUMNS: usize = 40;
/// Greatest columns of the tree: the bytes are read beside it.
const MAX_TREE_COLUMNS: usize = 80;
/// Columns between tree and bytes.
const GAP: usize = 2;

/// The response of `/v2/p2p/{id}`.
#[derive(Debug, Deserialize)]
struct Detail {
    message: Value,
    original_bytes: Vec<String>,
    decrypted_bytes: Vec<String>,
    error: Option<String>,
}

pub(crate) fn run(args: &MessageArgs) -> anyhow::Result<()> {
    let api = args.api.client()?;
    let node: Query = args.node.name().map(|node| ("node_name", node)).into_iter().collect();
    let path = format!("/v2/p2p/{}", args.id);
    if args.output.format() != Format::Table {
        let json = api.text(&path, &node)?;
        ensure_found(args.id, json.trim() != "null")?;
        return output::document(&json);
    }
    let response = api.json_within(MAX_BYTES, &path, &node).map_err(|error| {
        let hint = format!("`{} message {} -o json` prints it", program::name(), args.id);
        if error.to_string().ends_with("bytes or more") {
            Failure::new(error.to_string()).hint(hint).into()
        } else {
            error
        }
    })?;
    ensure_found(args.id, !response.is_null())?;
    let detail: Detail =
        serde_json::from_value(response).with_context(|| format!("{path} did not return a message"))?;
    let columns = terminal::columns().unwrap_or(DEFAULT_COLUMNS);
    let row = row(&api, &node, args.id)?;
    terminal::line(&heading(args.id, row.as_ref(), &detail))?;
    let bytes = parse_bytes(&detail.decrypted_bytes)?;
    let text = lines(&tree(&detail), &bytes, columns).join("\n");
    terminal::line(&text)
}

fn ensure_found(id: u64, is_found: bool) -> anyhow::Result<()> {
    let failure = || Failure::new(format!("there is no message {id}: not yet, or it was evicted"));
    let hint = || format!("`{} messages` lists the newest with their ids", program::name());
    if is_found { Ok(()) } else { Err(failure().hint(hint()).into()) }
}

/// The row of a message in the list.
fn row(api: &Api, node: &Query, id: u64) -> anyhow::Result<Option<Row>> {
    let mut query = node.clone();
    query.extend([("limit", "1".to_owned()), ("cursor", id.to_string())]);
    let text = api.text("/v2/p2p", &query)?;
    let row = rows::elements(&text)?.first().map(|row| Row::parse(row)).transpose()?;
    Ok(row.filter(|row| row.id == id))
}

fn heading(id: u64, row: Option<&Row>, detail: &Detail) -> String {
    let [plain, wire] = [&detail.decrypted_bytes, &detail.original_bytes].map(|bytes| ByteSize::b(bytes.len() as u64));
    let origin = row.map(|row| {
        let remote = Escaped(&row.remote_addr);
        format!("{} {} {remote}, {}", time::rfc3339(row.timestamp), row.arrow(), row.kind())
    });
    let origin = origin.map(|origin| format!(" {origin},")).unwrap_or_default();
    format!("message {id}:{origin} {plain} in chunks of {wire} on the wire")
}

fn parse_bytes(bytes: &[String]) -> anyhow::Result<Vec<u8>> {
    let parsed = bytes.iter().map(|byte| u8::from_str_radix(byte, 16));
    parsed.collect::<Result<_, _>>().context("a byte is not hexadecimal")
}

/// The decoded message as lines of a tree, or why it could not be decoded.
fn tree(detail: &Detail) -> Vec<String> {
    let mut lines = Vec::new();
    match (&detail.message, &detail.error) {
        (Value::Null, error) => {
            let reason = error.as_deref().unwrap_or("unknown reason");
            lines.push(format!("not decoded: {}", Escaped(reason)));
        }
        (message, _) => lines = tree::lines(message),
    }
    lines
}

/// The lines of a tree beside those of the bytes; one below the other where the columns do not suffice.
fn lines(tree: &[String], bytes: &[u8], columns: usize) -> Vec<String> {
    let room = |per_line| columns.saturating_sub(GAP + hex::columns(per_line));
    let per_line = if room(hex::LINE_BYTES) >= WIDE_TREE_COLUMNS { hex::LINE_BYTES } else { hex::LINE_BYTES / 2 };
    if room(per_line) < MIN_TREE_COLUMNS {
        let tree = tree.iter().flat_map(|line| tree::wrap(line, columns));
        return tree.chain(hex::dump(bytes, per_line)).collect();
    }
    let width =
        tree.iter().map(|line| line.width()).max().unwrap_or_default().min(room(per_line)).min(MAX_TREE_COLUMNS);
    let mut left = tree.iter().flat_map(|line| tree::wrap(line, width));
    let mut right = hex::dump(bytes, per_line);
    let mut lines = Vec::new();
    loop {
        let (tree, dump) = (left.next(), right.next());
        if tree.is_none() && dump.is_none() {
            return lines;
        }
        let tree = tree.unwrap_or_default();
        let space = " ".repeat(width.saturating_sub(tree.width()) + GAP);
        lines.push(format!("{tree}{space}{}", dump.unwrap_or_default()).trim_end().to_owned());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Detail, lines, tree};

    fn detail(message: &serde_json::Value, error: Option<&str>) -> Detail {
        let error = error.map(str::to_owned);
        Detail { message: message.clone(), original_bytes: vec![], decrypted_bytes: vec![], error }
    }

    #[test]
    fn a_tree_is_beside_the_bytes_and_wrapped() {
        let message =
            json!({"Advertise": {"id": ["1.2.3.4:9732", "\u{1b}[2J"]}, "key": [1, 255, 16], "none": {}, "yes": true});
        let tree = tree(&detail(&message, None));
        let expected = [
            "├─ Advertise",
            "│  └─ id",
            "│     ├─ [0]: 1.2.3.4:9732",
            "│     └─ [1]: \\u{1b}[2J",
            "├─ key: 01ff10 (3 bytes)",
            "├─ none: {}",
            "└─ yes: true",
        ];
        assert_eq!(tree, expected);
        let narrow = lines(&tree[2..3], b"0123456789", 78);
        assert_eq!(narrow[0], "│     ├─ [0]: 1.2.3.4:9732  00000000  30 31 32 33 34 35 36 37  01234567");
        assert_eq!(narrow[1], "                            00000008  38 39                    89");
        let long = vec![format!("├─ a: {}", "x".repeat(40))];
        let wrapped = lines(&long, b"0", 80);
        assert!(wrapped[0].starts_with("├─ a: xxxx") && wrapped[1].starts_with("│    xxx"), "{wrapped:#?}");
        assert!(wrapped.iter().all(|line| line.chars().count() <= 80), "{wrapped:#?}");
        assert_eq!(lines(&long, b"0", 40).len(), 3, "below one another");
    }

    #[test]
    fn what_cannot_be_decoded_says_why() {
        assert_eq!(tree(&detail(&json!(null), Some("odd \u{202e}"))), ["not decoded: odd \\u{202e}"]);
        assert_eq!(tree(&detail(&json!("Ack"), None)), ["Ack"]);
    }
}
