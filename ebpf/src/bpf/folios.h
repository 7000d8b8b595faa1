/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What events do not tell, looked at when user space reads:
 *
 * - A process that gives back a part of a huge page is charged no more for it, but the kernel holds the frames until it
 *   takes the page apart. Such frames count as the kernel's, by `struct page._mapcount`.
 * - A page of shared memory (tmpfs, memfd) is allocated as an anonymous one is, and no tracepoint tells of its entry into
 *   the page cache. Pages in question wait in a short queue until `struct page.mapping` tells.
 */
#pragma once
#include "owners.h"

#define HUGE_ORDER 9
#define PAGE_STRUCT 64 /* sizeof(struct page); the loader makes sure */

static __always_inline struct page *page_at(u64 frame)
{
	return (void *)(page_base + frame * PAGE_STRUCT);
}

static __always_inline u64 frame_of(u64 page)
{
	return (page - page_base) / PAGE_STRUCT;
}

/* ---- large folios ---- */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, u32); /* first frame */
	__type(value, u32); /* order */
} folios SEC(".maps");

static __always_inline void remember_folio(u32 frame, u32 order)
{
	struct account *a;

	if (bpf_map_update_elem(&folios, &frame, &order, BPF_ANY)) {
		a = account_here();
		if (a)
			a->no_folio++;
	}
}

/* Whether the frame begins a folio that is mapped as a whole. */
static __always_inline int is_mapped_whole(u32 frame)
{
	struct folio *folio = (void *)page_at(frame);
	u64 flags = 0;

	/* The first word of struct page, whatever its type is called. */
	bpf_probe_read_kernel(&flags, sizeof flags, folio);
	if (!(flags >> bpf_core_enum_value(enum pageflags, PG_head) & 1))
		return 0;
	return BPF_CORE_READ(folio, _entire_mapcount.counter) >= 0;
}

struct inspection {
	u32 frame, whole, owned;
};

static long inspect_frame(u32 i, struct inspection *s)
{
	u32 frame = s->frame + i, *o = bpf_map_lookup_elem(&owners, &frame), before, after;
	struct page *page = page_at(frame);
	int held;

	if (!o)
		return 1;
	before = *o;
	if (!before)
		return 0;
	s->owned = 1;
	held = !s->whole && BPF_CORE_READ(page, _mapcount.counter) < 0;
	if (held && (before & KIND_MASK) == KIND_ANON << KIND_SHIFT)
		after = (before & ~KIND_MASK) | KIND_KERNEL << KIND_SHIFT | HELD;
	else if (!held && (before & HELD))
		after = (before & ~(KIND_MASK | HELD)) | KIND_ANON << KIND_SHIFT;
	else
		return 0;
	if (__sync_val_compare_and_swap(o, before, after) != before)
		return 0;
	count(before, -1);
	count(after, 1);
	return 0;
}

/* Whether any of the frames has an owner. Not static: the verifier looks at it once and for all. */
__noinline int inspect_frames(u32 frame, u32 order)
{
	struct inspection s = { frame, is_mapped_whole(frame), 0 };

	bpf_loop_(1U << (order & 15), inspect_frame, &s, 0);
	return s.owned;
}

static long inspect_folio(void *map, u32 *frame, u32 *order, void *unused)
{
	u32 key = *frame;

	if (!inspect_frames(key, *order)) /* freed, and not in one piece */
		bpf_map_delete_elem(&folios, &key);
	return 0;
}

/* ---- pages of shared memory ---- */

#define QUEUE 16

struct queue {
	u32 frames[QUEUE];
	u32 next, pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* CPUs */
	__type(key, u32);
	__type(value, struct queue);
} queues SEC(".maps");

/*
 * An anonymous page has a mapping with the lowest bit set; one that is not in use (yet) has none. Not static: the verifier
 * looks at it once and for all.
 */
__noinline int settle(u32 frame)
{
	u32 *o = bpf_map_lookup_elem(&owners, &frame), order;
	struct span s = { .first = frame, .value = KIND_CACHE };
	struct page *page = page_at(frame);
	u64 mapping;

	if (!o || (*o & KIND_MASK) != KIND_ANON << KIND_SHIFT)
		return 0;
	mapping = (u64)BPF_CORE_READ(page, mapping);
	if (!mapping || (mapping & 3))
		return 0;
	order = *o >> ORDER_SHIFT & 15;
	if (order)
		bpf_loop_(1U << order, set_kind, &s, 0);
	else
		set_kind(0, &s);
	return 0;
}

/* Looks at the page that has waited longest, and lets this one wait. */
static __always_inline void queue_page(u32 frame)
{
	u32 cpu = bpf_get_smp_processor_id(), i, oldest;
	struct queue *q = bpf_map_lookup_elem(&queues, &cpu);

	if (!q)
		return;
	i = q->next & (QUEUE - 1);
	oldest = q->frames[i];
	q->frames[i] = frame;
	q->next = i + 1;
	if (oldest)
		settle(oldest);
}

static long settle_queue(u32 cpu, void *unused)
{
	struct queue *q = bpf_map_lookup_elem(&queues, &cpu);

	if (!q)
		return 1;
	for (u32 i = 0; i < QUEUE; i++)
		settle(q->frames[i]);
	return 0;
}

/* Run by user space before it reads. */
SEC("raw_tracepoint/inspect")
int inspect(u64 *args)
{
	bpf_for_each_map_elem_(&folios, inspect_folio, 0, 0);
	bpf_loop_(max_cpus, settle_queue, 0, 0);
	return 0;
}
