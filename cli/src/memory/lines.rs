//! A memory tree as lines: size, share, branches, frame.
//!
//! An only child is not indented, so that a deep stack fits the terminal.

use std::{fmt::Write as _, thread};

use anyhow::{Context as _, anyhow};
use chainscope_hygiene::Escaped;
use serde::Deserialize;

use crate::terminal;

/// Stack of the thread that parses and prints: a tree may be as deep as stacks are, and only pages in use take memory.
const STACK_BYTES: usize = 512 << 20;

/// Number of mappings shown of the memory that was resident before attach.
const MAX_MAPPINGS: usize = 3;

/// A node of `/v1/tree`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    name: Option<Name>,
    value: i64,
    cache_value: i64,
    #[serde(default)]
    frames: Vec<Node>,
    /// Mappings of the memory that was resident before attach, largest first, as they are now; empty if unknown.
    #[serde(default)]
    now: Vec<Mapping>,
    /// The same as they were at attach.
    #[serde(default)]
    at_attach: Vec<Mapping>,
}

#[derive(Debug, Deserialize)]
struct Mapping {
    mapping: String,
    value: i64,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Name {
    Text(String),
    #[serde(rename_all = "camelCase")]
    Frame {
        offset: String,
        executable: String,
        function_name: Option<String>,
    },
}

/// Prints the JSON of a tree; sizes have signs if it is a difference.
pub(super) fn print(text: String, is_difference: bool) -> anyhow::Result<()> {
    print_to(text, is_difference, terminal::line)
}

fn print_to(
    text: String,
    is_difference: bool,
    mut each: impl FnMut(&str) -> anyhow::Result<()> + Send + 'static,
) -> anyhow::Result<()> {
    let printing = thread::Builder::new().name("tree".to_owned()).stack_size(STACK_BYTES).spawn(move || {
        let mut json = serde_json::Deserializer::from_str(&text);
        json.disable_recursion_limit();
        let root = Node::deserialize(&mut json).context("/v1/tree did not return a tree")?;
        each_line(&root, is_difference, &mut each)
    });
    printing?.join().map_err(|_| anyhow!("the tree could not be printed"))?
}

/// A node that is not printed yet.
struct Pending<'a> {
    node: &'a Node,
    /// The branches of its ancestors.
    indent: String,
    /// Whether it is its parent's last child; `None`: it is the only one.
    is_last: Option<bool>,
}

/// Calls `each` with every line of a tree, depth first.
fn each_line(root: &Node, is_difference: bool, each: &mut dyn FnMut(&str) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let total = root.value;
    let mut pending = vec![Pending { node: root, indent: String::new(), is_last: None }];
    while let Some(Pending { node, indent, is_last }) = pending.pop() {
        let (mark, step) = match is_last {
            None => ("", ""),
            Some(false) => ("├─ ", "│  "),
            Some(true) => ("└─ ", "   "),
        };
        let mut line = size(node.value, is_difference);
        if !is_difference {
            let share = if total > 0 { 100.0 * node.value as f64 / total as f64 } else { 0.0 };
            let _ = write!(line, " {share:>5.1} %");
        }
        let _ = write!(line, "  {indent}{mark}{}", title(node));
        let cache = format!("cache {}", size(node.cache_value, is_difference).trim_start());
        let notes: Vec<String> =
            (node.cache_value != 0).then_some(cache).into_iter().chain(resident_mappings(node)).collect();
        if !notes.is_empty() {
            let _ = write!(line, " ({})", notes.join("; "));
        }
        each(&line)?;
        let below = format!("{indent}{step}");
        let last = node.frames.len().saturating_sub(1);
        for (number, child) in node.frames.iter().enumerate().rev() {
            let is_last = (node.frames.len() > 1).then_some(number == last);
            pending.push(Pending { node: child, indent: below.clone(), is_last });
        }
    }
    Ok(())
}

/// The largest mappings of the memory that was resident before attach.
fn resident_mappings(node: &Node) -> Option<String> {
    let (mappings, when) = if node.now.is_empty() { (&node.at_attach, "at attach") } else { (&node.now, "now") };
    let each = mappings.iter().filter(|each| each.value > 0).take(MAX_MAPPINGS);
    let each = each.map(|each| format!("{} {}", Escaped(&each.mapping), size(each.value, false).trim_start()));
    let all: Vec<String> = each.collect();
    (!all.is_empty()).then(|| format!("{when}: {}", all.join(", ")))
}

/// Function and file of a frame, or the name of another node.
fn title(node: &Node) -> String {
    match &node.name {
        None => "all".to_owned(),
        Some(Name::Text(text)) if text == "underThreshold" => "(below the threshold)".to_owned(),
        Some(Name::Text(text)) => Escaped(text).to_string(),
        Some(Name::Frame { function_name: Some(function), executable, .. }) => {
            format!("{} [{}]", Escaped(function), Escaped(executable))
        }
        Some(Name::Frame { function_name: None, executable, offset }) => {
            format!("{}@{}", Escaped(executable), Escaped(offset))
        }
    }
}

/// Kibibytes in the unit that fits, right-aligned.
fn size(kib: i64, is_difference: bool) -> String {
    let value = kib as f64;
    let (value, unit) = match value.abs() {
        0.0..10_000.0 => (value, "KiB"),
        10_000.0..10_000_000.0 => (value / 1024.0, "MiB"),
        _ => (value / 1_048_576.0, "GiB"),
    };
    let digits = if unit == "KiB" { 0 } else { 1 };
    match is_difference {
        true => format!("{value:>+9.digits$} {unit}"),
        false => format!("{value:>9.digits$} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::{Node, each_line, print_to};

    fn lines(json: &str, is_difference: bool) -> Vec<String> {
        let root: Node = serde_json::from_str(json).unwrap();
        let mut lines = Vec::new();
        each_line(&root, is_difference, &mut |line| {
            lines.push(line.to_owned());
            Ok(())
        })
        .unwrap();
        lines
    }

    #[test]
    fn a_tree_has_branches_and_escapes_symbols() {
        let frame = |name: &str, value: i64, frames: &str| {
            format!(
                r#"{{"name":{{"offset":"0000000a","executable":"node","functionName":{name},"functionCategory":"nodeRust"}},"value":{value},"cacheValue":0,"frames":[{frames}]}}"#
            )
        };
        let inner = frame("\"\\u001b[2Jb\"", 512, &frame("null", 512, ""));
        let tree = format!(
            r#"{{"value":20480,"cacheValue":1024,"frames":[{},{},{{"name":"underThreshold","value":7,"cacheValue":7}}]}}"#,
            frame("\"a\"", 19961, &inner),
            frame("\"c\"", 512, ""),
        );
        assert_eq!(
            lines(&tree, false),
            [
                "     20.0 MiB 100.0 %  all (cache 1024 KiB)",
                "     19.5 MiB  97.5 %  ├─ a [node]",
                "      512 KiB   2.5 %  │  \\u{1b}[2Jb [node]",
                "      512 KiB   2.5 %  │  node@0000000a",
                "      512 KiB   2.5 %  ├─ c [node]",
                "        7 KiB   0.0 %  └─ (below the threshold) (cache 7 KiB)",
            ]
        );
        let before = r#"{"name":"[resident before attach]","value":90,"cacheValue":8,"atAttach":[{"mapping":"[heap]","kind":"anon","value":99}]"#;
        assert_eq!(
            [format!("{before}}}"), format!(r#"{before},"now":[{{"mapping":"[heap]","kind":"anon","value":82}}]}}"#)]
                .map(|json| lines(&json, false).concat()),
            [
                "       90 KiB 100.0 %  [resident before attach] (cache 8 KiB; at attach: [heap] 99 KiB)",
                "       90 KiB 100.0 %  [resident before attach] (cache 8 KiB; now: [heap] 82 KiB)",
            ]
        );
        let grown = lines(r#"{"value":-3,"cacheValue":4,"frames":[]}"#, true);
        assert_eq!(grown, ["       -3 KiB  all (cache +4 KiB)"]);
    }

    #[test]
    fn a_stack_of_any_depth_is_printed() {
        let depth = 30_000;
        let open = r#"{"name":{"offset":"1","executable":"x","functionName":null},"value":1,"cacheValue":0,"frames":["#;
        let text = format!(r#"{{"value":1,"cacheValue":0,"frames":[{}{}]}}"#, open.repeat(depth), "]}".repeat(depth));
        let (printed, lines) = mpsc::sync_channel(depth + 1);
        print_to(text, false, move |line| Ok(printed.send(line.to_owned())?)).unwrap();
        assert_eq!(lines.iter().filter(|line| line == "        1 KiB 100.0 %  x@1").count(), depth);
    }
}
