//! `chainscope trace` on running programs: its lines and its JSON, compared with what the program says that it fired, in the
//! formats of the example scripts of Bitcoin Core and Tapyrus.

#![expect(clippy::unwrap_used, reason = "a failed test shows the line")]

mod events;
mod latency;
mod messages;
mod processes;
mod record;
mod relay;
mod replays;
mod rights;
mod scripts;
mod support;
