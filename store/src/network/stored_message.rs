//! A message and its chunks, read together.

use std::ops::ControlFlow;

use chainscope_proto::v1::{Record, record::Kind};

use super::{ChunkRange, MESSAGES, each_chunk};
use crate::{Error, kind::decode, search, view::Reader};

/// A message and its chunks as of one moment: what is evicted meanwhile can still be read.
pub struct StoredMessage<'a> {
    reader: Reader<'a>,
    segment: u32,
    /// Number of its agent.
    agent: u32,
    record: Record,
}

impl<'a> StoredMessage<'a> {
    /// The message with an id; none if there is no such message.
    pub(crate) fn find(reader: Reader<'a>, id: u64) -> Result<Option<Self>, Error> {
        let found = search::one(&reader, &MESSAGES, id)?;
        Ok(found.map(|(segment, agent, record)| Self { reader, segment, agent, record }))
    }

    /// The record, of kind `Message`.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Calls `each` with its chunks, by counter, until it breaks off: a message may be larger than memory.
    ///
    /// # Errors
    /// Damage.
    pub fn each_chunk(&self, each: &mut dyn FnMut(Record) -> ControlFlow<()>) -> Result<(), Error> {
        let Some(Kind::Message(message)) = &self.record.kind else {
            return Err(Error::Corrupt("a row of messages is no message".to_owned()));
        };
        let Some(range) = ChunkRange::of_message(message, self.agent) else { return Ok(()) };
        let (snapshot, node) = (&*self.reader.snapshot, self.reader.view.number);
        let mut broken = Ok(());
        each_chunk(snapshot, node, self.segment, range, |_, value| match decode(value) {
            Ok(chunk) => each(chunk).is_continue(),
            Err(error) => {
                broken = Err(error);
                false
            }
        })?;
        broken
    }
}
