/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What kernel and user space share about memory: whose a process is, by which tables its stacks are unwound, the call
 * tree with its counters, and notices. `src/memory/kernel.rs` has the same layouts; sizes are asserted on both sides.
 *
 * Maps that user space reads or fills by the million entries are mapped into it (BPF_F_MMAPABLE, Linux 5.5).
 */
#pragma once
#include "vmlinux_min.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

/* What a page is used for; 0 is: not known to anybody here. */
enum kind { KIND_NONE = 0, KIND_ANON = 1, KIND_CACHE = 2, KIND_KERNEL = 3, KINDS = 3 };

/* How a stack ended; the names are in `src/memory/reading.rs`. */
enum stack_end {
	COMPLETE = 0,
	LOADING,    /* the process, or the mapping, has no tables yet */
	NO_MAPPING, /* an address in no executable mapping that is known */
	NO_RULE,
	UNREADABLE,
	CUT,        /* deeper than MAX_FRAMES */
	TREE_FULL,
	NO_STACK,   /* not allocated by the target itself */
	STACK_ENDS = 8,
};

/* One process that is watched. */
struct target {
	u32 id;     /* of its life, never used again */
	u32 parent; /* id of the target that forked it, or 0 */
	u32 image;  /* number of its address space: a new one with every fork and exec */
	u32 flags;
};
enum { BORROWED = 1 }; /* runs in its parent's address space, between vfork and exec */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32); /* tgid */
	__type(value, struct target);
} targets SEC(".maps");

/* How stacks of an address space are unwound, and where they hang in the tree. */
struct layout {
	u32 image;    /* whose this entry is now */
	u32 mappings; /* index in mapping_tables; 0: none yet */
	u32 epoch;    /* changes with the mappings: what was remembered under another one is forgotten */
	u32 root;     /* node */
	u64 stacks[STACK_ENDS];
	u32 unmapped; /* an address in no mapping was met in this epoch, see below */
	u32 in_use;   /* a process has this address space: the entry is no other's */
};
_Static_assert(sizeof(struct layout) == 88, "src/memory/kernel.rs");

/* Told to user space; it has looked, and there is no such mapping. */
enum { UNMAPPED_TOLD = 1, UNMAPPED_KNOWN = 2 };

#define LAYOUTS 16384
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LAYOUTS);
	__type(key, u32); /* image % LAYOUTS */
	__type(value, struct layout);
} layouts SEC(".maps");

/* A call in the tree. Roots have parent 0 and their target's id as address. */
struct node {
	u64 pc; /* see `pc_of`; below 4096: the subtree's stacks did not reach their entry point, by enum stack_end */
	u32 parent;
	u32 dead; /* its target is forgotten: pages that it still has are nobody's */
	s64 pages[KINDS];
};
_Static_assert(sizeof(struct node) == 40, "src/memory/kernel.rs");

/* In `node.pc`: the instruction itself rather than a return address. */
#define EXACT (1ULL << 63)
/* The number was taken but is not used. */
#define NO_NODE (~0ULL)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1 << 18);
	__type(key, u32);
	__type(value, struct node);
} nodes SEC(".maps");

struct edge {
	u64 pc;
	u32 parent, pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH); /* preallocated: nothing is allocated in the hooks */
	__uint(max_entries, 1 << 18);
	__type(key, struct edge);
	__type(value, u32);
} edges SEC(".maps");

/* Counters, private to a CPU. */
struct account {
	u64 allocations;
	u64 frames, fresh_frames; /* of all stacks; those that had to be unwound */
	u64 rule_misses, edge_misses, slow_reads;
	u64 beyond_table; /* frames with a number above the owner table: memory was added */
	u64 stale;        /* owners found at allocation: the free was missed */
	u64 no_node;      /* frames that are not in the tree because it is full */
	u64 moved;        /* pages whose owner was carried along */
	u64 checked, mismatches;
	u64 no_folio;     /* large folios that are not looked at: the table is full */
	u64 pad[3];
};
_Static_assert(sizeof(struct account) == 128, "src/memory/kernel.rs");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* CPUs */
	__type(key, u32);
	__type(value, struct account);
} accounts SEC(".maps");

/* Nodes that are free again. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 1 << 18);
	__uint(value_size, sizeof(u32));
} free_nodes SEC(".maps");

enum notice_kind { N_FORKED = 1, N_EXECUTED = 2, N_EXITED = 3, N_UNMAPPED = 4 };
struct notice {
	u32 kind, pid;
	u32 target, parent;
	u64 time;
};
_Static_assert(sizeof(struct notice) == 24, "src/memory/kernel.rs");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 << 10);
} notices SEC(".maps");

/* Set by the loader. */
const volatile u64 page_base = 0; /* of the kernel's array of struct page */
const volatile u32 max_nodes = 0;
const volatile u32 max_cpus = 0;
const volatile u32 check = 0; /* compare each stack with a plain unwind */
const volatile u32 follow_children = 1;

/* Numbers that are given by both sides, and losses. */
struct numbers {
	u32 last_node; /* 0 is none */
	u32 last_image;
	u32 last_target;
	u32 lost_notices;
	u32 lost_targets; /* children that are not followed: the table is full */
	u32 collapsing;   /* collapses under way */
	u32 freed;        /* how often nodes were freed: edges that were remembered before may lead to others now */
	u32 pad;
};
_Static_assert(sizeof(struct numbers) == 32, "src/memory/kernel.rs");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct numbers);
} numbers_map SEC(".maps");

static __always_inline struct numbers *numbers(void)
{
	u32 zero = 0;
	return bpf_map_lookup_elem(&numbers_map, &zero);
}

static long (*const bpf_loop_)(u32 n, void *f, void *ctx, u64 flags) = (void *)181;
static long (*const bpf_for_each_map_elem_)(void *map, void *f, void *ctx, u64 flags) = (void *)164;
static struct pt_regs *(*const task_pt_regs)(struct task_struct *) = (void *)175;

/* A number for a new node; 0 if there is none. */
static __always_inline u32 new_node(struct numbers *all)
{
	u32 id = 0;

	if (all->freed && !bpf_map_pop_elem(&free_nodes, &id))
		return id;
	if (all->last_node + 1 >= max_nodes)
		return 0;
	return __sync_fetch_and_add(&all->last_node, 1) + 1;
}

static __always_inline struct account *account_here(void)
{
	u32 cpu = bpf_get_smp_processor_id();
	return bpf_map_lookup_elem(&accounts, &cpu);
}

static __always_inline struct layout *layout_of(u32 image)
{
	u32 key = image % LAYOUTS;
	struct layout *l = bpf_map_lookup_elem(&layouts, &key);
	return l && l->image == image ? l : 0;
}

static __always_inline void notify(u32 kind, u32 pid, const struct target *t)
{
	struct notice n = { kind, pid, t->id, t->parent, bpf_ktime_get_ns() };
	struct numbers *all = numbers();

	if (bpf_ringbuf_output(&notices, &n, sizeof n, 0) && all)
		__sync_fetch_and_add(&all->lost_notices, 1);
}
