/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * For tests: every stack is compared with a plain unwind of the same event, without cache, copy and reuse. It uses the same
 * rules, so it proves the reuse, not the rules; those are judged by stacks that reach their entry point.
 */
#pragma once

static __always_inline int read_user(u64 *value, u64 at)
{
	return bpf_probe_read_user(value, 8, (void *)at) != 0;
}

static long plain_step(u32 i, struct here *h)
{
	struct cpu *c = h->c;
	struct plain_walk *p = &c->plain;
	u64 cfa = 0, ra = 0, bp = p->bp, pc = p->ip - !p->exact, rule;
	u32 n = p->count, by_bp = p->by_bp, by_frame_pointer = 0;
	u8 kind, rbp_kind;
	s32 at;

	if (n >= MAX_FRAMES) {
		p->end = CUT;
		return 1;
	}
	rule = find_rule(pc, c->walk.mappings);
	kind = cfa_kind_of(rule);
	rbp_kind = rbp_kind_of(rule);
	at = cfa_of(rule);
	if (kind == CFA_NO_MAPPING && by_bp) {
		p->end = NO_RULE;
		return 1;
	}
	if (kind == CFA_LEAF) {
		kind = p->exact ? CFA_RSP : CFA_NO_TABLE;
		rule = 8;
	}
	c->expected[n & (MAX_FRAMES - 1)] = p->exact ? p->ip | EXACT : p->ip;
	p->count = n + 1;
	p->exact = p->by_bp = 0;
	if (kind == CFA_NO_TABLE || kind == CFA_GAP) {
		if (!bp || (bp & 7)) {
			u64 arguments = 0;
			p->end = !bp && (kind == CFA_NO_TABLE || by_bp ||
					 (!read_user(&arguments, p->sp) && arguments - 1 < 1 << 20)) ?
					 COMPLETE :
					 NO_RULE;
			return 1;
		}
		p->by_bp = 1;
		kind = CFA_RBP;
		rbp_kind = RBP_AT_CFA;
		by_frame_pointer = 1;
		rule = 0xfffeULL << 32;
		p->bx_known = 0;
	}
	if (kind == CFA_RSP || kind == CFA_RBP || kind == CFA_RBX) {
		at = by_frame_pointer ? 16 : offset_of(rule);
		if (kind == CFA_RBX && !p->bx_known) {
			p->end = UNREADABLE;
			return 1;
		}
		cfa = (kind == CFA_RSP ? p->sp : kind == CFA_RBP ? bp : p->bx) + at;
		if (rbx_of(rule) == RBX_LOST)
			p->bx_known = 0;
		else if (rbx_of(rule))
			p->bx_known = !read_user(&p->bx, cfa - 8 * (u64)rbx_of(rule));
	} else if ((kind == CFA_R10 || kind == CFA_R11) && !n) {
		cfa = (kind == CFA_R10 ? c->walk.r10 : c->walk.r11) + offset_of(rule);
		if (rbx_of(rule) == RBX_LOST)
			p->bx_known = 0;
		else if (rbx_of(rule))
			p->bx_known = !read_user(&p->bx, cfa - 8 * (u64)rbx_of(rule));
	} else if (kind == CFA_PLT) {
		cfa = p->sp + 8 + (((pc & 15) >= (u32)at) << 3);
	} else if (kind == CFA_DEREF_RSP || kind == CFA_DEREF_RBP || kind == CFA_DEREF_TWICE_RSP) {
		p->bx_known = 0;
		if (read_user(&cfa, (kind == CFA_DEREF_RBP ? bp : p->sp) + (s16)at)) {
			p->end = UNREADABLE;
			return 1;
		}
		if (kind == CFA_DEREF_TWICE_RSP) {
			if (read_user(&cfa, cfa + (s8)(at >> 16))) {
				p->end = UNREADABLE;
				return 1;
			}
			cfa += (s8)(at >> 24);
		} else {
			cfa += at >> 16;
		}
	} else if (kind == CFA_SIGNAL) {
		u64 sp = p->sp;
		if (read_user(&p->sp, sp + SIGNAL_SP) || read_user(&p->ip, sp + SIGNAL_IP) ||
		    read_user(&p->bp, sp + SIGNAL_BP) || read_user(&p->bx, sp + SIGNAL_BX)) {
			p->end = UNREADABLE;
			return 1;
		}
		p->exact = p->bx_known = 1;
		return 0;
	} else {
		p->end = kind == CFA_END ? COMPLETE : kind != CFA_NO_MAPPING ? NO_RULE :
			 c->walk.loading ? LOADING : NO_MAPPING;
		return 1;
	}
	if (read_user(&ra, cfa - 8)) {
		p->end = UNREADABLE;
		return 1;
	}
	if (rbp_kind && read_user(&p->bp, (rbp_kind == RBP_AT_CFA ? cfa : bp) + rbp_offset_of(rule))) {
		p->end = UNREADABLE;
		return 1;
	}
	p->sp = cfa;
	p->ip = ra;
	return !ra;
}

static long compare_node(u32 i, struct here *h)
{
	struct cpu *c = h->c;
	u32 id = c->plain.node;
	struct node *node = bpf_map_lookup_elem(&nodes, &id);

	if (!node || node->pc != c->expected[i & (MAX_FRAMES - 1)]) {
		c->plain.bad = 1;
		return 1;
	}
	c->plain.node = node->parent;
	return 0;
}

static __always_inline void compare_with_plain(struct here *h, const struct pt_regs *r)
{
	struct plain_walk *p = &h->c->plain;
	struct walk *w = &h->c->walk;
	u32 end;

	p->ip = r->ip;
	p->sp = r->sp;
	p->bp = r->bp;
	p->bx = r->bx;
	p->bx_known = 1;
	p->count = p->end = p->bad = p->by_bp = 0;
	p->exact = 1;
	p->node = w->node;
	bpf_loop_(MAX_FRAMES + 1, plain_step, h, 0);
	bpf_loop_(p->count, compare_node, h, 0);
	end = p->end ? find_node(p->end, w->root) : w->root;
	h->a->checked++;
	if (p->bad || p->node != end)
		h->a->mismatches++;
}
