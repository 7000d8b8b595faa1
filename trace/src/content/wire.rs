//! The header that precedes a payload on the wire.

use bitcoin::{
    hashes::{Hash as _, sha256d},
    p2p::Magic,
};

/// Length of a header.
pub(crate) const HEADER: usize = 24;
/// Longest type of a message.
const MAX_TYPE: usize = 12;

/// The header of a message on Bitcoin's main network; `None` if there cannot be one, because the type or the payload is too
/// long.
pub(crate) fn header(message_type: &[u8], payload: &[u8]) -> Option<[u8; HEADER]> {
    Some(header_with(name(message_type)?, u32::try_from(payload.len()).ok()?, checksum(payload)))
}

/// A message type as headers have it; `None` if they cannot.
pub(crate) fn name(message_type: &[u8]) -> Option<[u8; MAX_TYPE]> {
    // It is filled up with zeros, so none can be within it.
    let is_name = !message_type.is_empty() && message_type.iter().all(u8::is_ascii_graphic);
    let mut name = [0; MAX_TYPE];
    name.get_mut(..message_type.len()).filter(|_| is_name)?.copy_from_slice(message_type);
    Some(name)
}

/// The first bytes of a payload's hash.
pub(crate) fn checksum(payload: &[u8]) -> [u8; 4] {
    let [a, b, c, d, ..] = sha256d::Hash::hash(payload).to_byte_array();
    [a, b, c, d]
}

/// The header of a message, of which not all bytes need to be known.
pub(crate) fn header_with(name: [u8; MAX_TYPE], length: u32, checksum: [u8; 4]) -> [u8; HEADER] {
    let fields = Magic::BITCOIN.to_bytes().into_iter().chain(name).chain(length.to_le_bytes()).chain(checksum);
    let mut header = [0; HEADER];
    header.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
    header
}
