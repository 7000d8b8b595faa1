/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The node of a call in the tree: made when a path is met for the first time, found by a cache of the CPU's afterwards.
 */
#pragma once
#include "frames.h"

/* The node of a call; 0 if the tree is full. */
__noinline u32 find_node(u64 pc, u32 parent)
{
	struct edge key = { pc, parent, 0 };
	u32 *known = bpf_map_lookup_elem(&edges, &key);
	struct numbers *all = numbers();
	struct node *node;
	u32 id;

	if (known)
		return *known;
	id = all ? new_node(all) : 0;
	node = bpf_map_lookup_elem(&nodes, &id);
	if (!id || !node)
		return 0;
	node->parent = parent;
	node->pc = pc;
	if (bpf_map_update_elem(&edges, &key, &id, BPF_NOEXIST)) { /* another CPU was first, or there is no room */
		node->pc = NO_NODE;
		known = bpf_map_lookup_elem(&edges, &key);
		return known ? *known : 0;
	}
	return id;
}

static __always_inline u32 node_of(struct here *h, u64 pc, u32 parent)
{
	struct edge_cache *q = &h->c->edges[hash12(pc + parent * 0x10001ULL) & (EDGES - 1)];
	u32 id, freed = h->c->walk.freed;

	if (q->pc == pc && q->parent == parent && q->freed == freed)
		return q->node;
	h->a->edge_misses++;
	id = find_node(pc, parent);
	if (!id) { /* what is called from here counts for the nearest caller that has a node */
		h->a->no_node++;
		if (!h->c->walk.end)
			h->c->walk.end = TREE_FULL;
		return parent;
	}
	q->pc = pc;
	q->parent = parent;
	q->node = id;
	q->freed = freed;
	return id;
}

static __always_inline u64 pc_of(const struct frame *f)
{
	return f->flags & F_EXACT ? f->ip | EXACT : f->ip;
}
