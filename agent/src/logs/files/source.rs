//! One source of log messages: from the lines of its files to records, and back to the positions that are durable.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::Arc,
    time::Instant,
};

use chainscope_hygiene::warn_limited;
use chainscope_logs::{
    Encoding,
    container::{self, Stream},
};
use chainscope_proto::v1::{Record, record::Kind};
use chainscope_spec::Redaction;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use super::{
    assemble::{Assembled, Assembler, FileId, Span},
    follow::{Follower, Progress},
    location::LogLocation,
    open::{Lines, first_u64},
    positions::{FilePositions, Positions},
};
use crate::{
    clock::realtime_ns,
    logs::{
        emit::{LogSink, Received},
        figures::Figures,
    },
};

/// What may change of a source.
#[derive(Debug, Clone, Default)]
pub(crate) struct SourceOptions {
    /// The process or pod, as records show it.
    pub(crate) target: Arc<str>,
    pub(crate) redact: Redaction,
}

/// A source.
pub(crate) struct Source<S> {
    follower: Follower,
    book: Book<S>,
    /// No line has come since the last poll.
    was_quiet: bool,
}

/// What is known of the files of a source, and the records that wait.
struct Book<S> {
    node: Arc<str>,
    options: Arc<Mutex<SourceOptions>>,
    is_container: bool,
    sink: S,
    positions: Arc<Positions>,
    figures: Arc<Figures>,
    /// Files by key and generation.
    files: BTreeMap<FileId, FileState>,
    /// Greatest generation of each key.
    generations: BTreeMap<u64, u32>,
    ready: VecDeque<Ready>,
}

#[derive(Default)]
struct FileState {
    /// Start of the next line.
    position: u64,
    streams: BTreeMap<&'static str, StreamState>,
    /// The file whose last lines the first ones continue.
    previous: Option<FileId>,
    has_ended: bool,
}

struct StreamState {
    /// Identity in the positions of messages.
    id: u64,
    assembler: Assembler,
    /// Messages that are queued and not known to be durable: numbers of their records, and where they start.
    volatile: VecDeque<(u64, u64)>,
    /// What was taken over from files before.
    taken_over: Vec<TakenOver>,
}

/// Lines at the end of a file that are read again after a kill as long as their message is not durable.
struct TakenOver {
    file: FileId,
    start: u64,
    /// The message's record, once it is queued.
    number: Option<u64>,
}

/// A record that was not accepted yet.
struct Ready {
    record: Record,
    stream: &'static str,
    span: Span,
}

impl<S: LogSink> Source<S> {
    pub(crate) fn new(
        node: Arc<str>,
        location: LogLocation,
        options: Arc<Mutex<SourceOptions>>,
        sink: S,
        positions: Arc<Positions>,
        figures: Arc<Figures>,
    ) -> Self {
        let is_container = location.is_container();
        let book = Book {
            node,
            options,
            is_container,
            sink,
            positions,
            figures,
            files: BTreeMap::new(),
            generations: BTreeMap::new(),
            ready: VecDeque::new(),
        };
        Self { follower: Follower::new(location), book, was_quiet: false }
    }

    /// Reads what was appended, and records it as far as there is space.
    pub(crate) fn poll(&mut self, now: Instant) -> (Progress, io::Result<()>) {
        let has_space = self.book.offer();
        let polled = self.follower.poll(now, has_space, &mut self.book);
        if let Progress::Idle { was_busy } = polled.0 {
            // A message is complete when the next one begins, or when nothing has followed for an interval of polls.
            if !was_busy && self.was_quiet {
                self.book.end_messages();
            }
            self.was_quiet = !was_busy;
        }
        self.book.note_durable();
        polled
    }

    /// Records what is left: nothing more is written. Returns whether all of it has found space.
    pub(crate) fn finish(&mut self) -> bool {
        if let Err(error) = self.follower.finish(&mut self.book) {
            warn_limited!(node = %self.book.node, %error, "the rest of a log file cannot be read");
        }
        let files: Vec<FileId> = self.book.files.keys().copied().collect();
        for file in files {
            self.book.finish(file);
        }
        let is_empty = self.book.offer();
        self.book.note_durable();
        is_empty
    }
}

impl<S: LogSink> Book<S> {
    fn note_begun(&self, key: u64, generation: u32) {
        if let Err(error) = self.positions.begin_generation(key, generation) {
            warn_limited!(%error, "the beginning of a log file cannot be noted");
        }
    }

    fn current(&self, key: u64) -> FileId {
        (key, self.generations.get(&key).copied().unwrap_or(0))
    }

    /// Offers the records that wait. Returns whether all were accepted.
    fn offer(&mut self) -> bool {
        while let Some(Ready { record, stream, span }) = self.ready.pop_front() {
            let bytes = match &record.kind {
                Some(Kind::LogMessage(message)) => message.raw.len(),
                _ => 0,
            };
            match self.sink.offer(&self.node, record) {
                Ok(number) => {
                    self.figures.recorded(&self.node, stream, bytes);
                    if let Some(of) = self.files.get_mut(&span.file).and_then(|file| file.streams.get_mut(stream)) {
                        of.volatile.push_back((number, span.start));
                        if span.continues {
                            of.taken_over.iter_mut().for_each(|lines| lines.number = Some(number));
                        }
                    }
                }
                Err(record) => {
                    self.ready.push_front(Ready { record: *record, stream, span });
                    return false;
                }
            }
        }
        true
    }

    fn stream(&mut self, file: FileId, stream: &'static str) -> Option<&mut StreamState> {
        let resume = || {
            let known = self.positions.get(file.0).filter(|known| known.generation == file.1);
            let known = known.and_then(|known| known.streams.get(stream).cloned()).unwrap_or_default();
            let mut hash = Sha256::new();
            hash.update(file.0.to_le_bytes());
            hash.update(file.1.to_le_bytes());
            hash.update(stream);
            let assembler = Assembler::new(file, known.position, known.boundaries);
            let id = first_u64(&hash.finalize());
            StreamState { id, assembler, volatile: VecDeque::new(), taken_over: Vec::new() }
        };
        Some(self.files.get_mut(&file)?.streams.entry(stream).or_insert_with(resume))
    }

    /// Makes records of messages.
    fn add(&mut self, stream: &'static str, messages: Vec<Assembled>) {
        for Assembled { raw, span, written_ns } in messages {
            let Some(id) = self.stream(span.file, stream).map(|of| of.id) else { continue };
            let options = self.options.lock();
            let received = Received {
                raw,
                encoding: Encoding::Plain,
                source: stream,
                target: &options.target,
                written_ns,
                received_ns: realtime_ns(),
                position: Some((id, span.end)),
            };
            let records = received.records(&options.redact);
            self.ready.extend(records.into_iter().map(|record| Ready { record, stream, span }));
        }
    }

    /// Before the first line of a stream of a file: takes over what waits at the end of the file before.
    fn take_over(&mut self, file: FileId, stream: &'static str) {
        let Some(state) = self.files.get(&file) else { return };
        let (Some(previous), false) = (state.previous, state.streams.contains_key(stream)) else { return };
        let Some(before) = self.files.get_mut(&previous).and_then(|state| state.streams.get_mut(stream)) else {
            return;
        };
        let Some(start) = before.assembler.start() else { return };
        let incomplete = before.assembler.take_incomplete();
        let mut taken_over = std::mem::take(&mut before.taken_over);
        taken_over.push(TakenOver { file: previous, start, number: None });
        let Some(of) = self.stream(file, stream) else { return };
        of.assembler.continue_with(incomplete);
        of.taken_over = taken_over;
        // An earlier run has taken the file's first lines: they are not read again.
        if of.assembler.from() > 0 {
            let mut messages = Vec::new();
            of.assembler.finish(&mut messages);
            self.add(stream, messages);
        }
    }

    /// Ends all that waits for further lines in a file.
    fn finish(&mut self, file: FileId) {
        let Some(state) = self.files.get_mut(&file) else { return };
        let mut ended = Vec::new();
        for (stream, of) in &mut state.streams {
            let mut messages = Vec::new();
            of.assembler.finish(&mut messages);
            ended.push((*stream, messages));
        }
        for (stream, messages) in ended {
            self.add(stream, messages);
        }
        self.offer();
    }

    /// Ends the messages that no further line has followed. Where they end is on disk before they are sent: when the file is
    /// read again, a line that is appended later is no part of them either.
    fn end_messages(&mut self) {
        let mut ended = Vec::new();
        for state in self.files.values_mut() {
            for (stream, of) in &mut state.streams {
                let Some((file, end)) = of.assembler.pending_end() else { continue };
                if let Err(error) = self.positions.add_boundary(file.0, stream, end) {
                    warn_limited!(%error, "log messages wait: the position of one cannot be written");
                    continue;
                }
                let mut messages = Vec::new();
                of.assembler.end_message(&mut messages);
                ended.push((*stream, messages));
            }
        }
        for (stream, messages) in ended {
            self.add(stream, messages);
        }
        self.offer();
    }

    /// Sets the positions before which everything is durable, and forgets files that are.
    fn note_durable(&mut self) {
        let durable = self.sink.durable(&self.node);
        // First positions of what was read and is not durable.
        let mut begun: BTreeMap<(FileId, &str), u64> = BTreeMap::new();
        let mut note = |file: FileId, stream: &'static str, start: u64| {
            begun.entry((file, stream)).and_modify(|first| *first = start.min(*first)).or_insert(start);
        };
        for ready in &self.ready {
            note(ready.span.file, ready.stream, ready.span.start);
        }
        for (file, state) in &mut self.files {
            for (stream, of) in &mut state.streams {
                while of.volatile.front().is_some_and(|(number, _)| *number <= durable) {
                    of.volatile.pop_front();
                }
                if let Some((_, start)) = of.volatile.front() {
                    note(*file, stream, *start);
                }
                if let Some(start) = of.assembler.start() {
                    note(*file, stream, start);
                }
                if of.taken_over.is_empty() {
                    continue;
                }
                let is_ready =
                    |ready: &Ready| ready.span.continues && (ready.span.file, ready.stream) == (*file, *stream);
                let is_incomplete = of.assembler.has_of_previous() || self.ready.iter().any(is_ready);
                of.taken_over.retain(|lines| is_incomplete || lines.number.is_some_and(|number| number > durable));
                for lines in &of.taken_over {
                    note(lines.file, stream, lines.start);
                }
            }
        }
        let generations = &self.generations;
        self.files.retain(|(key, generation), state| {
            let mut is_durable = true;
            for (stream, of) in &mut state.streams {
                let begun = begun.get(&((*key, *generation), *stream)).copied();
                is_durable &= begun.is_none() && of.taken_over.is_empty();
                if generations.get(key).is_none_or(|newest| newest == generation) {
                    let position = begun.unwrap_or(state.position.max(of.assembler.from()));
                    self.positions.set(*key, stream, position);
                }
            }
            !(state.has_ended && is_durable)
        });
    }
}

impl<S: LogSink> Lines for Book<S> {
    fn knows(&self, key: u64) -> bool {
        self.positions.get(key).is_some()
    }

    fn begin(&mut self, key: u64, length: Option<u64>) -> u64 {
        let known = self.positions.get(key).unwrap_or_else(|| {
            self.note_begun(key, 0);
            FilePositions::default()
        });
        self.generations.insert(key, known.generation);
        let open = self.files.get(&self.current(key)).map(|state| state.position);
        let position = open.or_else(|| known.streams.values().map(|stream| stream.position).min()).unwrap_or(0);
        if length.is_some_and(|length| length < position) {
            self.rewritten(key);
            return self.begin(key, length);
        }
        let state = self.files.entry(self.current(key)).or_default();
        (state.position, state.has_ended) = (position, false);
        position
    }

    fn follows(&mut self, key: u64, previous: u64) {
        let previous = self.current(previous);
        if let Some(state) = self.files.get_mut(&self.current(key)) {
            state.previous = Some(previous);
        }
    }

    fn line(&mut self, key: u64, start: u64, end: u64, bytes: &[u8]) -> bool {
        let file = self.current(key);
        let line = if self.is_container { container::parse(bytes) } else { None };
        let stream = match &line {
            Some(line) if line.stream == Stream::Stderr => "stderr",
            _ if self.is_container => "stdout",
            _ => "file",
        };
        self.take_over(file, stream);
        let mut messages = Vec::new();
        if let Some(of) = self.stream(file, stream) {
            match line {
                Some(line) => of.assembler.container(start, end, line, &mut messages),
                None => of.assembler.plain(start, end, bytes, &mut messages),
            }
        }
        if let Some(state) = self.files.get_mut(&file) {
            state.position = end;
        }
        self.add(stream, messages);
        self.offer()
    }

    fn end(&mut self, key: u64) {
        if let Some(state) = self.files.get_mut(&self.current(key)) {
            state.has_ended = true;
        }
    }

    fn complete(&mut self, key: u64) {
        self.finish(self.current(key));
    }

    fn rewritten(&mut self, key: u64) {
        let (_, generation) = self.current(key);
        self.finish((key, generation));
        let next = generation.wrapping_add(1);
        self.generations.insert(key, next);
        self.note_begun(key, next);
    }
}
