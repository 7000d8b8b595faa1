//! The network pillar without HTTP: decoding of messages, and sums of losses.

pub(crate) mod decode;
pub(crate) mod losses;
