//! What one connection of the demo node sends and expects, apart from sockets and the event loop.

use std::time::Instant;

use serde_json::Value;

/// Which side of the TCP connection this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// This process connected.
    Initiator,
    /// This process accepted.
    Responder,
}

impl Role {
    /// The name of the role in events.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Initiator => "initiator",
            Self::Responder => "responder",
        }
    }
}

/// The next action of a connection.
pub enum Next {
    /// One write(2) of these bytes, continued after a short write.
    Write(Vec<u8>),
    /// Nothing before that moment, unless bytes arrive.
    At(Instant),
    /// Nothing until bytes arrive or traffic is released.
    Wait,
    /// Nothing more to send: shut down for writing, read to the end, close.
    Done,
    /// shutdown(2) of both directions and close(2), as Octez ends a connection.
    Close,
}

/// One connection's side of the conversation.
pub trait Behaviour {
    /// Returns the next action; called whenever the last write is complete. `released` is false while traffic is held back.
    fn next(&mut self, now: Instant, released: bool) -> Next;
    /// Returns the number of bytes that the next read(2) requests; 0: no read now.
    fn read_size(&mut self) -> usize;
    /// Takes the bytes that one read(2) returned.
    ///
    /// # Errors
    /// The reason to drop the connection.
    fn received(&mut self, bytes: &[u8]) -> Result<(), String>;
    /// Handles the end of the peer's stream. Returns true if this side ends, too.
    ///
    /// # Errors
    /// If the end came too early.
    fn end_of_stream(&mut self) -> Result<bool, String> {
        Ok(true)
    }
    /// Requests the end of the conversation.
    fn finish(&mut self) {}
    /// Returns the `session` field of the connection's "closed" event.
    fn summary(&self) -> Value {
        Value::Null
    }
}

/// Makes the behaviour of a new connection from its number and role.
pub type Factory<'a> = dyn FnMut(u64, Role) -> Box<dyn Behaviour> + 'a;
