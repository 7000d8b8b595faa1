/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Owner of each page, in a table by page frame number (pfn). No other state is needed for frees by other processes, splits
 * and partial frees.
 *
 *      31       30  28 27  24 23              0
 *   deferred  | kind | order | node of the tree      0: no known owner
 *   split
 *
 * The order is that of the allocation, in the entry of its first page only. Deferred split: see folio.h.
 */
#pragma once
#include "memory.h"

#define NODE_BITS 24
#define NODE_MASK ((1U << NODE_BITS) - 1)
#define ORDER_SHIFT 24
#define KIND_SHIFT 28
#define ORDER_MASK (15U << ORDER_SHIFT)
#define KIND_MASK (7U << KIND_SHIFT)
#define DEFERRED_SPLIT (1U << 31)

/* Owners by pfn. Array: Linux 3.19. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* greatest pfn of the machine + 1 */
	__type(key, u32);
	__type(value, u32);
} page_owners SEC(".maps");

static __always_inline u32 make_owner(u32 node, u32 kind)
{
	return node | kind << KIND_SHIFT;
}

/* Adds `pages`, which may be negative, to the counter of an owner. */
static __always_inline void add_pages(u32 owner, s64 pages)
{
	u32 id = owner & NODE_MASK, index = (((owner & KIND_MASK) >> KIND_SHIFT) - 1) & 3;
	struct node *node = bpf_map_lookup_elem(&nodes, &id);

	barrier_var(index); /* keeps the comparison, which the verifier needs */
	if (node && index < KINDS)
		__sync_fetch_and_add(&node->pages[index], pages);
}

/* A range of pages that get the same new owner. Runs of pages with the same previous owner are subtracted at once. */
struct pfn_range {
	u32 first, value;
	u32 before, run; /* pages in a row that had the same owner */
	u32 had;         /* pages that had an owner */
	u32 set;
};

static __always_inline void flush_run(struct pfn_range *s)
{
	if (s->run)
		add_pages(s->before, -(s64)s->run);
	s->run = 0;
}

static long set_page_owner(u32 i, struct pfn_range *s)
{
	u32 pfn = s->first + i, before;
	u32 *o = bpf_map_lookup_elem(&page_owners, &pfn);

	if (!o)
		return 1;
	s->set++;
	if (!s->value && !*o)
		return 0;
	before = __sync_lock_test_and_set(o, s->value) & ~ORDER_MASK;
	if (before) {
		s->had++;
		if (before != s->before) {
			flush_run(s);
			s->before = before;
		}
		s->run++;
	}
	return 0;
}

/* Sets the owner of `1 << order` pages; returns the number of pages that had one before. */
static __always_inline u32 set_owners(u64 pfn, u32 order, u32 value)
{
	struct pfn_range s = { .first = pfn, .value = value };

	if (pfn >> 32)
		return 0;
	if (order == 0)
		set_page_owner(0, &s);
	else
		bpf_loop_(1U << (order & 15), set_page_owner, &s, 0);
	flush_run(&s);
	if (value) {
		add_pages(value, s.set);
		if (order && s.set) {
			u32 first = pfn, *o = bpf_map_lookup_elem(&page_owners, &first);
			if (o)
				__sync_val_compare_and_swap(o, value, value | (order & 15) << ORDER_SHIFT);
		}
		if (s.set < 1U << (order & 15)) {
			struct counters *a = counters_here();
			if (a)
				a->beyond_owner_table += (1U << (order & 15)) - s.set;
		}
	}
	return s.had;
}

/* Changes the kind of a page that has an owner. */
static long set_page_kind(u32 i, struct pfn_range *s)
{
	u32 pfn = s->first + i, before, after;
	u32 *o = bpf_map_lookup_elem(&page_owners, &pfn);

	if (!o)
		return 1;
	before = *o;
	after = (before & (NODE_MASK | ORDER_MASK)) | s->value << KIND_SHIFT; /* clears DEFERRED_SPLIT */
	if (!before || before == after || __sync_val_compare_and_swap(o, before, after) != before)
		return 0;
	add_pages(before, -1);
	add_pages(after, 1);
	return 0;
}

/* Moves the owner of page `from` to page `to`. Returns 1 if there was one. */
static __always_inline u32 move_owner(u32 from, u32 to)
{
	u32 *f = bpf_map_lookup_elem(&page_owners, &from), *t = bpf_map_lookup_elem(&page_owners, &to), owner, before;

	if (!f || !t || from == to)
		return 0;
	owner = __sync_lock_test_and_set(f, 0);
	if (!owner)
		return 0;
	before = __sync_lock_test_and_set(t, owner);
	if (before)
		add_pages(before, -1);
	return 1;
}
