//! Hex dumps.

use std::fmt::Write as _;

/// Bytes of a line of a dump.
pub(crate) const LINE_BYTES: usize = 16;

/// Columns of a line of a dump of `per_line` bytes.
pub(crate) const fn columns(per_line: usize) -> usize {
    8 + 1 + 3 * per_line + 2 + per_line
}

/// The lines of a dump: offset, `per_line` bytes, and those of them that are printable ASCII.
pub(crate) fn dump(bytes: &[u8], per_line: usize) -> impl Iterator<Item = String> {
    dump_from(bytes, per_line, 0)
}

/// Those from a line on.
pub(crate) fn dump_from(bytes: &[u8], per_line: usize, first: usize) -> impl Iterator<Item = String> {
    bytes.chunks(per_line).enumerate().skip(first).map(move |(index, bytes)| line(index * per_line, bytes, per_line))
}

fn line(offset: usize, bytes: &[u8], per_line: usize) -> String {
    let mut line = format!("{offset:08x} ");
    for index in 0..per_line {
        // Writing to a string does not fail.
        let _ = match bytes.get(index) {
            Some(byte) => write!(line, " {byte:02x}"),
            None => write!(line, "   "),
        };
    }
    let shown = |byte: &u8| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '.' };
    line.push_str("  ");
    line.extend(bytes.iter().map(shown));
    line
}

#[cfg(test)]
mod tests {
    use super::{columns, dump};

    #[test]
    fn lines_have_offset_bytes_and_text() {
        let bytes: Vec<u8> = (0x30..0x39).collect();
        let lines: Vec<_> = dump(&bytes, 8).collect();
        assert_eq!(lines, ["00000000  30 31 32 33 34 35 36 37  01234567", "00000008  38                       8"]);
        assert_eq!(lines[0].len(), columns(8));
    }
}
