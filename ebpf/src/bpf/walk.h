/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Unwinding of user stacks by rules, without frame pointers, as a path in the call tree.
 *
 * Unwinding is a pure function of the registers, of the stack slots that it reads and of the rules. So the last stack of a
 * thread is kept as a list of frames (pc, sp, bp), outermost first, with the slots that each was read from. At the next
 * event the frames whose slots still hold the same values are a valid chain, and unwinding from the registers ends at the
 * first frame that it has in common with that chain. `bp` belongs to a frame only where a rule further out uses it.
 */
#pragma once
#include "step.h"
#include "tree.h"

/* ---- what is kept for the next event ---- */

static __always_inline void keep_slot(struct thread *t, u32 *count, u32 owner, u64 at, u64 value)
{
	u32 i = *count & (2 * MAX_FRAMES - 1);
	t->slots[i].at = at;
	t->slots[i].value = value;
	t->owner[i] = owner;
	*count = i + 1;
}

/* Appends a fresh frame, outermost first, to those kept, with the slots that it was read from. */
static __always_inline long append(u32 i, struct here *h)
{
	struct cpu *c = h->c;
	struct thread *t = h->t;
	struct walk *w = &c->walk;
	struct frame *f = &c->fresh[(w->count - 1 - i) & (MAX_FRAMES - 1)], *kept;
	u32 live = w->live, k = w->joined + i, slots = w->slots;
	u16 flags = f->flags;

	if (flags & F_USES_BP)
		live = F_LIVE_BP;
	else if (flags & F_SETS_BP)
		live = 0;
	if (!k)
		t->top = f->sp;
	keep_slot(t, &slots, k, flags & F_BREAK ? 0 : f->sp - 8, f->ip);
	if (f->bp_at && live)
		keep_slot(t, &slots, k, f->bp_at, f->bp);
	if (f->cfa_at[0])
		keep_slot(t, &slots, k, f->cfa_at[0], f->cfa_value[0]);
	if (f->cfa_at[1])
		keep_slot(t, &slots, k, f->cfa_at[1], f->cfa_value[1]);
	kept = &t->frames[k & (MAX_FRAMES - 1)];
	*kept = *f;
	kept->flags = (flags & ~F_LIVE_BP) | live;
	w->live = live;
	kept->slots = w->slots = slots;
	kept->node = w->node = node_of(h, pc_of(f), w->node);
	return 0;
}

static long append_loop(u32 i, struct here *h)
{
	return append(i + INLINE_STEPS, h);
}

static long compare_loop(u32 it, struct here *h)
{
	struct thread *t = h->t;
	struct walk *w = &h->c->walk;
	u32 i = w->candidate;
	struct slot *s;
	u64 value;

	if (i >= w->slots)
		return 1;
	s = &t->slots[i & (2 * MAX_FRAMES - 1)];
	if (s->at < w->base && s->at >= t->frames[(t->count - 1) & (MAX_FRAMES - 1)].sp) /* popped */
		return 1;
	if (read_slot(h, s->at, &value) || value != s->value)
		return 1;
	w->candidate = i + 1;
	return 0;
}

/* Number of remembered frames, from the outermost, whose slots are unchanged; the innermost one has none of its own. */
static __always_inline u32 unchanged(struct here *h)
{
	struct thread *t = h->t;
	struct cpu *c = h->c;
	struct walk *w = &c->walk;
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
		if (offset >= length || offset > STACK_COPY - 8)
			break;
		if (*(u64 *)(c->copy + offset) != s->value)
			return t->owner[i];
	}
	w->candidate = i;
	w->slots = slots;
	bpf_loop_(2 * MAX_FRAMES, compare_loop, h, 0);
	i = w->candidate;
	return i < slots ? t->owner[i & (2 * MAX_FRAMES - 1)] : n - 1;
}

static __always_inline void begin(struct walk *w, const struct pt_regs *r)
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
	w->count = w->candidate = w->slots = w->joined = w->end = w->live = w->by_register = 0;
}

/* Copies what will probably be read: up to the top of the stack, if it is known. */
static __always_inline void copy_stack(struct here *h)
{
	struct walk *w = &h->c->walk;
	u64 want = 4096;

	w->base = w->f.sp;
	w->length = 0;
	if (h->t->count) {
		want = h->t->top - w->f.sp + 16;
		if (want > 1024 * (u64)h->t->count + 4096) /* few frames in much stack: single reads are cheaper */
			want = 4096;
	}
	if (want > STACK_COPY)
		want = STACK_COPY;
	if (!bpf_probe_read_user(h->c->copy, want, (void *)w->f.sp))
		w->length = want - 7;
}

#include "soundness.h"

/* The node of the current task's user stack. */
static __always_inline u32 unwind(struct here *h, struct layout *l, u32 freed, const struct pt_regs *r, u64 thread)
{
	struct walk *w = &h->c->walk;
	struct thread *t;
	u32 i, n;

	h->t = t = &h->c->threads[thread & (THREADS - 1)];
	w->epoch = l->epoch;
	w->mappings = l->mappings;
	w->root = l->root;
	w->freed = freed;
	w->loading = l->unmapped != UNMAPPED_KNOWN;
	begin(w, r);
	if (t->key != thread || t->epoch != w->epoch) {
		t->count = 0;
		t->key = thread;
		t->epoch = w->epoch;
	}
	copy_stack(h);
	n = t->count;
	if (n) {
		u32 same = unchanged(h);
		w->candidate = same < n ? same + 1 : n;
	}
	for (i = 0; i < INLINE_STEPS; i++)
		if (step(h))
			break;
	if (i == INLINE_STEPS)
		bpf_loop_(2 * MAX_FRAMES, step_loop, h, 0);
	if (w->joined + w->count > MAX_FRAMES) { /* only the whole of it tells which are the innermost */
		begin(w, r);
		bpf_loop_(MAX_FRAMES + 1, step_loop, h, 0);
	}
	h->a->frames += w->joined + w->count;
	h->a->fresh_frames += w->count;
	if (w->joined) {
		struct frame *f = &t->frames[(w->joined - 1) & (MAX_FRAMES - 1)];
		w->node = f->node;
		w->live = f->flags & F_LIVE_BP;
		w->slots = f->slots;
	} else {
		w->node = w->end ? node_of(h, w->end, w->root) : w->root;
		w->slots = 0;
	}
	for (i = 0; i < INLINE_STEPS; i++) {
		if (i >= w->count)
			break;
		append(i, h);
	}
	if (w->count > INLINE_STEPS)
		bpf_loop_(w->count - INLINE_STEPS, append_loop, h, 0);
	t->count = w->joined + w->count;
	/* Nothing can be reused of a stack whose outermost frames are missing: they may be there next time. */
	if (w->end || w->slots > 2 * MAX_FRAMES - 5 || w->by_register)
		t->count = 0;
	if (check)
		compare_with_plain(h, r);
	return w->node;
}
