//! Limit on the abbreviations of debug information. A reader takes some 20 bytes of memory for each byte of a table of them, and
//! parses a table for each unit that does not share it: small units that start at different places of one table cost more than
//! any limit on the size of the sections allows.

/// Maximum size of the abbreviations that are parsed, in bytes. They are 3 to 6 % of the entries in the debug information of
/// programs in C and Rust.
pub const MAX_ABBREVIATIONS: u64 = 16 << 20;
/// Maximum number of units, of which a reader keeps some hundred bytes each. LLVM has some thousand.
const MAX_UNITS: usize = 1 << 17;
/// `DW_FORM_implicit_const`: its value follows in the table.
const IMPLICIT_CONST: u64 = 0x21;

/// Whether the abbreviations of all units can be parsed within bounds. `offsets`: those of the units' tables in the section
/// `.debug_abbrev`. A table counts once for successive units that share it.
pub fn abbreviations_are_bounded(offsets: impl IntoIterator<Item = u64>, section: &[u8]) -> bool {
    let (mut left, mut last) = (MAX_ABBREVIATIONS as usize, None);
    for (index, offset) in offsets.into_iter().enumerate() {
        if index == MAX_UNITS {
            return false;
        }
        if last.replace(offset) == Some(offset) {
            continue;
        }
        let table = usize::try_from(offset).ok().and_then(|offset| section.get(offset..)).unwrap_or_default();
        let length = table_length(table.get(..=left).unwrap_or(table));
        match left.checked_sub(length) {
            Some(rest) => left = rest,
            None => return false,
        }
    }
    true
}

/// The length of the table at the start of these bytes: all of them, if it does not end.
fn table_length(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    while skip_abbreviation(&mut rest).is_some() {}
    bytes.len() - rest.len()
}

/// Skips an abbreviation. `None` at the end of the table.
fn skip_abbreviation(rest: &mut &[u8]) -> Option<()> {
    let code = number(rest)?;
    if code == 0 {
        return None;
    }
    let _tag = number(rest)?;
    // Whether it has children.
    *rest = rest.get(1..)?;
    loop {
        let (name, form) = (number(rest)?, number(rest)?);
        if form == IMPLICIT_CONST {
            number(rest)?;
        }
        if (name, form) == (0, 0) {
            return Some(());
        }
    }
}

/// Reads a LEB128 number, modulo 2⁶⁴.
fn number(rest: &mut &[u8]) -> Option<u64> {
    let (mut value, mut shift) = (0, 0_u32);
    loop {
        let byte;
        (byte, *rest) = rest.split_first()?;
        value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        shift = shift.saturating_add(7);
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Abbreviations of a tag without attributes, with two-byte codes, which no end follows.
    fn abbreviations(size: usize) -> Vec<u8> {
        [0x81, 0x01, 0x2e, 0, 0, 0].into_iter().cycle().take(size).collect()
    }

    #[test]
    fn a_table_ends_at_the_code_0() {
        // A tag with children and two attributes, one of them with its value: 0; then one without attributes.
        let table = [1, 0x11, 1, 0x03, 0x08, 0x3b, 0x21, 0, 0, 0, 2, 0x2e, 0, 0, 0, 0];
        assert_eq!(table_length(&[&table[..], &[3, 0x2e, 0, 0, 0, 0]].concat()), table.len());
        for end in 0..table.len() {
            assert_eq!(table_length(&table[..end]), end);
        }
    }

    #[test]
    fn a_table_counts_once_for_successive_units_that_share_it() {
        let section = abbreviations(12 << 20);
        assert!(abbreviations_are_bounded([6; 1000], &section));
        assert!(!abbreviations_are_bounded([0, 6, 0], &section), "parsed three times");
    }

    #[test]
    fn units_that_start_at_different_places_of_one_table_are_refused() {
        let section = abbreviations(1 << 20);
        let offsets = |units: u64| (0..units).map(|unit| unit * 6);
        assert!(abbreviations_are_bounded(offsets(16), &section));
        assert!(!abbreviations_are_bounded(offsets(100_000), &section));
        assert!(abbreviations_are_bounded((0..100).map(|unit| u64::MAX - unit), &section), "outside of the section");
    }

    #[test]
    fn a_table_above_the_maximum_is_refused() {
        assert!(abbreviations_are_bounded([0], &abbreviations(16 << 20)));
        assert!(!abbreviations_are_bounded([0], &abbreviations((16 << 20) + 1)));
    }

    #[test]
    fn too_many_units_are_refused() {
        assert!(abbreviations_are_bounded(std::iter::repeat_n(0, MAX_UNITS), &[0]));
        assert!(!abbreviations_are_bounded(std::iter::repeat_n(0, MAX_UNITS + 1), &[0]));
    }
}
