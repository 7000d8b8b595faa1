//! Reads that join several tables: a message with its chunks, accounts.

use std::ops::ControlFlow;

use chainscope_proto::v1::{Record, record::Kind};

use crate::{
    Error, keys,
    kind::decode,
    network::{MESSAGES, each_chunk},
    search,
    view::Reader,
};

/// The latest account of a target, as its agent sent it.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    /// Name of the agent.
    pub agent: String,
    /// The agent's epoch: accounts of different epochs count different stretches of time.
    pub epoch: Vec<u8>,
    /// The record, of kind `NetworkAccount`.
    pub record: Record,
}

/// The chunks of a message, by counter; false if there is no such message.
pub(crate) fn message_chunks(
    reader: &Reader<'_>,
    id: u64,
    each: &mut dyn FnMut(Record) -> ControlFlow<()>,
) -> Result<bool, Error> {
    let Some((segment, agent, record)) = search::one(reader, &MESSAGES, id)? else { return Ok(false) };
    let Some(Kind::Message(message)) = &record.kind else {
        return Err(Error::Corrupt(format!("row {id} is no message")));
    };
    let mut broken = Ok(());
    each_chunk(&*reader.snapshot, reader.view.number, segment, message, agent, |_, value| match decode(value) {
        Ok(chunk) => each(chunk).is_continue(),
        Err(error) => {
            broken = Err(error);
            false
        }
    })?;
    broken.map(|()| true)
}

/// The latest account of every target.
pub(crate) fn accounts(reader: &Reader<'_>) -> Result<Vec<Account>, Error> {
    let range = keys::table_range(reader.view.number, keys::STATE, keys::ACCOUNT);
    let mut cursor = reader.snapshot.cursor(&range.start..&range.end);
    let mut answer = Vec::new();
    cursor.first()?;
    while let Some((key, value)) = cursor.entry() {
        let (agent, epoch) = keys::stream_of(key).ok_or_else(|| Error::Corrupt(format!("account key {key:02x?}")))?;
        answer.push(Account {
            agent: String::from_utf8_lossy(agent).into_owned(),
            epoch: epoch.to_vec(),
            record: decode(value)?,
        });
        cursor.next()?;
    }
    Ok(answer)
}
