/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Nodes of the call tree: created when a path occurs for the first time, found through a cache of the CPU afterwards.
 */
#pragma once
#include "unwind_state.h"

/* Finds or creates the node of a call; 0 if the tree is full. */
__noinline u32 find_node(u64 pc, u32 parent)
{
	struct edge key = { pc, parent, 0 };
	u32 *known = bpf_map_lookup_elem(&edges, &key);
	struct globals *g = globals();
	struct node *node;
	u32 id;

	if (known)
		return *known;
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
	return id;
}

static __always_inline u32 cached_node(struct unwind_ctx *ctx, u64 pc, u32 parent)
{
	struct edge_cache *q = &ctx->cpu->edges[hash12(pc + parent * 0x10001ULL) & (EDGE_CACHE_SIZE - 1)];
	u32 id, edge_generation = ctx->cpu->state.edge_generation;

	if (q->pc == pc && q->parent == parent && q->edge_generation == edge_generation)
		return q->node;
	ctx->counters->edge_misses++;
	id = find_node(pc, parent);
	if (!id) { /* attributed to the nearest caller that has a node */
		ctx->counters->tree_full++;
		if (!ctx->cpu->state.cursor.end)
			ctx->cpu->state.cursor.end = TREE_FULL;
		return parent;
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
