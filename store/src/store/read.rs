//! What can be read of a node: each call sees one moment.

use std::ops::ControlFlow;

use chainscope_proto::v1::{MemoryState, Record};

use super::Store;
use crate::{
    Account, ChunkQuery, Connection, ConnectionQuery, Error, FactQuery, MemorySnapshot, MessageQuery, StoredMessage,
    kind::FactKind, memory, network, query::Query, search,
};

impl Store {
    /// Messages with their ids.
    ///
    /// # Errors
    /// The query's budget is used up or its deadline passed: nothing is cut silently. Damage.
    pub fn messages(&self, node: &str, query: &MessageQuery) -> Result<Vec<(u64, Record)>, Error> {
        self.facts(node, &network::MESSAGES, &query.query())
    }

    /// Facts of a declared kind with their ids.
    pub(crate) fn facts(&self, node: &str, kind: &FactKind, query: &Query) -> Result<Vec<(u64, Record)>, Error> {
        let mut answer = Vec::new();
        self.each_fact(node, kind, query, &mut |id, record| {
            answer.push((id, record));
            ControlFlow::Continue(())
        })?;
        Ok(answer)
    }

    /// As [`Self::facts`], one by one, until `each` breaks off.
    pub(crate) fn each_fact(
        &self,
        node: &str,
        kind: &FactKind,
        query: &Query,
        each: &mut dyn FnMut(u64, Record) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.reader(node).map_or(Ok(()), |reader| search::run(&reader, &self.0.texts, kind, query, each))
    }

    /// As [`Self::messages`], one by one, until `each` breaks off.
    ///
    /// # Errors
    /// As [`Self::messages`].
    pub fn each_message(
        &self,
        node: &str,
        query: &MessageQuery,
        each: &mut dyn FnMut(u64, Record) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.each_fact(node, &network::MESSAGES, &query.query(), each)
    }

    /// One message.
    ///
    /// # Errors
    /// Damage.
    pub fn message(&self, node: &str, id: u64) -> Result<Option<Record>, Error> {
        let Some(reader) = self.reader(node) else { return Ok(None) };
        Ok(search::one(&reader, &network::MESSAGES, id)?.map(|(_, _, record)| record))
    }

    /// The chunks of a message, by counter; `None` if there is no such message.
    ///
    /// # Errors
    /// Damage.
    pub fn message_chunks(&self, node: &str, id: u64) -> Result<Option<Vec<Record>>, Error> {
        let Some(message) = self.stored_message(node, id)? else { return Ok(None) };
        let mut chunks = Vec::new();
        message.each_chunk(&mut |chunk| {
            chunks.push(chunk);
            ControlFlow::Continue(())
        })?;
        Ok(Some(chunks))
    }

    /// One message and its chunks as of now, to be read piece by piece. Files of what is evicted stay on the disk until it is
    /// dropped.
    ///
    /// # Errors
    /// Damage.
    pub fn stored_message(&self, node: &str, id: u64) -> Result<Option<StoredMessage<'_>>, Error> {
        self.reader(node).map_or(Ok(None), |reader| StoredMessage::find(reader, id))
    }

    /// Connections of which at least one event is kept.
    ///
    /// # Errors
    /// The query's budget; damage.
    pub fn connections(&self, node: &str, query: &ConnectionQuery) -> Result<Vec<Connection>, Error> {
        self.reader(node).map_or(Ok(Vec::new()), |reader| network::connections(&reader, query))
    }

    /// One connection.
    ///
    /// # Errors
    /// Damage.
    pub fn connection(&self, node: &str, key: u64) -> Result<Option<Connection>, Error> {
        self.reader(node).map_or(Ok(None), |reader| network::connection(&reader, key))
    }

    /// Chunks by connection, counter and side (local before remote).
    ///
    /// # Errors
    /// The query's budget; damage.
    pub fn chunks(&self, node: &str, query: &ChunkQuery) -> Result<Vec<Record>, Error> {
        self.reader(node).map_or(Ok(Vec::new()), |reader| network::list(&reader, query))
    }

    /// One chunk.
    ///
    /// # Errors
    /// Damage.
    pub fn chunk(&self, node: &str, connection: u64, incoming: bool, counter: u64) -> Result<Option<Record>, Error> {
        self.reader(node).map_or(Ok(None), |reader| network::chunk(&reader, connection, counter, incoming))
    }

    /// Losses with their ids.
    ///
    /// # Errors
    /// Damage.
    pub fn losses(&self, node: &str, query: &FactQuery) -> Result<Vec<(u64, Record)>, Error> {
        self.facts(node, &network::LOSSES, &query.into())
    }

    /// Events of targets with their ids.
    ///
    /// # Errors
    /// Damage.
    pub fn target_events(&self, node: &str, query: &FactQuery) -> Result<Vec<(u64, Record)>, Error> {
        self.facts(node, &network::TARGET_EVENTS, &query.into())
    }

    /// The latest account of each agent, epoch and target; last, if there are any, the sum of those that are no longer kept.
    ///
    /// # Errors
    /// Damage.
    pub fn accounts(&self, node: &str) -> Result<Vec<Account>, Error> {
        self.reader(node).map_or(Ok(Vec::new()), |reader| network::accounts(&reader))
    }

    /// Snapshots of a node's memory of a time (first included, last excluded; nanoseconds since 1970), oldest first.
    ///
    /// # Errors
    /// Damage.
    pub fn memory_snapshots(&self, node: &str, from_ns: i64, to_ns: i64) -> Result<Vec<MemorySnapshot>, Error> {
        self.reader(node).map_or(Ok(Vec::new()), |reader| memory::list(&reader, from_ns, to_ns))
    }

    /// The latest snapshot of a node's memory at or before a moment, and its states in the order in which they were put.
    ///
    /// # Errors
    /// Damage.
    pub fn memory_at(&self, node: &str, time_ns: i64) -> Result<Option<(MemorySnapshot, Vec<MemoryState>)>, Error> {
        self.reader(node).map_or(Ok(None), |reader| memory::at_or_before(&reader, time_ns))
    }
}
