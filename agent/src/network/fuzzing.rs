//! Entry point of the fuzz target of the session journal.

use chainscope_proto::v1::Journal;
use chainscope_tezos::Conversation;
use prost::Message as _;

use super::journal::{self, Waiting};

/// Reads a journal as an agent of the same boot does at its start. Returns it as it is written again, and the
/// conversations that can be resumed.
pub fn read_journal(bytes: &[u8]) -> (Vec<u8>, Vec<Conversation>) {
    let boot_id = Journal::decode(bytes).map_or_else(|_| String::new(), |journal| journal.boot_id);
    let sessions = journal::read(bytes, &boot_id);
    let conversations = sessions.iter().filter_map(journal::resume).collect();
    let journal = journal::assemble(std::iter::empty(), &Waiting::new(boot_id, sessions));
    (journal.encode_to_vec(), conversations)
}
