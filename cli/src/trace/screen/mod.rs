//! Views that fill a terminal: the loop that feeds and draws them.

mod content;
mod mempool;
mod peers;

use std::time::{Duration, Instant};

use chainscope_trace::{
    Accounting, Attachment, Event, Polled, Selection, Source,
    view::{Lines, View, accounting_line},
};
use ratatui::{
    DefaultTerminal, Frame,
    crossterm::event::{self, Event as Input},
};

pub(super) use self::{mempool::Log, peers::Peers};
use super::ending::Ending;
use crate::{keys::Key, terminal};

/// Time for events between two drawings, after which keys are looked at.
const TICK: Duration = Duration::from_millis(50);
/// Longest wait for an event.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Interval between two readings of the counters in the kernel.
const ACCOUNTING_INTERVAL: Duration = Duration::from_millis(500);

/// What fills the terminal.
pub(super) trait Screen {
    fn view(&mut self) -> &mut dyn View;
    /// Draws it; `status` is its last line.
    fn draw(&mut self, frame: &mut Frame, status: &str);
    fn key(&mut self, key: Key);
}

/// Shows a source until a signal or a key that quits; what was captured before is still counted.
pub(super) fn run(
    source: &mut dyn Source,
    selection: &Selection,
    screen: &mut dyn Screen,
    ending: &Ending,
) -> anyhow::Result<()> {
    let shown = match ratatui::try_init() {
        Ok(mut terminal) => Shown { source, selection, screen, state: State::Live, ending }.run(&mut terminal),
        Err(error) => Err(error.into()),
    };
    ratatui::restore();
    // After the screen the last line of the view, as of every other.
    terminal::line(&accounting_line(&shown?))
}

/// A screen and its source.
struct Shown<'a> {
    source: &'a mut dyn Source,
    selection: &'a Selection,
    screen: &'a mut dyn Screen,
    state: State,
    ending: &'a Ending,
}

/// Whether there may be more events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Live,
    Ended,
}

impl Shown<'_> {
    fn run(&mut self, terminal: &mut DefaultTerminal) -> anyhow::Result<Accounting> {
        // The lines of the view are not shown: a screen draws its state.
        let mut lines = Lines::default();
        self.screen.view().begin(self.source.start(), &self.source.attachments(), &mut lines);
        let (mut accounting, mut read) = (self.source.accounting(), Instant::now());
        while !self.ending.is_requested() {
            self.feed(&mut lines)?;
            if read.elapsed() > ACCOUNTING_INTERVAL || self.state == State::Ended {
                (accounting, read) = (self.source.accounting(), Instant::now());
            }
            let state = if self.state == State::Ended { "ended · " } else { "" };
            let status = format!(" {state}{}", accounting_line(&accounting));
            terminal.draw(|frame| self.screen.draw(frame, &status))?;
            // After the end there is nothing to do but to wait for keys.
            let wait = if self.state == State::Ended { TICK } else { Duration::ZERO };
            if self.keys(wait)? {
                break;
            }
        }
        self.source.stop();
        let stopped = Instant::now();
        while self.state == State::Live && stopped.elapsed() < self.ending.drain {
            self.feed(&mut lines)?;
        }
        Ok(self.source.accounting())
    }

    /// Passes events for a while.
    fn feed(&mut self, lines: &mut Lines) -> anyhow::Result<()> {
        let began = Instant::now();
        while self.state == State::Live && began.elapsed() < TICK {
            match self.source.poll(POLL_INTERVAL)? {
                Polled::Event(event) => self.event(&event, lines),
                Polled::Idle { monotonic_ns } => self.screen.view().advance(monotonic_ns, lines),
                Polled::Process(process) => self.screen.view().process(process),
                Polled::End => self.state = State::Ended,
            }
            lines.discard();
        }
        Ok(())
    }

    fn event(&mut self, event: &Event, lines: &mut Lines) {
        let Attachment { provider, name, .. } = event.attachment.as_ref();
        let view = self.screen.view();
        if view.selects(provider, name) && self.selection.matches(event) {
            view.advance(event.time.monotonic_ns, lines);
            view.event(event, lines);
        }
    }

    /// Handles the keys that were pressed; `true` to quit.
    fn keys(&mut self, wait: Duration) -> anyhow::Result<bool> {
        if terminal::is_closed(wait)? {
            return Ok(true);
        }
        while event::poll(Duration::ZERO)? {
            // A resize is noticed by the next drawing.
            let Input::Key(input) = event::read()? else { continue };
            if !input.is_press() {
                continue;
            }
            match Key::of(input, Key::Enter) {
                Some(Key::Quit) => return Ok(true),
                Some(key) => self.screen.key(key),
                None => {}
            }
        }
        Ok(false)
    }
}
