/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Verification for tests: every stack is compared with a reference unwind of the same event, without caches, without the
 * copy of the stack and without reuse of frames. Both apply the same rules (unwind_step.h), so this verifies the reuse, not
 * the rules; those are verified by the share of stacks that reach their entry point.
 *
 * Unequal unwinds of which one could not read the stack are not counted: while the kernel migrates a page, it is unreadable,
 * and one of them may have read it before or after. The stack itself is counted as unreadable.
 */
#pragma once
#include "unwind_step.h"
#include "call_tree.h"

static long reference_step(u32 i, struct unwind_ctx *ctx)
{
	struct reference_unwind *r = &ctx->cpu->reference;
	struct unwind_cursor *u = &r->cursor;
	u64 pc, rule;
	u32 n = r->count;

	if (n >= MAX_FRAMES) {
		u->end = TRUNCATED;
		return 1;
	}
	pc = lookup_pc(u);
	rule = find_rule(pc, ctx->cpu->state.mappings);
	if (is_no_code(u, rule)) {
		u->end = NO_RULE;
		return 1;
	}
	r->pcs[n & (MAX_FRAMES - 1)] = node_pc(&u->f);
	r->count = n + 1;
	return unwind_frame(ctx, u, &r->frame, rule, pc, n, READ_DIRECT);
}

static long compare_node(u32 i, struct unwind_ctx *ctx)
{
	struct reference_unwind *r = &ctx->cpu->reference;
	u32 id = r->node;
	struct node *node = bpf_map_lookup_elem(&nodes, &id);

	if (!node || node->pc != r->pcs[i & (MAX_FRAMES - 1)]) {
		r->mismatch = 1;
		return 1;
	}
	r->node = node->parent;
	return 0;
}

/* Compares the path of the node of this event with the reference unwind. */
static __always_inline void verify_stack(struct unwind_ctx *ctx, const struct pt_regs *regs)
{
	struct reference_unwind *r = &ctx->cpu->reference;
	struct unwind_state *w = &ctx->cpu->state;
	u32 end, is_equal;

	init_cursor(&r->cursor, regs);
	r->count = r->mismatch = 0;
	r->node = w->node;
	bpf_loop_(MAX_FRAMES + 1, reference_step, ctx, 0);
	bpf_loop_(r->count, compare_node, ctx, 0);
	end = r->cursor.end ? find_node(r->cursor.end, w->root, 0) : w->root;
	is_equal = !r->mismatch && r->node == end;
	if (!is_equal && (r->cursor.end == UNREADABLE || w->cursor.end == UNREADABLE))
		return;
	ctx->counters->verified_stacks++;
	ctx->counters->mismatched_stacks += !is_equal;
}
