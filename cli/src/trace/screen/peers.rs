//! The screen of `p2p_monitor.py`: peers, the latest messages of one, and the content of one of those.

use bytesize::ByteSize;
use chainscope_trace::view::{Count, Monitor, MonitorEntry, MonitorPeer, PeerKey, View};
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Style, Stylize as _},
    text::Line,
    widgets::{Block, Clear, List, ListState, Paragraph},
};

use super::{Screen, content::Content};
use crate::{
    keys::{Key, step},
    table::cut,
};

/// Size and place of the panel with the messages of a peer, with its border, where there is room.
const PANEL_WIDTH: u16 = 70;
const PANEL_HEIGHT: u16 = 30;
const PANEL_LEFT: u16 = 7;
/// Lines above and below a panel: title and help, status.
const ABOVE: u16 = 2;
const BELOW: u16 = 1;
/// Columns from which on the rows of the script have room, with the mark of peers that have disconnected.
const SCRIPT_WIDTH: u16 = 156;
/// Columns before the address in narrower rows, and those of the address from which on the type follows.
const FIXED_WIDTH: usize = 44;
const ADDRESS_WIDTH: usize = 22;
const MAX_ADDRESS_WIDTH: usize = 47;
/// Lines from which on there is an empty one below the help.
const ROOMY_HEIGHT: u16 = 20;

const HELP: &str =
    "Navigate with UP/DOWN or J/K and select a peer with ENTER or SPACE to see individual P2P messages, Q quits";
const SHORT_HELP: &str = "UP/DOWN select, ENTER messages, Q quits";
const PANEL_HELP: &str = "UP/DOWN select a message, RIGHT shows its content, LEFT goes back, ENTER or SPACE closes";
const SHORT_PANEL_HELP: &str = "UP/DOWN select, RIGHT content, LEFT back, ENTER closes";

/// The peers of a node.
pub(in crate::trace) struct Peers {
    monitor: Monitor,
    /// The selected peer.
    peer: Option<PeerKey>,
    /// What is open of it.
    open: Open,
    list: ListState,
    /// Lines of the list, and of a panel.
    page: usize,
    panel_page: usize,
}

#[derive(Debug)]
enum Open {
    Nothing,
    /// Its messages; the selected one by its number, or always the latest.
    Messages(Option<u64>),
    /// The content of a message.
    Content(u64, Content),
}

impl Default for Peers {
    fn default() -> Self {
        Self {
            monitor: Monitor::new(true, false),
            peer: None,
            open: Open::Nothing,
            list: ListState::default(),
            page: 1,
            panel_page: 1,
        }
    }
}

impl Screen for Peers {
    fn view(&mut self) -> &mut dyn View {
        &mut self.monitor
    }

    fn draw(&mut self, frame: &mut Frame, status: &str) {
        let area = frame.area();
        let gap = u16::from(area.height >= ROOMY_HEIGHT);
        let rows = [1, 1, gap, 1].map(Constraint::Length).into_iter();
        let rows = rows.chain([Constraint::Fill(1), Constraint::Length(1)]);
        let [title, help, _, heading, main, last] = Layout::vertical(rows).areas(area);
        frame.render_widget(Line::from(" P2P Message Monitor ").reversed(), title);
        let (long, short) =
            if matches!(self.open, Open::Nothing) { (HELP, SHORT_HELP) } else { (PANEL_HELP, SHORT_PANEL_HELP) };
        let text = if long.len() < usize::from(area.width) { long } else { short };
        frame.render_widget(Line::from(format!(" {text}")), help);
        frame.render_widget(Line::from(header(main.width)).style(Style::new().bold().underlined()), heading);
        self.page = usize::from(main.height);

        let selected = self.peer_index();
        self.list.select(selected);
        let has_process = self.monitor.has_several_processes();
        let rows = self.monitor.peers().iter().map(|(key, peer)| {
            let row = Line::from(row(*key, has_process, peer, main.width));
            if peer.is_closed { row.dim() } else { row }
        });
        let list = List::new(rows).highlight_style(Style::new().reversed());
        frame.render_stateful_widget(list, main, &mut self.list);
        let evicted = match self.monitor.evicted() {
            0 => String::new(),
            evicted => format!(" · {evicted} peers evicted"),
        };
        frame.render_widget(Line::from(format!("{status}{evicted}")).dim(), last);
        self.draw_panel(frame);
    }

    fn key(&mut self, key: Key) {
        let open = std::mem::replace(&mut self.open, Open::Nothing);
        self.open = match (open, key) {
            (Open::Nothing, Key::Enter | Key::Right) => {
                self.peer = self.selected_peer();
                self.peer.map_or(Open::Nothing, |_| Open::Messages(None))
            }
            (Open::Nothing | Open::Messages(_), Key::Back | Key::Left) | (_, Key::Enter) => Open::Nothing,
            (Open::Nothing, _) => {
                let peers = self.monitor.peers();
                let index = step(key, self.peer_index().unwrap_or(0), peers.len(), self.page);
                self.peer = peers.keys().nth(index).copied();
                Open::Nothing
            }
            (Open::Messages(selected), Key::Right) => {
                let message = selected.map_or_else(|| self.messages().next(), |sequence| self.message(sequence));
                message.map_or(Open::Messages(selected), |entry| Open::Content(entry.sequence, Content::of(entry)))
            }
            (Open::Messages(selected), _) => Open::Messages(self.step_message(key, selected)),
            (Open::Content(message, _), Key::Back | Key::Left) => Open::Messages(Some(message)),
            (Open::Content(message, mut content), _) => {
                content.scroll(key, self.panel_page);
                Open::Content(message, content)
            }
        };
    }
}

impl Peers {
    /// The peer that is selected: the first one at the beginning.
    fn selected_peer(&self) -> Option<PeerKey> {
        let peers = self.monitor.peers();
        self.peer.filter(|peer| peers.contains_key(peer)).or_else(|| peers.keys().next().copied())
    }

    fn peer_index(&self) -> Option<usize> {
        let selected = self.selected_peer()?;
        self.monitor.peers().keys().position(|key| *key == selected)
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
        let index = step(key, index, oldest_first.len(), self.panel_page);
        (index < last).then(|| oldest_first.get(index).copied()).flatten()
    }

    fn draw_panel(&mut self, frame: &mut Frame) {
        let all = frame.area();
        let room = Rect { y: all.y.saturating_add(ABOVE), height: all.height.saturating_sub(ABOVE + BELOW), ..all };
        let area = match &self.open {
            Open::Nothing => return,
            Open::Messages(_) => {
                let width = PANEL_WIDTH.min(room.width);
                let x = PANEL_LEFT.min(room.width - width);
                Rect { x, width, height: PANEL_HEIGHT.min(room.height), ..room }
            }
            Open::Content(..) => room,
        }
        .intersection(all);
        let block = Block::bordered();
        let inner = block.inner(area);
        self.panel_page = usize::from(inner.height).max(1);
        let (block, lines) = match &self.open {
            Open::Nothing => return,
            Open::Messages(selected) => (block, self.message_lines(*selected, inner)),
            Open::Content(_, content) => (block.title(content.title().to_owned()), content.lines(inner)),
        };
        frame.render_widget(Clear, area);
        frame.render_widget(Paragraph::new(lines).block(block), area);
    }

    fn message_lines(&self, selected: Option<u64>, area: Rect) -> Vec<Line<'static>> {
        let Some(((pid, id), peer)) = self.peer.and_then(|key| Some((key, self.monitor.peers().get(&key)?))) else {
            return vec![Line::from(" This peer was evicted: it was heard of least recently.")];
        };
        let width = usize::from(area.width);
        let closed = if peer.is_closed { " disconnected" } else { "" };
        let process = if self.monitor.has_several_processes() { format!(" of process {pid}") } else { String::new() };
        let title = cut(&format!("PEER {id} ({}){process}{closed}", peer.address), width);
        let title = format!("{title:^width$}");
        let (left, right) = (" OUR NODE", "PEER ");
        let middle = width.saturating_sub(left.len() + right.len());
        let sides = format!("{left}{:^middle$}{right}", cut(&peer.connection_type, middle));
        let newest: Vec<&MonitorEntry> = self.messages().collect();
        let count = usize::from(area.height.saturating_sub(2)).max(1);
        // The selected one is on the screen.
        let position = selected.and_then(|wanted| newest.iter().position(|entry| entry.sequence == wanted));
        let skipped = position.unwrap_or(0).saturating_sub(count - 1);
        let visible: Vec<&&MonitorEntry> = newest.iter().skip(skipped).take(count).collect();
        let rows = visible.into_iter().rev().map(|entry| {
            let row = Line::from(format!("{:<width$}", entry.row(width)));
            if selected == Some(entry.sequence) { row.reversed() } else { row }
        });
        [Line::from(title).reversed().bold(), Line::from(sides)].into_iter().chain(rows).collect()
    }
}

/// Columns of the address, and whether the type follows.
fn address_width(width: u16) -> (usize, bool) {
    let room = usize::from(width).saturating_sub(FIXED_WIDTH);
    let has_type = room >= ADDRESS_WIDTH + 2;
    (if has_type { (room / 2).clamp(ADDRESS_WIDTH, MAX_ADDRESS_WIDTH) } else { room }, has_type)
}

/// The heading of the table: that of the script if there is room.
fn header(width: u16) -> String {
    if width >= SCRIPT_WIDTH {
        return Monitor::heading();
    }
    let (address, has_type) = address_width(width);
    let kind = if has_type { "TYPE" } else { "" };
    format!("{:>7} {:>6} {:>9}  {:>6} {:>9}  {:<address$}  {kind}", "PEER", "SENT", "BYTES", "RECVD", "BYTES", "ADDR")
}

fn row((pid, id): PeerKey, has_process: bool, peer: &MonitorPeer, width: u16) -> String {
    if width >= SCRIPT_WIDTH {
        return peer.row((pid, id), has_process);
    }
    let (address, has_type) = address_width(width);
    let rest = usize::from(width).saturating_sub(FIXED_WIDTH + address + 2);
    let mark = if peer.is_closed { '×' } else { ' ' };
    let kind = match (has_type, peer.is_closed) {
        (false, _) => String::new(),
        (true, false) => peer.connection_type.clone(),
        (true, true) => format!("disconnected, {}", peer.connection_type),
    };
    let kind = if has_process && has_type { format!("process {pid}, {kind}") } else { kind };
    let count = |Count { messages, bytes }: Count| format!("{messages:>6} {:>9}", ByteSize::b(bytes).to_string());
    let (sent, received) = (count(peer.traffic.outbound), count(peer.traffic.inbound));
    let shown = cut(&peer.address, address);
    format!("{mark}{id:>6} {sent}  {received}  {shown:<address$}  {}", cut(&kind, rest))
}
