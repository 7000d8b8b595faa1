//! A tree as JSON, block by block and without recursion: an answer of any size and depth is written in bounded memory.

use std::io::Write as _;

use axum::body::Bytes;
use chainscope_profile::{Label, Tree};

use super::super::json;

/// Bytes of a block, roughly.
const BLOCK: usize = 256 << 10;

/// A tree that is being written.
pub(super) struct TreeText {
    tree: Tree,
    /// Children that are still to be written of every node that is open: next, end, and whether none was written.
    open: Vec<(u32, u32, bool)>,
    has_begun: bool,
    /// Where the name of each frame is in `text`; empty: it was not needed yet.
    names: Vec<(usize, usize)>,
    text: Vec<u8>,
    /// Further members of the node of what was resident before the attach.
    before: Vec<u8>,
}

impl TreeText {
    /// `before`: members of JSON, each behind a comma.
    pub(super) fn new(tree: Tree, before: Vec<u8>) -> Self {
        let names = vec![(0, 0); tree.frames()];
        Self { tree, open: Vec::new(), has_begun: false, names, text: Vec::new(), before }
    }

    /// The next block; none at the end.
    pub(super) fn block(&mut self) -> Option<Bytes> {
        if self.has_begun && self.open.is_empty() {
            return None;
        }
        let mut out = Vec::with_capacity(BLOCK + (BLOCK >> 3));
        if !self.has_begun {
            self.has_begun = true;
            self.node(&mut out, self.tree.root());
        }
        while out.len() < BLOCK {
            let Some((next, end, is_first)) = self.open.last_mut() else { break };
            if next == end {
                out.extend_from_slice(b"]}");
                self.open.pop();
                continue;
            }
            let number = *next;
            *next += 1;
            if !std::mem::take(is_first) {
                out.push(b',');
            }
            self.node(&mut out, number);
        }
        Some(out.into())
    }

    fn node(&mut self, out: &mut Vec<u8>, number: u32) {
        let node = *self.tree.node(number);
        out.push(b'{');
        match node.label {
            Label::Root => {}
            Label::Frame(frame) => {
                out.extend_from_slice(b"\"name\":");
                let (start, end) = self.name(frame);
                out.extend_from_slice(self.text.get(start..end).unwrap_or_default());
                out.push(b',');
            }
            other => {
                // Writing to memory does not fail; these names need no escape.
                let _ = write!(out, "\"name\":\"{}\",", other.pseudo().unwrap_or_default());
            }
        }
        let _ = write!(out, "\"value\":{},\"cacheValue\":{}", node.value, node.cache);
        match node.label {
            Label::Root | Label::Frame(_) => {
                out.extend_from_slice(b",\"frames\":[");
                let children = self.tree.children(number);
                if children.is_empty() {
                    out.extend_from_slice(b"]}");
                } else {
                    self.open.push((children.start, children.end, true));
                }
            }
            Label::BeforeAttach => {
                out.extend_from_slice(&self.before);
                out.push(b'}');
            }
            _ => out.push(b'}'),
        }
    }

    /// Where the name of a frame is.
    fn name(&mut self, number: u32) -> (usize, usize) {
        let Some(place) = self.names.get_mut(number as usize) else { return (0, 0) };
        if place.0 == place.1 {
            let frame = self.tree.frame(number);
            let start = self.text.len();
            let text = &mut self.text;
            // Writing to memory does not fail.
            let _ = write!(text, "{{\"offset\":\"{:08x}\",\"executable\":", frame.offset as u32);
            let _ = json::write(text, &&*frame.executable);
            text.extend_from_slice(b",\"functionName\":");
            let _ = json::write(text, &frame.function.as_deref());
            let _ = write!(text, ",\"functionCategory\":\"{}\"", frame.category.name());
            for (is_so, mark) in [(frame.inlined, "inlined"), (frame.deleted, "deleted")] {
                if is_so {
                    let _ = write!(text, ",\"{mark}\":true");
                }
            }
            text.push(b'}');
            *place = (start, text.len());
        }
        *place
    }
}
