//! `chainscope messages --live`: a live table of a node's peers.
//!
//! [`stream`] follows the messages in a thread, [`state`] keeps what is known, [`view`] draws it, [`input`] reads keys.

mod selection;
mod state;
mod stream;
mod view;

use std::{
    io::{self, IsTerminal as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{bail, ensure};
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event},
};

use self::{
    state::{Action, State},
    stream::{Source, Update},
};
use crate::{api::Api, keys::Key, signals::stop_flag, terminal};

/// Past messages to begin with.
const DEFAULT_PAST: u64 = 1000;
/// Interval between two drawings without a key.
const TICK: Duration = Duration::from_millis(100);
/// Updates that wait for the next drawing, and at most applied before it.
const MAX_UPDATES: usize = 4096;

pub(crate) fn run(api: Api, filters: Vec<(&'static str, String)>, past: Option<u64>) -> anyhow::Result<()> {
    ensure!(terminal::is_interactive() && io::stdin().is_terminal(), "--live needs a terminal");
    let stop = stop_flag()?;
    let server = api.base().to_owned();
    let node = filters.iter().find(|(name, _)| *name == "node_name").map(|(_, node)| node.clone());
    let source = Source::new(api.clone(), filters, past.unwrap_or(DEFAULT_PAST));
    // A wrong URL or filter ends the command; later errors are shown.
    source.end()?;

    let (sender, updates) = sync_channel(MAX_UPDATES);
    let (loads, ids) = sync_channel(1);
    let threads = [stream::spawn_loader(api, node, ids, sender.clone()), source.spawn(sender)];
    let mut app = App { state: State::new(), server, updates, loads, threads, stop };
    let ended = match ratatui::try_init() {
        Ok(mut terminal) => app.run(&mut terminal),
        Err(error) => Err(error.into()),
    };
    ratatui::restore();
    ended
}

/// The table and what feeds it.
struct App {
    state: State,
    server: String,
    updates: Receiver<Update>,
    /// Ids of messages to load.
    loads: SyncSender<u64>,
    threads: [JoinHandle<()>; 2],
    /// A signal asked to end.
    stop: Arc<AtomicBool>,
}

impl App {
    fn run(&mut self, terminal: &mut DefaultTerminal) -> anyhow::Result<()> {
        while !self.stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            self.updates.try_iter().take(MAX_UPDATES).for_each(|update| self.state.apply(update, now));
            if self.threads.iter().any(JoinHandle::is_finished) {
                bail!("a thread of the table ended");
            }
            terminal.draw(|frame| view::draw(frame, &mut self.state, &self.server, now))?;
            if terminal::is_closed(TICK)? {
                return Ok(());
            }
            while event::poll(Duration::ZERO)? {
                // A resize is noticed by the next drawing.
                if let Event::Key(event) = event::read()?
                    && event.is_press()
                    && let Some(key) = Key::of(event, Key::PageDown)
                {
                    let page = usize::from(terminal.size()?.height.saturating_sub(view::CHROME_LINES));
                    match self.state.key(key, page) {
                        Action::Nothing => {}
                        Action::Quit => return Ok(()),
                        Action::Load(id) => self.load(id),
                    }
                }
            }
        }
        Ok(())
    }

    fn load(&mut self, id: u64) {
        if self.loads.try_send(id).is_err() {
            let lines = Err("another message is still being loaded; Esc and Enter try again".to_owned());
            self.state.apply(Update::Body { id, lines }, Instant::now());
        }
    }
}
