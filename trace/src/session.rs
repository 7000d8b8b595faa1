//! A view that is fed, as lines or as JSON.

use std::sync::Arc;

use serde_json::{Map, Value as Json, json};

use crate::{
    accounting::Accounting,
    attachment::Attachment,
    event::{Event, Timestamp},
    json,
    pattern::{Condition, Pattern},
    source::Process,
    view::{Lines, View, accounting_line},
};

/// Which events are shown or copied: those for which all of it holds.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Tracepoints; any if there is none.
    pub tracepoints: Vec<Pattern>,
    /// Conditions.
    pub conditions: Vec<Condition>,
    /// Not before this time, in nanoseconds since 1970.
    pub since_ns: Option<i64>,
    /// Not after it.
    pub until_ns: Option<i64>,
}

impl Selection {
    /// Whether an event is selected.
    #[must_use]
    pub fn matches(&self, event: &Event) -> bool {
        let Event { attachment, time, .. } = event;
        let is_named = |pattern: &Pattern| pattern.matches(&attachment.provider, &attachment.name);
        (self.tracepoints.is_empty() || self.tracepoints.iter().any(is_named))
            && self.since_ns.is_none_or(|since| time.wall_ns >= since)
            && self.until_ns.is_none_or(|until| time.wall_ns <= until)
            && self.conditions.iter().all(|condition| condition.holds(event))
    }
}

/// A view with its output.
pub struct Session<'a> {
    view: &'a mut dyn View,
    selection: Selection,
    is_json: bool,
    /// What the view writes.
    lines: Lines,
    /// What is to be printed.
    output: String,
    shown: u64,
}

impl std::fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("shown", &self.shown).finish_non_exhaustive()
    }
}

impl<'a> Session<'a> {
    /// Begins a view.
    #[must_use]
    pub fn new(
        view: &'a mut dyn View,
        selection: Selection,
        is_json: bool,
        start: Timestamp,
        attachments: &[Arc<Attachment>],
    ) -> Self {
        let mut session = Self { view, selection, is_json, lines: Lines::default(), output: String::new(), shown: 0 };
        session.view.begin(start, attachments, &mut session.lines);
        session.collect_lines();
        session
    }

    /// Passes an event, which need not be one that the view shows.
    pub fn event(&mut self, event: &Event) {
        self.advance(event.time.monotonic_ns);
        let Attachment { provider, name, .. } = event.attachment.as_ref();
        if !self.view.selects(provider, name) || !self.selection.matches(event) {
            return;
        }
        self.shown += 1;
        self.view.event(event, &mut self.lines);
        self.collect_lines();
        if self.is_json {
            let mut object = json::event(event, self.view.needs_payloads());
            self.view.annotate(event, &mut object);
            self.json(&Json::Object(object));
        }
    }

    /// Passes when the process of events that follow was started.
    pub fn process(&mut self, process: Process) {
        self.view.process(process);
    }

    /// All events before this time (`CLOCK_MONOTONIC`) have been passed.
    pub fn advance(&mut self, monotonic_ns: u64) {
        self.view.advance(monotonic_ns, &mut self.lines);
        self.collect_lines();
    }

    /// Passes what was lost so far.
    pub fn account(&mut self, accounting: &Accounting) {
        self.view.account(accounting);
    }

    /// Whether the view has shown what it was to show.
    pub fn is_done(&self) -> bool {
        self.view.is_done()
    }

    /// Ends the view. The last line is the accounting.
    pub fn finish(&mut self, accounting: &Accounting) {
        if !self.view.is_done() {
            // As when it ended: a recording has no idle times.
            self.advance(accounting.until.monotonic_ns);
        }
        self.view.finish(accounting, &mut self.lines);
        self.collect_lines();
        if !self.is_json {
            self.output.push_str(&accounting_line(accounting));
            self.output.push('\n');
            return;
        }
        let mut object = Map::new();
        if let Some(summary) = self.view.summary() {
            object.insert("summary".to_owned(), summary);
        }
        object.insert("events".to_owned(), json!(self.shown));
        object.insert("accounting".to_owned(), json::accounting(accounting));
        self.json(&Json::Object(object));
    }

    /// What is to be printed, which is removed.
    pub fn take_output(&mut self) -> String {
        std::mem::take(&mut self.output)
    }

    /// The lines of the view are printed, unless there is JSON instead.
    fn collect_lines(&mut self) {
        if self.is_json {
            self.lines.discard();
        } else {
            self.output.push_str(&self.lines.take());
        }
    }

    fn json(&mut self, value: &Json) {
        self.output.push_str(&chainscope_hygiene::EscapedJson(&value.to_string()).to_string());
        self.output.push('\n');
    }
}
