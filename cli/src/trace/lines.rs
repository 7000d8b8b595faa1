//! A view as lines or JSON on standard output, until its source ends, it is done, or a signal arrives.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use chainscope_trace::{Polled, Selection, Session, Source, view::View};

use crate::{signals::stop_flag, terminal};

/// Longest wait for an event before signals are looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Lines wait at most this long, and at most so many bytes of them, to be written together.
const LINGER: Duration = Duration::from_millis(50);
const MAX_OUTPUT: usize = 64 << 10;

/// Interval at which the view is told what was lost.
const ACCOUNTING_INTERVAL: Duration = Duration::from_secs(1);

/// `drain`: how long what was captured before a signal is still shown.
pub(super) fn run(
    source: &mut dyn Source,
    view: &mut dyn View,
    selection: Selection,
    json: bool,
    drain: Duration,
) -> anyhow::Result<()> {
    let stop = stop_flag()?;
    let mut session = Session::new(view, selection, json, source.start(), &source.attachments());
    let mut output = session.take_output();
    let mut written = Instant::now();
    let mut accounted = Instant::now();
    let (mut is_stopped, mut stopped) = (false, None);
    terminal::write(output.as_bytes())?;
    output.clear();
    let ended = loop {
        if !is_stopped && (stop.load(Ordering::Relaxed) || session.is_done()) {
            // What was captured by now is still delivered, so that the accounting is exact.
            source.stop();
            is_stopped = true;
        }
        if stop.load(Ordering::Relaxed) && stopped.get_or_insert_with(Instant::now).elapsed() >= drain {
            break Ok(());
        }
        let is_idle = match source.poll(POLL_INTERVAL) {
            Ok(Polled::Event(event)) => {
                if !session.is_done() {
                    session.event(&event);
                }
                false
            }
            Ok(Polled::Idle { monotonic_ns }) => {
                if !session.is_done() {
                    session.advance(monotonic_ns);
                }
                true
            }
            Ok(Polled::End) => break Ok(()),
            Err(error) => break Err(error),
        };
        if accounted.elapsed() > ACCOUNTING_INTERVAL {
            session.account(&source.accounting());
            accounted = Instant::now();
        }
        output.push_str(&session.take_output());
        if !output.is_empty() && (is_idle || output.len() > MAX_OUTPUT || written.elapsed() > LINGER) {
            terminal::write(output.as_bytes())?;
            output.clear();
            written = Instant::now();
        }
    };
    // Also after an error: what was read until then is right.
    session.finish(&source.accounting());
    output.push_str(&session.take_output());
    terminal::write(output.as_bytes())?;
    Ok(ended?)
}
