//! Every note that `readelf -n` shows is read, of compiled programs and of programs of the system, with the same texts and
//! addresses. File offsets lead to the `nop` and to the semaphore.

use std::{fs, path::Path, process::Command};

use chainscope_usdt::{Address, Base, Image, Operand};
use object::ReadCache;

use crate::support::program;

/// A note as `readelf` shows it: provider, name; location, base, semaphore; arguments.
type Shown = (String, String, [u64; 3], String);

fn shown_by_readelf(path: &Path) -> Vec<Shown> {
    let output = Command::new("readelf").args(["-n"]).arg(path).env("LC_ALL", "C").output().expect("readelf");
    let text = String::from_utf8(output.stdout).expect("text");
    let mut notes = Vec::new();
    let mut current = Shown::default();
    for line in text.lines().map(str::trim) {
        let hex = |text: &str| u64::from_str_radix(text.trim().trim_start_matches("0x"), 16).expect("hexadecimal");
        match line.split_once(':') {
            Some(("Provider", provider)) => current.0 = provider.trim().to_owned(),
            Some(("Name", name)) => current.1 = name.trim().to_owned(),
            Some(("Location", addresses)) => {
                let addresses = addresses.split(',').map(|part| hex(part.rsplit(':').next().expect("a value")));
                current.2 = addresses.collect::<Vec<_>>().try_into().expect("three addresses");
            }
            Some(("Arguments", arguments)) => {
                current.3 = arguments.trim().to_owned();
                notes.push(std::mem::take(&mut current));
            }
            _ => {}
        }
    }
    notes.sort();
    notes
}

/// The build id that `readelf` shows.
fn build_id(path: &Path) -> Option<String> {
    let output = Command::new("readelf").args(["-n"]).arg(path).env("LC_ALL", "C").output().expect("readelf");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().find_map(|line| Some(line.trim().strip_prefix("Build ID: ")?.to_owned()))
}

fn read(path: &Path) -> Image {
    Image::read(&ReadCache::new(fs::File::open(path).unwrap())).unwrap()
}

/// Compares an image with `readelf`. Returns the number of notes, of arguments, and of those that are not located.
pub(crate) fn compare(path: &Path) -> (usize, usize, usize) {
    let image = read(path);
    assert_eq!(image.errors, [], "{}", path.display());
    let bytes = fs::read(path).unwrap();
    let mut notes = Vec::new();
    let (mut arguments, mut unsupported) = (0, 0);
    for tracepoint in &image.tracepoints {
        for location in &tracepoint.locations {
            let raw: Vec<&str> = location.arguments.iter().map(|argument| argument.raw.as_str()).collect();
            let semaphore = location.semaphore.map_or(0, |semaphore| semaphore.address);
            let (provider, name) = (tracepoint.provider.clone(), tracepoint.name.clone());
            notes.push((provider, name, [location.address, location.base, semaphore], raw.join(" ")));
            let at = location.offset.expect("in an executable segment") as usize;
            assert_eq!(bytes[at], 0x90, "{} at {at:#x} is no nop", tracepoint.full_name());
            arguments += raw.len();
            for argument in &location.arguments {
                assert!(argument.shape.is_some(), "{}", argument.raw);
                if let Err(cause) = &argument.operand {
                    println!("{}: {}: {}: {cause}", path.display(), tracepoint.full_name(), argument.raw);
                    unsupported += 1;
                }
            }
        }
    }
    notes.sort();
    assert_eq!(notes, shown_by_readelf(path), "{}", path.display());
    assert_eq!(image.build_id_hex(), build_id(path), "{}", path.display());
    (notes.len(), arguments, unsupported)
}

#[test]
fn compiled_programs_of_every_kind() {
    let folder = tempfile::tempdir().unwrap();
    let kinds: [&[&str]; 5] = [&["-fPIE", "-pie"], &["-no-pie"], &["-static"], &["-static-pie"], &["-fPIC", "-shared"]];
    for compiler in ["gcc", "clang"] {
        for optimisation in ["-O0", "-O2"] {
            for (number, kind) in kinds.iter().enumerate() {
                for semaphores in ["-DNO_SEMAPHORES", "-DSEMAPHORES"] {
                    let flags = [*kind, &[optimisation, semaphores]].concat();
                    let name = format!("{compiler}{optimisation}{number}{semaphores}");
                    let path = program(folder.path(), compiler, "tracepoint_forms.c", &name, &flags);
                    let (notes, arguments, unsupported) = compare(&path);
                    assert!(notes >= 11 && arguments >= 46, "{name}: {notes} notes, {arguments} arguments");
                    assert_eq!(unsupported, 0, "{name}");
                }
            }
        }
    }
}

#[test]
fn semaphores_are_found_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    for (name, flag) in [("pie", "-pie"), ("fixed", "-no-pie"), ("static-pie", "-static-pie")] {
        let path = program(folder.path(), "gcc", "tracepoint_forms.c", name, &["-O2", "-DSEMAPHORES", flag]);
        let bytes = fs::read(&path).unwrap();
        for location in read(&path).tracepoints.iter().flat_map(|tracepoint| &tracepoint.locations) {
            let offset = location.semaphore.expect("a semaphore").offset.expect("in a writable segment") as usize;
            // The program's initial value.
            assert_eq!(bytes[offset..offset + 2], 4660_u16.to_ne_bytes(), "{name}");
        }
    }
}

/// Addresses of variables are relative to the location: added to it they are those that `nm` shows.
#[test]
fn variables_are_found_by_their_symbols() {
    let folder = tempfile::tempdir().unwrap();
    for flag in ["-pie", "-no-pie"] {
        let path = program(folder.path(), "gcc", "tracepoint_forms.c", flag, &["-O2", flag]);
        let symbols = Command::new("nm").arg(&path).output().expect("nm");
        let symbols = String::from_utf8(symbols.stdout).unwrap();
        let address = |name: &str| {
            let line = symbols.lines().find(|line| line.ends_with(&format!(" {name}"))).expect("the symbol");
            u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
        };
        let image = read(&path);
        let variables = image.tracepoints.iter().find(|tracepoint| tracepoint.name == "variables").unwrap();
        let location = &variables.locations[0];
        let targets: Vec<u64> = location.arguments[..2]
            .iter()
            .map(|argument| match argument.operand {
                Ok(Operand::Memory(Address { base: Some(Base::Location), index: None, displacement })) => {
                    location.address.wrapping_add_signed(displacement)
                }
                ref other => panic!("{}: {other:?}", argument.raw),
            })
            .collect();
        assert_eq!(targets, [address("variable"), address("pair") + 4], "{flag}");
    }
}

/// Addresses have 4 bytes; the arguments are those of another architecture.
#[test]
fn a_library_of_32_bits() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("small.c");
    let code = "#define _SDT_HAS_SEMAPHORES 1\n#include <sys/sdt.h>\n\
                __attribute__((section(\".probes\"))) unsigned short small_one_semaphore;\n\
                int one(int a) { STAP_PROBE2(small, one, a, &small_one_semaphore); return a; }\n";
    fs::write(&source, code).unwrap();
    let flags = ["-m32", "-O2", "-fPIC", "-shared", "-nostdlib", "-I/usr/include/x86_64-linux-gnu"];
    let path = chainscope_testing::program::compile("gcc", &source, folder.path(), "small.so", &flags);
    assert_eq!(compare(&path), (1, 2, 2));
    assert!(read(&path).tracepoints[0].locations[0].semaphore.unwrap().offset.is_some());
}

/// Programs of Debian 12 with notes, by package: all that were found. `scripts/setup` installs them.
const PROGRAMS: [(&str, &[&str]); 9] = [
    ("binutils", &["/usr/bin/x86_64-linux-gnu-dwp", "/usr/bin/x86_64-linux-gnu-ld.gold"]),
    ("cpp-12", &["/usr/bin/x86_64-linux-gnu-cpp-12", "/usr/lib/gcc/x86_64-linux-gnu/12/cc1"]),
    (
        "g++-12",
        &[
            "/usr/bin/x86_64-linux-gnu-g++-12",
            "/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus",
            "/usr/lib/gcc/x86_64-linux-gnu/12/g++-mapper-server",
        ],
    ),
    (
        "gcc-12",
        &[
            "/usr/bin/x86_64-linux-gnu-gcc-12",
            "/usr/bin/x86_64-linux-gnu-gcov-12",
            "/usr/bin/x86_64-linux-gnu-gcov-dump-12",
            "/usr/bin/x86_64-linux-gnu-gcov-tool-12",
            "/usr/bin/x86_64-linux-gnu-lto-dump-12",
            "/usr/lib/gcc/x86_64-linux-gnu/12/collect2",
            "/usr/lib/gcc/x86_64-linux-gnu/12/lto-wrapper",
            "/usr/lib/gcc/x86_64-linux-gnu/12/lto1",
        ],
    ),
    ("libpython3.11", &["/usr/lib/x86_64-linux-gnu/libpython3.11.so.1.0"]),
    ("libstdc++6", &["/usr/lib/x86_64-linux-gnu/libstdc++.so.6"]),
    ("openjdk-17-jre-headless", &["/usr/lib/jvm/java-17-openjdk-amd64/lib/server/libjvm.so"]),
    ("postgresql-15", &["/usr/lib/postgresql/15/bin/postgres"]),
    ("python3.11-minimal", &["/usr/bin/python3.11"]),
];

#[test]
fn programs_of_the_system() {
    let (mut programs, mut all_notes, mut all_arguments) = (0, 0, 0);
    for (package, files) in PROGRAMS {
        for file in files {
            assert!(Path::new(file).exists(), "{file} is missing: `make setup` installs {package}");
            let (notes, arguments, unsupported) = compare(Path::new(file));
            println!("| `{file}` | {package} | {notes} | {arguments} |");
            assert!(notes > 0, "{file} has no notes");
            assert_eq!(unsupported, 0, "{file}");
            (programs, all_notes, all_arguments) = (programs + 1, all_notes + notes, all_arguments + arguments);
        }
    }
    println!("{programs} programs, {all_notes} notes, {all_arguments} arguments");
}
