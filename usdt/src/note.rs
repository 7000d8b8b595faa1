//! The descriptor of a note of SystemTap: three addresses and three texts.

use object::{Endianness, ReadRef, read::elf::FileHeader};

use crate::{
    argument::{MAX_ARGUMENTS, split},
    elf::Elf,
};

/// Owner and type of the note with the build id: `NT_GNU_BUILD_ID`.
const GNU: &[u8] = b"GNU";
const BUILD_ID: u32 = 3;
/// Owner and type of the notes.
const OWNER: &[u8] = b"stapsdt";
const TYPE: u32 = 3;

/// A note, its addresses moved as the file was.
#[derive(Debug)]
pub(crate) struct Note {
    pub(crate) provider: String,
    pub(crate) name: String,
    pub(crate) location: u64,
    /// Address of `.stapsdt.base` when the file was linked, as the note has it.
    pub(crate) base: u64,
    /// Address of the semaphore, if there is one.
    pub(crate) semaphore: Option<u64>,
    pub(crate) arguments: String,
}

/// A note that cannot be read: its name as far as it is known, and the cause.
pub(crate) type Unreadable = (Option<String>, String);

/// The build id, if a note has it.
pub(crate) fn build_id<'data, H: FileHeader<Endian = Endianness>, R: ReadRef<'data>>(
    elf: &Elf<'data, H, R>,
    note: &object::read::elf::Note<'data, H>,
) -> Option<Vec<u8>> {
    (note.name() == GNU && note.n_type(elf.endian()) == BUILD_ID).then(|| note.desc().to_vec())
}

/// Reads a note. `None` if it is not one of SystemTap.
pub(crate) fn read<'data, H: FileHeader<Endian = Endianness>, R: ReadRef<'data>>(
    elf: &Elf<'data, H, R>,
    base: Option<u64>,
    note: &object::read::elf::Note<'data, H>,
) -> Option<Result<Note, Unreadable>> {
    (note.name() == OWNER && note.n_type(elf.endian()) == TYPE).then(|| descriptor(elf, base, note.desc()))
}

fn descriptor<'data, H: FileHeader<Endian = Endianness>, R: ReadRef<'data>>(
    elf: &Elf<'data, H, R>,
    base: Option<u64>,
    bytes: &[u8],
) -> Result<Note, Unreadable> {
    let addresses = |bytes| {
        let (location, bytes) = elf.word(bytes)?;
        let (linked_base, bytes) = elf.word(bytes)?;
        let (semaphore, bytes) = elf.word(bytes)?;
        Some(([location, linked_base, semaphore], bytes))
    };
    let short = || (None, format!("its {} bytes are too short for three addresses", bytes.len()));
    let ([location, linked_base, semaphore], texts) = addresses(bytes).ok_or_else(short)?;
    let mut texts = texts.split_inclusive(|byte| *byte == 0).map(|text| text.strip_suffix(b"\0"));
    let mut next = || texts.next().flatten().map(|text| String::from_utf8_lossy(text).into_owned());
    let (provider, name, arguments) = (next(), next(), next());
    let known: Vec<&str> = [&provider, &name].into_iter().flatten().map(String::as_str).collect();
    let known = (!known.is_empty()).then(|| known.join(":"));
    let (Some(provider), Some(name), Some(arguments)) = (provider, name, arguments) else {
        return Err((known, "one of its three texts is missing or has no end".to_owned()));
    };
    if provider.is_empty() || name.is_empty() {
        return Err((known, "its provider or name is empty".to_owned()));
    }
    let count = split(&arguments).count();
    if count > MAX_ARGUMENTS {
        return Err((known, format!("{count} arguments are more than {MAX_ARGUMENTS}")));
    }
    let moved = |address: u64| {
        Elf::<H, R>::wrap(base.map_or(address, |base| address.wrapping_add(base.wrapping_sub(linked_base))))
    };
    let semaphore = (semaphore != 0).then(|| moved(semaphore));
    Ok(Note { provider, name, location: moved(location), base: linked_base, semaphore, arguments })
}
