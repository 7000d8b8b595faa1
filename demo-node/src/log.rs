//! The node's own log, in the form that Octez 23 has by default: `Nov 24 13:56:37.285 NOTICE │ read identity file`.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use chrono::{DateTime, Utc};

use crate::clock;
use crate::wire::{base58check, block_hash};

/// Identifier of the main chain.
const MAINNET: [u8; 4] = [0x7a, 0x06, 0xa7, 0x70];

/// Level of a log message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Normal operation.
    Info,
    /// Normal, but significant.
    Notice,
    /// A condition to look at.
    Warn,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Info => "INFO",
            Self::Notice => "NOTICE",
            Self::Warn => "WARN",
        }
    }
}

/// A log file.
pub struct NodeLog {
    file: File,
}

impl NodeLog {
    /// Opens a file to append to.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::options().append(true).create(true).open(path)? })
    }

    /// Writes a message of one line or several. Errors go to standard error.
    pub fn write(&self, level: Level, message: &str) {
        if let Err(error) = (&self.file).write_all(lines(clock::now(), level, message).as_bytes()) {
            eprintln!("chainscope-demo-node: log: {error}");
        }
    }
}

/// Every line has the time and the level; all but the first are indented.
fn lines(time: DateTime<Utc>, level: Level, message: &str) -> String {
    let head = format!("{}{:>7} │", time.format("%b %d %H:%M:%S%.3f"), level.name());
    message.lines().enumerate().fold(String::new(), |mut lines, (index, line)| {
        // Writing to a string does not fail.
        let _ = writeln!(lines, "{head} {}{line}", if index == 0 { "" } else { "  " });
        lines
    })
}

/// What a node logs about a message that a peer sent, framing included; `None` for most.
#[must_use]
pub fn about(kind: &str, framed: &[u8], peer: &str) -> Option<(Level, String)> {
    let body = framed.get(6..)?;
    match kind {
        "block_header" => Some((Level::Info, format!("received header of block {} from {peer}", block_hash(body)))),
        "current_head" => {
            let (chain, rest) = body.split_first_chunk::<4>()?;
            if *chain != MAINNET {
                let chain = base58check(&[87, 82, 0], chain);
                return Some((Level::Warn, format!("peer {peer} announces a head of another chain\n{chain}")));
            }
            let (length, rest) = rest.split_first_chunk::<4>()?;
            let header = rest.get(..u32::from_be_bytes(*length) as usize)?;
            let level = i32::from_be_bytes(*header.first_chunk()?);
            Some((Level::Notice, format!("head is now {} ({level})", block_hash(header))))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use chainscope_logs::{Encoding, Form, Level as ParsedLevel, Message};

    use super::*;
    use crate::messages::{frame, with_length};

    #[test]
    fn a_log_has_the_form_of_octez() {
        let time = DateTime::from_timestamp_nanos(1_763_992_597_285_999_999);
        assert_eq!(
            lines(time, Level::Warn, "a\nb"),
            "Nov 24 13:56:37.285   WARN │ a\nNov 24 13:56:37.285   WARN │   b\n"
        );
        let read = Message::parse(
            Encoding::Plain,
            lines(time, Level::Notice, "a\nb").as_bytes(),
            time.timestamp_nanos_opt().unwrap(),
        );
        assert_eq!((read.form, read.level), (Form::OctezLevel, Some(ParsedLevel::Notice)));
        assert_eq!((read.time, read.text.as_str()), (Some(1_763_992_597_285_000_000), "a\n  b"));
    }

    #[test]
    fn heads_and_headers_are_logged_by_their_hashes() {
        let header = [2_000_001_i32.to_be_bytes().as_slice(), &[7; 100]].concat();
        let hash = block_hash(&header);
        assert!(hash.starts_with('B') && hash.len() == 51, "{hash}");
        let about = |kind, body: Vec<u8>| about(kind, &frame(0, kind, body).framed, "idA");
        let (chain, sized) = (MAINNET.to_vec(), with_length(header.clone()));
        assert_eq!(
            about("current_head", [chain, sized.clone()].concat()),
            Some((Level::Notice, format!("head is now {hash} (2000001)")))
        );
        let (level, text) = about("current_head", [vec![0; 4], sized].concat()).unwrap();
        assert_eq!((level, text.lines().count()), (Level::Warn, 2));
        assert!(text.starts_with("peer idA announces") && text.contains("\nNet"), "{text}");
        assert_eq!(
            about("block_header", header),
            Some((Level::Info, format!("received header of block {hash} from idA")))
        );
        for cut in 0..9 {
            assert_eq!(super::about("current_head", &vec![0; cut], "idA"), None);
        }
        assert_eq!(about("advertise", vec![0; 100]), None);
    }
}
