/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What observing page allocations costs at least: `empty_alloc` and `empty_free` return at once. `frame_pointers` counts the
 * allocations of one process by stack id, which the kernel finds by frame pointers, and follows no frees.
 */
#include "vmlinux_min.h"
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* include/uapi/linux/bpf.h */
enum { BPF_MAP_TYPE_STACK_TRACE = 7, BPF_F_USER_STACK = 1 << 8, BPF_F_FAST_STACK_CMP = 1 << 9 };

#define MAX_STACKS 16384
#define MAX_FRAMES 127

/* Set by the loader. */
const volatile u32 watched = 0; /* tgid */

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, MAX_STACKS);
	__uint(key_size, sizeof(u32));
	__uint(value_size, MAX_FRAMES * sizeof(u64));
} stacks SEC(".maps");

/* Allocations by stack id. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_STACKS);
	__type(key, u32);
	__type(value, u64);
} counts SEC(".maps");

SEC("raw_tracepoint/mm_page_alloc")
int empty_alloc(u64 *args)
{
	return 0;
}

SEC("raw_tracepoint/mm_page_free")
int empty_free(u64 *args)
{
	return 0;
}

SEC("raw_tracepoint/mm_page_alloc")
int frame_pointers(u64 *args)
{
	u64 *count;
	s32 id;

	if (bpf_get_current_pid_tgid() >> 32 != watched)
		return 0;
	id = bpf_get_stackid(args, &stacks, BPF_F_USER_STACK | BPF_F_FAST_STACK_CMP);
	count = bpf_map_lookup_elem(&counts, &id);
	if (count)
		__sync_fetch_and_add(count, 1);
	return 0;
}
