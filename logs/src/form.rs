//! The forms of one line.

use crate::level::Level;
use crate::time::{LineTime, local_time, rfc3339};

/// Form of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `Nov 24 13:56:37.285 NOTICE │ text`: Octez 22 and later with `advertise_levels`.
    OctezLevel,
    /// `Apr 27 08:29:09.000: text`: Octez 18 to 22.
    Octez,
    /// `Apr  8 16:49:28.172 - section: text`: Octez 7 to 17.
    OctezSection,
    /// `<005> 2025-10-10T12:33:27.197-00:00 [section] text`: Octez with `format=pp`, and its daily log files.
    OctezRfc5424,
    /// `{"fd-sink-item.v0":{…}}`: Octez with `format=one-per-line`.
    OctezJson,
    /// `Mar 31 16:10:22.937 INFO text`: slog-term.
    SlogTerm,
    /// `{"msg":…,"level":30,…}`: slog-json.
    SlogJson,
    /// Anything else.
    Unknown,
}

/// What a line says. Its JSON forms are read by [`crate::json`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    pub(crate) form: Form,
    pub(crate) level: Option<Level>,
    pub(crate) time: Option<LineTime>,
    pub(crate) section: Option<&'a str>,
    pub(crate) text: &'a str,
}

/// Reads a line without escape sequences for colours.
pub(crate) fn parse(line: &str) -> Line<'_> {
    let unknown = Line { form: Form::Unknown, level: None, time: None, section: None, text: line };
    local_form(line).or_else(|| rfc5424_form(line)).unwrap_or(unknown)
}

/// The forms that begin with a local time.
fn local_form(line: &str) -> Option<Line<'_>> {
    let (time, rest) = local_time(line)?;
    let time = Some(LineTime::Local(time));
    if let Some(text) = rest.strip_prefix(':') {
        return Some(Line { form: Form::Octez, level: None, time, section: None, text: without_space(text) });
    }
    if let Some(rest) = rest.strip_prefix(" - ") {
        let (section, text) = match rest.split_once(": ") {
            Some((section, text)) if is_section(section) => (Some(section), text),
            _ => (None, rest),
        };
        return Some(Line { form: Form::OctezSection, level: None, time, section, text });
    }
    let words = rest.strip_prefix(' ')?.trim_start_matches(' ');
    let (word, after) = words.split_once(' ').unwrap_or((words, ""));
    let level = Some(Level::from_word(word)?);
    let (form, text) = match after.strip_prefix(['│', '|']) {
        Some(text) => (Form::OctezLevel, without_space(text)),
        None => (Form::SlogTerm, after),
    };
    Some(Line { form, level, time, section: None, text })
}

/// `[<00N> ]TIME [section] text`, where N is a syslog severity.
fn rfc5424_form(line: &str) -> Option<Line<'_>> {
    let (level, rest) = match line.strip_prefix('<') {
        Some(rest) => {
            let (severity, rest) = rest.split_once("> ")?;
            (Some(Level::from_severity(severity.parse().ok()?)?), rest)
        }
        None => (None, line),
    };
    let (time, rest) = rfc3339(rest)?;
    let (section, text) = rest.strip_prefix('[')?.split_once(']')?;
    let section = Some(section);
    let text = without_space(text);
    Some(Line { form: Form::OctezRfc5424, level, time: Some(LineTime::Exact(time)), section, text })
}

fn without_space(text: &str) -> &str {
    text.strip_prefix(' ').unwrap_or(text)
}

/// Whether it is a name like `p2p.maintenance` and not the beginning of a sentence.
fn is_section(text: &str) -> bool {
    !text.is_empty() && !text.contains(' ')
}

impl Line<'_> {
    /// Whether this line continues the message that `first` begins. Octez repeats the time and the level for each line of a
    /// message and indents all but the first; a line of unknown form that is indented belongs to what precedes it.
    pub(crate) fn continues(&self, first: &Line<'_>) -> bool {
        let is_indented = self.text.starts_with([' ', '\t']);
        let repeats = self.form == first.form
            && (self.time, self.level, self.section) == (first.time, first.level, first.section);
        is_indented && first.form != Form::Unknown && (repeats || self.form == Form::Unknown)
    }
}
