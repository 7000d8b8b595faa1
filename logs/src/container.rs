//! Lines of container runtimes: the CRI logging format (`/var/log/pods`) and Docker's `json-file` driver.

use serde::Deserialize;

use crate::time::rfc3339_exact;

/// Stream of the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A line that a runtime wrote.
#[derive(Debug, PartialEq, Eq)]
pub struct ContainerLine {
    /// When the runtime read it, in nanoseconds since 1970.
    pub time: i64,
    /// Where the container wrote it.
    pub stream: Stream,
    /// Whether the container's line goes on in the next one of the stream.
    pub is_partial: bool,
    /// What the container wrote, without a newline.
    pub text: Vec<u8>,
}

/// Reads a line of either format, without its newline. Returns `None` for anything else.
#[must_use]
pub fn parse(line: &[u8]) -> Option<ContainerLine> {
    if line.first() == Some(&b'{') { docker(line) } else { cri(line) }
}

/// `TIME stdout|stderr F|P[:tag…] TEXT`.
fn cri(line: &[u8]) -> Option<ContainerLine> {
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let time = rfc3339_exact(std::str::from_utf8(parts.next()?).ok()?)?;
    let stream = match parts.next()? {
        b"stdout" => Stream::Stdout,
        b"stderr" => Stream::Stderr,
        _ => return None,
    };
    // Further tags may follow a colon.
    let is_partial = match parts.next()?.split(|byte| *byte == b':').next()? {
        b"F" => false,
        b"P" => true,
        _ => return None,
    };
    Some(ContainerLine { time, stream, is_partial, text: parts.next().unwrap_or_default().to_vec() })
}

#[derive(Deserialize)]
struct DockerLine {
    log: String,
    stream: Stream,
    time: String,
}

fn docker(line: &[u8]) -> Option<ContainerLine> {
    let DockerLine { log, stream, time } = serde_json::from_slice(line).ok()?;
    let (text, is_partial) = match log.strip_suffix('\n') {
        Some(whole) => (whole.strip_suffix('\r').unwrap_or(whole), false),
        None => (log.as_str(), true),
    };
    Some(ContainerLine { time: rfc3339_exact(&time)?, stream, is_partial, text: text.as_bytes().to_vec() })
}

/// Joins the parts of long lines of one stream.
#[derive(Debug, Default)]
pub struct PartJoiner {
    text: Vec<u8>,
    time: Option<i64>,
}

/// Greatest length of a joined line; a longer one is returned in several.
const MAX_LINE: usize = 1 << 20;

impl PartJoiner {
    /// Adds a line. Returns the time of its first part and the whole line if it is complete.
    pub fn push(&mut self, line: ContainerLine) -> Option<(i64, Vec<u8>)> {
        let time = *self.time.get_or_insert(line.time);
        if self.text.is_empty() {
            self.text = line.text;
        } else {
            self.text.extend_from_slice(&line.text);
        }
        if line.is_partial && self.text.len() < MAX_LINE {
            return None;
        }
        self.time = None;
        Some((time, std::mem::take(&mut self.text)))
    }

    /// Whether a line waits for its next part.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.time.is_some()
    }

    /// Ends a line whose last part never came: the container has exited.
    pub fn flush(&mut self) -> Option<(i64, Vec<u8>)> {
        Some((self.time.take()?, std::mem::take(&mut self.text)))
    }
}
