/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Finds the (randomised) address of the kernel's array of struct page: a raw and a classic probe see the same allocation,
 * one with the address of its struct page, the other with its page frame number. The raw one must be attached first.
 */
#include "vmlinux_min.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define SAMPLES 16

const volatile u32 thread = 0;

struct found {
	u64 page; /* of the allocation that is under way */
	u32 samples, size_of_page;
	u64 base[SAMPLES];
} found;

SEC("raw_tracepoint/mm_page_alloc")
int on_alloc_page(u64 *args)
{
	if ((u32)bpf_get_current_pid_tgid() == thread)
		found.page = args[0];
	return 0;
}

SEC("tracepoint/kmem/mm_page_alloc")
int on_alloc_frame(struct trace_event_raw_mm_page_alloc *args)
{
	u32 i = found.samples;

	if ((u32)bpf_get_current_pid_tgid() != thread || !found.page)
		return 0;
	found.size_of_page = bpf_core_type_size(struct page);
	if (i < SAMPLES) {
		found.base[i & (SAMPLES - 1)] = found.page - args->pfn * bpf_core_type_size(struct page);
		found.samples = i + 1;
	}
	found.page = 0;
	return 0;
}
