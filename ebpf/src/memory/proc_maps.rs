//! Executable mappings of a process, from `<pid>/maps` in a proc file system.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// An executable mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeMapping {
    /// First address.
    pub start: u64,
    /// Address after the last one.
    pub end: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Major and minor number of the file's device.
    pub device: (u32, u32),
    /// 0: not a file.
    pub inode: u64,
    /// Path without ` (deleted)`, or a name such as `[vdso]`.
    pub path: PathBuf,
    /// Whether the file was deleted or replaced.
    pub deleted: bool,
}

/// The executable mappings of a process of this proc file system, by address.
///
/// # Errors
/// Those of reading `<pid>/maps`.
pub fn code_of(proc: &Path, pid: u32) -> io::Result<Vec<CodeMapping>> {
    let mut lines = BufReader::with_capacity(64 << 10, std::fs::File::open(proc.join(format!("{pid}/maps")))?);
    let mut line = Vec::new();
    let mut found = Vec::new();
    loop {
        line.clear();
        if lines.read_until(b'\n', &mut line)? == 0 {
            return Ok(found);
        }
        found.extend(parse(line.strip_suffix(b"\n").unwrap_or(&line)));
    }
}

/// `7f0000000000-7f0000001000 r-xp 00001000 fe:01 1234       /usr/lib/with spaces.so (deleted)`
fn parse(line: &[u8]) -> Option<CodeMapping> {
    let mut rest = line;
    let mut word = || {
        let start = rest.iter().position(|&byte| byte != b' ')?;
        let from = rest.get(start..)?;
        let end = from.iter().position(|&byte| byte == b' ').unwrap_or(from.len());
        let (word, after) = from.split_at(end);
        rest = after;
        std::str::from_utf8(word).ok()
    };
    let (start, end) = word()?.split_once('-')?;
    if word()?.as_bytes().get(2) != Some(&b'x') {
        return None;
    }
    let offset = hex(word()?)?;
    let (major, minor) = word()?.split_once(':')?;
    let inode = word()?.parse().ok()?;
    // A line feed in the path is escaped, nothing else.
    let path = rest.get(rest.iter().position(|&byte| byte != b' ').unwrap_or(rest.len())..).unwrap_or_default();
    let deleted = inode != 0 && path.ends_with(b" (deleted)");
    let path = if deleted { path.strip_suffix(b" (deleted)").unwrap_or(path) } else { path };
    Some(CodeMapping {
        start: hex(start)?,
        end: hex(end)?,
        offset,
        device: (u32::try_from(hex(major)?).ok()?, u32::try_from(hex(minor)?).ok()?),
        inode,
        path: PathBuf::from(OsString::from_vec(unescape(path))),
        deleted,
    })
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

fn unescape(path: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&first, after)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(b"\\012") {
            plain.push(b'\n');
            rest = after;
        } else {
            plain.push(first);
            rest = after;
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_all_kinds() {
        let line = b"7f55c0a00000-7f55c0b00000 r-xp 00026000 fe:01 131      /usr/lib/a b.so (deleted)";
        let found = parse(line).expect("a mapping");
        assert_eq!((found.start, found.end, found.offset), (0x7f55_c0a0_0000, 0x7f55_c0b0_0000, 0x26000));
        assert_eq!((found.device, found.inode, found.deleted), ((0xfe, 1), 131, true));
        assert_eq!(found.path, PathBuf::from("/usr/lib/a b.so"));
        assert_eq!(parse(b"7f55c0a00000-7f55c0b00000 rw-p 00026000 fe:01 131  /usr/lib/a.so"), None);
        let vdso = parse(b"7ffd5b9f6000-7ffd5b9f8000 r-xp 00000000 00:00 0                          [vdso]");
        assert_eq!(vdso.map(|found| found.path), Some(PathBuf::from("[vdso]")));
        let bare = parse(b"7ffd5b9f6000-7ffd5b9f8000 rwxp 00000000 00:00 0 ").expect("a mapping");
        assert_eq!((bare.path, bare.inode), (PathBuf::new(), 0));
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"1-2"), None);
        assert_eq!(unescape(b"/a\\012b\\c"), b"/a\nb\\c");
    }

    #[test]
    fn mappings_of_this_process() {
        let mappings = code_of(Path::new("/proc"), std::process::id()).expect("this process");
        assert!(mappings.iter().any(|m| Some(&m.path) == std::env::current_exe().ok().as_ref()));
        assert!(mappings.is_sorted_by_key(|m| m.start));
    }
}
