//! Draws the live table.

use std::time::Instant;

use bytesize::ByteSize;
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Style, Stylize as _},
    text::{Line, Span, Text},
    widgets::{Cell, Paragraph, Row, Table},
};

use super::state::{Body, Link, Peer, Screen, State};
use crate::time;

/// Lines of a screen beside those of a list: status, title, heading, keys.
pub(super) const CHROME_LINES: u16 = 4;
/// Columns from which on peer ids are shown whole in the table.
const WIDE: u16 = 120;
/// Longest address, `[ip6]:port`.
const MAX_ADDRESS: usize = 47;

pub(super) fn draw(frame: &mut Frame, state: &mut State, server: &str, at: Instant) {
    let [status, title, main, keys] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(status_line(state, server), status);
    frame.render_widget(keys_line(state), keys);
    match &state.screen {
        Screen::Peers => {
            let text = if state.peers.is_empty() { "Waiting for messages." } else { "" };
            frame.render_widget(text, title);
            let table = peers(state, state.now(at), main.width);
            state.selected_peer.table.select(state.peer_index());
            frame.render_stateful_widget(table, main, &mut state.selected_peer.table);
        }
        Screen::Messages { address } => {
            frame.render_widget(peer_line(address, state.open_peer()), title);
            let table = messages(state);
            state.selected_message.table.select(state.message_index());
            frame.render_stateful_widget(table, main, &mut state.selected_message.table);
        }
        Screen::Message { address, id, body, top, left } => {
            frame.render_widget(message_line(address, *id, state.open_peer()), title);
            frame.render_widget(body_text(body, *top, *left, main), main);
        }
    }
}

fn status_line(state: &State, server: &str) -> Line<'static> {
    let peers = match state.evicted {
        0 => state.peers.len().to_string(),
        evicted => format!("{} ({evicted} evicted)", state.peers.len()),
    };
    let (messages, bytes) = (state.total.messages, ByteSize::b(state.total.bytes));
    let link = match &state.link {
        Link::Open => Span::raw("live"),
        Link::Lost(_) => Span::styled("RECONNECTING", Color::Red),
    };
    let counts = format!(" · peers: {peers} · messages: {messages} · {bytes} · {server}");
    Line::from_iter([Span::raw(" "), link, Span::raw(counts)]).reversed()
}

/// The keys of the screen, or why the stream was lost.
fn keys_line(state: &State) -> Line<'static> {
    if let Link::Lost(reason) = &state.link {
        return Line::styled(format!(" {reason}"), Color::Red);
    }
    let keys = match state.screen {
        Screen::Peers => " ↑↓ select · Enter messages of the peer · q quit",
        Screen::Messages { .. } => " ↑↓ select · Enter body · Esc peers · q quit",
        Screen::Message { .. } => " ↑↓←→ scroll · Esc messages · q quit",
    };
    Line::styled(keys, Style::new().dim())
}

fn heading<const N: usize>(cells: [&'static str; N]) -> Row<'static> {
    Row::new(cells).style(Style::new().bold().underlined())
}

fn peers(state: &State, now: i64, width: u16) -> Table<'static> {
    let longest = state.peers.keys().map(|address| address.chars().count()).max().unwrap_or(0);
    let address = u16::try_from(longest.clamp("ADDRESS".len(), MAX_ADDRESS)).unwrap_or(u16::MAX);
    let id = if width >= WIDE { 30 } else { 8 };
    let rows = state.peers.iter().map(|(address, peer)| {
        let (messages, bytes) = peer.rate(now);
        Row::new([
            address.clone(),
            shortened(&peer.id, id),
            direction(peer).to_owned(),
            peer.sent.messages.to_string(),
            peer.received.messages.to_string(),
            ByteSize::b(peer.sent.bytes + peer.received.bytes).to_string(),
            format!("{messages:.1}"),
            ByteSize::b(bytes as u64).to_string(),
            peer.kinds().join(", "),
        ])
    });
    let lengths = [address, id, 3, 6, 6, 9, 6, 9].map(Constraint::Length);
    Table::new(rows, lengths.into_iter().chain([Constraint::Fill(1)]))
        .header(heading(["ADDRESS", "PEER ID", "DIR", "SENT", "RECVD", "BYTES", "MSG/S", "BYTES/S", "LATEST TYPES"]))
        .row_highlight_style(Style::new().reversed())
}

/// Which side opened the connection.
fn direction(peer: &Peer) -> &'static str {
    match peer.is_outgoing {
        Some(true) => "out",
        Some(false) => "in",
        None => "?",
    }
}

/// The first characters of a text, with a mark if there are more.
fn shortened(text: &str, width: u16) -> String {
    let width = usize::from(width);
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

fn peer_line(address: &str, peer: Option<(&str, &Peer)>) -> Line<'static> {
    let Some((_, peer)) = peer else {
        return Line::from(format!(" {address}: evicted, for it was seen least recently"));
    };
    let (sent, received) = (peer.sent, peer.received);
    Line::from(format!(
        " {address} {} · {} · sent {} ({}) · received {} ({})",
        direction(peer),
        if peer.id.is_empty() { "unknown identity" } else { &peer.id },
        sent.messages,
        ByteSize::b(sent.bytes),
        received.messages,
        ByteSize::b(received.bytes),
    ))
    .bold()
}

fn messages(state: &State) -> Table<'static> {
    let entries = state.open_peer().into_iter().flat_map(|(_, peer)| &peer.recent);
    let rows = entries.map(|entry| {
        Row::new([
            Cell::from(time::of_day(entry.timestamp)),
            Cell::from(Text::from(entry.id.to_string()).right_aligned()),
            Cell::from(entry.arrow.to_string()),
            Cell::from(entry.kind.clone()),
            Cell::from(entry.bytes.map(|bytes| ByteSize::b(bytes).to_string()).unwrap_or_default()),
            Cell::from(entry.preview.clone()),
        ])
    });
    let lengths = [12, 8, 1, 28, 9].map(Constraint::Length);
    Table::new(rows, lengths.into_iter().chain([Constraint::Fill(1)]))
        .header(heading(["TIME (UTC)", "      ID", "", "TYPE", "BYTES", "PREVIEW"]))
        .row_highlight_style(Style::new().reversed())
}

fn message_line(address: &str, id: u64, peer: Option<(&str, &Peer)>) -> Line<'static> {
    let entry = peer.and_then(|(_, peer)| peer.recent.iter().find(|entry| entry.id == id));
    let about = entry.map(|entry| format!("{} {} · {}", entry.arrow, entry.kind, time::rfc3339(entry.timestamp)));
    Line::from(format!(" message {id} · {address} · {}", about.unwrap_or_default())).bold()
}

fn body_text(body: &Body, top: usize, left: u16, area: Rect) -> Paragraph<'_> {
    match body {
        Body::Loading => Paragraph::new(" Loading."),
        Body::Failed(reason) => Paragraph::new(format!(" {reason}")).red(),
        Body::Loaded(lines) => {
            let visible = lines.iter().skip(top).take(usize::from(area.height));
            Paragraph::new(visible.map(|line| Line::from(line.as_str())).collect::<Vec<_>>()).scroll((0, left))
        }
    }
}

#[cfg(test)]
mod tests;
