/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Finds the (randomised) address of the kernel's array of struct page: a raw and a classic probe see the same allocations,
 * one with the address of the struct page, the other with the page frame number. Which of them comes first depends on who
 * else uses the classic tracepoint.
 */
#include "vmlinux_min.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define SAMPLES 32

const volatile u32 thread = 0;

/* The last ones of both. */
struct found {
	u32 pages, frames, size_of_page, pad;
	u64 page[SAMPLES], frame[SAMPLES];
} found;

SEC("raw_tracepoint/mm_page_alloc")
int on_alloc_page(u64 *args)
{
	u32 i = found.pages;

	if ((u32)bpf_get_current_pid_tgid() != thread)
		return 0;
	found.size_of_page = bpf_core_type_size(struct page);
	found.page[i & (SAMPLES - 1)] = args[0];
	found.pages = i + 1;
	return 0;
}

SEC("tracepoint/kmem/mm_page_alloc")
int on_alloc_frame(struct trace_event_raw_mm_page_alloc *args)
{
	u32 i = found.frames;

	if ((u32)bpf_get_current_pid_tgid() != thread)
		return 0;
	found.frame[i & (SAMPLES - 1)] = args->pfn;
	found.frames = i + 1;
	return 0;
}
