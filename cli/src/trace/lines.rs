//! A view as lines or JSON on standard output, until its source ends, it is done, or a signal arrives.

use std::time::{Duration, Instant};

use chainscope_trace::{
    Accounting, Polled, Selection, Session, Source,
    view::{View, loss_list},
};

use super::{ending::Ending, live::show_notices};
use crate::terminal;

/// Longest wait for an event before signals are looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum time that lines wait, and maximum of their bytes, to be written together.
const LINGER: Duration = Duration::from_millis(50);
const MAX_OUTPUT: usize = 64 << 10;

/// Interval at which losses are reported to the user and the view.
const ACCOUNTING_INTERVAL: Duration = Duration::from_secs(1);

pub(super) fn run(
    source: &mut dyn Source,
    view: &mut dyn View,
    selection: Selection,
    json: bool,
    ending: &Ending,
) -> anyhow::Result<()> {
    let mut session = Session::new(view, selection, json, source.start(), &source.attachments());
    let mut output = session.take_output();
    let mut written = Instant::now();
    let mut accounted = Instant::now();
    let (mut is_stopped, mut stopped, mut noted) = (false, None, (0, 0));
    terminal::write(output.as_bytes())?;
    output.clear();
    let ended = loop {
        if !is_stopped && (ending.is_requested() || session.is_done()) {
            // What was captured by now is still delivered, so that the accounting is exact.
            source.stop();
            is_stopped = true;
        }
        if ending.is_requested() && stopped.get_or_insert_with(Instant::now).elapsed() >= ending.drain {
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
            Ok(Polled::Process(process)) => {
                session.process(process);
                false
            }
            Ok(Polled::End) => break Ok(()),
            Err(error) => break Err(error),
        };
        if accounted.elapsed() > ACCOUNTING_INTERVAL {
            let accounting = source.accounting();
            noted = note_losses(&accounting, noted);
            show_notices(source);
            session.account(&accounting);
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

/// Says so on standard error if more was lost than was said before: hits, and ends of payloads; returns how much was.
fn note_losses(accounting: &Accounting, noted: (u64, u64)) -> (u64, u64) {
    const REMEDY: &str = "--ring-pages enlarges the ring buffer";
    let total = accounting.total();
    let (lost, incomplete) = (total.all_dropped(), total.incomplete);
    if lost > noted.0
        && let Some(losses) = loss_list(accounting)
    {
        terminal::note(&format!("{} hits were lost, {lost} so far ({losses}); {REMEDY}", lost - noted.0));
    }
    if incomplete > noted.1 {
        let more = incomplete - noted.1;
        terminal::note(&format!("of {more} events the end of a payload was lost, of {incomplete} so far; {REMEDY}"));
    }
    (lost.max(noted.0), incomplete.max(noted.1))
}
