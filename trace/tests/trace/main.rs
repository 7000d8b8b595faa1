//! Views compared with the output of the example scripts of Bitcoin Core and Tapyrus; recordings.

#![expect(clippy::unwrap_used, reason = "a failed test shows the line")]

mod archive;
mod blocks;
mod content;
mod hostile;
mod pcapng;
mod relay;
mod scripts;
mod select;
mod support;
