//! A state as a keyframe again: what a snapshot is kept as.

use std::{collections::HashMap, sync::Arc};

use chainscope_proto::v1::{MemoryCounts, MemoryFrame, MemoryState};

use crate::{Data, Kind};

/// Bytes that a part has at most, roughly: a message is of at most 1 MiB.
pub const PART_BYTES: usize = 768 << 10;

/// The state as the parts of a keyframe, without nodes that hold nothing and lead to nothing. Frames that no node uses are
/// left out, and so are strings that no frame uses; ids are therefore new ones.
#[must_use]
pub fn encode(data: &Data, node: &str, sequence: u64) -> Vec<MemoryState> {
    let mut parts = Parts { parts: Vec::new(), bytes: 0, node, data, sequence };
    parts.begin();
    let mut used = vec![false; data.nodes()];
    for at in (1..data.nodes()).rev() {
        let holds = data.pages.iter().any(|column| column.get(at).is_some_and(|pages| *pages > 0));
        used[at] |= holds;
        if used[at] {
            used[data.parents[at] as usize] = true;
        }
    }
    let mut frames: HashMap<u32, u32> = HashMap::new();
    let mut strings: HashMap<Arc<str>, u32> = HashMap::from([("".into(), 0)]);
    let mut nodes = vec![0u32; data.nodes()];
    for (next, at) in (1u32..).zip((1..data.nodes()).filter(|at| used[*at])) {
        let frame = data.node_frames[at];
        let frame = match frames.get(&frame) {
            Some(id) => *id,
            None => {
                let id = frames.len() as u32 + 1;
                parts.frame(data, frame, id, &mut strings);
                frames.insert(frame, id);
                id
            }
        };
        parts.node(next, nodes[data.parents[at] as usize], frame);
        nodes[at] = next;
    }
    for kind in Kind::ALL {
        for (at, pages) in data.pages[kind.index()].iter().enumerate().filter(|(_, pages)| **pages > 0) {
            parts.count(kind, nodes[at], *pages);
        }
    }
    parts.finish()
}

struct Parts<'a> {
    parts: Vec<MemoryState>,
    /// Of the last part, roughly.
    bytes: usize,
    node: &'a str,
    data: &'a Data,
    sequence: u64,
}

impl Parts<'_> {
    fn begin(&mut self) {
        if let Some(last) = self.parts.last_mut() {
            last.more = true;
        }
        self.bytes = 0;
        self.parts.push(MemoryState {
            node: self.node.to_owned(),
            target: self.data.target.clone(),
            profile: self.data.profile,
            sequence: self.sequence,
            part: self.parts.len() as u32,
            time_ns: self.data.time_ns,
            page_bytes: self.data.page_bytes,
            ..MemoryState::default()
        });
    }

    /// The part that has room for so many bytes.
    fn room(&mut self, bytes: usize) -> &mut MemoryState {
        if self.bytes > 0 && self.bytes + bytes > PART_BYTES {
            self.begin();
        }
        self.bytes += bytes;
        let at = self.parts.len() - 1; // `begin` was called before anything else
        &mut self.parts[at]
    }

    fn string(&mut self, text: &Arc<str>, strings: &mut HashMap<Arc<str>, u32>) -> u32 {
        if let Some(id) = strings.get(text) {
            return *id;
        }
        let id = strings.len() as u32;
        let part = self.room(text.len() + 6);
        if part.strings.is_empty() {
            part.first_string = id;
        }
        part.strings.push(String::from(&**text));
        strings.insert(Arc::clone(text), id);
        id
    }

    fn frame(&mut self, data: &Data, at: u32, id: u32, strings: &mut HashMap<Arc<str>, u32>) {
        let Some(frame) = data.frames.get(at as usize) else { return };
        let executable = self.string(&frame.executable, strings);
        let function = frame.function.as_ref().map_or(0, |text| self.string(text, strings));
        let part = self.room(28);
        if part.frames.is_empty() {
            part.first_frame = id;
        }
        part.frames.push(MemoryFrame {
            offset: frame.offset,
            executable,
            function,
            category: frame.category.to_wire(),
            inlined: frame.inlined,
            deleted: frame.deleted,
        });
    }

    fn node(&mut self, id: u32, parent: u32, frame: u32) {
        let part = self.room(10);
        if part.node_parents.is_empty() {
            part.first_node = id;
        }
        part.node_parents.push(parent);
        part.node_frames.push(frame);
    }

    fn count(&mut self, kind: Kind, node: u32, pages: u64) {
        let part = self.room(15);
        let kind = kind.to_wire();
        let counts = match part.counts.last_mut() {
            Some(counts) if counts.kind == kind => counts,
            _ => {
                part.counts.push(MemoryCounts { kind, ..MemoryCounts::default() });
                let at = part.counts.len() - 1; // just pushed
                &mut part.counts[at]
            }
        };
        counts.nodes.push(node);
        counts.pages.push(pages);
    }

    fn finish(mut self) -> Vec<MemoryState> {
        // Process and totals are in the last part; how large they are is not up to us.
        if self.bytes > 0 && self.data.totals.at_attach.len() + self.data.totals.before_now.len() > 1000 {
            self.begin();
        }
        if let Some(last) = self.parts.last_mut() {
            last.process = Some(self.data.process.clone());
            last.totals = Some(self.data.totals.clone());
        }
        self.parts
    }
}
