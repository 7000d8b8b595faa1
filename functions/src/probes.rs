//! Where a function can be probed: the cheapest instruction of its entry, and the instructions that leave it.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};
use object::ReadRef;

use crate::{
    elf::Segment,
    error::ProbeError,
    function::{Function, Part},
};

/// Maximum size of a function that is decoded, in bytes.
const MAX_CODE: u64 = 1 << 20;
/// How many instructions after the first one the entry may be probed.
const MAX_SHIFT: usize = 8;

/// How many instructions before a `ret` may load the stack pointer of a handler of exceptions.
const MAX_RAISE: usize = 2;

/// What the kernel does when a probed instruction is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cost {
    /// Emulates it: about 0.7 µs.
    Emulated(Emulated),
    /// Executes it out of line, in a single step: a second exception, 2 to 10 µs, much more in some virtual machines.
    SingleStepped,
}

/// An instruction that the kernel emulates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Emulated {
    /// `nop`
    Nop,
    /// `push` of a register.
    Push,
    /// A direct `jmp`.
    Jump,
    /// A direct `call`.
    Call,
}

/// What a measurement of a function leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Note {
    /// It may leave by a jump whose target is computed. Calls that do look as if they never ended.
    ComputedJumps {
        /// How many there are.
        count: usize,
    },
    /// It leaves by jumps to other functions, whose time is not its own, and whose return code is not counted.
    TailCalls {
        /// How many there are.
        count: usize,
    },
    /// No instruction leaves it: it ends by exceptions, ends the thread, or runs for ever.
    NeverReturns,
}

/// Where to probe a function. File offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probes {
    /// Where the entry is probed: executed once for each call, with the stack pointer as it was at the call.
    pub entry: u64,
    /// What that costs.
    pub entry_cost: Cost,
    /// Its `ret` instructions; each is single-stepped.
    pub returns: Vec<u64>,
    /// Its jumps to other functions; emulated.
    pub tail_calls: Vec<u64>,
    /// What is left out.
    pub notes: Vec<Note>,
}

/// The code of a function.
struct Code {
    /// By address.
    instructions: BTreeMap<u64, Instruction>,
    ranges: Vec<Part>,
}

pub(crate) fn of<'data, R: ReadRef<'data>>(
    data: R,
    segments: &[Segment],
    starts: &[u64],
    function: &Function,
    part: Part,
) -> Result<Probes, ProbeError> {
    if part.size == 0 {
        return Err(ProbeError::NoSize);
    }
    let mut code = Code { instructions: BTreeMap::new(), ranges: Vec::new() };
    for range in std::iter::once(&part).chain(&function.cold) {
        code.decode(data, segments, *range)?;
    }
    let offset = |address: u64| offset_of(segments, address, 1).ok_or(ProbeError::NoCode { address });
    let targets = code.jump_targets();
    if targets.contains(&part.address) {
        return Err(ProbeError::LoopsToEntry);
    }
    let (entry, entry_cost) = code.entry(part.address, &targets)?;
    let mut probes =
        Probes { entry: offset(entry)?, entry_cost, returns: Vec::new(), tail_calls: Vec::new(), notes: Vec::new() };
    let mut computed = 0;
    for (address, instruction) in &code.instructions {
        match code.leaves(instruction, starts)? {
            Leaves::No => {}
            Leaves::Return => probes.returns.push(offset(*address)?),
            Leaves::TailCall => probes.tail_calls.push(offset(*address)?),
            Leaves::Maybe => computed += 1,
        }
    }
    if computed > 0 {
        probes.notes.push(Note::ComputedJumps { count: computed });
    }
    if !probes.tail_calls.is_empty() {
        probes.notes.push(Note::TailCalls { count: probes.tail_calls.len() });
    }
    if probes.returns.is_empty() && probes.tail_calls.is_empty() {
        probes.notes.push(Note::NeverReturns);
    }
    Ok(probes)
}

/// Whether an instruction leaves a function.
enum Leaves {
    No,
    Return,
    TailCall,
    Maybe,
}

impl Code {
    fn decode<'data, R: ReadRef<'data>>(
        &mut self,
        data: R,
        segments: &[Segment],
        range: Part,
    ) -> Result<(), ProbeError> {
        if range.size > MAX_CODE {
            return Err(ProbeError::TooLarge { size: range.size });
        }
        let no_code = ProbeError::NoCode { address: range.address };
        let offset = offset_of(segments, range.address, range.size).ok_or(no_code)?;
        let bytes = data.read_bytes_at(offset, range.size).map_err(|()| no_code)?;
        let mut decoder = Decoder::with_ip(64, bytes, range.address, DecoderOptions::NONE);
        while decoder.can_decode() {
            let address = decoder.ip();
            let instruction = decoder.decode();
            if instruction.is_invalid() {
                return Err(ProbeError::Undecodable { address });
            }
            self.instructions.insert(address, instruction);
        }
        self.ranges.push(range);
        Ok(())
    }

    fn contains(&self, address: u64) -> bool {
        self.ranges.iter().any(|range| address.wrapping_sub(range.address) < range.size)
    }

    /// Targets of jumps within the function.
    fn jump_targets(&self) -> BTreeSet<u64> {
        let jumps = self.instructions.values().filter(|instruction| is_jump(instruction));
        jumps.map(Instruction::near_branch_target).filter(|target| self.contains(*target)).collect()
    }

    /// The first instruction that the kernel emulates, of those that every call executes before the stack pointer changes; or
    /// else the first one.
    fn entry(&self, start: u64, targets: &BTreeSet<u64>) -> Result<(u64, Cost), ProbeError> {
        let mut info = InstructionInfoFactory::new();
        for (address, instruction) in self.instructions.range(start..).take(MAX_SHIFT) {
            if *address != start && targets.contains(address) {
                break;
            }
            if let Some(emulated) = emulated(instruction) {
                return Ok((*address, Cost::Emulated(emulated)));
            }
            let used = info.info(instruction);
            let writes_stack_pointer = used.used_registers().iter().any(|used| {
                let is_read = matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
                used.register().full_register() == Register::RSP && !is_read
            });
            if instruction.flow_control() != FlowControl::Next || writes_stack_pointer {
                break;
            }
        }
        match self.instructions.contains_key(&start) {
            true => Ok((start, Cost::SingleStepped)),
            false => Err(ProbeError::NoCode { address: start }),
        }
    }

    /// Whether a `ret` goes to a handler of exceptions, as OCaml's does: the stack pointer was loaded from memory just before it, and
    /// is no more that of the call.
    fn raises(&self, instruction: &Instruction) -> bool {
        let mut end = instruction.ip();
        self.instructions.range(..end).rev().take(MAX_RAISE).any(|(address, before)| {
            let is_next = address + before.len() as u64 == end;
            end = *address;
            is_next
                && before.mnemonic() == Mnemonic::Mov
                && before.op0_register() == Register::RSP
                && before.op1_kind() == OpKind::Memory
        })
    }

    fn leaves(&self, instruction: &Instruction, starts: &[u64]) -> Result<Leaves, ProbeError> {
        let target = instruction.near_branch_target();
        Ok(match instruction.flow_control() {
            FlowControl::Return if self.raises(instruction) => Leaves::No,
            FlowControl::Return => Leaves::Return,
            FlowControl::IndirectBranch => Leaves::Maybe,
            // An address that no symbol names, such as one of the procedure linkage table.
            FlowControl::UnconditionalBranch if !self.contains(target) => Leaves::TailCall,
            // Without a symbol it is cold code of the function.
            FlowControl::ConditionalBranch if !self.contains(target) && starts.binary_search(&target).is_ok() => {
                return Err(ProbeError::ConditionalTailCall { address: instruction.ip() });
            }
            _ => Leaves::No,
        })
    }
}

fn is_jump(instruction: &Instruction) -> bool {
    matches!(instruction.flow_control(), FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch)
}

/// What `arch/x86/kernel/uprobes.c` emulates: `push` of a register, `nop` without a prefix, and direct jumps and calls.
fn emulated(instruction: &Instruction) -> Option<Emulated> {
    match instruction.mnemonic() {
        Mnemonic::Push if instruction.op0_register().is_gpr64() => Some(Emulated::Push),
        Mnemonic::Nop if instruction.len() == 1 => Some(Emulated::Nop),
        Mnemonic::Jmp if instruction.code().is_jmp_short_or_near() => Some(Emulated::Jump),
        Mnemonic::Call if instruction.code().is_call_near() => Some(Emulated::Call),
        _ => None,
    }
}

fn offset_of(segments: &[Segment], address: u64, size: u64) -> Option<u64> {
    let segment = segments.iter().find(|segment| {
        let within = address.checked_sub(segment.address);
        within.and_then(|within| within.checked_add(size)).is_some_and(|end| end <= segment.size)
    })?;
    segment.offset.checked_add(address - segment.address)
}
