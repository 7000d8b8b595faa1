//! Symbolization of programs compiled by the test; requires a C++ compiler, `nm` and `objcopy`.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, LazyLock},
};

use flate2::{Compression, write::ZlibEncoder};
use proptest::prelude::*;

use super::{
    Category, Location, MappedFile, Symbols, base_name,
    copy::SymbolFile,
    elf::{COMPRESSED, Elf, ElfError, SECTION},
    module::{FileSymbolizer, SymbolFiles},
};
use crate::targets::proc::Proc;
use chainscope_ebpf::memory::ForeignCalls;

const SOURCE: &str = r#"
extern "C" int outside(int);
static inline __attribute__((always_inline)) int inner(int n) { return outside(n) + 1; }
static inline __attribute__((always_inline)) int middle(int n) { return inner(n) * 2; }
namespace chain {
__attribute__((noinline)) int apply(int n) { return middle(n) + 3; }
}
extern "C" __attribute__((noinline)) int outside(int n) { volatile int k = n; return k; }
extern "C" int camlTezos_p2p__P2p_socket__read_12(int n) { return chain::apply(n) + outside(n); }
int main(int count, char **) { return camlTezos_p2p__P2p_socket__read_12(count); }
"#;

/// Directory with `program` (with debug information), `bare` (stripped) and `linked` (whose debug information is in
/// `.debug/linked.debug`).
static PROGRAMS: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("program.cc"), SOURCE).unwrap();
    run("c++", &["-O2", "-g", "-fno-optimize-sibling-calls", "-o", "program", "program.cc"], dir.path());
    fs::create_dir(at(".debug")).unwrap();
    run("objcopy", &["--only-keep-debug", "program", ".debug/linked.debug"], dir.path());
    run("objcopy", &["--strip-all", "program", "bare"], dir.path());
    run("objcopy", &["--strip-all", "--add-gnu-debuglink=.debug/linked.debug", "program", "linked"], dir.path());
    dir
});

fn run(program: &str, arguments: &[&str], dir: &Path) {
    let status = Command::new(program).args(arguments).current_dir(dir).status();
    assert!(status.as_ref().is_ok_and(|status| status.success()), "{program} {arguments:?}: {status:?}");
}

fn path(name: &str) -> PathBuf {
    PROGRAMS.path().join(name)
}

/// Returns the file offset of a function.
fn offset_of(symbol: &str) -> u64 {
    let output = Command::new("nm").arg(path("program")).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.ends_with(&format!(" {symbol}"))).unwrap();
    let address = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
    let elf = Elf::read(&fs::File::open(path("program")).unwrap()).unwrap();
    (0..elf.length).find(|offset| elf.address(*offset) == Some(address)).unwrap()
}

/// Returns the file offset after the first call in `chain::apply`.
fn return_offset() -> u64 {
    let code = fs::read(path("program")).unwrap();
    let begin = offset_of("_ZN5chain5applyEi") as usize;
    // First relative call: e8 and four bytes.
    let call = (begin..begin + 64).find(|at| code[*at] == 0xe8).unwrap();
    (call + 5) as u64
}

fn mapped(path: PathBuf) -> MappedFile {
    use std::os::unix::fs::MetadataExt as _;
    let inode = fs::metadata(&path).map_or(0, |meta| meta.ino());
    MappedFile { path, inode, pid: std::process::id(), is_deleted: false }
}

fn symbols_of(file: &str) -> Symbols {
    let mut symbols = Symbols::new(Proc::default(), ForeignCalls::threads());
    symbols.add_module(1, mapped(path(file)));
    symbols
}

fn names(location: &Location) -> Vec<&str> {
    location.functions.iter().map(|function| &*function.name).collect()
}

#[test]
fn inlined_functions_are_listed_outermost_first() {
    let mut symbols = symbols_of("program");
    let location = symbols.symbolize(1, return_offset(), true).unwrap();
    assert_eq!(names(&location), ["chain::apply(int)", "middle", "inner"]);
    assert_eq!(&*location.executable, "program");
    assert!(!location.is_deleted);
    assert!(symbols.bytes() > 0);
    symbols.drop_copies();
    assert_eq!(symbols.bytes(), 0);
    let again = symbols.symbolize(1, return_offset(), true).unwrap();
    assert!(Arc::ptr_eq(&location, &again), "remembered");
}

#[test]
fn a_return_address_belongs_to_the_calling_function() {
    let begin = offset_of("outside");
    let mut symbols = symbols_of("program");
    assert_eq!(names(&symbols.symbolize(1, begin, false).unwrap()), ["outside"]);
    // The preceding byte is padding or part of another function.
    assert_ne!(names(&symbols.symbolize(1, begin, true).unwrap()), ["outside"]);
    let ocaml = offset_of("camlTezos_p2p__P2p_socket__read_12");
    assert_eq!(names(&symbols.symbolize(1, ocaml, false).unwrap()), ["Tezos_p2p.P2p_socket.read_12"]);
}

#[test]
fn debug_information_is_found_by_its_link() {
    let location = symbols_of("linked").symbolize(1, return_offset(), true).unwrap();
    assert_eq!(names(&location), ["chain::apply(int)", "middle", "inner"]);
    let location = symbols_of("bare").symbolize(1, return_offset(), true).unwrap();
    assert!(location.functions.is_empty() && !location.is_deleted);
}

#[test]
fn a_deleted_file_is_still_symbolized() {
    let copy = path("library.so");
    fs::copy(path("program"), &copy).unwrap();
    let before = mapped(copy.clone());
    let mut symbols = Symbols::new(Proc::default(), ForeignCalls::threads());
    symbols.add_module(1, before.clone());
    fs::remove_file(&copy).unwrap();
    let after = MappedFile { is_deleted: true, ..before };
    symbols.add_module(1, after.clone());
    let location = symbols.symbolize(1, offset_of("outside"), false).unwrap();
    assert_eq!((names(&location), location.is_deleted), (vec!["outside"], false));
    // A module first seen after the deletion has no symbols.
    symbols.add_module(2, after);
    let location = symbols.symbolize(2, offset_of("outside"), false).unwrap();
    assert_eq!((names(&location), location.is_deleted, &*location.executable), (vec![], true, "library.so"));
    symbols.remove_module(1);
    assert!(symbols.symbolize(1, offset_of("outside"), false).is_none());
}

#[test]
fn a_replaced_file_is_marked_deleted() {
    let mut other = mapped(path("program"));
    other.inode += 1;
    let mut symbols = Symbols::new(Proc::default(), ForeignCalls::threads());
    symbols.add_module(1, other);
    let location = symbols.symbolize(1, offset_of("outside"), false).unwrap();
    assert_eq!((names(&location), location.is_deleted), (vec!["outside"], true));
}

#[test]
fn a_deleted_executable_is_read_through_its_process() {
    // The executable of this test: opened by inode, independent of the path.
    let me = std::env::current_exe().unwrap();
    let deleted = MappedFile { is_deleted: true, path: "/gone/node".into(), ..mapped(me.clone()) };
    let elf = Elf::read(&fs::File::open(&me).unwrap()).unwrap();
    let mut symbols = Symbols::new(Proc::default(), ForeignCalls::threads());
    symbols.add_module(1, deleted);
    // The code section contains at least one Rust function.
    let rust = elf.sections.iter().find(|section| section.name == ".text").unwrap();
    let location = (0..rust.length)
        .step_by(4096)
        .filter_map(|step| symbols.symbolize(1, rust.offset + step, false))
        .find(|location| location.functions.first().is_some_and(|function| function.category == Category::NodeRust))
        .unwrap();
    let name = &location.functions[0].name;
    assert!(name.rsplit("::").next().is_some_and(|hash| hash.len() == 17 && hash.starts_with('h')), "{name}");
    assert_eq!((&*location.executable, location.is_deleted), ("node", false));
}

#[test]
fn pseudo_files_are_named_by_their_mapping() {
    let mut symbols = Symbols::new(Proc::default(), ForeignCalls::threads());
    let vdso = MappedFile { path: "[vdso]".into(), inode: 0, pid: std::process::id(), is_deleted: false };
    symbols.add_module(1, vdso);
    let location = symbols.symbolize(1, 0, false).unwrap();
    assert_eq!((&*location.executable, location.category, location.is_deleted), ("[vdso]", Category::SystemLib, false));
    assert!(symbols.symbolize(2, 0, false).is_none());
    assert_eq!(&*base_name(Path::new("/")), "/");
    assert_eq!(&*base_name(Path::new("/a/\u{1b}[1m")), "\\u{1b}[1m");
}

/// Another section in place of one of the program.
struct Replaced<'a> {
    name: &'a str,
    flags: u64,
    data: &'a [u8],
}

/// The program with other sections, whose contents are at its end.
fn with_sections(replaced: &[Replaced<'_>]) -> Vec<u8> {
    let path = path("program");
    let (mut bytes, elf) = (fs::read(&path).unwrap(), Elf::read(&fs::File::open(&path).unwrap()).unwrap());
    for Replaced { name, flags, data } in replaced {
        let index = elf.sections.iter().position(|section| section.name == *name).unwrap();
        let at = elf.sections_at.0 as usize + index * SECTION;
        let values = [*flags, 0, bytes.len() as u64, data.len() as u64].map(u64::to_le_bytes).concat();
        bytes[at + 8..at + 40].copy_from_slice(&values);
        bytes.extend(*data);
    }
    bytes
}

/// A compressed section, and the size that it announces.
fn compressed(kind: u32, announced: u64, data: &[u8]) -> Vec<u8> {
    let header = [[kind, 0].map(u32::to_le_bytes).concat(), [announced, 1].map(u64::to_le_bytes).concat()].concat();
    [&header[..], data].concat()
}

fn zlib(length: usize) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    for begin in (0..length).step_by(1 << 20) {
        encoder.write_all(&vec![0; (length - begin).min(1 << 20)]).unwrap();
    }
    encoder.finish().unwrap()
}

/// The copy of a file with these bytes, and its tables.
fn copy_of(bytes: &[u8]) -> Result<(SymbolFile, Elf), ElfError> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    let copy = SymbolFile::of(&file, &Elf::read(&file)?)?;
    let tables = Elf::read(&fs::File::open(copy.path()).unwrap())?;
    assert!(tables.sections.iter().all(|section| section.length == 0 || !section.is_compressed));
    Ok((copy, tables))
}

#[test]
fn compressed_debug_information_is_decompressed_into_the_copy() {
    run("objcopy", &["--compress-debug-sections=zlib", "program", "compressed"], PROGRAMS.path());
    let location = symbols_of("compressed").symbolize(1, return_offset(), true).unwrap();
    assert_eq!(names(&location), ["chain::apply(int)", "middle", "inner"]);
    let file = fs::File::open(path("compressed")).unwrap();
    let elf = Elf::read(&file).unwrap();
    let info = |elf: &Elf| elf.sections.iter().find(|section| section.name == ".debug_info").unwrap().clone();
    assert!(info(&elf).is_compressed && info(&elf).length < info(&elf).full_length);
    let (copy, tables) = copy_of(&fs::read(path("compressed")).unwrap()).unwrap();
    assert!(copy.has_debug);
    assert_eq!(info(&tables).length, info(&elf).full_length);
}

#[test]
fn compressed_debug_information_of_another_size_than_announced_is_omitted() {
    let bomb = compressed(1, 24, &zlib(256 << 20));
    let short = compressed(1, 1000, &zlib(999));
    let zstd = compressed(2, 1000, &zlib(1000));
    for data in [&bomb[..], &short, &zstd, &bomb[..8]] {
        let bytes = with_sections(&[Replaced { name: ".debug_info", flags: COMPRESSED, data }]);
        let (copy, _) = copy_of(&bytes).unwrap();
        assert!(!copy.has_debug && copy.bytes < 1 << 20, "{} bytes", data.len());
        let hostile = path("compressed_otherwise");
        fs::write(&hostile, bytes).unwrap();
        let location = symbols_of("compressed_otherwise").symbolize(1, return_offset(), true).unwrap();
        assert_eq!(names(&location), ["chain::apply(int)"]);
    }
    let exact = compressed(1, 1000, &zlib(1000));
    let bytes = with_sections(&[Replaced { name: ".debug_info", flags: COMPRESSED, data: &exact }]);
    assert!(copy_of(&bytes).unwrap().0.has_debug);
}

#[test]
fn compressed_symbols_are_not_copied() {
    let data = compressed(1, 24, &zlib(1 << 20));
    copy_of(&with_sections(&[Replaced { name: ".strtab", flags: COMPRESSED, data: &data }])).unwrap();
}

#[test]
fn debug_information_with_too_many_abbreviations_is_omitted() {
    // A tag without attributes, again and again.
    let abbreviations = |size: usize| [1, 0x2e, 0, 0, 0].into_iter().cycle().take(size).collect::<Vec<u8>>();
    // Units without entries, each with abbreviations from a place of its own.
    let units = |count: u32, version: u16| -> Vec<u8> {
        let unit = |index: u32| {
            let offset = (index * 5).to_le_bytes();
            let rest = if version == 5 { [&[1, 8][..], &offset].concat() } else { [&offset[..], &[8]].concat() };
            let rest = [&version.to_le_bytes()[..], &rest].concat();
            [&(rest.len() as u32).to_le_bytes()[..], &rest].concat()
        };
        (0..count).flat_map(unit).collect()
    };
    let has_debug = |abbreviations: &[u8], units: &[u8]| {
        let sections = [(".debug_abbrev", abbreviations), (".debug_info", units)];
        let sections = sections.map(|(name, data)| Replaced { name, flags: 0, data });
        copy_of(&with_sections(&sections)).unwrap().0.has_debug
    };
    for version in [4, 5] {
        assert!(has_debug(&abbreviations(1 << 20), &units(10, version)));
        assert!(!has_debug(&abbreviations(1 << 20), &units(1000, version)), "DWARF {version}");
    }
    assert!(!has_debug(&abbreviations(17 << 20), &units(1, 4)));
}

#[test]
fn no_other_sections_are_found_in_the_copy() {
    let mut bytes = fs::read(path("program")).unwrap();
    // The section table over the header: to hide the section changes where the table is.
    bytes[40..48].copy_from_slice(&8_u64.to_le_bytes());
    bytes[60..64].copy_from_slice(&[1, 0, 0, 0]);
    assert!(matches!(copy_of(&bytes), Err(ElfError::Changed)));
    // Without a section table, other bytes would be taken for it.
    bytes[40..48].fill(0);
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&bytes).unwrap();
    let copy = SymbolFile::of(&file, &Elf::read(&file).unwrap()).unwrap();
    assert_eq!(fs::metadata(copy.path()).unwrap().len(), 0);
}

/// Symbolizes the given offsets of a file with these bytes.
fn read_all(bytes: &[u8], offsets: &[u64]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hostile");
    fs::write(&path, bytes).unwrap();
    let file = fs::File::open(&path).unwrap();
    if let Ok(files) = SymbolFiles::read(&Proc::default(), &mapped(path), &file) {
        let mut names = FileSymbolizer::from(files);
        for offset in offsets {
            let found = names.symbolize(*offset, true);
            assert!(found.iter().all(|function| function.name.len() <= 8 * chainscope_functions::MAX_NAME));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Mutates the header, the segment and section tables, and arbitrary bytes.
    #[test]
    fn corrupted_files_do_not_panic(
        changes in prop::collection::vec((0_usize..4, any::<prop::sample::Index>(), any::<u8>()), 1..12),
        kept in prop::option::of(any::<prop::sample::Index>()),
    ) {
        static GOOD: LazyLock<(Vec<u8>, Elf)> = LazyLock::new(|| {
            let path = path("program");
            (fs::read(&path).unwrap(), Elf::read(&fs::File::open(&path).unwrap()).unwrap())
        });
        let (good, elf) = &*GOOD;
        let mut bytes = good.clone();
        for (region, index, value) in changes {
            let (begin, length) = match region {
                0 => (0, 64),
                1 => (elf.segments_at.0, elf.segments_at.1.len() as u64),
                2 => (elf.sections_at.0, elf.sections_at.1.len() as u64),
                _ => (0, elf.length),
            };
            bytes[begin as usize + index.index(length as usize)] = value;
        }
        if let Some(kept) = kept {
            bytes.truncate(kept.index(bytes.len()));
        }
        let code = return_offset_once();
        read_all(&bytes, &[0, 1, code, code + 64, u64::MAX]);
    }
}

fn return_offset_once() -> u64 {
    static OFFSET: LazyLock<u64> = LazyLock::new(return_offset);
    *OFFSET
}
