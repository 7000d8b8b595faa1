/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Interface of the latency programs to user space: attachment cookies, tables and counters. `src/latency/abi.rs` mirrors
 * them; sizes are asserted on both sides.
 */
#pragma once
#include "../vmlinux_min.h"
#include <bpf/bpf_helpers.h>
#include <stdbool.h>

/* Buckets of an octave, as a power of two, and those of all 64 bits; see the crate `latency`, `histogram`. */
#define OCTAVE_BITS 5
#define BUCKETS 1920
/* Distinct return codes of a span. */
#define MAX_RETURNS 4096

/* An attachment cookie: the number of the span, and how the probe is to be read. */
#define SPAN_MASK 0xffffffffULL
#define COUNT_RETURNS (1ULL << 32) /* count the value in eax at the exit */
#define BY_THREAD (1ULL << 33)     /* entry and exit are of one thread, otherwise of one stack frame */
#define RETURNED (1ULL << 34)      /* the return address has been popped already */

/* Of a span on some of the processors. Changed atomically: a program may be preempted by another one. */
struct table {
	u64 started, ended;
	u64 sum;      /* nanoseconds */
	u64 max;
	u64 not_min;  /* its bits inverted, so that 0 stands for no minimum */
	u64 replaced; /* starts whose frame, or thread, started again before it ended */
	u64 no_entry; /* ends without a start */
	u64 no_room;  /* starts that could not be kept */
	u64 no_return_room; /* return codes that could not be counted */
	u64 returns;  /* distinct return codes, in the first table of a span only */
	u64 pad[6];
	u64 buckets[BUCKETS];
};
_Static_assert(sizeof(struct table) == 128 + 8 * BUCKETS, "src/latency/abi.rs");

/* Set by the loader. Tables of a span: a power of two. */
const volatile u32 shards = 1;

/* By span, and processor modulo `shards`. Mapped by user space. Mappable array: Linux 5.5. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct table);
} tables SEC(".maps");

/* What an exit is matched with: the thread, or the stack frame, whose address is that of the return address. A frame has one
 * thread unless a coroutine has moved to another one. */
struct open_key {
	u64 task; /* with BY_THREAD: thread and process, otherwise the process */
	u64 frame; /* with BY_THREAD: 0 */
	u32 span;
	u32 pad;
};

/* Starts (time) that have not ended. Those that never end are evicted when it is full. Linux 4.10. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 17);
	__type(key, struct open_key);
	__type(value, u64);
} open_spans SEC(".maps");

struct return_key {
	u32 span;
	s32 code;
};

/* How often each code was returned. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__type(key, struct return_key);
	__type(value, u64);
} return_codes SEC(".maps");
