//! What is known of a connection, folded from its events in the order of their arrival. Pure.
//!
//! A summary stands for all events before it, so that folding from a summary on gives what folding from the beginning
//! does, and the segment with the beginning may go.

use chainscope_proto::v1::{
    ConnectionEvent, ConnectionState, ConnectionSummary, Initiator, Record, connection_event::Event, record::Kind,
};

/// Remarks kept on one connection; a peer must not be able to grow them for ever.
pub(crate) const MOST_COMMENTS: usize = 64;
/// Stands in place of the remarks beyond [`MOST_COMMENTS`].
pub(crate) const MORE_COMMENTS: &str = "further comments are not kept";

/// A connection of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Connection {
    /// Nanoseconds since 1970 of its start, unique within the node.
    pub key: u64,
    /// All that its events say.
    pub summary: ConnectionSummary,
}

impl Connection {
    /// Who connected: as seen at the start, else as the handshake showed.
    pub fn initiator(&self) -> Initiator {
        let opened = self.summary.opened.as_ref().map_or(Initiator::Unspecified, |opened| opened.initiator());
        match opened {
            Initiator::Unspecified => {
                self.summary.identified.as_ref().map_or(Initiator::Unspecified, |identified| identified.initiator())
            }
            known => known,
        }
    }

    /// Whether its end has not been seen.
    pub fn is_open(&self) -> bool {
        is_open(&self.summary)
    }
}

pub(crate) fn is_open(summary: &ConnectionSummary) -> bool {
    summary.closed.is_none() && summary.state.as_ref().is_none_or(|changed| changed.state() != ConnectionState::Closed)
}

/// Takes one more event of the connection.
pub(crate) fn fold(summary: &mut ConnectionSummary, record: &Record) {
    let Some(Kind::Connection(ConnectionEvent { event: Some(event), .. })) = &record.kind else { return };
    match event {
        Event::Summary(whole) => {
            *summary = whole.clone();
            return;
        }
        Event::Opened(opened) => summary.opened = Some(opened.clone()),
        Event::Identified(now) => {
            let known = summary.identified.get_or_insert_default();
            for (known, now) in [
                (&mut known.peer_id, &now.peer_id),
                (&mut known.protocol, &now.protocol),
                (&mut known.network, &now.network),
            ] {
                if !now.is_empty() {
                    known.clone_from(now);
                }
            }
            if now.initiator() != Initiator::Unspecified {
                known.initiator = now.initiator;
            }
        }
        Event::Comment(text) => add_comment(&mut summary.comments, text),
        Event::Gap(gap) => {
            summary.gaps = summary.gaps.saturating_add(1);
            summary.lost_bytes = summary.lost_bytes.saturating_add(gap.lost_bytes);
        }
        Event::StateChanged(changed) => summary.state = Some(changed.clone()),
        Event::Closed(closed) => summary.closed = Some(closed.clone()),
    }
    summary.last_time_ns = summary.last_time_ns.max(record.time_ns);
    if !record.target.is_empty() {
        summary.target.clone_from(&record.target);
    }
}

fn add_comment(comments: &mut Vec<String>, text: &str) {
    if comments.len() < MOST_COMMENTS {
        comments.push(text.to_owned());
    } else if comments.len() == MOST_COMMENTS {
        comments.push(MORE_COMMENTS.to_owned());
    }
}

/// The event that stands for all before it.
pub(crate) fn keyframe(connection: u64, summary: &ConnectionSummary) -> Record {
    Record {
        time_ns: summary.last_time_ns,
        target: summary.target.clone(),
        kind: Some(Kind::Connection(ConnectionEvent { connection, event: Some(Event::Summary(summary.clone())) })),
    }
}
