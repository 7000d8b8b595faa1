/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * One step of an unwind: from a frame to its caller, by the unwind rule of its address, or by its frame pointer where there is
 * no rule.
 */
#pragma once
#include "unwind_state.h"

/* Unreadable address that stands for a lost value of bx. */
#define BX_LOST (~7ULL)

/* Offsets of the registers in the signal frame of the kernel, from sp. */
enum { SIGNAL_BP = 120, SIGNAL_BX = 128, SIGNAL_SP = 160, SIGNAL_IP = 168 };

/* How `unwind_frame` reads the stack: through the copy of it, or from the memory of the process. */
enum read_mode { READ_COPY, READ_DIRECT };

static __always_inline int read_stack(struct unwind_ctx *ctx, u64 at, u64 *value, enum read_mode mode)
{
	return mode == READ_COPY ? read_slot(ctx, at, value) : bpf_probe_read_user(value, 8, (void *)at) != 0;
}

static __always_inline void init_cursor(struct unwind_cursor *w, const struct pt_regs *r)
{
	w->f.ip = r->ip;
	w->f.sp = r->sp;
	w->f.bp = r->bp;
	w->bx = r->bx;
	w->r10 = r->r10;
	w->r11 = r->r11;
	w->bx_at = 0;
	w->f.bp_at = w->f.cfa_at[0] = w->f.cfa_at[1] = 0;
	w->f.flags = F_EXACT;
	w->end = w->by_register = 0;
}

/* Address to look up the rule of a frame by: a return address may be the end of the function. */
static __always_inline u64 lookup_pc(const struct unwind_cursor *w)
{
	return w->f.ip - !(w->f.flags & F_EXACT);
}

/* Whether a frame pointer led to an address that is no code. */
static __always_inline int is_no_code(const struct unwind_cursor *w, u64 rule)
{
	return cfa_kind_of(rule) == CFA_NO_MAPPING && (w->f.flags & F_BY_BP);
}

/* Whether sp points to the number of arguments, as the kernel writes it: an entry point without a rule (that of ld.so). */
static __always_inline int is_entry(struct unwind_ctx *ctx, struct unwind_cursor *w, enum read_mode mode)
{
	u64 arguments = 0;
	return !read_stack(ctx, w->f.sp, &arguments, mode) && arguments - 1 < 1 << 20;
}

/*
 * Unwinds one frame: stores it in `f` with flags for the registers that it depends on, and sets the cursor to its caller.
 * `rule` is the rule of the address `pc`, `n` the number of frames inside this one. Returns 1 at the end of the stack; then
 * `end` of the cursor has the reason.
 */
static __always_inline long unwind_frame(struct unwind_ctx *ctx, struct unwind_cursor *w, struct frame *f, u64 rule,
					 u64 pc, u32 n, enum read_mode mode)
{
	u64 cfa = 0, ra = 0, bp_at = 0;
	u32 by_bp = 0;
	u16 flags = w->f.flags;
	u8 kind = cfa_kind_of(rule), rbp_kind = rbp_kind_of(rule);
	s32 at = cfa_of(rule);

	if (kind == CFA_LEAF) {
		kind = flags & F_EXACT ? CFA_RSP : CFA_NO_TABLE;
		rule = 8;
	}
	if (kind == CFA_NO_TABLE || kind == CFA_GAP) {
		/* By convention rbp points to the caller's rbp, below the return address, and is 0 at the outermost frame. */
		by_bp = 1;
		if (w->f.bp && !(w->f.bp & 7)) {
			kind = CFA_NO_TABLE;
		} else {
			w->end = !w->f.bp && (kind == CFA_NO_TABLE || (flags & F_BY_BP) || is_entry(ctx, w, mode)) ? COMPLETE : NO_RULE;
			kind = CFA_END;
		}
	}
	*f = w->f;
	if (by_bp || kind == CFA_RBP || kind == CFA_DEREF_RBP || rbp_kind == RBP_AT_RBP)
		f->flags = flags | F_USES_BP;
	if (by_bp || rbp_kind)
		f->flags |= F_SETS_BP;
	w->f.flags = 0;
	w->f.bp_at = w->f.cfa_at[0] = w->f.cfa_at[1] = 0;
	switch (kind) {
	case CFA_RSP:
	case CFA_RBP:
	case CFA_RBX:
		at = offset_of(rule);
		if (kind == CFA_RSP) {
			cfa = w->f.sp + at;
		} else if (kind == CFA_RBP) {
			cfa = w->f.bp + at;
		} else {
			f->flags |= F_USES_MORE;
			cfa = w->bx;
			if (w->bx_at && read_stack(ctx, w->bx_at, &cfa, mode)) {
				w->end = UNREADABLE;
				return 1;
			}
			w->by_register |= !w->bx_at;
			w->f.cfa_at[0] = w->bx_at;
			w->f.cfa_value[0] = cfa;
			cfa += at;
		}
		if (rbx_of(rule))
			w->bx_at = rbx_of(rule) == RBX_LOST ? BX_LOST : cfa - 8 * (u64)rbx_of(rule);
		break;
	case CFA_R10:
	case CFA_R11:
		if (n || !(flags & F_EXACT)) {
			w->end = NO_RULE;
			return 1;
		}
		f->flags |= F_USES_MORE;
		w->by_register = 1;
		cfa = (kind == CFA_R10 ? w->r10 : w->r11) + offset_of(rule);
		w->bx_at = !rbx_of(rule) ? 0 : rbx_of(rule) == RBX_LOST ? BX_LOST : cfa - 8 * (u64)rbx_of(rule);
		break;
	case CFA_PLT:
		cfa = w->f.sp + 8 + (((pc & 15) >= (u32)at) << 3);
		break;
	case CFA_NO_TABLE:
		cfa = w->f.bp + 16;
		rbp_kind = RBP_AT_CFA;
		rule = 0xfffeULL << 32; /* two slots below */
		w->bx_at = BX_LOST;
		w->f.flags = F_BY_BP;
		break;
	case CFA_DEREF_RSP:
	case CFA_DEREF_RBP:
	case CFA_DEREF_TWICE_RSP:
		w->bx_at = BX_LOST;
		w->f.cfa_at[0] = (kind == CFA_DEREF_RBP ? w->f.bp : w->f.sp) + (s16)at;
		if (read_stack(ctx, w->f.cfa_at[0], &cfa, mode)) {
			w->end = UNREADABLE;
			return 1;
		}
		w->f.cfa_value[0] = cfa;
		if (kind == CFA_DEREF_TWICE_RSP) {
			w->f.cfa_at[1] = cfa + (s8)(at >> 16);
			if (read_stack(ctx, w->f.cfa_at[1], &cfa, mode)) {
				w->end = UNREADABLE;
				return 1;
			}
			w->f.cfa_value[1] = cfa;
			cfa += (s8)(at >> 24);
		} else {
			cfa += at >> 16;
		}
		break;
	case CFA_SIGNAL:
		f->flags |= F_SETS_BP;
		cfa = w->f.sp;
		if (read_stack(ctx, cfa + SIGNAL_SP, &w->f.sp, mode) || read_stack(ctx, cfa + SIGNAL_IP, &ra, mode) ||
		    read_stack(ctx, cfa + SIGNAL_BP, &w->f.bp, mode)) {
			w->end = UNREADABLE;
			return 1;
		}
		w->f.ip = ra;
		w->bx_at = cfa + SIGNAL_BX;
		w->f.flags = F_EXACT | F_BREAK;
		return 0;
	case CFA_END:
		return 1;
	case CFA_NO_MAPPING:
		w->end = ctx->cpu->state.loading ? LOADING : NO_MAPPING;
		return 1;
	default:
		w->end = NO_RULE;
		return 1;
	}
	if (read_stack(ctx, cfa - 8, &ra, mode)) {
		w->end = UNREADABLE;
		return 1;
	}
	if (rbp_kind) {
		bp_at = (rbp_kind == RBP_AT_CFA ? cfa : w->f.bp) + rbp_offset_of(rule);
		if (read_stack(ctx, bp_at, &w->f.bp, mode)) {
			w->end = UNREADABLE;
			return 1;
		}
		w->f.bp_at = bp_at;
	}
	w->f.sp = cfa;
	w->f.ip = ra;
	return !ra;
}
