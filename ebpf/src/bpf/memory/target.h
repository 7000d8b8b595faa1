/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Lookup of watched processes. Most allocations are those of other processes: a bitmap by tgid, whose lookup is a load, spares
 * them the search in a hash map.
 *
 * A bit is set before and after its entry is inserted, and cleared after the entry was deleted: user space, which may delete
 * the entry of a pid that a fork inserts anew at the same time, looks for an entry after it cleared the bit. So no entry is
 * left without its bit. A bit without an entry, which remains where the hash map is full, costs a search.
 */
#pragma once
#include "memory.h"

/* Process ids are below 2^22 (PID_MAX_LIMIT). */
#define MAX_PID (1U << 22)

/* Whether a process is in `targets`, by tgid. Mappable array: Linux 5.5. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_PID / 64);
	__type(key, u32);
	__type(value, u64);
} target_bits SEC(".maps");

static __always_inline u64 *target_bits_of(u32 tgid)
{
	u32 word = tgid / 64;
	return bpf_map_lookup_elem(&target_bits, &word);
}

static __always_inline struct target *target_of(u32 tgid)
{
	u64 *bits = target_bits_of(tgid);

	if (bits && !(*bits >> (tgid & 63) & 1))
		return 0;
	return bpf_map_lookup_elem(&targets, &tgid);
}

static __always_inline void set_target_bit(u32 tgid)
{
	u64 *bits = target_bits_of(tgid);
	if (bits)
		__sync_fetch_and_or(bits, 1ULL << (tgid & 63));
}

static __always_inline long insert_target(u32 tgid, const struct target *t)
{
	long error;

	set_target_bit(tgid);
	error = bpf_map_update_elem(&targets, &tgid, t, BPF_ANY);
	set_target_bit(tgid);
	return error;
}

static __always_inline void delete_target(u32 tgid)
{
	u64 *bits = target_bits_of(tgid);

	bpf_map_delete_elem(&targets, &tgid);
	if (bits)
		__sync_fetch_and_and(bits, ~(1ULL << (tgid & 63)));
}
