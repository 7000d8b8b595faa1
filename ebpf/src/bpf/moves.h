/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Pages that the kernel moves keep their owner: migration (compaction, NUMA balancing) from one frame to another, and
 * collapse of many small pages into a huge one.
 */
#pragma once
#include "owners.h"
#include "folios.h"

/* Frame `to` takes the owner of frame `from`. Returns 1 if there was one. */
static __always_inline u32 move_owner(u32 from, u32 to)
{
	u32 *f = bpf_map_lookup_elem(&owners, &from), *t = bpf_map_lookup_elem(&owners, &to), owner, before;

	if (!f || !t || from == to)
		return 0;
	owner = __sync_lock_test_and_set(f, 0);
	if (!owner)
		return 0;
	before = __sync_lock_test_and_set(t, owner);
	if (before)
		count(before, -1);
	return 1;
}

/* ---- migration ---- */

/* A page that is between two frames: its place in virtual memory is the same before and after. */
struct place {
	u64 mapping; /* `struct page.mapping`: whose page it is */
	u64 address;
};

/* LRU: a page whose process ends while it moves never arrives. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct place);
	__type(value, u32);
} migrations SEC(".maps");

/* A migration entry of x86-64 holds the inverted frame number in bits 9..42 (include/asm/pgtable_64.h). */
static __always_inline u32 frame_of_entry(u64 entry)
{
	return (~entry << 5 >> 14) & ((1ULL << 32) - 1);
}

static __always_inline u32 frame_of_present(u64 entry)
{
	return (entry & 0x000ffffffffff000ULL) >> 12;
}

static __always_inline struct place place_of(u32 frame, u64 address)
{
	struct page *page = page_at(frame);
	struct place p = { (u64)BPF_CORE_READ(page, mapping), address };
	return p;
}

/* The page at `address` begins to move: the entry that stands for it says from where. */
static __always_inline void leave(u64 address, u64 entry)
{
	u32 frame = frame_of_entry(entry), *o = bpf_map_lookup_elem(&owners, &frame);
	struct place p;

	if (!o || !*o)
		return;
	p = place_of(frame, address);
	bpf_map_update_elem(&migrations, &p, &frame, BPF_ANY);
}

struct block {
	u32 from, to, moved;
};

static long move_one(u32 i, struct block *b)
{
	b->moved += move_owner(b->from + i, b->to + i);
	return 0;
}

/* ... and has arrived, or is back where it was. */
static __always_inline void arrive(u64 address, u64 entry, u32 pages)
{
	u32 frame = frame_of_present(entry), *from;
	struct place p = place_of(frame, address);
	struct account *a = account_here();
	struct block b = { 0, frame, 0 };

	from = bpf_map_lookup_elem(&migrations, &p);
	if (!from)
		return;
	b.from = *from;
	bpf_map_delete_elem(&migrations, &p);
	if (b.from == b.to)
		return;
	if (pages == 1) {
		move_one(0, &b);
	} else {
		bpf_loop_(pages, move_one, &b, 0);
		remember_folio(frame, HUGE_ORDER);
	}
	if (a)
		a->moved += b.moved;
}

SEC("raw_tracepoint/set_migration_pte")
int on_leave(u64 *args)
{
	leave(args[0], args[1]);
	return 0;
}

SEC("raw_tracepoint/remove_migration_pte")
int on_arrive(u64 *args)
{
	arrive(args[0], args[1], 1);
	return 0;
}

SEC("raw_tracepoint/set_migration_pmd")
int on_leave_huge(u64 *args)
{
	leave(args[0], args[1]);
	return 0;
}

SEC("raw_tracepoint/remove_migration_pmd")
int on_arrive_huge(u64 *args)
{
	arrive(args[0], args[1], 1 << HUGE_ORDER);
	return 0;
}

/* ---- collapse ---- */

/*
 * A thread allocates a huge page, isolates the small ones, copies and frees them one by one, and says how it went. Those of
 * a folio (a huge page of which a part was given back, say) it frees as one. The owners of the freed ones go to the huge
 * page's frames in that order: sums by stack are right, and which of its frames is whose is as good as the kernel tells.
 */
struct collapse {
	u32 frame; /* of the huge page */
	u32 active, next;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, u64); /* thread */
	__type(value, struct collapse);
} collapses SEC(".maps");

static __always_inline void maybe_collapse(u64 thread, u32 frame)
{
	struct collapse c = { frame, 0, 0 };
	bpf_map_update_elem(&collapses, &thread, &c, BPF_ANY);
}

/* Frames that are freed because they were collapsed. */
struct gathering {
	u32 first;
	u32 frame, next; /* of the huge page, and of that the next one to get an owner */
	u32 moved;
};

static long gather_one(u32 i, struct gathering *g)
{
	u32 from = g->first + i, *o = bpf_map_lookup_elem(&owners, &from);

	if (!o || g->next >= 1 << HUGE_ORDER)
		return 1;
	if ((*o & KIND_MASK) != KIND_ANON << KIND_SHIFT) /* of a folio: held, or nobody's */
		return 0;
	__sync_fetch_and_and(o, ~ORDER_MASK);
	g->moved += move_owner(from, g->frame + g->next);
	g->next++;
	return 0;
}

/* Pages are freed: if that is because they were collapsed, their owners go to the huge page. Returns how many had one. */
static __always_inline int collapsed(u32 frame, u32 order)
{
	u64 thread = bpf_get_current_pid_tgid();
	struct collapse *c = bpf_map_lookup_elem(&collapses, &thread);
	struct account *a = account_here();
	struct gathering g = { .first = frame };

	if (!c || !c->active || c->frame == frame || !a) /* the huge page itself: it was not needed */
		return 0;
	g.frame = c->frame;
	g.next = c->next;
	if (order)
		bpf_loop_(1U << (order & 15), gather_one, &g, 0);
	else
		gather_one(0, &g);
	c->next = g.next;
	a->moved += g.moved;
	return g.moved;
}

SEC("raw_tracepoint/mm_collapse_huge_page_isolate")
int on_isolate(u64 *args)
{
	u64 thread = bpf_get_current_pid_tgid();
	struct collapse *c = bpf_map_lookup_elem(&collapses, &thread);
	struct numbers *all = numbers();
	u32 last, *order;

	if (!c || c->active || !all)
		return 0;
	/* Of the last one's folio this is the last moment to tell what is mapped from what is only held. */
	last = frame_of(args[0]);
	order = bpf_map_lookup_elem(&folios, &last);
	if (order)
		inspect_frames(last, *order);
	c->active = 1;
	c->next = 0;
	__sync_fetch_and_add(&all->collapsing, 1);
	return 0;
}

/* Frames of the huge page that hold what was not there before: nobody's code asked for them. */
struct fill {
	u32 frame, value, pages;
};

static long fill_one(u32 i, struct fill *f)
{
	u32 frame = f->frame + i, *o = bpf_map_lookup_elem(&owners, &frame);

	if (o && !__sync_val_compare_and_swap(o, 0, f->value))
		f->pages++;
	return 0;
}

SEC("raw_tracepoint/mm_collapse_huge_page")
int on_collapse(u64 *args)
{
	struct mm_struct *mm = (void *)args[0];
	u64 thread = bpf_get_current_pid_tgid();
	u32 succeeded = (u32)args[2] == 1, tgid, node;
	struct collapse *c = bpf_map_lookup_elem(&collapses, &thread);
	struct numbers *all = numbers();
	struct target *t;
	struct layout *l;
	struct fill f;

	if (!c || !c->active || !all)
		return 0;
	f.frame = c->frame;
	bpf_map_delete_elem(&collapses, &thread);
	__sync_fetch_and_add(&all->collapsing, -1);
	if (!succeeded)
		return 0;
	tgid = BPF_CORE_READ(mm, owner, tgid);
	t = bpf_map_lookup_elem(&targets, &tgid);
	l = t ? layout_of(t->image) : 0;
	if (!l)
		return 0;
	node = find_node(NO_STACK, l->root);
	if (!node)
		node = l->root;
	f.value = owner(node, KIND_ANON);
	f.pages = 0;
	bpf_loop_(1 << HUGE_ORDER, fill_one, &f, 0);
	count(f.value, f.pages);
	remember_folio(f.frame, HUGE_ORDER);
	return 0;
}
