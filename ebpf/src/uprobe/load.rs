//! Loads a program for links to several locations (`BPF_TRACE_UPROBE_MULTI`, `BPF_TRACE_UPROBE_SESSION`), which aya cannot: it
//! loads uprobes without an expected attach type, and no program that calls kfuncs. The program is relocated to the maps that
//! aya created.

use std::collections::BTreeMap;
use std::ffi::c_long;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use aya::Ebpf;
use aya::maps::Map;
use aya_obj::btf::{Btf, BtfKind};
use aya_obj::generated::bpf_insn;
use aya_obj::{Function, Object, Program};

const BPF_PROG_LOAD: c_long = 5;
const BPF_BTF_LOAD: c_long = 18;
const BPF_PROG_TYPE_KPROBE: u32 = 2;
const BPF_TRACE_UPROBE_MULTI: u32 = 48;
const BPF_TRACE_UPROBE_SESSION: u32 = 57;
const BPF_F_SLEEPABLE: u32 = 1 << 4;
/// `BPF_JMP | BPF_CALL`
const CALL: u8 = 0x85;
/// `BPF_PSEUDO_KFUNC_CALL`
const KFUNC_CALL: u8 = 2;
/// Kfuncs, and the numbers by which programs call them: see `latency.bpf.c`.
const KFUNCS: [(i32, &str); 2] = [(0x7fff_0001, "bpf_session_is_return"), (0x7fff_0002, "bpf_session_cookie")];
/// As in `retry_eagain`.
const MAX_LOAD_ATTEMPTS: u32 = 10;

/// The links that a program is loaded for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkKind {
    /// Runs at each location, or at each return. Linux 6.6.
    Multi { is_sleepable: bool },
    /// Runs at the entry and at the return of each call. Linux 6.13.
    Session,
}

/// Loads a program of the object whose maps `bpf` has. `types`: those of the kernel, if the object has CO-RE relocations.
///
/// # Errors
/// The kernel refuses it, or does not know this kind of link.
pub(crate) fn load(object: &[u8], bpf: &Ebpf, types: Option<&Btf>, name: &str, kind: LinkKind) -> io::Result<OwnedFd> {
    let mut object = Object::parse(object).map_err(io::Error::other)?;
    let btf = load_btf(&mut object)?;
    if let Some(types) = types {
        object.relocate_btf(types).map_err(io::Error::other)?;
    }
    relocate(&mut object, bpf)?;
    object.sanitize_functions(aya::features());
    let missing = || io::Error::other(format!("no program {name} in the object"));
    let program = object.programs.get(name).ok_or_else(missing)?;
    let function = object.functions.get_mut(&program.function_key()).ok_or_else(missing)?;
    resolve_kfuncs(&mut function.instructions)?;
    for _ in 1..MAX_LOAD_ATTEMPTS {
        match load_program(name, program, function, &btf, kind) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return result,
        }
    }
    load_program(name, program, function, &btf, kind)
}

fn relocate(object: &mut Object, bpf: &Ebpf) -> io::Result<()> {
    let maps: BTreeMap<String, aya_obj::Map> = std::mem::take(&mut object.maps).into_iter().collect();
    let loaded = maps.iter().map(|(name, map)| {
        let fd = bpf.map(name).and_then(descriptor);
        let fd = fd.ok_or_else(|| io::Error::other(format!("the map {name} is not loaded")))?;
        Ok((name.as_str(), fd, map))
    });
    let loaded: Vec<_> = loaded.collect::<io::Result<_>>()?;
    let sections = object.functions.keys().map(|(section, _)| *section).collect();
    object.relocate_maps(loaded.into_iter(), &sections).map_err(io::Error::other)?;
    object.relocate_calls(&sections).map_err(io::Error::other)
}

fn descriptor(map: &Map) -> Option<RawFd> {
    match map {
        Map::Array(data) | Map::PerCpuArray(data) | Map::RingBuf(data) | Map::HashMap(data) | Map::LruHashMap(data) => {
            Some(data.fd().as_fd().as_raw_fd())
        }
        _ => None,
    }
}

/// Puts the kernel's numbers of kfuncs into the calls of them.
fn resolve_kfuncs(instructions: &mut [bpf_insn]) -> io::Result<()> {
    let mut kernel = None;
    for instruction in instructions {
        let called = KFUNCS.iter().find(|(number, _)| *number == instruction.imm);
        let Some((_, name)) = called.filter(|_| instruction.code == CALL && instruction.src_reg() == 0) else {
            continue;
        };
        let kernel = match &kernel {
            Some(btf) => btf,
            None => kernel.insert(Btf::from_sys_fs().map_err(io::Error::other)?),
        };
        let id = kernel.id_by_type_name_kind(name, BtfKind::Func).map_err(io::Error::other)?;
        instruction.imm = i32::try_from(id).map_err(io::Error::other)?;
        instruction.set_src_reg(KFUNC_CALL);
    }
    Ok(())
}

/// The types of the program: the kernel demands those of callbacks.
fn load_btf(object: &mut Object) -> io::Result<OwnedFd> {
    let features = aya::features().btf().ok_or_else(|| io::Error::other("the kernel loads no BTF"))?;
    let btf = object.fixup_and_sanitize_btf(features).map_err(io::Error::other)?;
    let bytes = btf.ok_or_else(|| io::Error::other("the object has no BTF"))?.to_bytes();
    let attr = BtfLoad {
        btf: bytes.as_ptr() as u64,
        size: u32::try_from(bytes.len()).map_err(io::Error::other)?,
        ..BtfLoad::default()
    };
    // SAFETY: a prefix of `union bpf_attr` of the given size, and the types it points to live during the call.
    owned(unsafe { libc::syscall(libc::SYS_bpf, BPF_BTF_LOAD, &raw const attr, size_of::<BtfLoad>()) })
}

/// The part of `union bpf_attr` for `BPF_BTF_LOAD`.
#[repr(C)]
#[derive(Default)]
struct BtfLoad {
    btf: u64,
    log: u64,
    size: u32,
    log_size: u32,
    log_level: u32,
    pad: u32,
}

/// The part of `union bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    prog_type: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    expected_attach_type: u32,
    btf: u32,
    func_info_size: u32,
    func_info: u64,
    func_info_count: u32,
    line_info_size: u32,
    line_info: u64,
    line_info_count: u32,
    pad: u32,
}

fn load_program(
    name: &str,
    program: &Program,
    function: &Function,
    btf: &OwnedFd,
    kind: LinkKind,
) -> io::Result<OwnedFd> {
    let func_info = function.func_info.func_info_bytes();
    let mut label = [0; 16];
    // Its last byte remains 0.
    label.iter_mut().take(15).zip(name.bytes()).for_each(|(to, from)| *to = from);
    let (expected_attach_type, flags) = match kind {
        LinkKind::Multi { is_sleepable } => (BPF_TRACE_UPROBE_MULTI, if is_sleepable { BPF_F_SLEEPABLE } else { 0 }),
        LinkKind::Session => (BPF_TRACE_UPROBE_SESSION, 0),
    };
    let attr = ProgLoad {
        prog_type: BPF_PROG_TYPE_KPROBE,
        instruction_count: u32::try_from(function.instructions.len()).map_err(io::Error::other)?,
        instructions: function.instructions.as_ptr() as u64,
        license: program.license.as_ptr() as u64,
        flags,
        name: label,
        expected_attach_type,
        btf: btf.as_raw_fd().cast_unsigned(),
        func_info_size: u32::try_from(function.func_info_rec_size).map_err(io::Error::other)?,
        func_info: func_info.as_ptr() as u64,
        func_info_count: u32::try_from(function.func_info.len()).map_err(io::Error::other)?,
        ..ProgLoad::default()
    };
    // SAFETY: a prefix of `union bpf_attr` of the given size, and what it points to lives during the call.
    owned(unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw const attr, size_of::<ProgLoad>()) })
}

fn owned(result: c_long) -> io::Result<OwnedFd> {
    let fd = i32::try_from(result).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: a new file descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
