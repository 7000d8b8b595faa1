//! Functions that debug information says were inlined: everywhere, so that there is no copy that is called, or here and there.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use gimli::{
    AbbreviationsCacheStrategy, AttributeValue, DebuggingInformationEntry, Dwarf, EndianSlice, LittleEndian,
    Section as _, Unit,
};
use object::{CompressionFormat, Object as _, ObjectSection as _, ReadRef, read::elf::ElfFile64};

use crate::{abbreviations::abbreviations_are_bounded, demangle::demangle, pattern::Pattern};

/// Maximum size of the debug information that is searched, in bytes, uncompressed.
const MAX_DEBUG: u64 = 256 << 20;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Names of inlined functions that the pattern matches, at most `max`. None if the debug information is damaged, too large or
/// compressed with zstd: this only explains an error.
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

/// How often calls of functions were inlined, by the addresses of their copies, for those that were. None if the debug information is
/// damaged, too large or compressed with zstd.
pub(crate) fn count<'data, R: ReadRef<'data>>(data: R, addresses: &BTreeSet<u64>) -> BTreeMap<u64, usize> {
    // Copies, and how often calls were inlined, by the offset of the entry that describes the function.
    let (mut copies, mut calls) = (Vec::new(), BTreeMap::<usize, usize>::new());
    let read = each_entry(data, &mut |dwarf, unit, entry| {
        if !matches!(entry.tag(), gimli::DW_TAG_subprogram | gimli::DW_TAG_inlined_subroutine) {
            return true;
        }
        let origin = match entry.attr_value(gimli::DW_AT_abstract_origin) {
            Some(AttributeValue::UnitRef(offset)) => offset.to_debug_info_offset(&unit.header),
            Some(AttributeValue::DebugInfoRef(offset)) => Some(offset),
            _ => None,
        };
        let Some(origin) = origin else { return true };
        if entry.tag() == gimli::DW_TAG_inlined_subroutine {
            *calls.entry(origin.0).or_default() += 1;
        } else if let Some(start) = entry.attr_value(gimli::DW_AT_low_pc)
            && let Ok(Some(address)) = dwarf.attr_address(unit, start)
            && addresses.contains(&address)
        {
            copies.push((address, origin.0));
        }
        true
    });
    if read.is_err() {
        return BTreeMap::new();
    }
    copies.into_iter().filter_map(|(address, origin)| Some((address, *calls.get(&origin)?))).collect()
}

/// Passes names to `take` until it returns false.
fn search<'data, R: ReadRef<'data>>(
    data: R,
    pattern: &Pattern,
    take: &mut dyn FnMut(String) -> bool,
) -> Result<(), gimli::Error> {
    each_entry(data, &mut |dwarf, unit, entry| {
        let is_candidate = entry.tag() == gimli::DW_TAG_subprogram && is_inlined(entry);
        let symbol = if is_candidate { symbol_of(dwarf, unit, entry, 0) } else { None };
        symbol.filter(|symbol| pattern.matches(symbol)).is_none_or(|symbol| take(demangle(&symbol).name))
    })
}

/// What is done with an entry; whether to go on.
type EntryVisitor<'a> =
    dyn FnMut(&Dwarf<Slice<'_>>, &Unit<Slice<'_>>, &DebuggingInformationEntry<Slice<'_>>) -> bool + 'a;

/// Passes all entries of the debug information to `visit`.
fn each_entry<'data, R: ReadRef<'data>>(data: R, visit: &mut EntryVisitor<'_>) -> Result<(), gimli::Error> {
    let Ok(file) = ElfFile64::<LittleEndianFile, R>::parse(data) else { return Ok(()) };
    if !is_bounded(&file) {
        return Ok(());
    }
    let load = |id: gimli::SectionId| -> Result<Cow<'_, [u8]>, gimli::Error> {
        let section = file.section_by_name(id.name());
        Ok(section.and_then(|section| section.uncompressed_data().ok()).unwrap_or_default())
    };
    let sections = gimli::DwarfSections::load(load)?;
    let mut dwarf = sections.borrow(|section| EndianSlice::new(section, LittleEndian));
    let mut units = dwarf.units();
    let offsets = std::iter::from_fn(|| Some(units.next().ok()??.debug_abbrev_offset().0 as u64));
    if !abbreviations_are_bounded(offsets, dwarf.debug_abbrev.reader().slice()) {
        return Ok(());
    }
    // Units that share abbreviations do not parse them again.
    dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::Duplicates);
    let mut units = dwarf.units();
    while let Some(header) = units.next()? {
        let unit = dwarf.unit(header)?;
        let mut entries = unit.entries();
        while let Some(entry) = entries.next_dfs()? {
            if !visit(&dwarf, &unit, entry) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Whether the debug information is small enough.
fn is_bounded<'data, R: ReadRef<'data>>(file: &ElfFile64<'data, LittleEndianFile, R>) -> bool {
    let mut size = 0_u64;
    for section in file.sections() {
        if !section.name().is_ok_and(|name| name.starts_with(".debug_") || name.starts_with(".zdebug_")) {
            continue;
        }
        let Ok(range) = section.compressed_file_range() else { continue };
        // Its decoder does not stop at the size that the section announces.
        if range.format == CompressionFormat::Zstandard {
            return false;
        }
        size = size.saturating_add(range.uncompressed_size.max(range.compressed_size));
    }
    size <= MAX_DEBUG
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
