/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Nodes of the call tree: created when a path occurs for the first time, found through a cache of the CPU afterwards.
 */
#pragma once
#include "unwind_state.h"

/* Result of `find_node`: there is no such node, and its target has as many as it may have. */
#define SHARE_FULL (~0U)

/* Finds or creates the node of a call; 0 if the tree is full. A new node is counted for the address space `mm`, which has to be
 * within its share; 0: it is not counted. */
__noinline u32 find_node(u64 pc, u32 parent, u32 mm)
{
	struct edge key = { pc, parent, 0 };
	u32 *known = bpf_map_lookup_elem(&edges, &key);
	struct address_space *l = mm ? address_space_of(mm) : 0;
	struct globals *g = globals();
	struct node *node;
	u32 id;

	if (known)
		return *known;
	if (l && g && l->nodes >= g->node_share)
		return SHARE_FULL;
	id = g ? new_node(g) : 0;
	node = bpf_map_lookup_elem(&nodes, &id);
	if (!id || !node)
		return 0;
	node->parent = parent;
	node->pc = pc;
	if (bpf_map_update_elem(&edges, &key, &id, BPF_NOEXIST)) { /* another CPU was first, or the map is full */
		node->pc = UNUSED_NODE;
		known = bpf_map_lookup_elem(&edges, &key);
		return known ? *known : 0;
	}
	if (l)
		__sync_fetch_and_add(&l->nodes, 1);
	return id;
}

/* The node of a frame, by the cache of this CPU. Frames that get no node are attributed to the overflow node of the address
 * space, and all that they call. */
static __always_inline u32 cached_node(struct unwind_ctx *ctx, u64 pc, u32 parent)
{
	struct unwind_state *w = &ctx->cpu->state;
	struct edge_cache *q = &ctx->cpu->edges[hash12(pc + parent * 0x10001ULL) & (EDGE_CACHE_SIZE - 1)];
	u32 id, edge_generation = w->edge_generation;

	if (q->pc == pc && q->parent == parent && q->edge_generation == edge_generation)
		return q->node;
	if (parent && parent == w->overflow) {
		ctx->counters->share_full++;
		return parent;
	}
	ctx->counters->edge_misses++;
	id = find_node(pc, parent, w->mm);
	if (!id || id == SHARE_FULL) {
		if (id)
			ctx->counters->share_full++;
		else
			ctx->counters->tree_full++;
		if (!w->cursor.end)
			w->cursor.end = TREE_FULL;
		return w->overflow ? w->overflow : parent;
	}
	q->pc = pc;
	q->parent = parent;
	q->node = id;
	q->edge_generation = edge_generation;
	return id;
}

static __always_inline u64 node_pc(const struct frame *f)
{
	return f->flags & F_EXACT ? f->ip | EXACT : f->ip;
}
