//! A tree as JSON, block by block and without recursion: a response of any size and depth is written in bounded memory.

use axum::body::Bytes;
use chainscope_profile::{Label, Tree};

use crate::json;

/// Bytes of a block, roughly. Each is made by a task of its own: with smaller ones the switches between threads cost a tenth of the
/// time of a large response. Less than the bytes that have permits for it before it is made (`in_flight`).
const BLOCK: usize = 960 << 10;

/// Bytes of a node, and of a frame with its name as JSON, roughly.
const NODE_BYTES: usize = 48;
const FRAME_BYTES: usize = 256;

/// A tree that is being written.
pub(super) struct TreeWriter {
    tree: Tree,
    /// Children that are still to be written of every node that is open: next, end, and whether none was written.
    open: Vec<(u32, u32, bool)>,
    has_begun: bool,
    /// Where the name of each frame is in `text`; empty: it was not needed yet.
    names: Vec<(usize, usize)>,
    text: Vec<u8>,
    digits: itoa::Buffer,
    /// Further members of the node of what was resident before the attach.
    before: Vec<u8>,
}

impl TreeWriter {
    /// `before`: members of JSON, each behind a comma.
    pub(super) fn new(tree: Tree, before: Vec<u8>) -> Self {
        let names = vec![(0, 0); tree.frames()];
        Self { tree, open: Vec::new(), has_begun: false, names, text: Vec::new(), digits: itoa::Buffer::new(), before }
    }

    /// Bytes of memory that it may take, roughly: nodes, names of frames, a block that is made ahead.
    pub(super) fn memory(&self) -> usize {
        self.tree.len() * NODE_BYTES + self.tree.frames() * FRAME_BYTES + BLOCK
    }

    /// The next block; none at the end.
    pub(super) fn block(&mut self) -> Option<Bytes> {
        if self.has_begun && self.open.is_empty() {
            return None;
        }
        let mut out = Vec::with_capacity(BLOCK + (BLOCK >> 6));
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
                out.extend_from_slice(b"\"name\":");
                json::write_text(out, other.pseudo().unwrap_or_default());
                out.push(b',');
            }
        }
        for (member, value) in [(&b"\"value\":"[..], node.value), (b",\"cacheValue\":", node.cache)] {
            out.extend_from_slice(member);
            out.extend_from_slice(self.digits.format(value).as_bytes());
        }
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
            text.extend_from_slice(b"{\"offset\":\"");
            text.extend_from_slice(&hex_digits(frame.offset as u32));
            text.extend_from_slice(b"\",\"executable\":");
            json::write_text(text, &frame.executable);
            text.extend_from_slice(b",\"functionName\":");
            match &frame.function {
                Some(function) => json::write_text(text, function),
                None => text.extend_from_slice(b"null"),
            }
            text.extend_from_slice(b",\"functionCategory\":");
            json::write_text(text, frame.category.name());
            for (is_so, mark) in [(frame.inlined, &b",\"inlined\":true"[..]), (frame.deleted, b",\"deleted\":true")] {
                if is_so {
                    text.extend_from_slice(mark);
                }
            }
            text.push(b'}');
            *place = (start, text.len());
        }
        *place
    }
}

/// Eight of them.
fn hex_digits(value: u32) -> [u8; 8] {
    let mut digits = [0; 8];
    // Four bytes are eight digits.
    let _ = hex::encode_to_slice(value.to_be_bytes(), &mut digits);
    digits
}
