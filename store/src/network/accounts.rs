//! Accounts: running totals of a target, each of which replaces the one before.

use chainscope_proto::v1::Record;

use crate::{Error, keys, kind::decode, view::Reader};

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
