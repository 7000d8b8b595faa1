//! A row of the table, in the layout that the BPF program reads (`struct rule_row` in `ebpf/src/bpf/rules.h`).

/// How the caller's frame is found from one address on, until the next row's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Row {
    /// Address, relative to [`Table::base`](crate::Table::base).
    pub pc: u32,
    /// Parameter of the kind; see [`CfaKind`]. Where that is an offset from a register, it is the low 24 bits, signed, and
    /// the high 8 bits say where the caller's `rbx` is: at CFA - 8 times as much; 0: still in `rbx`, 255: lost.
    pub cfa: i32,
    /// Where the caller's `rbp` is, by [`RbpKind`], in units of 8 bytes.
    pub rbp: i16,
    /// [`CfaKind`] as a number: what it means is for [`Row::kind`] to say.
    pub cfa_kind: u8,
    /// [`RbpKind`] as a number.
    pub rbp_kind: u8,
}

/// How the canonical frame address (CFA) is computed; the numbers are those of the BPF program.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CfaKind {
    /// No function is known here.
    Gap = 0,
    /// `rsp` plus an offset
    Rsp = 1,
    /// `rbp` plus an offset
    Rbp = 2,
    /// `*(rsp + a) + b` with a the low, b the high 16 bits of `cfa`, both signed. OCaml 5 at a switch of stacks, OpenSSL.
    DerefRsp = 3,
    /// `*(rbp + a) + b`. gcc where it realigns the stack.
    DerefRbp = 4,
    /// `*(*(rsp + a) + b) + c` with a the low 16 bits, b and c the higher bytes, all signed. OCaml 5 in a fibre.
    DerefTwiceRsp = 5,
    /// `rsp + 8`, and 8 more where `pc & 15` is at least `cfa`: procedure linkage tables.
    Plt = 6,
    /// The kernel's signal frame at `rsp`: registers are in it.
    Signal = 7,
    /// The outermost frame: the return address is undefined.
    End = 8,
    /// There is a rule, but none that can be followed.
    Unsupported = 9,
    /// `rbx` plus an offset. glibc's lazy binding of functions.
    Rbx = 10,
    /// `r10` plus an offset: gcc while it realigns the stack.
    R10 = 12,
    /// `r11` plus an offset: gcc and LLVM while they touch the pages of a large frame one by one.
    R11 = 13,
    /// `rsp + 8` where a function was interrupted; where it has called another, `rbp` tells. Go.
    Leaf = 11,
}

/// Where the caller's `rbp` is.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RbpKind {
    /// Still in `rbp`.
    Same = 0,
    /// At `CFA + 8 * rbp`.
    AtCfa = 1,
    /// At the function's own `rbp + 8 * Row::rbp`. gcc where it realigns the stack.
    AtRbp = 2,
}

impl Row {
    /// The kind of its CFA.
    #[must_use]
    pub fn kind(&self) -> CfaKind {
        use CfaKind::*;
        [Gap, Rsp, Rbp, DerefRsp, DerefRbp, DerefTwiceRsp, Plt, Signal, End, Unsupported, Rbx, Leaf, R10, R11]
            .get(usize::from(self.cfa_kind))
            .copied()
            .unwrap_or(Unsupported)
    }

    /// The offset from a register, where the kind has one.
    #[must_use]
    pub fn offset(&self) -> i32 {
        self.cfa << 8 >> 8
    }

    /// Where the caller's `rbx` was saved, as an offset from the CFA; only where the kind is an offset from a register.
    #[must_use]
    pub fn rbx(&self) -> Option<i32> {
        let [.., slots] = self.cfa.to_le_bytes();
        (slots != 0 && slots != u8::MAX).then(|| -8 * i32::from(slots))
    }

    /// Whether both lead the same way to the caller.
    pub(crate) fn same_rule(&self, other: &Self) -> bool {
        Self { pc: 0, ..*self } == Self { pc: 0, ..*other }
    }
}

const _: () = assert!(size_of::<Row>() == 12);
