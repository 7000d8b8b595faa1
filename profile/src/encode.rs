//! Encoding of a profile as a keyframe, the format of stored snapshots.

use std::{collections::HashMap, sync::Arc};

use chainscope_proto::v1::{MemoryCounts, MemoryFrame, MemoryState};

use crate::{Kind, ProfileData, data::CallNode};

/// Approximate maximum size of a part, in bytes; a gRPC message is at most 1 MiB.
pub const PART_BYTES: usize = 768 << 10;

/// Encodes a profile as the parts of a keyframe. Nodes without memory in their subtree, frames without nodes and
/// strings without frames are omitted, so that ids differ from those of `data`.
#[must_use]
pub fn encode(data: &ProfileData, node: &str, sequence: u64) -> Vec<MemoryState> {
    let mut parts = Parts { parts: Vec::new(), bytes: 0, node, data, sequence };
    parts.begin();
    let mut used = vec![false; data.nodes()];
    for (node, pages) in data.samples() {
        used[node as usize] = pages != [0; 3];
    }
    for at in (1..data.nodes()).rev() {
        if used[at] {
            used[data.nodes[at].parent as usize] = true;
        }
    }
    let mut frames: HashMap<u32, u32> = HashMap::new();
    let mut strings: HashMap<Arc<str>, u32> = HashMap::from([("".into(), 0)]);
    let mut nodes = vec![0u32; data.nodes()];
    for (next, at) in (1u32..).zip((1..data.nodes()).filter(|at| used[*at])) {
        let CallNode { parent, frame } = data.nodes[at];
        let frame = match frames.get(&frame) {
            Some(id) => *id,
            None => {
                let id = frames.len() as u32 + 1;
                parts.frame(data, frame, id, &mut strings);
                frames.insert(frame, id);
                id
            }
        };
        parts.node(next, nodes[parent as usize], frame);
        nodes[at] = next;
    }
    for kind in Kind::ALL {
        let of_kind = data.samples().map(|(node, pages)| (node, pages[kind.index()]));
        for (node, pages) in of_kind.filter(|(_, pages)| *pages > 0) {
            parts.count(kind, nodes[node as usize], pages);
        }
    }
    parts.finish()
}

/// The parts of a state while they are filled.
struct Parts<'a> {
    parts: Vec<MemoryState>,
    /// Approximate size of the last part.
    bytes: usize,
    node: &'a str,
    data: &'a ProfileData,
    sequence: u64,
}

impl Parts<'_> {
    /// Starts the next part.
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

    /// The part to which this number of bytes is added.
    fn part_for(&mut self, bytes: usize) -> &mut MemoryState {
        if self.bytes > 0 && self.bytes + bytes > PART_BYTES {
            self.begin();
        }
        self.bytes += bytes;
        let at = self.parts.len() - 1; // `begin` was called before anything else
        &mut self.parts[at]
    }

    /// Adds a string unless it is present; returns its id.
    fn string(&mut self, text: &Arc<str>, strings: &mut HashMap<Arc<str>, u32>) -> u32 {
        if let Some(id) = strings.get(text) {
            return *id;
        }
        let id = strings.len() as u32;
        let part = self.part_for(text.len() + 6);
        if part.strings.is_empty() {
            part.first_string = id;
        }
        part.strings.push(String::from(&**text));
        strings.insert(Arc::clone(text), id);
        id
    }

    /// Adds a frame with its strings.
    fn frame(&mut self, data: &ProfileData, at: u32, id: u32, strings: &mut HashMap<Arc<str>, u32>) {
        let Some(frame) = data.frames.get(at as usize) else { return };
        let executable = self.string(&frame.executable, strings);
        let function = frame.function.as_ref().map_or(0, |text| self.string(text, strings));
        let part = self.part_for(28);
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

    /// Adds a node.
    fn node(&mut self, id: u32, parent: u32, frame: u32) {
        let part = self.part_for(10);
        if part.node_parents.is_empty() {
            part.first_node = id;
        }
        part.node_parents.push(parent);
        part.node_frames.push(frame);
    }

    /// Adds the number of pages of a node.
    fn count(&mut self, kind: Kind, node: u32, pages: u64) {
        let part = self.part_for(15);
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

    /// Adds process and totals to the last part.
    fn finish(mut self) -> Vec<MemoryState> {
        // The totals have an unbounded number of mappings: many of them get a part of their own.
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
