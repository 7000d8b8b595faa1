//! The screen of `mempool_monitor.py`: counts, rates, and the events, which can be scrolled.

use chainscope_trace::view::{Mempool, View};
use ratatui::{
    Frame,
    layout::{Constraint, Layout},
    style::Stylize as _,
    text::Line,
    widgets::{Block, Paragraph},
};

use super::Screen;
use crate::{
    keys::{Key, step},
    tree,
};

/// Events that can be scrolled to.
const MAX_RECENT: usize = 10_000;
/// Size of the tables, and of their borders.
const COUNT_WIDTH: u16 = 35;
const RATE_WIDTH: u16 = 40;
const TABLE_HEIGHT: u16 = 5;
const BORDER: u16 = 2;
/// Lines from which on there is room for borders.
const ROOMY_HEIGHT: u16 = 20;

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
        let area = frame.area();
        // Without borders there is more room for the events.
        let border = if area.height < ROOMY_HEIGHT { 0 } else { BORDER };
        let (count_width, rate_width) = (COUNT_WIDTH + border, RATE_WIDTH + border);
        let is_wide = area.width >= count_width + rate_width;
        // One below the other where they do not fit side by side; if that takes too much, without the rates.
        let tables = if !is_wide && area.height >= ROOMY_HEIGHT { 2 } else { 1 };
        let rows = [1, 1, tables * (TABLE_HEIGHT + border)].map(Constraint::Length);
        let rows = rows.into_iter().chain([Constraint::Fill(1), Constraint::Length(1)]);
        let [title, help, boxes, log, last] = Layout::vertical(rows).areas(area);
        let [counts, rates] = if is_wide {
            Layout::horizontal([Constraint::Length(count_width), Constraint::Length(rate_width)]).areas(boxes)
        } else {
            let height = TABLE_HEIGHT + border;
            Layout::vertical([height, height * (tables - 1)].map(Constraint::Length)).areas(boxes)
        };
        frame.render_widget(Line::from(" Mempool Monitor ").reversed(), title);
        frame.render_widget(Line::from(" Press CTRL-C or Q to stop. UP/DOWN scroll the events.").dim(), help);
        frame.render_widget(table(self.mempool.count_table(), " Event count ", border > 0), counts);
        if is_wide || tables > 1 {
            frame.render_widget(table(self.mempool.rate_table(), " Event rate ", border > 0), rates);
        }

        let [width, height] = [log.width, log.height].map(|size| usize::from(size.saturating_sub(border)));
        let count = self.mempool.recent().len();
        self.below = self.below.min(count.saturating_sub(height));
        let (visible, shown) = self.visible(count - self.below, width, height);
        self.page = shown.max(1);
        let heading =
            if self.below > 0 { format!(" Event log ({} newer) ", self.below) } else { " Event log ".to_owned() };
        let visible = Paragraph::new(visible);
        let visible = if border > 0 { visible.block(Block::bordered().title(heading)) } else { visible };
        frame.render_widget(visible, log);
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

impl Log {
    /// The last of the first `count` events that fit, as wrapped lines, and their number.
    fn visible(&self, count: usize, width: usize, height: usize) -> (Vec<Line<'static>>, usize) {
        // Each has a line at least.
        let first = count.saturating_sub(height);
        let events: Vec<&str> = self.mempool.recent().skip(first).take(count - first).collect();
        let (mut lines, mut shown) = (Vec::new(), 0);
        for event in events.into_iter().rev() {
            let wrapped = tree::wrap(event, width);
            if lines.len() + wrapped.len() > height {
                break;
            }
            lines.extend(wrapped.into_iter().rev());
            shown += 1;
        }
        (lines.into_iter().rev().map(Line::from).collect(), shown)
    }
}

fn table(rows: Vec<String>, title: &'static str, has_border: bool) -> Paragraph<'static> {
    let mut rows = rows.into_iter().map(Line::from);
    let heading = rows.next().map(|heading| heading.bold().underlined());
    let lines: Vec<Line<'static>> = heading.into_iter().chain(rows).collect();
    let table = Paragraph::new(lines);
    if has_border { table.block(Block::bordered().title(title)) } else { table }
}
