//! Flame graphs: a tree as a self-contained SVG.
//!
//! The root is at the bottom; the width of a node is its memory. The colour shows the category of its code; in a
//! comparison, growth is red and decrease blue. A click zooms in. Names are untrusted: they are escaped, and
//! characters that are not printable are replaced.

use std::fmt::Write as _;

use chainscope_hygiene::is_printable;

use crate::{Category, Frame, Label, Tree};

/// Width of the image, in pixels.
const WIDTH: f64 = 1200.0;
/// Height of a row.
const ROW: usize = 17;
/// Height of the title and the line with the details of the frame under the pointer.
const HEAD: usize = 46;
/// Height below the rows.
const FOOT: usize = 24;
/// Minimum width of a drawn node.
const MIN_WIDTH: f64 = 0.1;
/// Approximate width of a character.
const CHARACTER_WIDTH: f64 = 6.6;

/// Script for zooming and details.
const SCRIPT: &str = include_str!("flame.js");

/// Options of a flame graph.
#[derive(Debug, Clone)]
pub struct FlameGraphOptions<'a> {
    /// Title.
    pub title: &'a str,
    /// Whether the tree was built with [`crate::Measure::Both`]: colours then show changes.
    pub is_compared: bool,
}

/// Renders a tree as a flame graph in SVG.
#[must_use]
pub fn flame_graph(tree: &Tree, options: &FlameGraphOptions<'_>) -> String {
    let boxes = layout(tree);
    let rows = boxes.iter().map(|each| each.depth).max().unwrap_or(0) + 1;
    let height = HEAD + rows * ROW + FOOT;
    let mut svg = String::with_capacity(4096 + boxes.len() * 220);
    // Writing to a string cannot fail.
    let _ = write!(
        svg,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" version=\"1.1\" \
         width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"monospace\" \
         font-size=\"11\">\n<style>g.f rect {{ stroke: #fff; stroke-width: .5 }} g.f {{ cursor: pointer }} \
         g.f:hover rect {{ stroke: #000 }} #reset {{ cursor: pointer; text-decoration: underline }}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fdfdfb\"/>\n\
         <text x=\"{}\" y=\"20\" text-anchor=\"middle\" font-size=\"15\">{}</text>\n\
         <text id=\"reset\" x=\"8\" y=\"38\">whole graph</text>\n<text id=\"details\" x=\"110\" y=\"38\"> </text>\n",
        WIDTH / 2.0,
        escaped(options.title),
    );
    let total = tree.node(tree.root()).value.max(1) as f64;
    for each in &boxes {
        let node = tree.node(each.node);
        let name = name(tree, node.label);
        let share = 100.0 * node.value as f64 / total;
        let _ = write!(svg, "<g class=\"f\"><title>{} ({} KiB, {share:.2} %", escaped(&name), grouped(node.value));
        if options.is_compared {
            let change = node.value.saturating_sub(node.cache);
            let _ = write!(svg, ", {}{} KiB", if change > 0 { "+" } else { "" }, grouped(change));
        }
        let y = height - FOOT - (each.depth + 1) * ROW;
        let (x, width) = (each.x, each.width);
        let fill = match options.is_compared {
            true => change_colour(node.value, node.cache),
            false => colour(tree, node.label),
        };
        let _ = writeln!(
            svg,
            ")</title><rect x=\"{x:.3}\" y=\"{y}\" width=\"{width:.3}\" height=\"{}\" fill=\"{fill}\"/>\
             <text x=\"{:.3}\" y=\"{}\">{}</text></g>",
            ROW - 1,
            x + 3.0,
            y + ROW - 5,
            escaped(&fitted(&name, width)),
        );
    }
    svg.push_str("<script type=\"text/javascript\"><![CDATA[\n");
    svg.push_str(SCRIPT);
    svg.push_str("]]></script>\n</svg>\n");
    svg
}

/// Position of a drawn node.
struct Placed {
    node: u32,
    depth: usize,
    x: f64,
    width: f64,
}

/// Positions of the nodes that are wide enough to be drawn.
fn layout(tree: &Tree) -> Vec<Placed> {
    let total = tree.node(tree.root()).value;
    if total <= 0 {
        return Vec::new();
    }
    let scale = WIDTH / total as f64;
    let mut placed = Vec::new();
    let mut pending = vec![Placed { node: tree.root(), depth: 0, x: 0.0, width: WIDTH }];
    while let Some(each) = pending.pop() {
        let mut x = each.x;
        for child in tree.children(each.node) {
            let width = tree.node(child).value.max(0) as f64 * scale;
            // `unknown` is the parent's own memory: it is left blank.
            if width >= MIN_WIDTH && tree.node(child).label != Label::Unknown {
                pending.push(Placed { node: child, depth: each.depth + 1, x, width });
            }
            x += width;
        }
        placed.push(each);
    }
    placed
}

/// Name of a node.
fn name(tree: &Tree, label: Label) -> String {
    match label {
        Label::Root => "all".to_owned(),
        Label::Frame(frame) => frame_name(tree.frame(frame)),
        other => other.pseudo().unwrap_or_default().to_owned(),
    }
}

fn frame_name(frame: &Frame) -> String {
    match &frame.function {
        Some(function) => format!("{function} [{}]", frame.executable),
        None => format!("{}@{:08x}", frame.executable, frame.offset as u32),
    }
}

/// Fill colour by category: warm for the node's own code, cold for the rest; the shade is a hash of the name.
fn colour(tree: &Tree, label: Label) -> String {
    let Label::Frame(frame) = label else { return "#d0d0d0".to_owned() };
    let frame = tree.frame(frame);
    let text = frame.function.as_deref().unwrap_or(&frame.executable);
    let shade = text.bytes().fold(7u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte))) % 40;
    let (red, green, blue) = match frame.category {
        Category::NodeRust => (235, 130 + shade, 60),
        Category::NodeCpp => (235, 190 + shade, 70),
        Category::SystemLib => (120 + shade, 175, 215),
    };
    format!("rgb({red},{green},{blue})")
}

/// Fill colour of a comparison: red for growth, blue for decrease, grey for no change.
fn change_colour(now: i64, then: i64) -> String {
    let (now, then) = (now as f64, then as f64);
    let share = ((now - then) / now.max(then).max(1.0)).clamp(-1.0, 1.0);
    let (high, low) = ((225.0 + 30.0 * share.abs()).round() as u8, (225.0 - 145.0 * share.abs()).round() as u8);
    match share > 0.0 {
        true => format!("rgb({high},{low},{low})"),
        false => format!("rgb({low},{low},{high})"),
    }
}

/// The name, truncated to a width.
fn fitted(name: &str, width: f64) -> String {
    let fit = ((width - 6.0) / CHARACTER_WIDTH).max(0.0) as usize;
    match (fit, name.chars().count()) {
        (0..3, _) => String::new(),
        (fit, length) if length <= fit => name.to_owned(),
        (fit, _) => name.chars().take(fit - 1).chain(['…']).collect(),
    }
}

/// A number with thousands separators.
fn grouped(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut text = String::from(if value < 0 { "-" } else { "" });
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Text escaped for XML.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other if is_printable(other) => safe.push(other),
            _ => safe.push('\u{fffd}'),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::{escaped, fitted, grouped};

    #[test]
    fn untrusted_names_are_escaped_and_truncated() {
        assert_eq!(
            escaped("<script>&\"'\u{1b}\u{202e}\u{200b}é"),
            "&lt;script&gt;&amp;&quot;&#39;\u{fffd}\u{fffd}\u{fffd}é"
        );
        assert_eq!(fitted("abcdefgh", 6.0 + 4.0 * 6.6 + 0.1), "abc…");
        assert_eq!(fitted("abcdefgh", 10.0), "");
        assert_eq!(grouped(-1_234_567), "-1,234,567");
        assert_eq!((grouped(0), grouped(999), grouped(1000)), ("0".into(), "999".into(), "1,000".into()));
    }
}
