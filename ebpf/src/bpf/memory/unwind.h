/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Unwinds user stacks by unwind tables, without frame pointers, into a path of the call tree.
 *
 * Unwinding is a pure function of the registers, of the stack slots that it reads and of the rules. The last stack of a
 * thread is therefore cached as a list of frames (pc, sp, bp), outermost first, with the slots that each was read from. At
 * the next event the frames whose slots still hold the same values are a valid chain, and unwinding from the registers
 * ends at the first frame that it has in common with that chain. `bp` belongs to a frame only if a rule further out uses it.
 */
#pragma once
#include "unwind_step.h"
#include "unwind_verify.h"

/* ---- cache for the next event ---- */

static __always_inline void save_slot(struct thread *t, u32 *count, u32 owner, u64 at, u64 value)
{
	u32 i = *count & (2 * MAX_FRAMES - 1);
	t->slots[i].at = at;
	t->slots[i].value = value;
	t->owner[i] = owner;
	*count = i + 1;
}

/* Appends a new frame, outermost first, to the cached ones, with the slots that it was read from. */
static __always_inline long append_frame(u32 i, struct unwind_ctx *ctx)
{
	struct cpu_state *c = ctx->cpu;
	struct thread *t = ctx->thread;
	struct unwind_state *w = &c->state;
	struct frame *f = &c->new_frames[(w->count - 1 - i) & (MAX_FRAMES - 1)], *kept;
	u32 live = w->live, k = w->joined + i, slots = w->slots;
	u16 flags = f->flags;

	if (flags & F_USES_BP)
		live = F_LIVE_BP;
	else if (flags & F_SETS_BP)
		live = 0;
	if (!k)
		t->top = f->sp;
	save_slot(t, &slots, k, flags & F_BREAK ? 0 : f->sp - 8, f->ip);
	if (f->bp_at && live)
		save_slot(t, &slots, k, f->bp_at, f->bp);
	if (f->cfa_at[0])
		save_slot(t, &slots, k, f->cfa_at[0], f->cfa_value[0]);
	if (f->cfa_at[1])
		save_slot(t, &slots, k, f->cfa_at[1], f->cfa_value[1]);
	kept = &t->frames[k & (MAX_FRAMES - 1)];
	*kept = *f;
	kept->flags = (flags & ~F_LIVE_BP) | live;
	w->live = live;
	kept->slots = w->slots = slots;
	kept->node = w->node = cached_node(ctx, node_pc(f), w->node);
	return 0;
}

static long append_frame_loop(u32 i, struct unwind_ctx *ctx)
{
	return append_frame(i + INLINE_STEPS, ctx);
}

static long compare_slot_loop(u32 it, struct unwind_ctx *ctx)
{
	struct thread *t = ctx->thread;
	struct unwind_state *w = &ctx->cpu->state;
	u32 i = w->candidate;
	struct slot *s;
	u64 value;

	if (i >= w->slots)
		return 1;
	s = &t->slots[i & (2 * MAX_FRAMES - 1)];
	if (s->at < w->base && s->at >= t->frames[(t->count - 1) & (MAX_FRAMES - 1)].sp) /* popped */
		return 1;
	if (read_slot(ctx, s->at, &value) || value != s->value)
		return 1;
	w->candidate = i + 1;
	return 0;
}

/* Number of cached frames, from the outermost, whose slots are unchanged; the innermost frame has no slot. */
static __always_inline u32 count_unchanged_frames(struct unwind_ctx *ctx)
{
	struct thread *t = ctx->thread;
	struct cpu_state *c = ctx->cpu;
	struct unwind_state *w = &c->state;
	u64 base = w->base, length = w->length;
	u32 i, n = t->count, slots;

	if (n < 2)
		return 0;
	slots = t->frames[(n - 2) & (MAX_FRAMES - 1)].slots;
	for (i = 0; i < 2 * MAX_FRAMES; i++) {
		struct slot *s;
		u64 offset;
		if (i >= slots)
			return n - 1;
		s = &t->slots[i];
		offset = s->at - base;
		if (offset >= length || offset > STACK_COPY_BYTES - 8)
			break;
		if (*(u64 *)(c->copy + offset) != s->value)
			return t->owner[i];
	}
	w->candidate = i;
	w->slots = slots;
	bpf_loop_(2 * MAX_FRAMES, compare_slot_loop, ctx, 0);
	i = w->candidate;
	return i < slots ? t->owner[i & (2 * MAX_FRAMES - 1)] : n - 1;
}

/* Starts the unwind at the registers of the thread. */
static __always_inline void init_state(struct unwind_state *w, const struct pt_regs *r)
{
	init_cursor(&w->cursor, r);
	w->count = w->candidate = w->slots = w->joined = w->live = 0;
}

/* Copies the part of the stack that is probably read: up to its top, if that is known. */
static __always_inline void copy_stack(struct unwind_ctx *ctx)
{
	struct unwind_state *w = &ctx->cpu->state;
	u64 want = 4096;

	w->base = w->cursor.f.sp;
	w->length = 0;
	if (ctx->thread->count) {
		want = ctx->thread->top - w->cursor.f.sp + 16;
		if (want > 1024 * (u64)ctx->thread->count + 4096) /* few frames in a large stack: single reads are cheaper */
			want = 4096;
	}
	if (want > STACK_COPY_BYTES)
		want = STACK_COPY_BYTES;
	if (want >= 8 && !bpf_probe_read_user(ctx->cpu->copy, want, (void *)w->cursor.f.sp))
		w->length = want - 7;
}

/* ---- one event ---- */

/* One step from the registers outwards: drops a cached frame that has been popped, or unwinds a frame. */
static __always_inline long step(struct unwind_ctx *ctx)
{
	struct unwind_state *w = &ctx->cpu->state;
	struct unwind_cursor *u = &w->cursor;
	struct frame *f;
	u32 j = w->candidate, n = w->count;
	u64 pc, rule;

	if (j) {
		f = &ctx->thread->frames[(j - 1) & (MAX_FRAMES - 1)];
		if (f->sp < u->f.sp) {
			w->candidate = j - 1;
			return 0;
		}
		if (f->sp == u->f.sp && (f->flags & F_USES_MORE)) {
			w->candidate = j - 1;
			return 0;
		}
		if (f->sp == u->f.sp && f->ip == u->f.ip && !((f->flags ^ u->f.flags) & (F_EXACT | F_BY_BP)) &&
		    (f->bp == u->f.bp || !(f->flags & F_LIVE_BP))) {
			w->joined = j;
			return 1;
		}
	}
	if (n >= MAX_FRAMES) {
		u->end = TRUNCATED;
		return 1;
	}
	pc = lookup_pc(u);
	rule = cached_rule(ctx, pc);
	if (is_no_code(u, rule)) {
		u->end = NO_RULE;
		return 1;
	}
	w->count = n + 1;
	return unwind_frame(ctx, u, &ctx->cpu->new_frames[n & (MAX_FRAMES - 1)], rule, pc, n, READ_COPY);
}

static long step_loop(u32 i, struct unwind_ctx *ctx)
{
	return step(ctx);
}

/* Node of the user stack of the current task. */
static __always_inline u32 unwind(struct unwind_ctx *ctx, struct address_space *l, u32 edge_generation,
				  const struct pt_regs *r, u64 thread)
{
	struct unwind_state *w = &ctx->cpu->state;
	struct thread *t;
	u32 i, n;

	ctx->thread = t = &ctx->cpu->threads[thread & (THREAD_CACHE_SIZE - 1)];
	w->generation = l->generation;
	w->mappings = l->mappings;
	w->root = l->root;
	w->mm = l->mm;
	w->overflow = l->overflow;
	w->edge_generation = edge_generation;
	w->loading = l->unmapped != UNMAPPED_CONFIRMED;
	init_state(w, r);
	/* A child has the generation of its parent, and may have the id of a thread that has ended. */
	if (t->key != thread || t->generation != w->generation || t->root != w->root) {
		t->count = 0;
		t->key = thread;
		t->generation = w->generation;
		t->root = w->root;
	}
	copy_stack(ctx);
	n = t->count;
	if (n) {
		u32 same = count_unchanged_frames(ctx);
		w->candidate = same < n ? same + 1 : n;
	}
	for (i = 0; i < INLINE_STEPS; i++)
		if (step(ctx))
			break;
	if (i == INLINE_STEPS)
		bpf_loop_(2 * MAX_FRAMES, step_loop, ctx, 0);
	if (w->joined + w->count > MAX_FRAMES) { /* unwind it completely to find the innermost frames */
		init_state(w, r);
		bpf_loop_(MAX_FRAMES + 1, step_loop, ctx, 0);
	}
	ctx->counters->frames += w->joined + w->count;
	ctx->counters->unwound_frames += w->count;
	if (w->joined) {
		struct frame *f = &t->frames[(w->joined - 1) & (MAX_FRAMES - 1)];
		w->node = f->node;
		w->live = f->flags & F_LIVE_BP;
		w->slots = f->slots;
	} else {
		w->node = w->cursor.end ? cached_node(ctx, w->cursor.end, w->root) : w->root;
		w->slots = 0;
	}
	for (i = 0; i < INLINE_STEPS; i++) {
		if (i >= w->count)
			break;
		append_frame(i, ctx);
	}
	if (w->count > INLINE_STEPS)
		bpf_loop_(w->count - INLINE_STEPS, append_frame_loop, ctx, 0);
	t->count = w->joined + w->count;
	/* A stack without its outermost frames cannot be reused: they may be readable at the next event. */
	if (w->cursor.end || w->slots > 2 * MAX_FRAMES - 5 || w->cursor.by_register)
		t->count = 0;
	if (verify_unwind && w->cursor.end != TREE_FULL)
		verify_stack(ctx, r);
	return w->node;
}
