//! Builds the table of a file by executing its call frame instructions once.

use std::borrow::Cow;
use std::collections::HashMap;

use gimli::{
    BaseAddresses, CieOrFde, CommonInformationEntry, DebugFrame, EhFrame, EndianSlice, LittleEndian, Reader as _,
    UnwindContext, UnwindOffset, UnwindSection,
};
use object::read::elf::ElfFile64;
use object::{CompressionFormat, Endianness, Object, ObjectSection, ReadRef};

use crate::error::Error;
use crate::read_limit::ReadLimit;
use crate::row::{CfaKind, Row};
use crate::rule::{self, Context};
use crate::segments::{ElfSegments, parse};

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// Limits on the resources for one file. LLVM 22, a library of 190 MB, has 1.4 million rows.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of rows. A row takes 12 bytes, twice that during construction.
    pub rows: usize,
    /// Maximum uncompressed size of a section, in bytes.
    pub section: u64,
    /// Maximum number of bytes that are read of the file: its tables and sections, as they are stored.
    pub read: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { rows: 4 << 20, section: 64 << 20, read: 192 << 20 }
    }
}

/// Maximum number of section headers, as of object files with a section for each function.
const MAX_SECTIONS: usize = 65_536;
/// Maximum number of parsed CIEs that are kept: they take ten times their size in the section.
const MAX_CIES: usize = 65_536;

/// Unreadable entries, for whose functions the table has no rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Number of entries.
    pub entries: u64,
    /// Location and error of the first entry.
    pub first: String,
}

/// The unwind table of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    base: u64,
    rows: Vec<Row>,
    segments: ElfSegments,
    skipped: Option<Skipped>,
}

impl Table {
    /// Reads an ELF file.
    ///
    /// # Errors
    /// See [`Error`]. Single unreadable entries are not an error; [`Table::skipped`] reports them.
    pub fn read<'data, R: ReadRef<'data>>(data: R, limits: &Limits) -> Result<Self, Error> {
        let left = ReadLimit::new(limits.read);
        // A read beyond the limit fails like one beyond the end of the file.
        Self::read_limited(left.over(data), limits).map_err(|error| match error {
            _ if left.is_exceeded() => Error::TooLarge(limits.read),
            other => other,
        })
    }

    fn read_limited<'data, R: ReadRef<'data>>(data: R, limits: &Limits) -> Result<Self, Error> {
        let file = parse(data)?;
        let sections = file.elf_section_table().len();
        if sections > MAX_SECTIONS {
            return Err(Error::Elf(format!("{sections} sections, the maximum is {MAX_SECTIONS}")));
        }
        let segments = ElfSegments::from_elf(&file);
        let bases = bases(&file);
        if let Some(bytes) = section(&file, ".eh_frame", limits)? {
            let mut frames = EhFrame::new(&bytes, LittleEndian);
            frames.set_address_size(8);
            return Builder::new(".eh_frame", &bytes, limits).run(&frames, &bases, segments);
        }
        if let Some(bytes) = section(&file, ".debug_frame", limits)? {
            let mut frames = DebugFrame::new(&bytes, LittleEndian);
            frames.set_address_size(8);
            let mut builder = Builder::new(".debug_frame", &bytes, limits);
            builder.go = file.section_by_name(".gopclntab").is_some();
            return builder.run(&frames, &bases, segments);
        }
        Err(Error::NoFrames)
    }

    /// The lowest address with a row; [`Row::pc`] is relative to it.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Rows sorted by address, each valid up to the next. Adjacent rows differ.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The file's executable segments.
    #[must_use]
    pub fn segments(&self) -> &ElfSegments {
        &self.segments
    }

    /// Unreadable entries, if any.
    #[must_use]
    pub fn skipped(&self) -> Option<&Skipped> {
        self.skipped.as_ref()
    }

    /// Returns the row that applies at an address of the file.
    #[must_use]
    pub fn lookup(&self, address: u64) -> Option<&Row> {
        let pc = u32::try_from(address.checked_sub(self.base)?).ok()?;
        let after = self.rows.partition_point(|row| row.pc <= pc);
        self.rows.get(after.checked_sub(1)?)
    }
}

fn bases<'data, R: ReadRef<'data>>(file: &ElfFile64<'data, Endianness, R>) -> BaseAddresses {
    let address = |name: &str| file.section_by_name(name).map_or(0, |section| section.address());
    BaseAddresses::default()
        .set_eh_frame(address(".eh_frame"))
        .set_eh_frame_hdr(address(".eh_frame_hdr"))
        .set_text(address(".text"))
        .set_got(address(".got"))
}

/// Returns the uncompressed bytes of a section; `None` if it is missing or empty.
fn section<'data, R: ReadRef<'data>>(
    file: &ElfFile64<'data, Endianness, R>,
    name: &'static str,
    limits: &Limits,
) -> Result<Option<Cow<'data, [u8]>>, Error> {
    let fail = |cause: String| Error::Section { section: name, cause };
    let Some(section) = file.section_by_name(name) else { return Ok(None) };
    // A stripped section keeps its header, but has no data.
    if section.elf_section_header().sh_type.get(file.endian()) == object::elf::SHT_NOBITS {
        return Ok(None);
    }
    let data = section.compressed_data().map_err(|error| fail(error.to_string()))?;
    if data.uncompressed_size > limits.section {
        return Err(fail(format!("{} bytes are more than {}", data.uncompressed_size, limits.section)));
    }
    // Its decoder does not stop at the size that the section announces.
    if data.format == CompressionFormat::Zstandard {
        return Err(fail("it is compressed with zstd".to_owned()));
    }
    let bytes = data.decompress().map_err(|error| fail(error.to_string()))?;
    Ok(Some(bytes).filter(|bytes| !bytes.is_empty()))
}

/// Reduces a rule of code that keeps frame pointers to the one at function entry.
fn entry_rule(rule: Row) -> Row {
    match rule.kind() {
        CfaKind::Rsp if rule.offset() == 8 => Row { cfa: 0, cfa_kind: CfaKind::Leaf as u8, ..Row::default() },
        CfaKind::End => rule,
        _ => Row::default(),
    }
}

struct Builder<'a> {
    section: &'static str,
    size: u64,
    bytes: Bytes<'a>,
    limits: &'a Limits,
    /// Set for Go, which keeps frame pointers and whose runtime switches stacks without describing it in the call frame
    /// information: only rules at function entry are used, where `rbp` is still the caller's.
    go: bool,
    /// Rows with their file address; [`CfaKind::Gap`] marks the end of a function.
    rows: Vec<(u64, Row)>,
    skipped: Option<Skipped>,
    /// Bytes of CIEs parsed and of instructions executed.
    executed: u64,
}

impl<'a> Builder<'a> {
    fn new(section: &'static str, bytes: &'a [u8], limits: &'a Limits) -> Self {
        let size = bytes.len() as u64;
        let bytes = EndianSlice::new(bytes, LittleEndian);
        Self { section, size, bytes, limits, go: false, rows: Vec::new(), skipped: None, executed: 0 }
    }

    /// Counts bytes that are parsed or executed. FDEs share CIEs: megabytes of a CIE could be executed for each of a million
    /// functions, or parsed without success.
    fn charge(&mut self, bytes: u64) -> Result<(), Error> {
        self.executed = self.executed.saturating_add(bytes);
        if self.executed > 64 * self.size + (1 << 20) {
            return Err(Error::TooMuchWork { executed: self.executed, size: self.size });
        }
        Ok(())
    }

    /// Length of the entry at an offset; 0 if it is not within the section.
    fn entry_length(&self, offset: usize) -> u64 {
        let mut bytes = self.bytes;
        let length = bytes.skip(offset).and_then(|()| bytes.read_initial_length());
        length.map_or(0, |(length, _)| if length <= bytes.len() { length as u64 } else { 0 })
    }

    fn skip(&mut self, what: &str, error: gimli::Error) {
        let skipped = self.skipped.get_or_insert_with(|| Skipped { entries: 0, first: format!("{what}: {error}") });
        skipped.entries += 1;
    }

    fn run<S>(mut self, frames: &S, bases: &BaseAddresses, segments: ElfSegments) -> Result<Table, Error>
    where
        S: UnwindSection<Bytes<'a>>,
    {
        let mut context = UnwindContext::new();
        let mut cies: HashMap<usize, CommonInformationEntry<Bytes<'a>>> = HashMap::new();
        let mut entries = frames.entries(bases);
        loop {
            let partial = match entries.next() {
                Ok(Some(CieOrFde::Fde(partial))) => partial,
                Ok(Some(CieOrFde::Cie(_))) => continue,
                Ok(None) => break,
                // The entry's length locates the next one: no later entry can be found.
                Err(error) => {
                    self.skip("an entry's header", error);
                    break;
                }
            };
            let key = UnwindOffset::into(partial.cie_offset());
            if !cies.contains_key(&key) {
                self.charge(self.entry_length(key))?;
            }
            let fde = partial.parse(|section, bases, offset| {
                if let Some(cie) = cies.get(&key) {
                    return Ok(cie.clone());
                }
                let cie = section.cie_from_offset(bases, offset)?;
                if cies.len() == MAX_CIES {
                    cies.clear();
                }
                cies.insert(key, cie.clone());
                Ok(cie)
            });
            let fde = match fde {
                Ok(fde) => fde,
                Err(error) => {
                    self.skip("a function's header", error);
                    continue;
                }
            };
            self.charge((fde.entry_len() + fde.cie().entry_len()) as u64)?;
            if let Err(error) = self.function(&fde, frames, bases, &mut context) {
                self.skip(&format!("the function at {:#x}", fde.initial_address()), error);
            }
            if self.rows.len() > self.limits.rows {
                return Err(Error::TooManyRows(self.limits.rows));
            }
        }
        self.finish(segments)
    }

    fn function<S>(
        &mut self,
        fde: &gimli::FrameDescriptionEntry<Bytes<'a>>,
        frames: &S,
        bases: &BaseAddresses,
        context: &mut UnwindContext<usize>,
    ) -> gimli::Result<()>
    where
        S: UnwindSection<Bytes<'a>>,
    {
        let cie = fde.cie();
        let rules =
            Context { section: &self.bytes, encoding: cie.encoding(), return_address: cie.return_address_register() };
        let begin = self.rows.len();
        let mut table = fde.rows(frames, bases, context)?;
        let mut end = fde.initial_address();
        let finished = loop {
            match table.next_row() {
                Ok(Some(row)) => {
                    end = row.end_address();
                    if row.start_address() < end && self.rows.len() <= self.limits.rows {
                        let rule = rule::row(0, row, &rules);
                        self.rows.push((row.start_address(), if self.go { entry_rule(rule) } else { rule }));
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        if self.rows.len() > begin {
            self.rows.push((end, Row::default()));
        }
        finished
    }

    fn finish(mut self, segments: ElfSegments) -> Result<Table, Error> {
        // At equal addresses, the start of a function overrides the end of the previous one.
        self.rows.sort_by_key(|(address, row)| (*address, row.cfa_kind != CfaKind::Gap as u8));
        let (Some(start), Some(end)) = (self.rows.first(), self.rows.last()) else {
            return Err(match self.skipped {
                Some(skipped) => Error::NoEntry { section: self.section, cause: skipped.first },
                None => Error::NoFrames,
            });
        };
        let (base, end) = (start.0, end.0);
        if u32::try_from(end - base).is_err() {
            return Err(Error::Span { start: base, end });
        }
        let mut rows: Vec<Row> = Vec::new();
        let mut following = self.rows.iter().peekable();
        while let Some((address, row)) = following.next() {
            let overridden = following.peek().is_some_and(|(next, _)| next == address);
            if !overridden && rows.last().is_none_or(|last| !last.same_rule(row)) {
                rows.push(Row { pc: u32::try_from(address - base).unwrap_or(u32::MAX), ..*row });
            }
        }
        rows.shrink_to_fit();
        Ok(Table { base, rows, segments, skipped: self.skipped })
    }
}
