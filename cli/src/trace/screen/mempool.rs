//! The screen of `mempool_monitor.py`: counts, rates, and the events, which can be scrolled.

use chainscope_trace::view::{Mempool, View};
use ratatui::{
    Frame,
    layout::{Constraint, Layout},
    style::Stylize as _,
    text::Line,
    widgets::{Block, Paragraph},
};

use super::{Key, Screen, step};

/// Events that can be scrolled to.
const MAX_RECENT: usize = 10_000;
/// Size of the boxes, with their borders.
const COUNT_WIDTH: u16 = 37;
const RATE_WIDTH: u16 = 42;
const BOX_HEIGHT: u16 = 7;

/// The mempool's events.
pub(in crate::trace) struct Log {
    mempool: Mempool,
    /// How many events are below the screen; 0: the newest are shown.
    below: usize,
    page: usize,
}

impl Default for Log {
    fn default() -> Self {
        Self { mempool: Mempool::new(MAX_RECENT), below: 0, page: 1 }
    }
}

impl Screen for Log {
    fn view(&mut self) -> &mut dyn View {
        &mut self.mempool
    }

    fn draw(&mut self, frame: &mut Frame, status: &str) {
        let rows = [1, 1, BOX_HEIGHT].map(Constraint::Length);
        let rows = rows.into_iter().chain([Constraint::Fill(1), Constraint::Length(1)]);
        let [title, help, boxes, log, last] = Layout::vertical(rows).areas(frame.area());
        let [counts, rates, _] =
            Layout::horizontal([Constraint::Length(COUNT_WIDTH), Constraint::Length(RATE_WIDTH), Constraint::Fill(1)])
                .areas(boxes);
        frame.render_widget(Line::from(" Mempool Monitor ").reversed(), title);
        frame.render_widget(Line::from(" Press CTRL-C to stop. UP/DOWN scroll the events.").dim(), help);
        frame.render_widget(table(self.mempool.count_table(), " Event count "), counts);
        frame.render_widget(table(self.mempool.rate_table(), " Event rate "), rates);

        self.page = usize::from(log.height.saturating_sub(2));
        let events = self.mempool.recent();
        self.below = self.below.min(events.len().saturating_sub(self.page));
        let first = events.len().saturating_sub(self.page + self.below);
        let visible: Vec<Line<'_>> = events.skip(first).take(self.page).map(Line::from).collect();
        let heading =
            if self.below > 0 { format!(" Event log ({} newer) ", self.below) } else { " Event log ".to_owned() };
        frame.render_widget(Paragraph::new(visible).block(Block::bordered().title(heading)), log);
        frame.render_widget(Line::from(status).dim(), last);
    }

    fn key(&mut self, key: Key) {
        let length = self.mempool.recent().len();
        // From the newest event upwards.
        let upwards = match key {
            Key::Up => Key::Down,
            Key::Down => Key::Up,
            Key::PageUp => Key::PageDown,
            Key::PageDown => Key::PageUp,
            Key::First => Key::Last,
            Key::Last => Key::First,
            other => other,
        };
        self.below = step(upwards, self.below, length, self.page);
    }
}

fn table(rows: Vec<String>, title: &'static str) -> Paragraph<'static> {
    let mut rows = rows.into_iter().map(Line::from);
    let heading = rows.next().map(|heading| heading.bold().underlined());
    let lines: Vec<Line<'static>> = heading.into_iter().chain(rows).collect();
    Paragraph::new(lines).block(Block::bordered().title(title))
}
