//! Events of any tracepoint, in a format of one's own.

use std::sync::Arc;

use super::{Lines, View};
use crate::{
    attachment::Attachment,
    event::{Event, Timestamp},
    json::rfc3339,
    pattern::Pattern,
    show::escape,
};

/// Tracepoints by name; an event is a line.
#[derive(Debug)]
pub struct Any {
    patterns: Vec<Pattern>,
    format: Option<Format>,
}

impl Any {
    /// Tracepoints that one of the patterns matches. `format` is the line; without it all arguments are shown.
    #[must_use]
    pub fn new(patterns: Vec<Pattern>, format: Option<Format>) -> Self {
        Self { patterns, format }
    }
}

/// A line with fields in braces: `{time} peer {peer_id} sent {message_type}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(String),
}

impl Format {
    /// Reads a format. `{{` and `}}` stand for braces, `\t` and `\n` for what they do elsewhere.
    ///
    /// # Errors
    /// A brace has no counterpart.
    pub fn parse(format: &str) -> Result<Self, String> {
        let (mut parts, mut text) = (Vec::new(), String::new());
        let mut letters = format.chars().peekable();
        while let Some(letter) = letters.next() {
            match (letter, letters.peek()) {
                ('{', Some('{')) | ('}', Some('}')) => text.extend(letters.next()),
                ('\\', Some('t' | 'n')) => text.push(if letters.next() == Some('t') { '\t' } else { '\n' }),
                ('{', _) => {
                    let mut name = String::new();
                    loop {
                        match letters.next() {
                            Some('}') => break,
                            Some(letter) => name.push(letter),
                            None => return Err(format!("{{{name} has no closing brace")),
                        }
                    }
                    parts.extend([Part::Text(std::mem::take(&mut text)), Part::Field(name)]);
                }
                ('}', _) => return Err("a closing brace without an opening one; }} stands for a brace".to_owned()),
                _ => text.push(letter),
            }
        }
        parts.push(Part::Text(text));
        Ok(Self(parts))
    }

    fn apply(&self, event: &Event) -> String {
        let part = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Field(name) => field(event, name),
        };
        self.0.iter().map(part).collect()
    }
}

/// A field of an event by name: an argument, or what all events have.
pub(crate) fn field(event: &Event, name: &str) -> String {
    if event.attachment.index_of(name).is_some() {
        return event.show(name).to_string();
    }
    match name {
        "time" => rfc3339(event.time.wall_ns),
        "monotonic_ns" => event.time.monotonic_ns.to_string(),
        "sequence" => event.sequence.to_string(),
        "pid" => event.pid.to_string(),
        "tid" => event.tid.to_string(),
        "cpu" => event.cpu.to_string(),
        "comm" => escape(event.comm.as_bytes()),
        "tracepoint" => escape(event.attachment.full_name().as_bytes()),
        "provider" => escape(event.attachment.provider.as_bytes()),
        "name" => escape(event.attachment.name.as_bytes()),
        _ => "<missing>".to_owned(),
    }
}

impl View for Any {
    fn patterns(&self) -> Vec<String> {
        self.patterns.iter().map(ToString::to_string).collect()
    }

    fn selects(&self, provider: &str, name: &str) -> bool {
        self.patterns.iter().any(|pattern| pattern.matches(provider, name))
    }

    fn needs_payloads(&self) -> bool {
        true
    }

    fn begin(&mut self, _start: Timestamp, _attachments: &[Arc<Attachment>], _out: &mut Lines) {}

    fn event(&mut self, event: &Event, out: &mut Lines) {
        if let Some(format) = &self.format {
            out.line(format_args!("{}", format.apply(event)));
            return;
        }
        let arguments = event.attachment.arguments.iter().enumerate();
        let arguments: String = arguments
            .map(|(index, argument)| format!(" {}={}", escape(argument.meaning.name.as_bytes()), event.show_at(index)))
            .collect();
        let (time, comm) = (field(event, "time"), field(event, "comm"));
        let tracepoint = field(event, "tracepoint");
        out.line(format_args!("{time} {comm}[{}/{}] {tracepoint}{arguments}", event.pid, event.tid));
    }
}
