//! Syslog over TCP: octet counting, or messages that end with a newline.
//!
//! A connection holds at most one piece of a message. One that stays within a message, or sends none, is closed after a while;
//! of too many connections the one is closed that has sent no message for the longest time. What it had sent is recorded.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use chainscope_hygiene::warn_limited;
use chainscope_logs::syslog::FrameDecoder;
use parking_lot::Mutex;
use tokio::{
    io::AsyncReadExt as _,
    net::{TcpListener, TcpStream},
    sync::{Notify, watch},
    task::JoinSet,
};

use super::Intake;
use crate::logs::emit::LogSink;

/// Connections of one address: they hold 70 MB at most.
pub(super) const MAX_CONNECTIONS: usize = 256;
/// Bytes that are read at once.
const READ_BYTES: usize = 16 << 10;
/// How long a message may take to arrive.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a connection may send nothing.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);
/// Pause after a connection that could not be accepted, for example for lack of descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// A connection, as the task that accepts sees it.
#[derive(Debug)]
struct Connection {
    /// When its last message arrived.
    active: Mutex<Instant>,
    close: Notify,
}

/// Accepts connections until `stop` is true, and waits until they have ended.
pub(super) async fn accept<S: LogSink>(listener: TcpListener, intake: Arc<Intake<S>>, mut stop: watch::Receiver<bool>) {
    let mut tasks = JoinSet::new();
    let mut connections: BTreeMap<u64, Arc<Connection>> = BTreeMap::new();
    let mut number = 0;
    while !*stop.borrow_and_update() {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    if connections.len() >= MAX_CONNECTIONS {
                        close_one(&mut connections);
                    }
                    let connection = Arc::new(Connection { active: Mutex::new(Instant::now()), close: Notify::new() });
                    connections.insert(number, Arc::clone(&connection));
                    let intake = Arc::clone(&intake);
                    tasks.spawn(async move {
                        serve(stream, peer, &intake, &connection).await;
                        number
                    });
                    number += 1;
                }
                Err(error) => {
                    warn_limited!(address = %intake.address, %error, "a syslog connection cannot be accepted");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            },
            Some(ended) = tasks.join_next() => {
                // A task that panicked keeps its place, as its number is not known.
                if let Ok(number) = ended {
                    connections.remove(&number);
                }
            }
            // An error means that the pillar has ended.
            changed = stop.changed() => if changed.is_err() { break },
        }
    }
    connections.values().for_each(|connection| connection.close.notify_one());
    while tasks.join_next().await.is_some() {}
}

/// Closes the connection that has sent no message for the longest time.
fn close_one(connections: &mut BTreeMap<u64, Arc<Connection>>) {
    let idlest = connections.iter().min_by_key(|(_, connection)| *connection.active.lock()).map(|(number, _)| *number);
    if let Some(connection) = idlest.and_then(|number| connections.remove(&number)) {
        connection.close.notify_one();
    }
}

async fn serve<S: LogSink>(mut stream: TcpStream, peer: SocketAddr, intake: &Intake<S>, connection: &Connection) {
    intake.figures.connected(intake.address, 1);
    let mut decoder = FrameDecoder::default();
    let mut buffer = vec![0; READ_BYTES];
    // Since when a message is incomplete.
    let mut begun: Option<Instant> = None;
    let reason = loop {
        let deadline = begun.map_or_else(|| Instant::now() + IDLE_TIMEOUT, |begun| begun + MESSAGE_TIMEOUT);
        tokio::select! {
            read = stream.read(&mut buffer) => match read {
                Ok(0) => break "ended",
                Err(_) => break "reset",
                Ok(length) => {
                    decoder.extend(&buffer[..length]);
                    let mut has_message = false;
                    while let Some(message) = decoder.next_frame() {
                        intake.take(message, peer.ip());
                        has_message = true;
                    }
                    let now = Instant::now();
                    if has_message {
                        *connection.active.lock() = now;
                    }
                    begun = match decoder.remainder() {
                        [] => None,
                        _ if has_message => Some(now),
                        _ => begun.or(Some(now)),
                    };
                }
            },
            () = tokio::time::sleep_until(deadline.into()) => break if begun.is_some() { "message timeout" } else { "idle" },
            () = connection.close.notified() => break "closed",
        }
    };
    let rest = decoder.remainder();
    if !rest.is_empty() {
        intake.take(rest, peer.ip());
    }
    if !rest.is_empty() || reason != "ended" {
        intake.figures.closed(intake.address, if reason == "ended" { "incomplete message" } else { reason });
    }
    intake.figures.connected(intake.address, -1);
}
