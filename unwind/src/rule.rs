//! Conversion of gimli's unwind rules to rows, for the forms that compilers, linkers and runtimes emit.

use gimli::{CfaRule, Encoding, Operation, Reader, Register, RegisterRule, UnwindExpression, UnwindTableRow};

use crate::row::{CfaKind, RbpKind, Row};

const RBX: Register = Register(3);
const RBP: Register = Register(6);
const RSP: Register = Register(7);
/// Maximum number of operations of a supported expression.
const MAX_OPERATIONS: usize = 12;

/// Offsets of `gregs` from `rsp` in the kernel's signal frame (`struct rt_sigframe` after the handler's `ret`).
const SIGNAL_RBP: i64 = 120;
const SIGNAL_RSP: i64 = 160;
const SIGNAL_RIP: i64 = 168;

/// The section that contains an expression, and its encoding.
pub(crate) struct Context<'a, R: Reader> {
    pub(crate) section: &'a R,
    pub(crate) encoding: Encoding,
    /// The return address column.
    pub(crate) return_address: Register,
}

/// Converts gimli's rules at `pc` to a row.
pub(crate) fn row<R: Reader<Offset = usize>>(pc: u32, rules: &UnwindTableRow<usize>, context: &Context<'_, R>) -> Row {
    let unsupported = Row { pc, cfa_kind: CfaKind::Unsupported as u8, ..Row::default() };
    match rules.register(context.return_address) {
        Some(RegisterRule::Undefined) => return Row { cfa_kind: CfaKind::End as u8, ..unsupported },
        Some(RegisterRule::Offset(-8)) => {}
        Some(RegisterRule::Expression(at)) if is_register_at(context, &at, RSP, SIGNAL_RIP) => {
            let signal = is_signal_frame(rules, context);
            return if signal { Row { cfa_kind: CfaKind::Signal as u8, ..unsupported } } else { unsupported };
        }
        _ => return unsupported,
    }
    let Some((kind, cfa)) = cfa(rules.cfa(), rules.register(RBX), context) else { return unsupported };
    let Some((rbp_kind, rbp)) = rbp(rules.register(RBP), context) else { return unsupported };
    Row { pc, cfa, rbp, cfa_kind: kind as u8, rbp_kind: rbp_kind as u8 }
}

fn cfa<R: Reader<Offset = usize>>(
    rule: &CfaRule<usize>,
    rbx: Option<RegisterRule<usize>>,
    context: &Context<'_, R>,
) -> Option<(CfaKind, i32)> {
    match rule {
        CfaRule::RegisterAndOffset { register, offset } => register_cfa(*register, *offset, rbx_slot(rbx)),
        CfaRule::Expression(expression) => {
            let (operations, count) = operations(context, expression)?;
            expression_cfa(operations.get(..count)?)
        }
    }
}

fn register_cfa(register: Register, offset: i64, rbx: u8) -> Option<(CfaKind, i32)> {
    let kind = match register {
        RSP => CfaKind::Rsp,
        RBP => CfaKind::Rbp,
        RBX => CfaKind::Rbx,
        Register(10) => CfaKind::R10,
        Register(11) => CfaKind::R11,
        _ => return None,
    };
    let [a, b, c, d] = i32::try_from(offset).ok()?.to_le_bytes();
    // 24 bits, signed.
    let fits = if c < 0x80 { d == 0 } else { d == 0xff };
    fits.then_some((kind, i32::from_le_bytes([a, b, c, rbx])))
}

/// The slot below the CFA where `rbx` is saved; 0: not saved, 255: not expressible.
fn rbx_slot(rule: Option<RegisterRule<usize>>) -> u8 {
    match rule {
        None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => 0,
        Some(RegisterRule::Offset(offset)) => {
            slots(offset).and_then(i16::checked_neg).and_then(|below| u8::try_from(below).ok()).unwrap_or(u8::MAX)
        }
        Some(_) => u8::MAX,
    }
}

fn expression_cfa<R: Reader>(operations: &[Operation<R>]) -> Option<(CfaKind, i32)> {
    use Operation::{Deref, Minus, Plus, PlusConstant, RegisterOffset, UnsignedConstant};
    match operations {
        [RegisterOffset { register, offset, .. }] => register_cfa(*register, *offset, 0),
        [RegisterOffset { register, offset, .. }, Deref { size: 8, .. }] => deref(*register, *offset, 0),
        [RegisterOffset { register, offset, .. }, Deref { size: 8, .. }, PlusConstant { value }] => {
            deref(*register, *offset, i64::try_from(*value).ok()?)
        }
        [RegisterOffset { register, offset, .. }, Deref { size: 8, .. }, UnsignedConstant { value }, Plus] => {
            deref(*register, *offset, i64::try_from(*value).ok()?)
        }
        [RegisterOffset { register, offset, .. }, Deref { size: 8, .. }, UnsignedConstant { value }, Minus] => {
            deref(*register, *offset, -i64::try_from(*value).ok()?)
        }
        [RegisterOffset { register: RSP, offset, .. }, Deref { size: 8, .. }, Deref { size: 8, .. }, rest @ ..] => {
            deref_twice(*offset, 0, rest)
        }
        [
            RegisterOffset { register: RSP, offset, .. },
            Deref { size: 8, .. },
            PlusConstant { value },
            Deref { size: 8, .. },
            rest @ ..,
        ] => deref_twice(*offset, *value, rest),
        _ => plt(operations),
    }
}

fn deref(register: Register, offset: i64, add: i64) -> Option<(CfaKind, i32)> {
    let kind = match register {
        RSP => CfaKind::DerefRsp,
        RBP => CfaKind::DerefRbp,
        _ => return None,
    };
    let [a, b] = i16::try_from(offset).ok()?.to_le_bytes();
    let [c, d] = i16::try_from(add).ok()?.to_le_bytes();
    Some((kind, i32::from_le_bytes([a, b, c, d])))
}

fn deref_twice<R: Reader>(offset: i64, between: u64, rest: &[Operation<R>]) -> Option<(CfaKind, i32)> {
    let after = match rest {
        [] => 0,
        [Operation::PlusConstant { value }] => *value,
        _ => return None,
    };
    let [a, b] = i16::try_from(offset).ok()?.to_le_bytes();
    let [c] = i8::try_from(between).ok()?.to_le_bytes();
    let [d] = i8::try_from(after).ok()?.to_le_bytes();
    Some((CfaKind::DerefTwiceRsp, i32::from_le_bytes([a, b, c, d])))
}

/// `rsp + 8 + ((rip & 15) >= threshold ? 8 : 0)`, as emitted by GNU ld and lld.
fn plt<R: Reader>(operations: &[Operation<R>]) -> Option<(CfaKind, i32)> {
    use Operation::{And, Ge, Plus, RegisterOffset, Shl, UnsignedConstant};
    match operations {
        [
            RegisterOffset { register: RSP, offset: 8, .. },
            RegisterOffset { register: Register(16), offset: 0, .. },
            UnsignedConstant { value: 15 },
            And,
            UnsignedConstant { value: threshold @ 0..=15 },
            Ge,
            UnsignedConstant { value: 3 },
            Shl,
            Plus,
        ] => Some((CfaKind::Plt, i32::try_from(*threshold).ok()?)),
        _ => None,
    }
}

fn rbp<R: Reader<Offset = usize>>(
    rule: Option<RegisterRule<usize>>,
    context: &Context<'_, R>,
) -> Option<(RbpKind, i16)> {
    match rule {
        None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => Some((RbpKind::Same, 0)),
        Some(RegisterRule::Offset(offset)) => Some((RbpKind::AtCfa, slots(offset)?)),
        Some(RegisterRule::Expression(at)) => {
            let (operations, count) = operations(context, &at)?;
            match operations.get(..count)? {
                [Operation::RegisterOffset { register: RBP, offset, .. }] => Some((RbpKind::AtRbp, slots(*offset)?)),
                _ => None,
            }
        }
        Some(_) => None,
    }
}

/// Converts a byte offset to units of 8 bytes; `None` if it is unaligned or out of range.
fn slots(offset: i64) -> Option<i16> {
    if offset % 8 == 0 { i16::try_from(offset / 8).ok() } else { None }
}

fn is_signal_frame<R: Reader<Offset = usize>>(rules: &UnwindTableRow<usize>, context: &Context<'_, R>) -> bool {
    let rsp = match rules.cfa() {
        CfaRule::Expression(expression) => operations(context, expression).is_some_and(|(operations, count)| {
            matches!(
                operations.get(..count),
                Some([
                    Operation::RegisterOffset { register: RSP, offset: SIGNAL_RSP, .. },
                    Operation::Deref { size: 8, .. }
                ])
            )
        }),
        CfaRule::RegisterAndOffset { .. } => false,
    };
    rsp && matches!(rules.register(RBP), Some(RegisterRule::Expression(at)) if is_register_at(context, &at, RSP, SIGNAL_RBP))
}

fn is_register_at<R: Reader<Offset = usize>>(
    context: &Context<'_, R>,
    expression: &UnwindExpression<usize>,
    expected: Register,
    at: i64,
) -> bool {
    operations(context, expression).is_some_and(|(operations, count)| {
        matches!(operations.get(..count), Some([Operation::RegisterOffset { register, offset, .. }])
            if *register == expected && *offset == at)
    })
}

/// The operations of an expression and their number; `None` if there are too many or one is unreadable.
fn operations<R: Reader<Offset = usize>>(
    context: &Context<'_, R>,
    expression: &UnwindExpression<usize>,
) -> Option<([Operation<R>; MAX_OPERATIONS], usize)> {
    let mut bytes = context.section.clone();
    bytes.skip(expression.offset).ok()?;
    bytes.truncate(expression.length).ok()?;
    let mut found = gimli::Expression(bytes).operations(context.encoding);
    let mut operations = std::array::from_fn(|_| Operation::Nop);
    let mut count = 0;
    while let Some(operation) = found.next().ok()? {
        *operations.get_mut(count)? = operation;
        count += 1;
    }
    Some((operations, count))
}
