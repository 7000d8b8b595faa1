//! What a return probe would break in a file.

use object::ReadRef;

use crate::{elf::Tables, error::Error};

/// What calls the unwinder of exceptions, or is called by it.
const UNWINDER: [&str; 6] = [
    "_Unwind_RaiseException",
    "_Unwind_Resume",
    "_Unwind_ForcedUnwind",
    "__cxa_throw",
    "__gxx_personality_v0",
    "rust_eh_personality",
];
/// Sections that only programs with handlers of exceptions have.
const HANDLERS: &str = ".gcc_except_table";
/// Libraries of the run-time that unwinds exceptions, by the start of their names.
const UNWINDER_LIBRARIES: [&str; 5] = ["libgcc_s.so", "libunwind.so", "libstdc++.so", "libc++.so", "libc++abi.so"];
/// What switches stacks: `ucontext`, Boost, libco, libcoro, minicoro, and signal handlers with a stack of their own.
const SWITCHES: [&str; 9] = [
    "makecontext",
    "swapcontext",
    "setcontext",
    "sigaltstack",
    "jump_fcontext",
    "ontop_fcontext",
    "co_switch",
    "coro_transfer",
    "_mco_switch",
];
/// Sections that only Go has.
const GO: [&str; 3] = [".gopclntab", ".note.go.buildid", ".go.buildinfo"];
/// The run-time of OCaml's native compiler (`runtime/amd64.S`).
const OCAML: [&str; 2] = ["caml_call_gc", "caml_start_program"];
/// OCaml 5 (`runtime/fiber.c`): copies a stack that is too small to a larger one.
const OCAML_GROWS_STACKS: &str = "caml_try_realloc_stack";
/// The module of effects, which is linked only if it is used.
const OCAML_EFFECTS: &str = "camlStdlib__Effect";
/// The C library, by the start of the names of its files: it has functions for all of this and uses none on its own.
const C_LIBRARY: [&str; 6] = ["libc.so", "libc-2.", "ld-linux", "ld-2.", "libpthread", "ld-musl"];

/// Why a return probe, which replaces the return address on the stack, is not safe for functions of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hazard {
    /// Not known: other files of its processes have not been read.
    Unexamined,
    /// Functions run on several stacks in turn, as coroutines or as signal handlers with a stack of their own. The kernel takes
    /// calls in progress on another stack for calls that were left: when they return, the process is ended (SIGILL).
    Coroutines,
    /// Exceptions or panics may propagate through a call: the unwinder ends the process.
    Unwinding,
    /// OCaml: its garbage collector finds what a stack frame refers to by the return address, and crashes.
    Ocaml,
    /// OCaml 5: as [`Self::Ocaml`], and a stack that is too small is moved, also while functions run.
    OcamlGrowing,
    /// OCaml 5 with effects: as [`Self::OcamlGrowing`], with many stacks that begin small.
    OcamlEffects,
    /// Go moves stacks and checks return addresses: the process crashes.
    Go,
}

impl Hazard {
    /// Of a library with this file name, whatever it has; `None` if the name says nothing.
    #[must_use]
    pub fn of_library(name: &str) -> Option<Self> {
        UNWINDER_LIBRARIES.iter().any(|library| name.starts_with(library)).then_some(Self::Unwinding)
    }

    /// What a file brings into each process that loads it, so that other files of the process are not safe either.
    ///
    /// # Errors
    /// It is not an ELF file for x86-64, or its tables are damaged or too large.
    pub fn of_process<'data, R: ReadRef<'data>>(name: &str, data: R) -> Result<Option<Self>, Error> {
        if C_LIBRARY.iter().any(|library| name.starts_with(library)) {
            return Ok(None);
        }
        let found = Self::of(&Tables::read(data)?, None);
        // The others are about the frames of the language's own functions.
        Ok(found.filter(|hazard| matches!(hazard, Self::Coroutines | Self::Unwinding)).max(Self::of_library(name)))
    }

    /// Whether no return probe may be put into the file.
    #[must_use]
    pub fn is_ocaml(self) -> bool {
        matches!(self, Self::Ocaml | Self::OcamlGrowing | Self::OcamlEffects)
    }

    /// The worst of a file and its debug file.
    pub(crate) fn of(tables: &Tables<'_>, debug: Option<&Tables<'_>>) -> Option<Self> {
        if tables.sections.iter().any(|section| GO.contains(section)) {
            return Some(Self::Go);
        }
        let mut found = tables.needed.iter().filter_map(|name| Self::of_library(name)).max();
        if tables.sections.contains(&HANDLERS) {
            found = found.max(Some(Self::Unwinding));
        }
        let (mut is_ocaml, mut grows, mut has_effects) = (false, false, false);
        for symbol in tables.symbols.iter().chain(debug.iter().flat_map(|debug| &debug.symbols)) {
            let name = symbol.name.split('@').next().unwrap_or_default();
            if UNWINDER.contains(&name) {
                found = found.max(Some(Self::Unwinding));
            } else if SWITCHES.contains(&name) {
                found = found.max(Some(Self::Coroutines));
            }
            is_ocaml |= OCAML.contains(&name);
            grows |= name == OCAML_GROWS_STACKS;
            has_effects |= name.starts_with(OCAML_EFFECTS);
        }
        let ocaml = match (is_ocaml, grows, has_effects) {
            (false, ..) => None,
            (true, false, _) => Some(Self::Ocaml),
            (true, true, false) => Some(Self::OcamlGrowing),
            (true, true, true) => Some(Self::OcamlEffects),
        };
        found.max(ocaml)
    }
}
