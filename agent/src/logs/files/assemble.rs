//! Messages of the lines of one stream, with their positions.

use std::collections::VecDeque;

use chainscope_logs::{
    MessageJoiner,
    container::{ContainerLine, PartJoiner},
};

/// A message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Assembled {
    pub(crate) raw: Vec<u8>,
    /// Start of its first line in the file.
    pub(crate) start: u64,
    /// End of its last line.
    pub(crate) end: u64,
    /// When the container runtime read it.
    pub(crate) written_ns: Option<i64>,
}

/// Assembles the messages of one stream of one file.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    parts: PartJoiner,
    /// Start of the first part, and end of the last one.
    of_parts: Option<(u64, u64)>,
    joiner: MessageJoiner,
    /// Of the message in `joiner`.
    pending: Option<Pending>,
    /// Lines that end before it were taken by an earlier run.
    from: u64,
    /// Positions at which an earlier run ended a message because no further line came.
    boundaries: VecDeque<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    start: u64,
    end: u64,
    written_ns: Option<i64>,
}

impl Assembler {
    pub(crate) fn resume(from: u64, boundaries: Vec<u64>) -> Self {
        Self { from, boundaries: boundaries.into(), ..Self::default() }
    }

    /// Lines that end before it were taken by an earlier run.
    pub(crate) fn from(&self) -> u64 {
        self.from
    }

    /// Adds a line of a plain file.
    pub(crate) fn plain(&mut self, start: u64, end: u64, line: &[u8], done: &mut Vec<Assembled>) {
        if end > self.from {
            self.line(line, Pending { start, end, written_ns: None }, done);
        }
    }

    /// Adds a line of a container's log.
    pub(crate) fn container(&mut self, start: u64, end: u64, line: ContainerLine, done: &mut Vec<Assembled>) {
        if end <= self.from {
            return;
        }
        let (first, _) = self.of_parts.unwrap_or((start, end));
        self.of_parts = Some((first, end));
        if let Some((written, text)) = self.parts.push(line) {
            self.of_parts = None;
            self.line(&text, Pending { start: first, end, written_ns: Some(written) }, done);
        }
    }

    fn line(&mut self, line: &[u8], of: Pending, done: &mut Vec<Assembled>) {
        if let Some(raw) = self.joiner.push(line) {
            self.complete(raw, done);
        }
        match &mut self.pending {
            Some(pending) => pending.end = of.end,
            None => self.pending = Some(of),
        }
        let mut is_boundary = false;
        while self.boundaries.front().is_some_and(|boundary| *boundary <= of.end) {
            is_boundary = self.boundaries.pop_front() == Some(of.end);
        }
        if is_boundary || !self.joiner.may_continue() {
            self.end_message(done);
        }
    }

    fn complete(&mut self, raw: Vec<u8>, done: &mut Vec<Assembled>) {
        if let Some(Pending { start, end, written_ns }) = self.pending.take() {
            done.push(Assembled { raw, start, end, written_ns });
        }
    }

    /// End of the message that waits for a further line.
    pub(crate) fn pending_end(&self) -> Option<u64> {
        self.pending.map(|pending| pending.end)
    }

    /// Ends the message that waits for a further line.
    pub(crate) fn end_message(&mut self, done: &mut Vec<Assembled>) {
        if let Some(raw) = self.joiner.flush() {
            self.complete(raw, done);
        }
    }

    /// No more lines follow: ends the line that waits for a further part, too.
    pub(crate) fn finish(&mut self, done: &mut Vec<Assembled>) {
        if let (Some((written, text)), Some((start, end))) = (self.parts.flush(), self.of_parts.take()) {
            self.line(&text, Pending { start, end, written_ns: Some(written) }, done);
        }
        self.end_message(done);
    }

    /// Start of the first line that is in no message yet.
    pub(crate) fn start(&self) -> Option<u64> {
        let of_message = self.pending.map(|pending| pending.start);
        of_message.or(self.of_parts.map(|(start, _)| start))
    }
}

#[cfg(test)]
mod tests {
    use chainscope_logs::container::Stream;

    use super::*;

    /// Messages of numbered lines of 10 bytes each, as (first, last) line.
    fn messages(assembler: &mut Assembler, lines: &[&str], from: u64) -> Vec<(u64, u64)> {
        let mut done = Vec::new();
        for (number, line) in (0..).zip(lines) {
            assembler.plain(10 * (from + number), 10 * (from + number + 1), line.as_bytes(), &mut done);
        }
        done.iter().map(|message| (message.start / 10, message.end / 10)).collect()
    }

    const LINES: [&str; 5] = ["Apr 27 08:29:09.000: a", "  b", "  c", "Apr 27 08:29:09.001: d", "no time"];

    #[test]
    fn messages_have_the_positions_of_their_lines() {
        let mut assembler = Assembler::default();
        assert_eq!(messages(&mut assembler, &LINES[..4], 0), [(0, 3)]);
        assert_eq!((assembler.start(), assembler.pending_end()), (Some(30), Some(40)));
        assert_eq!(messages(&mut assembler, &LINES[4..], 4), [(3, 4), (4, 5)]);
        assert_eq!((assembler.start(), assembler.pending_end()), (None, None));
    }

    #[test]
    fn a_boundary_of_an_earlier_run_is_kept() {
        let mut assembler = Assembler::resume(0, vec![20]);
        // The line after it has no time: a message of its own.
        assert_eq!(messages(&mut assembler, &LINES, 0), [(0, 2), (2, 3), (3, 4), (4, 5)]);
        let mut assembler = Assembler::resume(20, vec![]);
        assert_eq!(messages(&mut assembler, &LINES, 0), [(2, 3), (3, 4), (4, 5)]);
    }

    #[test]
    fn parts_of_a_container_line_are_one() {
        let part =
            |text: &str, is_partial| ContainerLine { time: 7, stream: Stream::Stdout, is_partial, text: text.into() };
        let (mut assembler, mut done) = (Assembler::default(), Vec::new());
        assembler.container(0, 10, part("no ", true), &mut done);
        assert_eq!((assembler.start(), assembler.pending_end(), done.len()), (Some(0), None, 0));
        assembler.container(20, 30, part("time", false), &mut done);
        assembler.container(30, 40, part("lost", true), &mut done);
        assembler.finish(&mut done);
        let message = |raw: &str, start, end| Assembled { raw: raw.into(), start, end, written_ns: Some(7) };
        assert_eq!(done, [message("no time", 0, 30), message("lost", 30, 40)]);
    }
}
