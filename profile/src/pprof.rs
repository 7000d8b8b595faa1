//! Export in the format of `pprof`: all stacks, in bytes.
//!
//! Source of the format: `profile.proto` of google/pprof. Addresses are file offsets. Functions inlined at an address
//! are lines of one location, innermost first. Sample types: `inuse_space` (the sum of the requested kinds), then each
//! kind.

use std::{
    collections::HashMap,
    io::{self, Write},
};

use prost::Message;

use crate::{Kind, Kinds, Label, Stacks};

/// Encoded bytes that are written at a time, roughly.
const WRITE_BYTES: usize = 64 << 10;

/// All fields but the samples, which are written one by one.
#[derive(Clone, PartialEq, Message)]
struct File {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

/// A file of one sample. Concatenated messages are one message with the repeated fields of all (protobuf encoding).
#[derive(Clone, PartialEq, Message)]
struct FileOfSample {
    #[prost(message, required, tag = "2")]
    sample: Sample,
}

#[derive(Clone, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    memory_start: u64,
    #[prost(uint64, tag = "3")]
    memory_limit: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(bool, tag = "7")]
    has_functions: bool,
    #[prost(bool, tag = "10")]
    has_inline_frames: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

/// Writes all stacks as an uncompressed `profile.proto`; `time_ns` is the time of the profile, in nanoseconds since
/// 1970. A comparison is encoded as differences, which may be negative.
///
/// # Errors
/// Those of `out`.
pub fn pprof(stacks: &Stacks, kinds: Kinds, time_ns: i64, out: &mut impl Write) -> io::Result<()> {
    let mut write = Writer::new(stacks, kinds, time_ns, out);
    for (node, now, then) in stacks.samples() {
        write.sample(difference(&now, &then), |write| write.stack(node))?;
    }
    let (now, then) = stacks.non_stack();
    for (label, now, then) in [
        (Label::BeforeAttach, now.before_attach, then.before_attach),
        (Label::Unattributed, now.unattributed.map(|kib| kib.max(0)), then.unattributed.map(|kib| kib.max(0))),
    ] {
        let name = label.pseudo().unwrap_or_default();
        write.sample(difference(&now, &then), |write| write.pseudo(name))?;
    }
    write.finish()
}

fn difference(now: &[i64; 3], then: &[i64; 3]) -> [i64; 3] {
    std::array::from_fn(|kind| now[kind].saturating_sub(then[kind]))
}

/// A `profile.proto` that is being written.
struct Writer<'a, W> {
    stacks: &'a Stacks,
    kinds: Kinds,
    /// Everything that follows the samples.
    file: File,
    /// The sample that is being written.
    next: FileOfSample,
    /// What is encoded, but not written yet.
    buffer: Vec<u8>,
    out: &'a mut W,
    strings: HashMap<String, i64>,
    mappings: HashMap<&'a str, u64>,
    functions: HashMap<(i64, i64), u64>,
    /// Location of each frame that is the innermost one at its address, 0 if it has none yet: the functions inlined at an
    /// address are always the same.
    locations: Vec<u64>,
    /// Whether each frame is inlined into the next one.
    is_inlined: Vec<bool>,
    /// Frames of the stack that is being written, innermost first.
    frames: Vec<u32>,
}

impl<'a, W: Write> Writer<'a, W> {
    fn new(stacks: &'a Stacks, kinds: Kinds, time_ns: i64, out: &'a mut W) -> Self {
        let mut write = Self {
            stacks,
            kinds,
            file: File::default(),
            next: FileOfSample::default(),
            buffer: Vec::with_capacity(2 * WRITE_BYTES),
            out,
            strings: HashMap::new(),
            mappings: HashMap::new(),
            functions: HashMap::new(),
            locations: vec![0; stacks.frames.len()],
            is_inlined: stacks.frames.iter().map(|frame| frame.inlined).collect(),
            frames: Vec::new(),
        };
        write.string("");
        let bytes = write.string("bytes");
        let names = ["inuse_space"].into_iter().chain(Kind::ALL.map(Kind::name));
        write.file.sample_type = names.map(|name| ValueType { kind: write.string(name), unit: bytes }).collect();
        write.file.default_sample_type = write.string("inuse_space");
        write.file.period_type = Some(ValueType { kind: write.string("space"), unit: bytes });
        write.file.period = i64::from(stacks.page_bytes);
        write.file.time_nanos = time_ns;
        write
    }

    /// Writes what follows the samples.
    fn finish(self) -> io::Result<()> {
        self.out.write_all(&self.buffer)?;
        self.out.write_all(&self.file.encode_to_vec())
    }

    /// Id of a string.
    fn string(&mut self, text: &str) -> i64 {
        if let Some(id) = self.strings.get(text) {
            return *id;
        }
        let id = self.file.string_table.len() as i64;
        self.file.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), id);
        id
    }

    /// Writes a sample unless it is zero. `stack` adds its locations, innermost first.
    fn sample(&mut self, kib: [i64; 3], stack: impl FnOnce(&mut Self)) -> io::Result<()> {
        if kib == [0; 3] {
            return Ok(());
        }
        self.next.clear();
        stack(self);
        let bytes = kib.map(|kib| kib.saturating_mul(1024));
        let Sample { value, .. } = &mut self.next.sample;
        value.push(self.kinds.sum(&bytes).0);
        value.extend(bytes);
        self.next.encode(&mut self.buffer)?;
        if self.buffer.len() >= WRITE_BYTES {
            self.out.write_all(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }

    /// Adds the locations of the stack that ends at a node.
    fn stack(&mut self, node: u32) {
        let mut frames = std::mem::take(&mut self.frames);
        frames.clear();
        frames.extend(self.stacks.stack(node));
        let mut rest = frames.as_slice();
        while let Some(innermost) = rest.first() {
            // The inlined functions at this address, and the function that they are inlined into.
            let inlined = rest.iter().take_while(|frame| self.is_inlined[**frame as usize]).count();
            let (here, outer) = rest.split_at((inlined + 1).min(rest.len()));
            let id = match self.locations[*innermost as usize] {
                0 => self.location(*innermost, here),
                id => id,
            };
            self.next.sample.location_id.push(id);
            rest = outer;
        }
        self.frames = frames;
    }

    /// Adds a location; `frames` are its lines.
    fn location(&mut self, innermost: u32, frames: &[u32]) -> u64 {
        let stacks = self.stacks;
        let frame = &stacks.frames[innermost as usize];
        let mapping_id = self.mapping(&frame.executable, frame.offset);
        let line = frames.iter().filter_map(|frame| stacks.frames.get(*frame as usize)).map(|frame| {
            let name = match &frame.function {
                Some(name) => String::from(&**name),
                None if frame.is_resolved() => format!("{}@{:08x}", frame.executable, frame.offset),
                None => "[unknown]".to_owned(),
            };
            Line { function_id: self.function(&name, &frame.executable) }
        });
        let line = line.collect();
        let id = self.file.location.len() as u64 + 1;
        self.file.location.push(Location { id, mapping_id, address: frame.offset, line });
        self.locations[innermost as usize] = id;
        id
    }

    /// Adds a location without an address.
    fn pseudo(&mut self, name: &str) {
        let line = vec![Line { function_id: self.function(name, "") }];
        let id = self.file.location.len() as u64 + 1;
        self.file.location.push(Location { id, mapping_id: 0, address: 0, line });
        self.next.sample.location_id.push(id);
    }

    /// Id of the mapping of a file; 0 for none.
    fn mapping(&mut self, executable: &'a str, offset: u64) -> u64 {
        if executable.is_empty() {
            return 0;
        }
        let id = match self.mappings.get(executable) {
            Some(id) => *id,
            None => {
                let filename = self.string(executable);
                let id = self.file.mapping.len() as u64 + 1;
                let mapping =
                    Mapping { id, filename, has_functions: true, has_inline_frames: true, ..Mapping::default() };
                self.file.mapping.push(mapping);
                self.mappings.insert(executable, id);
                id
            }
        };
        if let Some(mapping) = self.file.mapping.get_mut(id as usize - 1) {
            mapping.memory_limit = mapping.memory_limit.max(offset.saturating_add(1));
        }
        id
    }

    /// Id of a function.
    fn function(&mut self, name: &str, executable: &str) -> u64 {
        let key = (self.string(name), self.string(executable));
        if let Some(id) = self.functions.get(&key) {
            return *id;
        }
        let id = self.file.function.len() as u64 + 1;
        self.file.function.push(Function { id, name: key.0, system_name: key.0, filename: key.1 });
        self.functions.insert(key, id);
        id
    }
}
