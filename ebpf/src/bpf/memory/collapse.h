/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Pages keep their owner when the kernel collapses small pages into a huge one (khugepaged, MADV_COLLAPSE).
 *
 * A thread allocates a huge page, isolates the small ones, copies and frees them one by one, and reports the result. Pages
 * of a folio (such as a partially unmapped huge page) are freed together. The owners of the freed pages move to the pages
 * of the huge page in that order: sums by stack are exact, the assignment of single pages is an approximation.
 */
#pragma once
#include "folio.h"
#include "call_tree.h"

/* A collapse that a thread may be running. */
struct collapse {
	u32 pfn; /* of the huge page */
	u32 active, next;
};

/* LRU hash map: Linux 4.10. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, u64); /* thread */
	__type(value, struct collapse);
} collapses SEC(".maps");

static __always_inline void note_huge_allocation(u64 thread, u32 pfn)
{
	struct collapse c = { pfn, 0, 0 };
	bpf_map_update_elem(&collapses, &thread, &c, BPF_ANY);
}

/* Pages that are freed because they were collapsed. */
struct collapsed_pages {
	u32 first;
	u32 pfn, next; /* of the huge page, and index of its next page to get an owner */
	u32 moved;
};

static long move_collapsed_page(u32 i, struct collapsed_pages *g)
{
	u32 from = g->first + i, *o = bpf_map_lookup_elem(&page_owners, &from);

	if (!o || g->next >= 1 << HUGE_ORDER)
		return 1;
	if ((*o & KIND_MASK) != KIND_ANON << KIND_SHIFT) /* of a folio: deferred split, or no owner */
		return 0;
	__sync_fetch_and_and(o, ~ORDER_MASK);
	g->moved += move_owner(from, g->pfn + g->next);
	g->next++;
	return 0;
}

/* Moves the owners of freed pages to the huge page if a collapse freed them. Returns the number of owners moved. */
static __always_inline int move_collapsed(u32 pfn, u32 order)
{
	u64 thread = bpf_get_current_pid_tgid();
	struct collapse *c = bpf_map_lookup_elem(&collapses, &thread);
	struct counters *a = counters_here();
	struct collapsed_pages g = { .first = pfn };

	if (!c || !c->active || c->pfn == pfn || !a) /* the huge page itself: it was not used */
		return 0;
	g.pfn = c->pfn;
	g.next = c->next;
	if (order)
		bpf_loop_(1U << (order & 15), move_collapsed_page, &g, 0);
	else
		move_collapsed_page(0, &g);
	c->next = g.next;
	a->moved_pages += g.moved;
	return g.moved;
}

SEC("raw_tracepoint/mm_collapse_huge_page_isolate")
int on_collapse_start(u64 *args)
{
	u64 thread = bpf_get_current_pid_tgid();
	struct collapse *c = bpf_map_lookup_elem(&collapses, &thread);
	struct globals *g = globals();
	u32 last, *order;

	if (!c || c->active || !g)
		return 0;
	/* Last chance to distinguish mapped from unmapped pages of the folio of the last page. */
	last = page_to_pfn(args[0]);
	order = bpf_map_lookup_elem(&folios, &last);
	if (order)
		inspect_pages(last, *order);
	c->active = 1;
	c->next = 0;
	__sync_fetch_and_add(&g->active_collapses, 1);
	return 0;
}

/* Pages of the huge page that replace unpopulated addresses: no code of the process allocated them. */
struct unowned_pages {
	u32 pfn, value, pages;
};

static long assign_unowned_page(u32 i, struct unowned_pages *f)
{
	u32 pfn = f->pfn + i, *o = bpf_map_lookup_elem(&page_owners, &pfn);

	if (o && !__sync_val_compare_and_swap(o, 0, f->value))
		f->pages++;
	return 0;
}

SEC("raw_tracepoint/mm_collapse_huge_page")
int on_collapse_end(u64 *args)
{
	struct mm_struct *mm = (void *)args[0];
	u64 thread = bpf_get_current_pid_tgid();
	u32 succeeded = (u32)args[2] == 1, tgid, node;
	struct collapse *c = bpf_map_lookup_elem(&collapses, &thread);
	struct globals *g = globals();
	struct target *t;
	struct address_space *l;
	struct unowned_pages f;

	if (!c || !c->active || !g)
		return 0;
	f.pfn = c->pfn;
	bpf_map_delete_elem(&collapses, &thread);
	__sync_fetch_and_add(&g->active_collapses, -1);
	if (!succeeded)
		return 0;
	tgid = tgid_of(BPF_CORE_READ(mm, owner));
	t = target_of(tgid);
	l = t ? address_space_of(t->mm) : 0;
	if (!l)
		return 0;
	node = find_node(NO_STACK, l->root, t->mm);
	if (!node || node == SHARE_FULL)
		node = l->root;
	f.value = make_owner(node, KIND_ANON);
	f.pages = 0;
	bpf_loop_(1 << HUGE_ORDER, assign_unowned_page, &f, 0);
	add_pages(f.value, f.pages);
	add_folio(f.pfn, HUGE_ORDER);
	return 0;
}
