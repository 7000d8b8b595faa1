/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Unwinding of user stacks by rules, without frame pointers, as a path in the call tree.
 *
 * Unwinding is a pure function of the registers, of the stack slots that it reads and of the rules. So the last stack of a
 * thread is kept as a list of frames (pc, sp, bp), outermost first, with the slots that each was read from. At the next
 * event the frames whose slots still hold the same values are a valid chain, and unwinding from the registers ends at the
 * first frame that it has in common with that chain. `bp` belongs to a frame only where a rule further out uses it.
 *
 * All of a CPU's state is private to it and found by one lookup; nothing is allocated and nothing is locked. A thread that
 * moves to another CPU is unwound once anew. The walker's state is in the map, where the verifier knows nothing of it: on
 * the stack it would follow every iteration.
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

/* An address that cannot be read: bx is not known any more. */
#define BX_LOST (~7ULL)

/* Where the kernel's signal frame has the registers, from sp. */
enum { SIGNAL_BP = 120, SIGNAL_BX = 128, SIGNAL_SP = 160, SIGNAL_IP = 168 };

/* Whether sp points to the number of arguments, as the kernel has put it: an entry point without a rule (ld.so's). */
static __always_inline int is_entry(struct here *h)
{
	u64 arguments;
	return !read_slot(h, h->c->walk.f.sp, &arguments) && arguments - 1 < 1 << 20;
}

/* One step from the registers outwards: drops a remembered frame that has been popped, or unwinds a frame. */
static __always_inline long step(struct here *h)
{
	struct cpu *c = h->c;
	struct walk *w = &c->walk;
	struct frame *f;
	u64 cfa = 0, ra = 0, bp_at = 0, pc, rule;
	u32 j = w->candidate, n = w->count, by_bp = 0;
	u16 flags = w->f.flags;
	u8 kind, rbp_kind;
	s32 at;

	if (j) {
		f = &h->t->frames[(j - 1) & (MAX_FRAMES - 1)];
		if (f->sp < w->f.sp) {
			w->candidate = j - 1;
			return 0;
		}
		if (f->sp == w->f.sp && (f->flags & F_USES_MORE)) {
			w->candidate = j - 1;
			return 0;
		}
		if (f->sp == w->f.sp && f->ip == w->f.ip && !((f->flags ^ flags) & (F_EXACT | F_BY_BP)) &&
		    (f->bp == w->f.bp || !(f->flags & F_LIVE_BP))) {
			w->joined = j;
			return 1;
		}
	}
	if (n >= MAX_FRAMES) {
		w->end = CUT;
		return 1;
	}
	pc = w->f.ip - !(flags & F_EXACT);
	rule = rule_at(h, pc);
	kind = cfa_kind_of(rule);
	rbp_kind = rbp_kind_of(rule);
	at = cfa_of(rule);
	if (kind == CFA_NO_MAPPING && (flags & F_BY_BP)) { /* what the frame pointer led to is no code */
		w->end = NO_RULE;
		return 1;
	}
	if (kind == CFA_LEAF) {
		kind = flags & F_EXACT ? CFA_RSP : CFA_NO_TABLE;
		rule = 8;
	}
	if (kind == CFA_NO_TABLE || kind == CFA_GAP) {
		/* By convention rbp points to the caller's rbp, below the return address, and is 0 at the outermost frame. */
		by_bp = 1;
		if (w->f.bp && !(w->f.bp & 7)) {
			kind = CFA_NO_TABLE;
		} else {
			w->end = !w->f.bp && (kind == CFA_NO_TABLE || (flags & F_BY_BP) || is_entry(h)) ? COMPLETE : NO_RULE;
			kind = CFA_END;
		}
	}
	f = &c->fresh[n & (MAX_FRAMES - 1)];
	*f = w->f;
	if (by_bp || kind == CFA_RBP || kind == CFA_DEREF_RBP || rbp_kind == RBP_AT_RBP)
		f->flags = flags | F_USES_BP;
	if (by_bp || rbp_kind)
		f->flags |= F_SETS_BP;
	w->count = n + 1;
	w->f.flags = 0;
	w->f.bp_at = w->f.cfa_at[0] = w->f.cfa_at[1] = 0;
	switch (kind) {
	case CFA_RSP:
	case CFA_RBP:
	case CFA_RBX:
		at = offset_of(rule);
		if (kind == CFA_RSP) {
			cfa = w->f.sp + at;
		} else if (kind == CFA_RBP) {
			cfa = w->f.bp + at;
		} else {
			f->flags |= F_USES_MORE;
			cfa = w->bx;
			if (w->bx_at && read_slot(h, w->bx_at, &cfa)) {
				w->end = UNREADABLE;
				return 1;
			}
			w->by_register |= !w->bx_at;
			w->f.cfa_at[0] = w->bx_at;
			w->f.cfa_value[0] = cfa;
			cfa += at;
		}
		if (rbx_of(rule))
			w->bx_at = rbx_of(rule) == RBX_LOST ? BX_LOST : cfa - 8 * (u64)rbx_of(rule);
		break;
	case CFA_R10:
	case CFA_R11:
		if (n || !(flags & F_EXACT)) {
			w->end = NO_RULE;
			return 1;
		}
		f->flags |= F_USES_MORE;
		w->by_register = 1;
		cfa = (kind == CFA_R10 ? w->r10 : w->r11) + offset_of(rule);
		w->bx_at = rbx_of(rule) && rbx_of(rule) != RBX_LOST ? cfa - 8 * (u64)rbx_of(rule) : rbx_of(rule) ? BX_LOST : 0;
		break;
	case CFA_PLT:
		cfa = w->f.sp + 8 + (((pc & 15) >= (u32)at) << 3);
		break;
	case CFA_NO_TABLE:
		cfa = w->f.bp + 16;
		rbp_kind = RBP_AT_CFA;
		rule = 0xfffeULL << 32; /* two slots below */
		w->bx_at = BX_LOST;
		w->f.flags = F_BY_BP;
		break;
	case CFA_DEREF_RSP:
	case CFA_DEREF_RBP:
	case CFA_DEREF_TWICE_RSP:
		w->bx_at = BX_LOST;
		w->f.cfa_at[0] = (kind == CFA_DEREF_RBP ? w->f.bp : w->f.sp) + (s16)at;
		if (read_slot(h, w->f.cfa_at[0], &cfa)) {
			w->end = UNREADABLE;
			return 1;
		}
		w->f.cfa_value[0] = cfa;
		if (kind == CFA_DEREF_TWICE_RSP) {
			w->f.cfa_at[1] = cfa + (s8)(at >> 16);
			if (read_slot(h, w->f.cfa_at[1], &cfa)) {
				w->end = UNREADABLE;
				return 1;
			}
			w->f.cfa_value[1] = cfa;
			cfa += (s8)(at >> 24);
		} else {
			cfa += at >> 16;
		}
		break;
	case CFA_SIGNAL:
		f->flags |= F_SETS_BP;
		cfa = w->f.sp;
		if (read_slot(h, cfa + SIGNAL_SP, &w->f.sp) || read_slot(h, cfa + SIGNAL_IP, &ra) ||
		    read_slot(h, cfa + SIGNAL_BP, &w->f.bp)) {
			w->end = UNREADABLE;
			return 1;
		}
		w->f.ip = ra;
		w->bx_at = cfa + SIGNAL_BX;
		w->f.flags = F_EXACT | F_BREAK;
		return 0;
	case CFA_END:
		return 1;
	case CFA_NO_MAPPING:
		w->end = w->loading ? LOADING : NO_MAPPING;
		return 1;
	default:
		w->end = NO_RULE;
		return 1;
	}
	if (read_slot(h, cfa - 8, &ra)) {
		w->end = UNREADABLE;
		return 1;
	}
	if (rbp_kind) {
		bp_at = (rbp_kind == RBP_AT_CFA ? cfa : w->f.bp) + rbp_offset_of(rule);
		if (read_slot(h, bp_at, &w->f.bp)) {
			w->end = UNREADABLE;
			return 1;
		}
		w->f.bp_at = bp_at;
	}
	w->f.sp = cfa;
	w->f.ip = ra;
	return !ra;
}

static long step_loop(u32 i, struct here *h)
{
	return step(h);
}

/* ---- the tree ---- */

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

/* ---- what is kept for the next event ---- */

static __always_inline void keep_slot(struct thread *t, u32 *count, u32 owner, u64 at, u64 value)
{
	u32 i = *count & (2 * MAX_FRAMES - 1);
	t->slots[i].at = at;
	t->slots[i].value = value;
	t->owner[i] = owner;
	*count = i + 1;
}

/* Appends a fresh frame, outermost first, to those kept, with the slots that it was read from. */
static __always_inline long append(u32 i, struct here *h)
{
	struct cpu *c = h->c;
	struct thread *t = h->t;
	struct walk *w = &c->walk;
	struct frame *f = &c->fresh[(w->count - 1 - i) & (MAX_FRAMES - 1)], *kept;
	u32 live = w->live, k = w->joined + i, slots = w->slots;
	u16 flags = f->flags;

	if (flags & F_USES_BP)
		live = F_LIVE_BP;
	else if (flags & F_SETS_BP)
		live = 0;
	if (!k)
		t->top = f->sp;
	keep_slot(t, &slots, k, flags & F_BREAK ? 0 : f->sp - 8, f->ip);
	if (f->bp_at && live)
		keep_slot(t, &slots, k, f->bp_at, f->bp);
	if (f->cfa_at[0])
		keep_slot(t, &slots, k, f->cfa_at[0], f->cfa_value[0]);
	if (f->cfa_at[1])
		keep_slot(t, &slots, k, f->cfa_at[1], f->cfa_value[1]);
	kept = &t->frames[k & (MAX_FRAMES - 1)];
	*kept = *f;
	kept->flags = (flags & ~F_LIVE_BP) | live;
	w->live = live;
	kept->slots = w->slots = slots;
	kept->node = w->node = node_of(h, pc_of(f), w->node);
	return 0;
}

static long append_loop(u32 i, struct here *h)
{
	return append(i + INLINE_STEPS, h);
}

static long compare_loop(u32 it, struct here *h)
{
	struct thread *t = h->t;
	struct walk *w = &h->c->walk;
	u32 i = w->candidate;
	struct slot *s;
	u64 value;

	if (i >= w->slots)
		return 1;
	s = &t->slots[i & (2 * MAX_FRAMES - 1)];
	if (s->at < w->base && s->at >= t->frames[(t->count - 1) & (MAX_FRAMES - 1)].sp) /* popped */
		return 1;
	if (read_slot(h, s->at, &value) || value != s->value)
		return 1;
	w->candidate = i + 1;
	return 0;
}

/* Number of remembered frames, from the outermost, whose slots are unchanged; the innermost one has none of its own. */
static __always_inline u32 unchanged(struct here *h)
{
	struct thread *t = h->t;
	struct cpu *c = h->c;
	struct walk *w = &c->walk;
	u64 base = w->base, length = w->length;
	u32 i, n = t->count, slots;

	if (n < 2)
		return 0;
	slots = t->frames[(n - 2) & (MAX_FRAMES - 1)].slots;
	for (i = 0; i < 2 * MAX_FRAMES; i++) {
		struct slot *s;
		u64 offset;
		if (i >= slots)
			return n - 1;
		s = &t->slots[i];
		offset = s->at - base;
		if (offset >= length || offset > STACK_COPY - 8)
			break;
		if (*(u64 *)(c->copy + offset) != s->value)
			return t->owner[i];
	}
	w->candidate = i;
	w->slots = slots;
	bpf_loop_(2 * MAX_FRAMES, compare_loop, h, 0);
	i = w->candidate;
	return i < slots ? t->owner[i & (2 * MAX_FRAMES - 1)] : n - 1;
}

static __always_inline void begin(struct walk *w, const struct pt_regs *r)
{
	w->f.ip = r->ip;
	w->f.sp = r->sp;
	w->f.bp = r->bp;
	w->bx = r->bx;
	w->r10 = r->r10;
	w->r11 = r->r11;
	w->bx_at = 0;
	w->f.bp_at = w->f.cfa_at[0] = w->f.cfa_at[1] = 0;
	w->f.flags = F_EXACT;
	w->count = w->candidate = w->slots = w->joined = w->end = w->live = w->by_register = 0;
}

/* Copies what will probably be read: up to the top of the stack, if it is known. */
static __always_inline void copy_stack(struct here *h)
{
	struct walk *w = &h->c->walk;
	u64 want = 4096;

	w->base = w->f.sp;
	w->length = 0;
	if (h->t->count) {
		want = h->t->top - w->f.sp + 16;
		if (want > 1024 * (u64)h->t->count + 4096) /* few frames in much stack: single reads are cheaper */
			want = 4096;
	}
	if (want > STACK_COPY)
		want = STACK_COPY;
	if (!bpf_probe_read_user(h->c->copy, want, (void *)w->f.sp))
		w->length = want - 7;
}

#include "soundness.h"

/* The node of the current task's user stack. */
static __always_inline u32 unwind(struct here *h, struct layout *l, u32 freed, const struct pt_regs *r, u64 thread)
{
	struct walk *w = &h->c->walk;
	struct thread *t;
	u32 i, n;

	h->t = t = &h->c->threads[thread & (THREADS - 1)];
	w->epoch = l->epoch;
	w->mappings = l->mappings;
	w->root = l->root;
	w->freed = freed;
	w->loading = l->unmapped != UNMAPPED_KNOWN;
	begin(w, r);
	if (t->key != thread || t->epoch != w->epoch) {
		t->count = 0;
		t->key = thread;
		t->epoch = w->epoch;
	}
	copy_stack(h);
	n = t->count;
	if (n) {
		u32 same = unchanged(h);
		w->candidate = same < n ? same + 1 : n;
	}
	for (i = 0; i < INLINE_STEPS; i++)
		if (step(h))
			break;
	if (i == INLINE_STEPS)
		bpf_loop_(2 * MAX_FRAMES, step_loop, h, 0);
	if (w->joined + w->count > MAX_FRAMES) { /* only the whole of it tells which are the innermost */
		begin(w, r);
		bpf_loop_(MAX_FRAMES + 1, step_loop, h, 0);
	}
	h->a->frames += w->joined + w->count;
	h->a->fresh_frames += w->count;
	if (w->joined) {
		struct frame *f = &t->frames[(w->joined - 1) & (MAX_FRAMES - 1)];
		w->node = f->node;
		w->live = f->flags & F_LIVE_BP;
		w->slots = f->slots;
	} else {
		w->node = w->end ? node_of(h, w->end, w->root) : w->root;
		w->slots = 0;
	}
	for (i = 0; i < INLINE_STEPS; i++) {
		if (i >= w->count)
			break;
		append(i, h);
	}
	if (w->count > INLINE_STEPS)
		bpf_loop_(w->count - INLINE_STEPS, append_loop, h, 0);
	t->count = w->joined + w->count;
	/* Nothing can be reused of a stack whose outermost frames are missing: they may be there next time. */
	if (w->end || w->slots > 2 * MAX_FRAMES - 5 || w->by_register)
		t->count = 0;
	if (check)
		compare_with_plain(h, r);
	return w->node;
}
