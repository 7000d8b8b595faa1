/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Pages that a process had before it was watched. User space finds their frames, writes them down a batch at a time, and
 * has them entered in the table of owners; those that have got an owner meanwhile keep it.
 */
#pragma once
#include "folios.h"

#define ADOPTED 8192

struct adopted {
	u32 frame;
	u32 node; /* 0: none; at ORDER_SHIFT the order of the folio that begins with this frame */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, ADOPTED);
	__type(key, u32);
	__type(value, struct adopted);
} adopted SEC(".maps");

static long adopt_one(u32 i, u64 *undo)
{
	struct adopted *a = bpf_map_lookup_elem(&adopted, &i);
	u32 frame, node, order, value, *o;

	if (!a)
		return 1;
	frame = a->frame;
	node = a->node & NODE_MASK;
	order = (a->node & ORDER_MASK) >> ORDER_SHIFT;
	if (order && !*undo)
		remember_folio(frame, order);
	o = bpf_map_lookup_elem(&owners, &frame);
	if (!o || !node)
		return 0;
	value = owner(node, KIND_ANON);
	if (*undo) {
		if (__sync_val_compare_and_swap(o, value, 0) == value)
			count(value, -1);
	} else if (!__sync_val_compare_and_swap(o, 0, value)) {
		count(value, 1);
	}
	return 0;
}

/* Run by user space: the first args[0] of them are entered, or with args[1] taken off again. */
SEC("raw_tracepoint/adopt")
int adopt(u64 *args)
{
	u64 undo = args[1];

	bpf_loop_(args[0], adopt_one, &undo, 0);
	return 0;
}
