/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What a CPU remembers while it unwinds and between two events: frames with the slots that they were read from, rules and
 * edges that were looked up, a copy of the stack.
 *
 * All of it is private to the CPU and found by one lookup; nothing is allocated and nothing is locked. A thread that moves
 * to another CPU is unwound once anew. The walker's state is in the map, where the verifier knows nothing of it: on the
 * stack it would follow every iteration.
 */
#pragma once
#include "rules.h"

#define MAX_FRAMES 256   /* of a stack */
#define STACK_COPY 65536 /* bytes of stack that are copied at once */
#define THREADS 32       /* remembered by a CPU */
#define RULES 4096       /* remembered by a CPU */
#define EDGES 4096       /* likewise */
#define INLINE_STEPS 8   /* before a loop with calls: a return costs 10 ns where speculation is mitigated */

enum frame_flags {
	F_EXACT = 1,    /* pc is not a return address */
	F_USES_BP = 2,  /* the frame's rule needs bp */
	F_SETS_BP = 4,  /* ... and restores the caller's */
	F_LIVE_BP = 8,  /* bp matters from here outwards */
	F_BREAK = 16,   /* reached through a signal frame: not to be checked by a slot */
	F_BY_BP = 32,   /* reached by frame pointer, without a rule */
	F_USES_MORE = 64, /* the frame's rule needs another register, which is not kept: unwound anew every time */
};

struct frame {
	u64 ip, sp, bp;
	u64 bp_at;         /* where bp was read; 0: nowhere */
	u64 cfa_at[2], cfa_value[2]; /* what sp was computed from, if not from registers alone; 0: nothing */
	u32 node;
	u16 flags, slots;
};
struct slot {
	u64 at, value;
};
struct thread {
	u64 key, top;
	u32 count, epoch;
	struct slot slots[2 * MAX_FRAMES];
	u16 owner[2 * MAX_FRAMES]; /* the frame of each slot */
	struct frame frames[MAX_FRAMES];
};
struct rule_cache {
	u64 pc, rule;
	u32 epoch, pad;
};
struct edge_cache {
	u64 pc;
	u32 parent, node;
	u32 freed, pad; /* as `numbers.freed` was */
};
struct walk {
	struct frame f; /* where we are */
	u64 bx, bx_at;    /* bx of the registers; where the present frame's was saved, 0: still there */
	u64 r10, r11;     /* of the registers: functions may change them, so that they are the innermost frame's only */
	u64 base, length; /* of the copy */
	u32 count, candidate, slots, joined, end, node, live;
	u32 epoch, mappings, root;
	u32 freed;
	u32 loading; /* user space has not yet looked whether there are new mappings */
	u32 by_register; /* a CFA was computed from a register of which no slot can tell whether it has changed */
};
struct plain_walk {
	u64 ip, sp, bp, bx;
	u32 count, end, exact, by_bp, bx_known, bad, node, pad;
};
struct cpu {
	struct walk walk;
	u8 copy[STACK_COPY];
	struct frame fresh[MAX_FRAMES];
	struct rule_cache rules[RULES];
	struct edge_cache edges[EDGES];
	struct thread threads[THREADS];
	u64 expected[MAX_FRAMES];
	struct plain_walk plain;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* CPUs; values of per-CPU maps may not be that large */
	__type(key, u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

struct here {
	struct cpu *c;
	struct thread *t;
	struct account *a;
};

static __always_inline u64 hash12(u64 x)
{
	return (x * 0x9E3779B97F4A7C15ULL) >> 52;
}

static __always_inline u64 rule_at(struct here *h, u64 pc)
{
	struct walk *w = &h->c->walk;
	struct rule_cache *q = &h->c->rules[hash12(pc ^ w->epoch) & (RULES - 1)];

	if (q->pc != pc || q->epoch != w->epoch) {
		h->a->rule_misses++;
		q->rule = find_rule(pc, w->mappings);
		q->pc = pc;
		q->epoch = w->epoch;
	}
	return q->rule;
}

static __always_inline int read_slot(struct here *h, u64 at, u64 *value)
{
	struct walk *w = &h->c->walk;
	u64 offset = at - w->base;

	if (offset < w->length && offset <= STACK_COPY - 8) {
		*value = *(u64 *)(h->c->copy + offset);
		return 0;
	}
	h->a->slow_reads++;
	return bpf_probe_read_user(value, 8, (void *)at);
}
