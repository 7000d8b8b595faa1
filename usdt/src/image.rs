//! The tracepoints of an ELF image.

use std::{cell::RefCell, collections::BTreeMap, fmt::Write as _};

use object::{
    Endianness, FileKind, ReadRef,
    elf::{FileHeader32, FileHeader64, PF_W, PF_X},
    read::elf::FileHeader,
};

use crate::{
    argument::{Argument, Scope},
    elf::{Elf, Segment},
    error::{Error, NoteError},
    note::{self, Note},
    symbols::Symbols,
};

/// The tracepoints of an ELF image of any architecture. Arguments are located on x86-64 only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Tracepoints by provider and name.
    pub tracepoints: Vec<Tracepoint>,
    /// Notes that cannot be read.
    pub errors: Vec<NoteError>,
    /// The id that the linker gave to this build, if it did.
    pub build_id: Option<Vec<u8>>,
}

/// A tracepoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracepoint {
    /// Namespace of the name.
    pub provider: String,
    /// Name.
    pub name: String,
    /// Places in the code, in the order of the notes: an inlined function or an unrolled loop has several, each with its own
    /// arguments.
    pub locations: Vec<Location>,
}

/// A place in the code where a tracepoint is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// Address in the image.
    pub address: u64,
    /// Offset in the file; `None` if the address is in no executable segment, so that nothing can be attached.
    pub offset: Option<u64>,
    /// Address of the section `.stapsdt.base` when the file was linked: what [`address`](Self::address) is corrected by, if the
    /// file was moved afterwards.
    pub base: u64,
    /// The counter of attached tracers, if there is one.
    pub semaphore: Option<Semaphore>,
    /// Arguments in order.
    pub arguments: Vec<Argument>,
}

/// A 16-bit counter of attached tracers. The program prepares the arguments only while it is not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Semaphore {
    /// Address in the image.
    pub address: u64,
    /// Offset in the file; `None` if the address is in no writable segment, so that it cannot be incremented.
    pub offset: Option<u64>,
}

impl Image {
    /// The build id in hexadecimal digits, as `readelf -n` shows it.
    #[must_use]
    pub fn build_id_hex(&self) -> Option<String> {
        let mut text = String::new();
        for byte in self.build_id.as_ref()? {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        Some(text)
    }

    /// Reads an ELF file.
    ///
    /// # Errors
    /// See [`Error`]. Single notes that cannot be read are not an error; [`Image::errors`] has them.
    pub fn read<'data>(data: impl ReadRef<'data>) -> Result<Self, Error> {
        match FileKind::parse(data) {
            Ok(FileKind::Elf64) => read::<FileHeader64<Endianness>, _>(data),
            Ok(FileKind::Elf32) => read::<FileHeader32<Endianness>, _>(data),
            _ => Err(Error::NotElf),
        }
    }
}

impl Tracepoint {
    /// `provider:name`
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}:{}", self.provider, self.name)
    }
}

fn read<'data, H: FileHeader<Endian = Endianness>, R: ReadRef<'data>>(data: R) -> Result<Image, Error> {
    let elf = Elf::<H, R>::parse(data)?;
    let segments = elf.segments()?;
    let Notes { notes, errors, build_id } = notes(&elf)?;
    let symbols = symbols(&elf, &notes)?;
    let mut tracepoints: BTreeMap<(String, String), Vec<Location>> = BTreeMap::new();
    for note in notes {
        let location = location(&elf, &segments, &symbols, &note);
        tracepoints.entry((note.provider, note.name)).or_default().push(location);
    }
    let tracepoints =
        tracepoints.into_iter().map(|((provider, name), locations)| Tracepoint { provider, name, locations }).collect();
    Ok(Image { tracepoints, errors, build_id })
}

/// What note sections have.
struct Notes {
    notes: Vec<Note>,
    errors: Vec<NoteError>,
    build_id: Option<Vec<u8>>,
}

fn notes<'data, H: FileHeader<Endian = Endianness>, R: ReadRef<'data>>(elf: &Elf<'data, H, R>) -> Result<Notes, Error> {
    let base = elf.stapsdt_base();
    let (mut found, mut errors, mut build_id) = (Vec::new(), Vec::new(), None);
    for (section, notes) in elf.note_sections()? {
        let mut fail = |index, name, cause| errors.push(NoteError { section: section.clone(), index, name, cause });
        let notes = match notes {
            Ok(notes) => notes,
            Err(cause) => {
                fail(1, None, cause.to_string());
                continue;
            }
        };
        for (index, note) in (1..).zip(notes) {
            if let Ok(note) = &note
                && build_id.is_none()
            {
                build_id = note::build_id(elf, note);
            }
            match note.map(|note| note::read(elf, base, &note)) {
                Ok(None) => {}
                Ok(Some(Ok(note))) => found.push(note),
                Ok(Some(Err((name, cause)))) => fail(index, name, cause),
                Err(cause) => fail(index, None, format!("{cause}; the rest of the section is not read")),
            }
        }
    }
    Ok(Notes { notes: found, errors, build_id })
}

/// The symbols that the arguments of the notes name.
fn symbols<'data, H: FileHeader<Endian = Endianness>, R: ReadRef<'data>>(
    elf: &Elf<'data, H, R>,
    notes: &[Note],
) -> Result<Symbols, Error> {
    let symbols = RefCell::new(Symbols::default());
    let want = |name: &str| {
        symbols.borrow_mut().want(name);
        Ok(0)
    };
    for note in notes {
        // Only what it asks for counts.
        let _ = Argument::parse_all(&note.arguments, scope(elf, note, &want));
    }
    let mut symbols = symbols.into_inner();
    if !symbols.is_empty() {
        elf.find_symbols(&mut symbols)?;
    }
    Ok(symbols)
}

fn scope<'a, 'data, H: FileHeader<Endian = Endianness>, R: ReadRef<'data>>(
    elf: &Elf<'data, H, R>,
    note: &Note,
    symbol: &'a dyn Fn(&str) -> Result<u64, crate::Unsupported>,
) -> Scope<'a> {
    Scope { machine: elf.machine(), location: note.location, is_fixed: elf.is_fixed(), symbol }
}

fn location<'data, H: FileHeader<Endian = Endianness>, R: ReadRef<'data>>(
    elf: &Elf<'data, H, R>,
    segments: &[Segment],
    symbols: &Symbols,
    note: &Note,
) -> Location {
    let resolve = |name: &str| symbols.resolve(name);
    Location {
        address: note.location,
        offset: offset(segments, note.location, PF_X),
        base: note.base,
        semaphore: note.semaphore.map(|address| Semaphore { address, offset: offset(segments, address, PF_W) }),
        arguments: Argument::parse_all(&note.arguments, scope(elf, note, &resolve)),
    }
}

/// The file offset of an address in a segment with these flags.
fn offset(segments: &[Segment], address: u64, flags: u32) -> Option<u64> {
    segments.iter().filter(|segment| segment.flags & flags == flags).find_map(|segment| {
        let within = address.checked_sub(segment.address).filter(|within| *within < segment.size)?;
        segment.offset.checked_add(within)
    })
}
