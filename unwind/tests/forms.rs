//! Assembled rules in the forms that real runtimes emit, and malformed input.

use std::path::{Path, PathBuf};
use std::process::Command;

use chainscope_unwind::{CfaKind, ElfSegments, Error, Limits, RbpKind, Table};
use proptest::prelude::*;

/// Assembles function bodies at consecutive multiples of 64 and returns the table and its base.
fn assemble(name: &str, functions: &[&str]) -> (Table, u64) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, object) = (folder.join(format!("{name}.s")), folder.join(format!("{name}.so")));
    let body = |function: &&str| format!("\t.p2align 6\n\t.cfi_startproc\n{function}\n\tnop\n\t.cfi_endproc\n");
    let text: String = functions.iter().map(body).collect();
    std::fs::write(&source, format!("\t.text\n\t.globl begin\nbegin:\n{text}")).expect("a successful write");
    let status = Command::new("gcc").args(["-shared", "-nostdlib", "-o"]).arg(&object).arg(&source).status();
    assert!(status.is_ok_and(|status| status.success()), "gcc");
    let bytes = std::fs::read(&object).expect("the object file");
    let table = Table::read(bytes.as_slice(), &Limits::default()).expect("an unwind table");
    let base = table.base();
    (table, base)
}

#[test]
fn runtime_specific_rules() {
    // DW_CFA_def_cfa_expression (0x0f), length, breg7 (0x77) and breg6 (0x76), deref (6), plus_uconst (0x23).
    let (table, base) = assemble(
        "forms",
        &[
            // OCaml 5 on the C stack: the link to the OCaml stack is at rsp.
            "\t.cfi_escape 0x0f, 5, 0x77, 8, 6, 0x23, 8",
            // OCaml 5 in a fibre: the saved sp of the handler's parent.
            "\t.cfi_escape 0x0f, 8, 0x77, 16, 6, 0x23, 0, 6, 0x23, 8",
            "\t.cfi_escape 0x0f, 9, 0x77, 0x90, 1, 6, 0x23, 40, 6, 0x23, 24",
            // gcc with a realigned stack; rbp at *rbp.
            "\t.cfi_escape 0x0f, 3, 0x76, 0x78, 6\n\t.cfi_escape 0x10, 6, 2, 0x76, 0",
            // The linker's procedure linkage table.
            "\t.cfi_escape 0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22",
            "\t.cfi_def_cfa %rbx, 32\n\t.cfi_offset %rbp, -16",
            "\t.cfi_def_cfa %r10, 0",
            "\t.cfi_def_cfa %r11, 4144",
            "\t.cfi_def_cfa %r12, 8",
            "\t.cfi_undefined %rip",
            "\t.cfi_def_cfa_offset 100000\n\t.cfi_offset %rbx, -24",
            "\t.cfi_def_cfa_offset 16777216",
            "\t.cfi_escape 0x0f, 1, 0x30",
        ],
    );
    let kinds: Vec<(CfaKind, i32, u8)> = (0..13)
        .map(|function| {
            let row = table.lookup(base + 64 * function).expect("a row");
            (row.kind(), row.cfa, row.rbp_kind)
        })
        .collect();
    let pair = |a: i16, b: i16| i32::from(a) & 0xffff | i32::from(b) << 16;
    assert_eq!(
        kinds,
        [
            (CfaKind::DerefRsp, pair(8, 8), 0),
            (CfaKind::DerefTwiceRsp, pair(16, 8 << 8), 0),
            (CfaKind::DerefTwiceRsp, pair(144, 24 << 8 | 40), 0),
            (CfaKind::DerefRbp, pair(-8, 0), RbpKind::AtRbp as u8),
            (CfaKind::Plt, 11, 0),
            (CfaKind::Rbx, 32, RbpKind::AtCfa as u8),
            (CfaKind::R10, 0, 0),
            (CfaKind::R11, 4144, 0),
            (CfaKind::Unsupported, 0, 0),
            (CfaKind::End, 0, 0),
            (CfaKind::Rsp, 3 << 24 | 100_000, 0),
            (CfaKind::Unsupported, 0, 0),
            (CfaKind::Unsupported, 0, 0),
        ]
    );
    let row = table.lookup(base + 64 * 10).expect("a row");
    assert_eq!((row.offset(), row.rbx()), (100_000, Some(-24)));
    assert_eq!(table.lookup(base + 64 * 20).map(|row| row.kind()), Some(CfaKind::Gap));
    assert_eq!(table.lookup(base.wrapping_sub(1)), None);
}

fn small_program() -> Vec<u8> {
    let program = ["/usr/bin/true", "/bin/true"].map(PathBuf::from).into_iter().find(|path| path.exists());
    std::fs::read(program.expect("coreutils")).expect("it is readable")
}

#[test]
fn errors_name_the_cause() {
    let limits = Limits::default();
    assert!(matches!(Table::read(&b""[..], &limits), Err(Error::Elf(_))));
    assert!(matches!(Table::read(&b"#!/bin/sh\n"[..], &limits), Err(Error::Elf(_))));
    let program = small_program();
    let mut other = program.clone();
    other[18] = 183;
    let error = Table::read(other.as_slice(), &limits).expect_err("it is not for x86-64");
    assert_eq!(error.to_string(), "made for ELF machine 183, not for x86-64");
    let few = Limits { rows: 10, ..limits };
    assert_eq!(Table::read(program.as_slice(), &few), Err(Error::TooManyRows(10)));
    let small = Limits { section: 10, ..limits };
    let error = Table::read(program.as_slice(), &small).expect_err("it is larger").to_string();
    assert!(error.starts_with("section .eh_frame cannot be read: "), "{error}");
    assert_eq!(ElfSegments::read(&b"\x7fELF"[..]).map(|_| ()).map_err(|error| error.to_string().len() > 10), Err(true));
}

proptest! {
    /// A file with changed bytes gives a sorted, bounded table or an error.
    #[test]
    fn corrupted_files_do_not_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40), cut in any::<prop::sample::Index>()) {
        let mut program = small_program();
        for (at, byte) in changes {
            let at = at.index(program.len());
            program[at] = byte;
        }
        if cut.index(4) == 0 {
            program.truncate(cut.index(program.len()));
        }
        let limits = Limits { rows: 1 << 20, section: 1 << 24, ..Limits::default() };
        if let Ok(table) = Table::read(program.as_slice(), &limits) {
            prop_assert!(table.rows().is_sorted_by(|a, b| a.pc < b.pc));
            prop_assert!(table.rows().len() <= 1 << 20);
            for segment in table.segments().as_slice() {
                let _ = table.segments().load_bias(0x1000, segment.offset);
            }
        }
    }
}
