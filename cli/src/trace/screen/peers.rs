//! The screen of `p2p_monitor.py`: peers, the latest messages of one, and the payload of one of those.

use chainscope_trace::view::{Monitor, MonitorEntry, View};
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Style, Stylize as _},
    text::Line,
    widgets::{Block, Clear, List, ListState, Paragraph},
};

use super::{Key, Screen, step};
use crate::time;

/// Place and size of the panel with the messages of a peer, with its border.
const PANEL: Rect = Rect { x: 7, y: 2, width: 70, height: 30 };
/// Messages that it shows.
const PANEL_MESSAGES: usize = 25;
/// Bytes of a line of a hex dump.
const HEX_BYTES: usize = 16;

const HELP: &str = "Navigate with UP/DOWN or J/K and select a peer with ENTER or SPACE to see individual P2P messages";
const PANEL_HELP: &str = "UP/DOWN select a message, RIGHT shows its payload, LEFT goes back, ENTER or SPACE closes";

/// The peers of a node.
pub(in crate::trace) struct Peers {
    monitor: Monitor,
    /// The selected peer.
    peer: Option<i64>,
    /// What is open of it.
    open: Open,
    list: ListState,
    page: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Nothing,
    /// Its messages; the selected one by its number, or always the latest.
    Messages(Option<u64>),
    /// The payload of a message, from this line on.
    Payload(u64, usize),
}

impl Default for Peers {
    fn default() -> Self {
        Self { monitor: Monitor::new(true), peer: None, open: Open::Nothing, list: ListState::default(), page: 1 }
    }
}

impl Screen for Peers {
    fn view(&mut self) -> &mut dyn View {
        &mut self.monitor
    }

    fn draw(&mut self, frame: &mut Frame, status: &str) {
        let rows = [1, 1, 1, 1].map(Constraint::Length).into_iter();
        let rows = rows.chain([Constraint::Fill(1), Constraint::Length(1)]);
        let [title, help, _, heading, main, last] = Layout::vertical(rows).areas(frame.area());
        frame.render_widget(Line::from(" P2P Message Monitor ").reversed(), title);
        let text = if self.open == Open::Nothing { HELP } else { PANEL_HELP };
        frame.render_widget(Line::from(format!(" {text}")), help);
        frame.render_widget(Line::from(Monitor::heading()).style(Style::new().bold().underlined()), heading);
        self.page = usize::from(main.height);

        let selected = self.peer_index();
        self.list.select(selected);
        let rows = self.monitor.peers().iter().map(|(id, peer)| {
            let row = Line::from(peer.row(*id));
            if peer.is_closed { row.dim() } else { row }
        });
        let list = List::new(rows).highlight_style(Style::new().reversed());
        frame.render_stateful_widget(list, main, &mut self.list);
        let evicted = match self.monitor.evicted() {
            0 => String::new(),
            evicted => format!(" · {evicted} peers evicted"),
        };
        frame.render_widget(Line::from(format!("{status}{evicted}")).dim(), last);
        if self.open != Open::Nothing {
            self.draw_panel(frame);
        }
    }

    fn key(&mut self, key: Key) {
        self.open = match (self.open, key) {
            (Open::Nothing, Key::Toggle | Key::Open) => {
                self.peer = self.selected_peer();
                self.peer.map_or(Open::Nothing, |_| Open::Messages(None))
            }
            (Open::Nothing, Key::Back) | (_, Key::Toggle) | (Open::Messages(_), Key::Back) => Open::Nothing,
            (Open::Nothing, _) => {
                let peers = self.monitor.peers();
                let index = step(key, self.peer_index().unwrap_or(0), peers.len(), self.page);
                self.peer = peers.keys().nth(index).copied();
                Open::Nothing
            }
            (Open::Messages(selected), Key::Open) => {
                let message = selected.or_else(|| self.messages().next().map(|entry| entry.sequence));
                message.map_or(self.open, |message| Open::Payload(message, 0))
            }
            (Open::Messages(selected), _) => Open::Messages(self.step_message(key, selected)),
            (Open::Payload(message, _), Key::Back) => Open::Messages(Some(message)),
            (Open::Payload(message, top), _) => {
                let lines = self.message(message).map_or(0, |entry| entry.payload.len().div_ceil(HEX_BYTES));
                Open::Payload(message, step(key, top, lines, PANEL_MESSAGES))
            }
        };
    }
}

impl Peers {
    /// The peer that is selected: the first one at the beginning.
    fn selected_peer(&self) -> Option<i64> {
        let peers = self.monitor.peers();
        self.peer.filter(|peer| peers.contains_key(peer)).or_else(|| peers.keys().next().copied())
    }

    fn peer_index(&self) -> Option<usize> {
        let selected = self.selected_peer()?;
        self.monitor.peers().keys().position(|id| *id == selected)
    }

    /// The messages of the open peer, newest first.
    fn messages(&self) -> impl Iterator<Item = &MonitorEntry> {
        let peer = self.peer.and_then(|peer| self.monitor.peers().get(&peer));
        peer.into_iter().flat_map(|peer| peer.recent.iter().rev())
    }

    fn message(&self, sequence: u64) -> Option<&MonitorEntry> {
        self.messages().find(|entry| entry.sequence == sequence)
    }

    /// The message to which a key leads; `None`: the latest, whichever it is.
    fn step_message(&self, key: Key, selected: Option<u64>) -> Option<u64> {
        let newest_first: Vec<u64> = self.messages().map(|entry| entry.sequence).collect();
        let oldest_first: Vec<u64> = newest_first.into_iter().rev().collect();
        let last = oldest_first.len().checked_sub(1)?;
        let index = selected.map_or(last, |wanted| {
            // One that is not kept any more: the oldest.
            oldest_first.iter().position(|sequence| *sequence == wanted).unwrap_or(0)
        });
        let index = step(key, index, oldest_first.len(), PANEL_MESSAGES);
        (index < last).then(|| oldest_first.get(index).copied()).flatten()
    }

    fn draw_panel(&self, frame: &mut Frame) {
        let area = PANEL.intersection(frame.area());
        frame.render_widget(Clear, area);
        let lines = match self.open {
            Open::Payload(message, top) => self.payload_lines(message, top),
            Open::Messages(selected) => self.message_lines(selected),
            Open::Nothing => Vec::new(),
        };
        frame.render_widget(Paragraph::new(lines).block(Block::bordered()), area);
    }

    fn message_lines(&self, selected: Option<u64>) -> Vec<Line<'static>> {
        let Some((id, peer)) = self.peer.and_then(|id| Some((id, self.monitor.peers().get(&id)?))) else {
            return vec![Line::from(" This peer was evicted: it was heard of least recently.")];
        };
        let closed = if peer.is_closed { " disconnected" } else { "" };
        let title = format!("{:^68}", format!("PEER {id} ({}){closed}", peer.address));
        let sides = format!(" OUR NODE{:^54}PEER ", peer.connection_type);
        let newest: Vec<&MonitorEntry> = self.messages().collect();
        // The selected one is on the screen.
        let position = selected.and_then(|wanted| newest.iter().position(|entry| entry.sequence == wanted));
        let skipped = position.unwrap_or(0).saturating_sub(PANEL_MESSAGES - 1);
        let visible: Vec<&&MonitorEntry> = newest.iter().skip(skipped).take(PANEL_MESSAGES).collect();
        let rows = visible.into_iter().rev().map(|entry| {
            let row = Line::from(format!("{:<68}", entry.row()));
            if selected == Some(entry.sequence) { row.reversed() } else { row }
        });
        [Line::from(title).reversed().bold(), Line::from(sides)].into_iter().chain(rows).collect()
    }

    fn payload_lines(&self, message: u64, top: usize) -> Vec<Line<'static>> {
        let Some(entry) = self.message(message) else {
            return vec![Line::from(" This message is not kept any more.")];
        };
        let time = time::of_day(entry.time.wall_ns);
        let title = format!(" {time} {} ({} bytes, {} shown)", entry.message_type, entry.size, entry.payload.len());
        let dump = entry.payload.chunks(HEX_BYTES).enumerate().skip(top).take(PANEL_MESSAGES);
        let dump = dump.map(|(line, bytes)| Line::from(hex_line(line * HEX_BYTES, bytes)));
        [Line::from(title).bold(), Line::from("")].into_iter().chain(dump).collect()
    }
}

/// A line of a hex dump that fits the panel.
fn hex_line(offset: usize, bytes: &[u8]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x} ")).collect();
    let shown = |byte: &u8| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '.' };
    let text: String = bytes.iter().map(shown).collect();
    format!("{offset:04x} {hex:<48}{text}")
}
