//! Functions that debug information names and of which there is no copy that is called.

use std::borrow::Cow;

use gimli::{AttributeValue, DebuggingInformationEntry, Dwarf, EndianSlice, LittleEndian, Unit};
use object::{Object as _, ObjectSection as _, ReadRef, read::elf::ElfFile64};

use crate::{demangle::demangle, pattern::Pattern};

/// Maximum size of the debug information that is searched, in bytes, uncompressed.
const MAX_DEBUG: u64 = 256 << 20;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Names of inlined functions that the pattern matches, at most `max`. None if the debug information is damaged or too large:
/// this only explains an error.
pub(crate) fn find<'data, R: ReadRef<'data>>(data: R, pattern: &Pattern, max: usize) -> Vec<String> {
    let mut names = Vec::new();
    let _ = search(data, pattern, &mut |name| {
        if !names.contains(&name) {
            names.push(name);
        }
        names.len() < max
    });
    names
}

/// Passes names to `take` until it returns false.
fn search<'data, R: ReadRef<'data>>(
    data: R,
    pattern: &Pattern,
    take: &mut dyn FnMut(String) -> bool,
) -> Result<(), gimli::Error> {
    let Ok(file) = ElfFile64::<LittleEndianFile, R>::parse(data) else { return Ok(()) };
    let size = file.sections().filter(|section| section.name().is_ok_and(|name| name.starts_with(".debug_")));
    let size = size
        .filter_map(|section| section.compressed_data().ok())
        .fold(0_u64, |sum, data| sum.saturating_add(data.uncompressed_size));
    if size > MAX_DEBUG {
        return Ok(());
    }
    let load = |id: gimli::SectionId| -> Result<Cow<'_, [u8]>, gimli::Error> {
        let section = file.section_by_name(id.name());
        Ok(section.and_then(|section| section.uncompressed_data().ok()).unwrap_or_default())
    };
    let sections = gimli::DwarfSections::load(load)?;
    let dwarf = sections.borrow(|section| EndianSlice::new(section, LittleEndian));
    let mut units = dwarf.units();
    while let Some(header) = units.next()? {
        let unit = dwarf.unit(header)?;
        let mut entries = unit.entries();
        while let Some(entry) = entries.next_dfs()? {
            if entry.tag() == gimli::DW_TAG_subprogram
                && is_inlined(entry)
                && let Some(symbol) = symbol_of(&dwarf, &unit, entry, 0)
                && pattern.matches(&symbol)
                && !take(demangle(&symbol).name)
            {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The byte order of the file.
type LittleEndianFile = object::LittleEndian;

fn is_inlined(entry: &DebuggingInformationEntry<Slice<'_>>) -> bool {
    let value = entry.attr_value(gimli::DW_AT_inline);
    matches!(value, Some(AttributeValue::Inline(gimli::DW_INL_inlined | gimli::DW_INL_declared_inlined)))
}

/// The mangled name, or else the plain one; of a method, it is at its declaration.
fn symbol_of(
    dwarf: &Dwarf<Slice<'_>>,
    unit: &Unit<Slice<'_>>,
    entry: &DebuggingInformationEntry<Slice<'_>>,
    depth: u32,
) -> Option<String> {
    let text = |name| {
        let value = entry.attr_value(name)?;
        Some(dwarf.attr_string(unit, value).ok()?.to_string_lossy().into_owned())
    };
    if let Some(symbol) = text(gimli::DW_AT_linkage_name) {
        return Some(symbol);
    }
    if depth == 0
        && let Some(AttributeValue::UnitRef(declared)) = entry.attr_value(gimli::DW_AT_specification)
        && let Ok(declared) = unit.entry(declared)
    {
        return symbol_of(dwarf, unit, &declared, 1);
    }
    text(gimli::DW_AT_name)
}
