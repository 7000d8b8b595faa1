/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Pages keep their owner when the kernel migrates them (compaction, NUMA balancing) from one page frame to another.
 *
 * Minimum kernel: Linux 5.19 (tracepoints set_migration_pte and others); on older ones migrated pages lose their owner.
 */
#pragma once
#include "folio.h"

/* Identity of a page during migration: its location in virtual memory is the same before and after. */
struct page_location {
	u64 mapping; /* `struct page.mapping` */
	u64 address;
};

/* Source pfn of migrations in progress. LRU (Linux 4.10), because a migration whose process exits is never completed. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct page_location);
	__type(value, u32);
} migrations SEC(".maps");

/* A migration entry of x86-64 holds the inverted pfn in bits 9..42 (include/asm/pgtable_64.h). */
static __always_inline u32 migration_entry_pfn(u64 entry)
{
	return (~entry << 5 >> 14) & ((1ULL << 32) - 1);
}

static __always_inline u32 pte_pfn(u64 entry)
{
	return (entry & 0x000ffffffffff000ULL) >> 12;
}

static __always_inline struct page_location location_of(u32 pfn, u64 address)
{
	struct page *page = pfn_to_page(pfn);
	struct page_location p = { (u64)BPF_CORE_READ(page, mapping), address };
	return p;
}

/* Records the source of a migration: the migration entry of the page at `address` holds its pfn. */
static __always_inline void begin_migration(u64 address, u64 entry)
{
	u32 pfn = migration_entry_pfn(entry), *o = bpf_map_lookup_elem(&page_owners, &pfn);
	struct page_location p;

	if (!o || !*o)
		return;
	p = location_of(pfn, address);
	bpf_map_update_elem(&migrations, &p, &pfn, BPF_ANY);
}

struct migrating_range {
	u32 from, to, moved;
};

static long move_nth_owner(u32 i, struct migrating_range *b)
{
	b->moved += move_owner(b->from + i, b->to + i);
	return 0;
}

/* Completes a migration: the page is mapped at its destination, or again at its source. */
static __always_inline void end_migration(u64 address, u64 entry, u32 pages)
{
	u32 pfn = pte_pfn(entry), *from;
	struct page_location p = location_of(pfn, address);
	struct counters *a = counters_here();
	struct migrating_range b = { 0, pfn, 0 };

	from = bpf_map_lookup_elem(&migrations, &p);
	if (!from)
		return;
	b.from = *from;
	bpf_map_delete_elem(&migrations, &p);
	if (b.from == b.to)
		return;
	if (pages == 1) {
		move_nth_owner(0, &b);
	} else {
		bpf_loop_(pages, move_nth_owner, &b, 0);
		add_folio(pfn, HUGE_ORDER);
	}
	if (a)
		a->moved_pages += b.moved;
}

SEC("raw_tracepoint/set_migration_pte")
int on_pte_migrate(u64 *args)
{
	begin_migration(args[0], args[1]);
	return 0;
}

SEC("raw_tracepoint/remove_migration_pte")
int on_pte_migrated(u64 *args)
{
	end_migration(args[0], args[1], 1);
	return 0;
}

SEC("raw_tracepoint/set_migration_pmd")
int on_pmd_migrate(u64 *args)
{
	begin_migration(args[0], args[1]);
	return 0;
}

SEC("raw_tracepoint/remove_migration_pmd")
int on_pmd_migrated(u64 *args)
{
	end_migration(args[0], args[1], 1 << HUGE_ORDER);
	return 0;
}
