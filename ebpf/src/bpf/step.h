/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * One step from a frame to its caller, by the rule for its address, or by its frame pointer where there is none.
 */
#pragma once
#include "frames.h"

/* An address that cannot be read: bx is not known any more. */
#define BX_LOST (~7ULL)

/* Where the kernel's signal frame has the registers, from sp. */
enum { SIGNAL_BP = 120, SIGNAL_BX = 128, SIGNAL_SP = 160, SIGNAL_IP = 168 };

/* Whether sp points to the number of arguments, as the kernel has put it: an entry point without a rule (ld.so's). */
static __always_inline int is_entry(struct here *h)
{
	u64 arguments;
	return !read_slot(h, h->c->walk.f.sp, &arguments) && arguments - 1 < 1 << 20;
}

/* One step from the registers outwards: drops a remembered frame that has been popped, or unwinds a frame. */
static __always_inline long step(struct here *h)
{
	struct cpu *c = h->c;
	struct walk *w = &c->walk;
	struct frame *f;
	u64 cfa = 0, ra = 0, bp_at = 0, pc, rule;
	u32 j = w->candidate, n = w->count, by_bp = 0;
	u16 flags = w->f.flags;
	u8 kind, rbp_kind;
	s32 at;

	if (j) {
		f = &h->t->frames[(j - 1) & (MAX_FRAMES - 1)];
		if (f->sp < w->f.sp) {
			w->candidate = j - 1;
			return 0;
		}
		if (f->sp == w->f.sp && (f->flags & F_USES_MORE)) {
			w->candidate = j - 1;
			return 0;
		}
		if (f->sp == w->f.sp && f->ip == w->f.ip && !((f->flags ^ flags) & (F_EXACT | F_BY_BP)) &&
		    (f->bp == w->f.bp || !(f->flags & F_LIVE_BP))) {
			w->joined = j;
			return 1;
		}
	}
	if (n >= MAX_FRAMES) {
		w->end = CUT;
		return 1;
	}
	pc = w->f.ip - !(flags & F_EXACT);
	rule = rule_at(h, pc);
	kind = cfa_kind_of(rule);
	rbp_kind = rbp_kind_of(rule);
	at = cfa_of(rule);
	if (kind == CFA_NO_MAPPING && (flags & F_BY_BP)) { /* what the frame pointer led to is no code */
		w->end = NO_RULE;
		return 1;
	}
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
			w->end = !w->f.bp && (kind == CFA_NO_TABLE || (flags & F_BY_BP) || is_entry(h)) ? COMPLETE : NO_RULE;
			kind = CFA_END;
		}
	}
	f = &c->fresh[n & (MAX_FRAMES - 1)];
	*f = w->f;
	if (by_bp || kind == CFA_RBP || kind == CFA_DEREF_RBP || rbp_kind == RBP_AT_RBP)
		f->flags = flags | F_USES_BP;
	if (by_bp || rbp_kind)
		f->flags |= F_SETS_BP;
	w->count = n + 1;
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
			if (w->bx_at && read_slot(h, w->bx_at, &cfa)) {
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
		w->bx_at = rbx_of(rule) && rbx_of(rule) != RBX_LOST ? cfa - 8 * (u64)rbx_of(rule) : rbx_of(rule) ? BX_LOST : 0;
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
		if (read_slot(h, w->f.cfa_at[0], &cfa)) {
			w->end = UNREADABLE;
			return 1;
		}
		w->f.cfa_value[0] = cfa;
		if (kind == CFA_DEREF_TWICE_RSP) {
			w->f.cfa_at[1] = cfa + (s8)(at >> 16);
			if (read_slot(h, w->f.cfa_at[1], &cfa)) {
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
		if (read_slot(h, cfa + SIGNAL_SP, &w->f.sp) || read_slot(h, cfa + SIGNAL_IP, &ra) ||
		    read_slot(h, cfa + SIGNAL_BP, &w->f.bp)) {
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
		w->end = w->loading ? LOADING : NO_MAPPING;
		return 1;
	default:
		w->end = NO_RULE;
		return 1;
	}
	if (read_slot(h, cfa - 8, &ra)) {
		w->end = UNREADABLE;
		return 1;
	}
	if (rbp_kind) {
		bp_at = (rbp_kind == RBP_AT_CFA ? cfa : w->f.bp) + rbp_offset_of(rule);
		if (read_slot(h, bp_at, &w->f.bp)) {
			w->end = UNREADABLE;
			return 1;
		}
		w->f.bp_at = bp_at;
	}
	w->f.sp = cfa;
	w->f.ip = ra;
	return !ra;
}

static long step_loop(u32 i, struct here *h)
{
	return step(h);
}
