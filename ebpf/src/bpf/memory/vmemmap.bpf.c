/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Samples for the (randomised) address of the kernel's array of struct page (vmemmap): a raw and a classic tracepoint program
 * see the same allocations, one with the address of the struct page, the other with the page frame number. Which of the
 * two runs first depends on other users of the classic tracepoint.
 *
 * Minimum kernel: Linux 5.10 (BPF_PROG_TEST_RUN of raw tracepoints).
 */
#include "../vmlinux_min.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define MAX_SAMPLES 32

/* The last samples of both programs, of one thread. */
struct samples {
	u32 pages, pfns, size_of_page;
	u32 thread; /* its id in the initial pid namespace */
	u64 page[MAX_SAMPLES], pfn[MAX_SAMPLES];
} samples;

/* Selects the calling thread. Run by user space (BPF_PROG_TEST_RUN of raw tracepoints: Linux 5.10), which may have another id
 * in its own pid namespace. */
SEC("raw_tracepoint/select_thread")
int select_thread(u64 *args)
{
	samples.thread = bpf_get_current_pid_tgid();
	return 0;
}

SEC("raw_tracepoint/mm_page_alloc")
int on_alloc_page(u64 *args)
{
	u32 i = samples.pages;

	if ((u32)bpf_get_current_pid_tgid() != samples.thread)
		return 0;
	samples.size_of_page = bpf_core_type_size(struct page);
	samples.page[i & (MAX_SAMPLES - 1)] = args[0];
	samples.pages = i + 1;
	return 0;
}

SEC("tracepoint/kmem/mm_page_alloc")
int on_alloc_pfn(struct trace_event_raw_mm_page_alloc *args)
{
	u32 i = samples.pfns;

	if ((u32)bpf_get_current_pid_tgid() != samples.thread)
		return 0;
	samples.pfn[i & (MAX_SAMPLES - 1)] = args->pfn;
	samples.pfns = i + 1;
	return 0;
}
