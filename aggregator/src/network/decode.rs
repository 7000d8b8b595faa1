//! Decoding at read time: the JSON of a message from the plain bytes of its chunks.

use std::io::{self, Write};

use chainscope_proto::v1::Message;
use chainscope_tezos::message::{Category, decode, locate};

use crate::json;

/// Protocols that can be decoded, by their names in records, and whether each is the data availability layer's.
const PROTOCOLS: [(&str, bool); 2] = [("tezos", false), ("tezos-dal", true)];

/// Writes the JSON of a message. `plain` holds the plain bytes of all its chunks.
///
/// # Errors
/// The outer error is that of `out`. The inner one is the decoder's; nothing is written then.
pub(crate) fn write_json(message: &Message, plain: &[u8], out: &mut dyn Write) -> io::Result<Result<(), String>> {
    let Some((_, dal)) = PROTOCOLS.iter().find(|(name, _)| *name == message.protocol) else {
        return Ok(Err(format!("no decoder for protocol {:?}", message.protocol)));
    };
    let Some(category) = Category::from_name(&message.category) else {
        return Ok(Err(format!("no decoder for category {:?}", message.category)));
    };
    match decode(category, *dal, bytes_of(message, plain)) {
        Ok(decoded) => {
            json::write(out, &decoded)?;
            Ok(Ok(()))
        }
        Err(error) => Ok(Err(error.to_string())),
    }
}

/// The bytes of the message within those of its chunks. Usually all of them, but a chunk may hold several messages.
fn bytes_of<'a>(message: &Message, plain: &'a [u8]) -> &'a [u8] {
    <&[u8; 32]>::try_from(&*message.sha256)
        .ok()
        .filter(|_| plain.len() as u64 != message.length)
        .and_then(|sha256| locate(plain, message.length, sha256))
        .unwrap_or(plain)
}
