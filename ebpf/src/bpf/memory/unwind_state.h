/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * State of the unwinder on a CPU, during an event and between events: stack frames with the slots that they were read from,
 * caches of rules and edges, a copy of the stack.
 *
 * All of it is private to the CPU and found by one lookup; nothing is allocated and nothing is locked. After a thread
 * migrates to another CPU its stack is unwound completely once. The state is in a map because the verifier would track
 * each iteration of a loop with state on the stack.
 */
#pragma once
#include "unwind_rules.h"

#define MAX_FRAMES 256   /* of a stack */
#define STACK_COPY_BYTES 65536 /* bytes of stack that are copied at once */
#define THREAD_CACHE_SIZE 32       /* entries for each CPU */
#define RULE_CACHE_SIZE 4096       /* entries for each CPU */
#define EDGE_CACHE_SIZE 4096       /* entries for each CPU */
#define INLINE_STEPS 8   /* unrolled before bpf_loop: a return costs 10 ns with speculation mitigations */

enum frame_flags {
	F_EXACT = 1,    /* pc is not a return address */
	F_USES_BP = 2,  /* the rule of the frame needs bp */
	F_SETS_BP = 4,  /* ... and restores that of the caller */
	F_LIVE_BP = 8,  /* a frame further out needs bp */
	F_BREAK = 16,   /* reached through a signal frame: no slot to compare */
	F_BY_BP = 32,   /* reached by frame pointer, without a rule */
	F_USES_MORE = 64, /* the rule of the frame needs another register, which is not saved: always unwound */
};

/* A stack frame. */
struct frame {
	u64 ip, sp, bp;
	u64 bp_at;         /* address that bp was read from; 0: not read */
	u64 cfa_at[2], cfa_value[2]; /* memory that sp was computed from; 0: none */
	u32 node;
	u16 flags, slots;
};
/* A stack slot that a frame was read from. */
struct slot {
	u64 at, value;
};
/* The last stack of a thread, outermost frame first. */
struct thread {
	u64 key, top;
	u32 count, generation, root, pad;
	struct slot slots[2 * MAX_FRAMES];
	u16 owner[2 * MAX_FRAMES]; /* index of the frame of each slot */
	struct frame frames[MAX_FRAMES];
};
struct rule_cache {
	u64 pc, rule;
	u32 generation, pad;
};
struct edge_cache {
	u64 pc;
	u32 parent, node;
	u32 edge_generation, pad; /* `globals.edge_generation` when it was cached */
};
/* Registers of the current frame of an unwind, and where they were read from. */
struct unwind_cursor {
	struct frame f;
	u64 bx, bx_at; /* bx at the innermost frame; address where that of the current frame was saved, 0: still in bx */
	u64 r10, r11;  /* at the innermost frame only: callees may change them */
	u32 end;       /* enum stack_end, once the unwind has ended */
	u32 by_register; /* a CFA was computed from a register whose changes no slot shows */
};
struct unwind_state {
	struct unwind_cursor cursor;
	u64 base, length; /* of the copied stack */
	u32 count, candidate, slots, joined, node, live;
	u32 generation, mappings, root;
	u32 edge_generation;
	u32 loading; /* user space has not yet checked for new mappings */
	u32 mm, overflow; /* of the address space */
	u32 pad;
};
/* Reference unwind of the same stack, see unwind_verify.h. */
struct reference_unwind {
	struct unwind_cursor cursor;
	struct frame frame;
	u64 pcs[MAX_FRAMES];
	u32 count, mismatch, node, pad;
};
struct cpu_state {
	struct unwind_state state;
	u8 copy[STACK_COPY_BYTES];
	struct frame new_frames[MAX_FRAMES];
	struct rule_cache rules[RULE_CACHE_SIZE];
	struct edge_cache edges[EDGE_CACHE_SIZE];
	struct thread threads[THREAD_CACHE_SIZE];
	struct reference_unwind reference;
};

/* State by CPU; an array because values of per-CPU maps are limited in size. Linux 3.19. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* CPUs */
	__type(key, u32);
	__type(value, struct cpu_state);
} cpu_states SEC(".maps");

/* Where the state of the current event is. */
struct unwind_ctx {
	struct cpu_state *cpu;
	struct thread *thread;
	struct counters *counters;
};

static __always_inline u64 hash12(u64 x)
{
	return (x * 0x9E3779B97F4A7C15ULL) >> 52;
}

/* The rule of `pc`, by the cache of this CPU. */
static __always_inline u64 cached_rule(struct unwind_ctx *ctx, u64 pc)
{
	struct unwind_state *w = &ctx->cpu->state;
	struct rule_cache *q = &ctx->cpu->rules[hash12(pc ^ w->generation) & (RULE_CACHE_SIZE - 1)];

	if (q->pc != pc || q->generation != w->generation) {
		ctx->counters->rule_misses++;
		q->rule = find_rule(pc, w->mappings);
		q->pc = pc;
		q->generation = w->generation;
	}
	return q->rule;
}

/* Reads 8 bytes of the stack, from its copy if possible. Returns 0 on success. */
static __always_inline int read_slot(struct unwind_ctx *ctx, u64 at, u64 *value)
{
	struct unwind_state *w = &ctx->cpu->state;
	u64 offset = at - w->base;

	if (offset < w->length && offset <= STACK_COPY_BYTES - 8) {
		*value = *(u64 *)(ctx->cpu->copy + offset);
		return 0;
	}
	ctx->counters->slow_reads++;
	return bpf_probe_read_user(value, 8, (void *)at);
}
