//! A row of the table, in the layout that the BPF program reads (`struct rule_row` in `ebpf/src/bpf/rules.h`).

/// The unwind rule from one address up to the next row's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Row {
    /// Address, relative to [`Table::base`](crate::Table::base).
    pub pc: u32,
    /// Parameter of the [`CfaKind`]. For kinds that are an offset from a register, the low 24 bits are the signed
    /// offset and the high 8 bits `n` locate the caller's `rbx` at `CFA - 8 * n`; 0: still in `rbx`, 255: unknown.
    pub cfa: i32,
    /// Location of the caller's `rbp` according to the [`RbpKind`], in units of 8 bytes.
    pub rbp: i16,
    /// [`CfaKind`] as a number, decoded by [`Row::kind`].
    pub cfa_kind: u8,
    /// [`RbpKind`] as a number.
    pub rbp_kind: u8,
}

/// The computation of the canonical frame address (CFA). The BPF program uses the same numbers.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CfaKind {
    /// Code without call frame information.
    Gap = 0,
    /// `rsp` plus an offset
    Rsp = 1,
    /// `rbp` plus an offset
    Rbp = 2,
    /// `*(rsp + a) + b` with a the low, b the high 16 bits of `cfa`, both signed. Used by OCaml 5 when it switches
    /// stacks, and by OpenSSL.
    DerefRsp = 3,
    /// `*(rbp + a) + b`. Used by gcc when it realigns the stack.
    DerefRbp = 4,
    /// `*(*(rsp + a) + b) + c` with a the low 16 bits, b and c the higher bytes, all signed.
    /// Used by OCaml 5 in a fibre.
    DerefTwiceRsp = 5,
    /// `rsp + 8`, or `rsp + 16` if `pc & 15` is at least `cfa`. Used by procedure linkage tables.
    Plt = 6,
    /// The kernel's signal frame (`rt_sigframe`) at `rsp`, which contains the registers.
    Signal = 7,
    /// The outermost frame: the return address is undefined.
    End = 8,
    /// A rule that the unwinder does not support.
    Unsupported = 9,
    /// `rbx` plus an offset. Used by glibc's lazy binding.
    Rbx = 10,
    /// `r10` plus an offset. Used by gcc while it realigns the stack.
    R10 = 12,
    /// `r11` plus an offset. Used by gcc and LLVM during stack probing of large frames.
    R11 = 13,
    /// `rsp + 8` in the innermost frame, the frame pointer in outer frames. Used by Go.
    Leaf = 11,
}

/// Location of the caller's `rbp`.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RbpKind {
    /// Still in `rbp`.
    Same = 0,
    /// At `CFA + 8 * Row::rbp`.
    AtCfa = 1,
    /// At the function's own `rbp + 8 * Row::rbp`. Used by gcc when it realigns the stack.
    AtRbp = 2,
}

impl Row {
    /// The kind of the CFA rule.
    #[must_use]
    pub fn kind(&self) -> CfaKind {
        use CfaKind::*;
        [Gap, Rsp, Rbp, DerefRsp, DerefRbp, DerefTwiceRsp, Plt, Signal, End, Unsupported, Rbx, Leaf, R10, R11]
            .get(usize::from(self.cfa_kind))
            .copied()
            .unwrap_or(Unsupported)
    }

    /// The signed offset, for kinds that are an offset from a register.
    #[must_use]
    pub fn offset(&self) -> i32 {
        self.cfa << 8 >> 8
    }

    /// Offset from the CFA where the caller's `rbx` is saved, for kinds that are an offset from a register.
    #[must_use]
    pub fn rbx(&self) -> Option<i32> {
        let [.., slots] = self.cfa.to_le_bytes();
        (slots != 0 && slots != u8::MAX).then(|| -8 * i32::from(slots))
    }

    /// Whether both rows have the same rule, regardless of their address.
    pub(crate) fn same_rule(&self, other: &Self) -> bool {
        Self { pc: 0, ..*self } == Self { pc: 0, ..*other }
    }
}

const _: () = assert!(size_of::<Row>() == 12);
