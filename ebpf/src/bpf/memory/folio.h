/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Changes of pages that no tracepoint reports, found by inspecting `struct page`:
 *
 * - A process that unmaps a part of a huge page is no longer charged for it, but the kernel keeps the pages until it splits
 *   the folio (deferred split). Such pages count as memory of the kernel, by `struct page._mapcount`. Inspected when user
 *   space reads.
 * - A page of shared memory (tmpfs, memfd) is allocated like an anonymous one, and no tracepoint reports its insertion into
 *   the page cache. Such pages wait in a short queue until `struct page.mapping` is set.
 */
#pragma once
#include "page_owner.h"

#define HUGE_ORDER 9
#define PAGE_STRUCT 64 /* sizeof(struct page), verified by the loader */

static __always_inline struct page *pfn_to_page(u64 pfn)
{
	return (void *)(vmemmap_base + pfn * PAGE_STRUCT);
}

static __always_inline u64 page_to_pfn(u64 page)
{
	return (page - vmemmap_base) / PAGE_STRUCT;
}

/* ---- large folios ---- */

/* Large folios of targets. Hash map: Linux 3.19. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, u32); /* first pfn */
	__type(value, u32); /* order */
} folios SEC(".maps");

static __always_inline void add_folio(u32 pfn, u32 order)
{
	struct counters *a;

	if (bpf_map_update_elem(&folios, &pfn, &order, BPF_ANY)) {
		a = counters_here();
		if (a)
			a->folio_table_full++;
	}
}

/* Whether the page is the head of a folio that is mapped by one entry (PMD). */
static __always_inline int is_entirely_mapped(u32 pfn)
{
	struct folio *folio = (void *)pfn_to_page(pfn);
	u64 flags = 0;

	/* The flags are the first word of struct page; the name of their type varies. */
	bpf_probe_read_kernel(&flags, sizeof flags, folio);
	if (!(flags >> bpf_core_enum_value(enum pageflags, PG_head) & 1))
		return 0;
	return BPF_CORE_READ(folio, _entire_mapcount.counter) >= 0;
}

struct folio_inspection {
	u32 pfn, whole, owned;
};

static long inspect_page(u32 i, struct folio_inspection *s)
{
	u32 pfn = s->pfn + i, *o = bpf_map_lookup_elem(&page_owners, &pfn), before, after;
	struct page *page = pfn_to_page(pfn);
	int held;

	if (!o)
		return 1;
	before = *o;
	if (!before)
		return 0;
	s->owned = 1;
	held = !s->whole && BPF_CORE_READ(page, _mapcount.counter) < 0;
	if (held && (before & KIND_MASK) == KIND_ANON << KIND_SHIFT)
		after = (before & ~KIND_MASK) | KIND_KERNEL << KIND_SHIFT | DEFERRED_SPLIT;
	else if (!held && (before & DEFERRED_SPLIT))
		after = (before & ~(KIND_MASK | DEFERRED_SPLIT)) | KIND_ANON << KIND_SHIFT;
	else
		return 0;
	if (__sync_val_compare_and_swap(o, before, after) != before)
		return 0;
	add_pages(before, -1);
	add_pages(after, 1);
	return 0;
}

/* Updates the pages of a folio; returns whether any of them has an owner. Global: the verifier checks it once. */
__noinline int inspect_pages(u32 pfn, u32 order)
{
	struct folio_inspection s = { pfn, is_entirely_mapped(pfn), 0 };

	bpf_loop_(1U << (order & 15), inspect_page, &s, 0);
	return s.owned;
}

/* First pages of the folios to inspect: a batch, since one run over all folios would occupy a CPU for up to a second. */
#define FOLIO_BATCH 64

/* A batch. Mappable array: Linux 5.5. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FOLIO_BATCH);
	__type(key, u32);
	__type(value, u64);
} folio_batch SEC(".maps");

static long inspect_folio(u32 i, void *unused)
{
	u64 *first = bpf_map_lookup_elem(&folio_batch, &i);
	u32 pfn, *order, *owner;

	if (!first)
		return 1;
	pfn = *first;
	order = bpf_map_lookup_elem(&folios, &pfn);
	if (!order)
		return 0;
	/* No page of a folio that is mapped by one entry has been freed. */
	owner = bpf_map_lookup_elem(&page_owners, &pfn);
	if (owner && *owner && !(*owner & DEFERRED_SPLIT) && is_entirely_mapped(pfn))
		return 0;
	if (!inspect_pages(pfn, *order)) /* freed in parts */
		bpf_map_delete_elem(&folios, &pfn);
	return 0;
}

/* Inspects the first args[0] folios of the batch. User space runs it before it reads (BPF_PROG_TEST_RUN of raw tracepoints:
 * Linux 5.10). */
SEC("raw_tracepoint/inspect_folios")
int inspect_folios(u64 *args)
{
	bpf_loop_(args[0], inspect_folio, 0, 0);
	return 0;
}

/* ---- pages of shared memory ---- */

#define KIND_QUEUE_SIZE 16

struct kind_queue {
	u32 pfns[KIND_QUEUE_SIZE];
	u32 next, pad;
};

/* Queues by CPU. Array: Linux 3.19. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* CPUs */
	__type(key, u32);
	__type(value, struct kind_queue);
} kind_queues SEC(".maps");

/*
 * Changes the kind of a page to cache if it is in the page cache: the mapping of an anonymous page has the lowest bit set,
 * a page that is not in use (yet) has none. Global: the verifier checks it once.
 */
__noinline int resolve_kind(u32 pfn)
{
	u32 *o = bpf_map_lookup_elem(&page_owners, &pfn), order;
	struct pfn_range s = { .first = pfn, .value = KIND_CACHE };
	struct page *page = pfn_to_page(pfn);
	u64 mapping;

	if (!o || (*o & KIND_MASK) != KIND_ANON << KIND_SHIFT)
		return 0;
	mapping = (u64)BPF_CORE_READ(page, mapping);
	if (!mapping || (mapping & 3))
		return 0;
	order = *o >> ORDER_SHIFT & 15;
	if (order)
		bpf_loop_(1U << order, set_page_kind, &s, 0);
	else
		set_page_kind(0, &s);
	return 0;
}

/* Replaces the oldest page of the queue, whose kind is resolved, by this one. */
static __always_inline void queue_kind_check(u32 pfn)
{
	u32 cpu = bpf_get_smp_processor_id(), i, oldest;
	struct kind_queue *q = bpf_map_lookup_elem(&kind_queues, &cpu);

	if (!q)
		return;
	i = q->next & (KIND_QUEUE_SIZE - 1);
	oldest = q->pfns[i];
	q->pfns[i] = pfn;
	q->next = i + 1;
	if (oldest)
		resolve_kind(oldest);
}

static long resolve_queue(u32 cpu, void *unused)
{
	struct kind_queue *q = bpf_map_lookup_elem(&kind_queues, &cpu);

	if (!q)
		return 1;
	for (u32 i = 0; i < KIND_QUEUE_SIZE; i++)
		resolve_kind(q->pfns[i]);
	return 0;
}

/* Resolves the kind of all pages in the queues. User space runs it before it reads. */
SEC("raw_tracepoint/resolve_kinds")
int resolve_kinds(u64 *args)
{
	bpf_loop_(max_cpus, resolve_queue, 0, 0);
	return 0;
}
