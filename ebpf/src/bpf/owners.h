/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Who holds a page frame: a table by page frame number. Frees by anybody, splits and partial frees need nothing more.
 *
 *    31    30  28 27  24 23                  0
 *   held | kind | order | node of the tree      0: nobody that is known
 *
 * The order is that of the allocation, in the entry of its first frame only. Held: see folios.h.
 */
#pragma once
#include "memory.h"

#define NODE_BITS 24
#define NODE_MASK ((1U << NODE_BITS) - 1)
#define ORDER_SHIFT 24
#define KIND_SHIFT 28
#define ORDER_MASK (15U << ORDER_SHIFT)
#define KIND_MASK (7U << KIND_SHIFT)
#define HELD (1U << 31)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* page frames of the machine */
	__type(key, u32);
	__type(value, u32);
} owners SEC(".maps");

static __always_inline u32 owner(u32 node, u32 kind)
{
	return node | kind << KIND_SHIFT;
}

/* `pages` more (or less) for an owner. */
static __always_inline void count(u32 owner, s64 pages)
{
	u32 id = owner & NODE_MASK, index = (((owner & KIND_MASK) >> KIND_SHIFT) - 1) & 3;
	struct node *node = bpf_map_lookup_elem(&nodes, &id);

	barrier_var(index); /* the verifier must see it compared */
	if (node && index < KINDS)
		__sync_fetch_and_add(&node->pages[index], pages);
}

/* A run of page frames that get the same new owner; what they had is counted off in as few steps as possible. */
struct span {
	u32 first, value;
	u32 before, run; /* pages in a row that had the same owner */
	u32 had;         /* pages that had one */
	u32 set;
};

static __always_inline void count_off(struct span *s)
{
	if (s->run)
		count(s->before, -(s64)s->run);
	s->run = 0;
}

static long set_owner(u32 i, struct span *s)
{
	u32 frame = s->first + i, before;
	u32 *o = bpf_map_lookup_elem(&owners, &frame);

	if (!o)
		return 1;
	s->set++;
	if (!s->value && !*o)
		return 0;
	before = __sync_lock_test_and_set(o, s->value) & ~ORDER_MASK;
	if (before) {
		s->had++;
		if (before != s->before) {
			count_off(s);
			s->before = before;
		}
		s->run++;
	}
	return 0;
}

/* Sets the owner of `1 << order` frames; returns how many had one before. */
static __always_inline u32 set_owners(u64 frame, u32 order, u32 value)
{
	struct span s = { .first = frame, .value = value };

	if (frame >> 32)
		return 0;
	if (order == 0)
		set_owner(0, &s);
	else
		bpf_loop_(1U << (order & 15), set_owner, &s, 0);
	count_off(&s);
	if (value) {
		count(value, s.set);
		if (order && s.set) {
			u32 first = frame, *o = bpf_map_lookup_elem(&owners, &first);
			if (o)
				__sync_val_compare_and_swap(o, value, value | (order & 15) << ORDER_SHIFT);
		}
		if (s.set < 1U << (order & 15)) {
			struct account *a = account_here();
			if (a)
				a->beyond_table += (1U << (order & 15)) - s.set;
		}
	}
	return s.had;
}

/* Changes the kind of a frame that has an owner. */
static long set_kind(u32 i, struct span *s)
{
	u32 frame = s->first + i, before, after;
	u32 *o = bpf_map_lookup_elem(&owners, &frame);

	if (!o)
		return 1;
	before = *o;
	after = (before & (NODE_MASK | ORDER_MASK)) | s->value << KIND_SHIFT; /* no longer held */
	if (!before || before == after || __sync_val_compare_and_swap(o, before, after) != before)
		return 0;
	count(before, -1);
	count(after, 1);
	return 0;
}
