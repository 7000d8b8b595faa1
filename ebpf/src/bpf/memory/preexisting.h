/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Pages that a process had before it was watched. User space finds their pfns by /proc/<pid>/pagemap and passes them in
 * batches; pages that have got an owner in the meantime keep it.
 */
#pragma once
#include "folio.h"

#define PREEXISTING_BATCH 8192

struct preexisting_page {
	u32 pfn;
	u32 node; /* 0: none; at ORDER_SHIFT the order of the folio that begins with this page */
};

/* A batch. Mappable array: Linux 5.5. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, PREEXISTING_BATCH);
	__type(key, u32);
	__type(value, struct preexisting_page);
} preexisting_pages SEC(".maps");

static long add_preexisting_page(u32 i, u64 *undo)
{
	struct preexisting_page *a = bpf_map_lookup_elem(&preexisting_pages, &i);
	u32 pfn, node, order, value, *o;

	if (!a)
		return 1;
	pfn = a->pfn;
	node = a->node & NODE_MASK;
	order = (a->node & ORDER_MASK) >> ORDER_SHIFT;
	if (order && !*undo)
		add_folio(pfn, order);
	o = bpf_map_lookup_elem(&page_owners, &pfn);
	if (!o || !node)
		return 0;
	value = make_owner(node, KIND_ANON);
	if (*undo) {
		if (__sync_val_compare_and_swap(o, value, 0) == value)
			add_pages(value, -1);
	} else if (!__sync_val_compare_and_swap(o, 0, value)) {
		add_pages(value, 1);
	}
	return 0;
}

/* Sets the owners of the first args[0] pages of the batch, or removes them if args[1] is set. Run by user space
 * (BPF_PROG_TEST_RUN of raw tracepoints: Linux 5.10). */
SEC("raw_tracepoint/add_preexisting")
int add_preexisting(u64 *args)
{
	u64 undo = args[1];

	bpf_loop_(args[0], add_preexisting_page, &undo, 0);
	return 0;
}
