//! Messages of the lines of one stream, with their positions.

use std::collections::VecDeque;

use chainscope_logs::{
    MessageJoiner,
    container::{ContainerLine, PartJoiner},
};

/// A file by its key, and how often it began anew.
pub(crate) type FileId = (u64, u32);

/// Lines of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) file: FileId,
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// They continue the last lines of the file before.
    pub(crate) continues: bool,
}

impl Span {
    /// With the next lines, which may be those of the next file.
    fn and(self, next: Self) -> Self {
        if self.file == next.file { Self { end: next.end, ..self } } else { Self { continues: true, ..next } }
    }
}

/// A message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Assembled {
    pub(crate) raw: Vec<u8>,
    pub(crate) span: Span,
    /// When the container runtime read it.
    pub(crate) written_ns: Option<i64>,
}

/// Assembles the messages of one stream of one file. A message, and a line of a container, may have begun in the file before.
#[derive(Debug)]
pub(crate) struct Assembler {
    file: FileId,
    /// Lines that end before it were taken by an earlier run.
    from: u64,
    /// Positions at which an earlier run ended a message because no further line came.
    boundaries: VecDeque<u64>,
    incomplete: Incomplete,
}

/// The message and the line that wait for what follows.
#[derive(Debug, Default)]
pub(crate) struct Incomplete {
    parts: PartJoiner,
    of_parts: Option<Span>,
    joiner: MessageJoiner,
    /// Of the message in `joiner`.
    pending: Option<Pending>,
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    span: Span,
    written_ns: Option<i64>,
}

impl Assembler {
    pub(crate) fn new(file: FileId, from: u64, boundaries: Vec<u64>) -> Self {
        Self { file, from, boundaries: boundaries.into(), incomplete: Incomplete::default() }
    }

    /// Lines that end before it were taken by an earlier run.
    pub(crate) fn from(&self) -> u64 {
        self.from
    }

    /// What waits, for the assembler of the next file.
    pub(crate) fn take_incomplete(&mut self) -> Incomplete {
        std::mem::take(&mut self.incomplete)
    }

    /// Begins with what the file before ended with.
    pub(crate) fn continue_with(&mut self, incomplete: Incomplete) {
        self.incomplete = incomplete;
    }

    /// Whether something of the file before waits.
    pub(crate) fn has_of_previous(&self) -> bool {
        self.waiting().any(|span| span.continues || span.file != self.file)
    }

    /// Adds a line of a plain file.
    pub(crate) fn plain(&mut self, start: u64, end: u64, line: &[u8], done: &mut Vec<Assembled>) {
        if end > self.from {
            self.line(line, Pending { span: self.span(start, end), written_ns: None }, done);
        }
    }

    /// Adds a line of a container's log.
    pub(crate) fn container(&mut self, start: u64, end: u64, line: ContainerLine, done: &mut Vec<Assembled>) {
        if end <= self.from {
            return;
        }
        let part = self.span(start, end);
        let span = self.incomplete.of_parts.map_or(part, |parts| parts.and(part));
        self.incomplete.of_parts = Some(span);
        if let Some((written, text)) = self.incomplete.parts.push(line) {
            self.incomplete.of_parts = None;
            self.line(&text, Pending { span, written_ns: Some(written) }, done);
        }
    }

    fn span(&self, start: u64, end: u64) -> Span {
        Span { file: self.file, start, end, continues: false }
    }

    fn line(&mut self, line: &[u8], of: Pending, done: &mut Vec<Assembled>) {
        if let Some(raw) = self.incomplete.joiner.push(line) {
            self.complete(raw, done);
        }
        match &mut self.incomplete.pending {
            Some(pending) => pending.span = pending.span.and(of.span),
            None => self.incomplete.pending = Some(of),
        }
        let mut is_boundary = false;
        while self.boundaries.front().is_some_and(|boundary| *boundary <= of.span.end) {
            is_boundary = self.boundaries.pop_front() == Some(of.span.end);
        }
        if is_boundary || !self.incomplete.joiner.may_continue() {
            self.end_message(done);
        }
    }

    fn complete(&mut self, raw: Vec<u8>, done: &mut Vec<Assembled>) {
        if let Some(Pending { span, written_ns }) = self.incomplete.pending.take() {
            done.push(Assembled { raw, span, written_ns });
        }
    }

    /// File and end of the message that waits for a further line, unless a part of that line has come.
    pub(crate) fn pending_end(&self) -> Option<(FileId, u64)> {
        let pending = self.incomplete.pending.filter(|_| self.incomplete.of_parts.is_none())?;
        Some((pending.span.file, pending.span.end))
    }

    /// Ends the message that waits for a further line.
    pub(crate) fn end_message(&mut self, done: &mut Vec<Assembled>) {
        if let Some(raw) = self.incomplete.joiner.flush() {
            self.complete(raw, done);
        }
    }

    /// No more lines follow: ends the line that waits for a further part, too.
    pub(crate) fn finish(&mut self, done: &mut Vec<Assembled>) {
        if let (Some((written, text)), Some(span)) = (self.incomplete.parts.flush(), self.incomplete.of_parts.take()) {
            self.line(&text, Pending { span, written_ns: Some(written) }, done);
        }
        self.end_message(done);
    }

    /// Start of the first line of the file that is in no message yet.
    pub(crate) fn start(&self) -> Option<u64> {
        self.waiting().find(|span| span.file == self.file).map(|span| span.start)
    }

    fn waiting(&self) -> impl Iterator<Item = Span> {
        [self.incomplete.pending.map(|pending| pending.span), self.incomplete.of_parts].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use chainscope_logs::container::Stream;

    use super::*;

    const FILE: FileId = (1, 0);

    fn new(from: u64, boundaries: Vec<u64>) -> Assembler {
        Assembler::new(FILE, from, boundaries)
    }

    /// Messages of numbered lines of 10 bytes each, as (first, last) line.
    fn messages(assembler: &mut Assembler, lines: &[&str], from: u64) -> Vec<(u64, u64)> {
        let mut done = Vec::new();
        for (number, line) in (0..).zip(lines) {
            assembler.plain(10 * (from + number), 10 * (from + number + 1), line.as_bytes(), &mut done);
        }
        done.iter().map(|message| (message.span.start / 10, message.span.end / 10)).collect()
    }

    const LINES: [&str; 5] = ["Apr 27 08:29:09.000: a", "  b", "  c", "Apr 27 08:29:09.001: d", "no time"];

    #[test]
    fn messages_have_the_positions_of_their_lines() {
        let mut assembler = new(0, vec![]);
        assert_eq!(messages(&mut assembler, &LINES[..4], 0), [(0, 3)]);
        assert_eq!((assembler.start(), assembler.pending_end()), (Some(30), Some((FILE, 40))));
        assert_eq!(messages(&mut assembler, &LINES[4..], 4), [(3, 4), (4, 5)]);
        assert_eq!((assembler.start(), assembler.pending_end()), (None, None));
    }

    #[test]
    fn a_boundary_of_an_earlier_run_is_kept() {
        let mut assembler = new(0, vec![20]);
        // The line after it has no time: a message of its own.
        assert_eq!(messages(&mut assembler, &LINES, 0), [(0, 2), (2, 3), (3, 4), (4, 5)]);
        let mut assembler = new(20, vec![]);
        assert_eq!(messages(&mut assembler, &LINES, 0), [(2, 3), (3, 4), (4, 5)]);
    }

    fn part(text: &str, is_partial: bool) -> ContainerLine {
        ContainerLine { time: 7, stream: Stream::Stdout, is_partial, text: text.into() }
    }

    /// Lines of two files, those that end with + incomplete, and the first messages.
    type Case<'a> = (&'a [&'a str], &'a [&'a str], &'a [(&'a str, Span)]);

    #[test]
    fn messages_and_lines_go_on_in_the_next_file() {
        let next = (2, 0);
        let cases: [Case; 3] = [
            (
                &["Apr 27 08:29:09.000: a", "  b"],
                &["  c", "no time"],
                &[("Apr 27 08:29:09.000: a\n  b\n  c", Span { file: next, start: 0, end: 10, continues: true })],
            ),
            (
                &["Apr 27 08:29:09.000: a", "  b"],
                &["no time"],
                &[("Apr 27 08:29:09.000: a\n  b", Span { file: FILE, start: 0, end: 20, continues: false })],
            ),
            (
                &["Apr 27 08:29:09.000: a", "no +"],
                &["time"],
                &[
                    ("Apr 27 08:29:09.000: a", Span { file: FILE, start: 0, end: 10, continues: false }),
                    ("no time", Span { file: next, start: 0, end: 10, continues: true }),
                ],
            ),
        ];
        for (before, after, expected) in cases {
            let (mut first, mut second) = (new(0, vec![]), Assembler::new(next, 0, vec![]));
            let mut done = Vec::new();
            let mut feed = |assembler: &mut Assembler, lines: &[&str]| {
                for (number, line) in (0..).zip(lines) {
                    let part = part(line.trim_end_matches('+'), line.ends_with('+'));
                    assembler.container(10 * number, 10 * (number + 1), part, &mut done);
                }
            };
            feed(&mut first, before);
            second.continue_with(first.take_incomplete());
            assert_eq!((first.start(), second.start(), second.has_of_previous()), (None, None, true));
            feed(&mut second, after);
            assert!(!second.has_of_previous() && second.start().is_none(), "{second:?}");
            let done: Vec<_> =
                done.iter().map(|message| (str::from_utf8(&message.raw).unwrap(), message.span)).collect();
            assert_eq!(done[..expected.len()], *expected);
        }
    }

    #[test]
    fn parts_of_a_container_line_are_one() {
        let (mut assembler, mut done) = (new(0, vec![]), Vec::new());
        assembler.container(0, 10, part("no ", true), &mut done);
        assert_eq!((assembler.start(), assembler.pending_end(), done.len()), (Some(0), None, 0));
        assembler.container(20, 30, part("time", false), &mut done);
        assembler.container(30, 40, part("lost", true), &mut done);
        assembler.finish(&mut done);
        let message = |raw: &str, start, end| Assembled {
            raw: raw.into(),
            span: Span { file: FILE, start, end, continues: false },
            written_ns: Some(7),
        };
        assert_eq!(done, [message("no time", 0, 30), message("lost", 30, 40)]);
    }
}
