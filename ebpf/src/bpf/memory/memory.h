/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Interface of the memory programs to user space: targets, address spaces, the call tree with its counters, and notices.
 * `src/memory/abi.rs` mirrors the structures; sizes are asserted on both sides.
 *
 * Maps of which user space reads or writes up to millions of entries are mapped into it (BPF_F_MMAPABLE, Linux 5.5).
 */
#pragma once
#include "../pidns.h"
#include <bpf/bpf_tracing.h>

/* Use of a page. */
enum kind { KIND_NONE = 0, KIND_ANON = 1, KIND_CACHE = 2, KIND_KERNEL = 3, KINDS = 3 };

/* How the unwinding of a stack ended; `src/memory/reading.rs` has the names. */
enum stack_end {
	COMPLETE = 0,
	LOADING,    /* the process, or the mapping, has no tables yet */
	NO_MAPPING, /* an address in no known executable mapping */
	NO_RULE,
	UNREADABLE,
	TRUNCATED,        /* deeper than MAX_FRAMES */
	TREE_FULL,        /* frames without a node: the tree is full, or the target has its share of it */
	NO_STACK,   /* not allocated by a user thread of the target */
	STACK_ENDS = 8,
};

/* A watched process. */
struct target {
	u32 id;     /* unique for the lifetime of the probe */
	u32 parent; /* id of the target that forked it, or 0 */
	u32 mm;  /* number of its address space; fork and exec assign a new one */
	u32 flags;
};
enum { SHARES_MM = 1 }; /* runs in the address space of its parent, between vfork and exec */

/* Watched processes. Hash map: Linux 3.19. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32); /* tgid */
	__type(value, struct target);
} targets SEC(".maps");

/* An address space: the tables that its stacks are unwound by, and their root in the call tree. */
struct address_space {
	u32 mm;    /* number of the address space that has this entry */
	u32 mappings; /* index in mapping_tables; 0: none yet */
	u32 generation;    /* changes with the mappings: entries of caches with another generation are invalid */
	u32 root;     /* node */
	u64 stacks[STACK_ENDS];
	u32 unmapped; /* whether an address in no mapping was found in this generation, see below */
	u32 in_use;   /* a process has this address space: the entry may not be reused */
	u32 nodes;    /* nodes of its target, approximately: counted by the programs, corrected by user space */
	u32 overflow; /* node below the root for frames that get none */
};
_Static_assert(sizeof(struct address_space) == 96, "src/memory/abi.rs");

/* Reported to user space; confirmed by user space: the address is in no mapping. */
enum { UNMAPPED_REPORTED = 1, UNMAPPED_CONFIRMED = 2 };

#define MAX_ADDRESS_SPACES 16384
/* Address spaces. Mappable array: Linux 5.5. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_ADDRESS_SPACES);
	__type(key, u32); /* mm % MAX_ADDRESS_SPACES */
	__type(value, struct address_space);
} address_spaces SEC(".maps");

/* A call in the tree. A root has parent 0 and the id of its target as address. */
struct node {
	u64 pc; /* see `node_pc`; below 4096, by enum stack_end: the stacks of the subtree did not reach their entry point */
	u32 parent;
	u32 dead; /* its target was removed: the pages that it still has lose their owner */
	s64 pages[KINDS];
};
_Static_assert(sizeof(struct node) == 40, "src/memory/abi.rs");

/* In `node.pc`: the address of the instruction itself, not a return address. */
#define EXACT (1ULL << 63)
/* In `node.pc`: the id was allocated but is not used. */
#define UNUSED_NODE (~0ULL)

/* The call tree. Mappable array: Linux 5.5. */
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

/* Child nodes by address and parent. Hash map: Linux 3.19; preallocated, as the programs must not allocate. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 18);
	__type(key, struct edge);
	__type(value, u32);
} edges SEC(".maps");

/* Counters of a CPU. */
struct counters {
	u64 allocations;
	u64 frames, unwound_frames; /* frames of all stacks; those that were unwound instead of reused */
	u64 rule_misses, edge_misses, slow_reads;
	u64 beyond_owner_table; /* pages with a pfn above the owner table: memory was hot-added */
	u64 missed_frees;        /* owners found at allocation: the free was missed */
	u64 tree_full;      /* stack frames that are not in the tree because it is full */
	u64 moved_pages;        /* pages that the kernel moved, with their owner */
	u64 verified_stacks, mismatched_stacks;
	u64 folio_table_full;     /* large folios that are not inspected: the map `folios` is full */
	u64 share_full;     /* stack frames that are not in the tree because their target has its share of it */
	u64 pad[2];
};
_Static_assert(sizeof(struct counters) == 128, "src/memory/abi.rs");

/* Counters by CPU. Mappable array: Linux 5.5. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* CPUs */
	__type(key, u32);
	__type(value, struct counters);
} counters SEC(".maps");

/* Ids of freed nodes. Queue: Linux 4.20. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 1 << 18);
	__uint(value_size, sizeof(u32));
} free_nodes SEC(".maps");

/* Events of targets, for user space. */
enum notice_kind { N_FORKED = 1, N_EXECUTED = 2, N_EXITED = 3, N_UNMAPPED = 4 };
struct notice {
	u32 kind, pid;
	u32 target, parent;
	u64 time;
};
_Static_assert(sizeof(struct notice) == 24, "src/memory/abi.rs");

/* Linux 5.8. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 << 10);
} notices SEC(".maps");

/* Options, set by the loader. */
const volatile u64 vmemmap_base = 0; /* address of the kernel's array of struct page */
const volatile u32 max_nodes = 0;
const volatile u32 max_cpus = 0;
const volatile u32 verify_unwind = 0; /* compare each stack with a reference unwind */
const volatile u32 follow_children = 1;

/* Ids that both kernel and user space allocate, and counters of losses. */
struct globals {
	u32 last_node; /* 0 is no node */
	u32 last_mm;
	u32 last_target;
	u32 lost_notices;
	u32 lost_targets; /* children that are not watched: the map `targets` is full */
	u32 active_collapses;   /* collapses in progress */
	u32 edge_generation;        /* incremented when nodes are freed: cached edges of another generation are invalid */
	u32 node_share;     /* greatest number of nodes of a target; set by user space */
};
_Static_assert(sizeof(struct globals) == 32, "src/memory/abi.rs");

/* Mappable array: Linux 5.5. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct globals);
} globals_map SEC(".maps");

static __always_inline struct globals *globals(void)
{
	u32 zero = 0;
	return bpf_map_lookup_elem(&globals_map, &zero);
}

/* Helpers that the installed libbpf headers may lack: Linux 5.17, 5.13, 5.15. */
static long (*const bpf_loop_)(u32 n, void *f, void *ctx, u64 flags) = (void *)181;
static struct pt_regs *(*const task_pt_regs)(struct task_struct *) = (void *)175;

/* Allocates the id of a node; 0 if the tree is full. */
static __always_inline u32 new_node(struct globals *g)
{
	u32 id = 0;

	if (g->edge_generation && !bpf_map_pop_elem(&free_nodes, &id))
		return id;
	if (g->last_node + 1 >= max_nodes)
		return 0;
	return __sync_fetch_and_add(&g->last_node, 1) + 1;
}

static __always_inline struct counters *counters_here(void)
{
	u32 cpu = bpf_get_smp_processor_id();
	return bpf_map_lookup_elem(&counters, &cpu);
}

static __always_inline struct address_space *address_space_of(u32 mm)
{
	u32 key = mm % MAX_ADDRESS_SPACES;
	struct address_space *l = bpf_map_lookup_elem(&address_spaces, &key);
	return l && l->mm == mm ? l : 0;
}

static __always_inline void notify(u32 kind, u32 pid, const struct target *t)
{
	struct notice n = { kind, pid, t->id, t->parent, bpf_ktime_get_ns() };
	struct globals *g = globals();

	if (bpf_ringbuf_output(&notices, &n, sizeof n, 0) && g)
		__sync_fetch_and_add(&g->lost_notices, 1);
}
