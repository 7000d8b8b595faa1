// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The latency programs: time from a probe at an entry to a probe at an exit, added to the histogram of their span.
 *
 * on_call does both for a function whose calls the kernel follows itself (sessions). The other two match an exit with its
 * entry by the stack frame: at its entry and at its exit a function's stack pointer is the same, and no two calls in progress
 * have the same one. So recursion is right, and a frame that is entered twice was left without an exit.
 */
#include "latency.h"

#define ADD(field, number) __sync_fetch_and_add(&(field), number)
#define RETRIES 16

/* Kfuncs (Linux 6.13), which the loader of the object does not know: `src/uprobe/load.rs` replaces these numbers. The context is
 * not an argument before Linux 7.0. */
static bool (*const session_is_return)(void *ctx) = (void *)0x7fff0001;
static u64 *(*const session_cookie)(void *ctx) = (void *)0x7fff0002;

/* struct pt_regs, which the programs get as it is. */
#define RETURN_VALUE(ctx) ((u64 *)(ctx))[10]
#define STACK_POINTER(ctx) ((u64 *)(ctx))[19]

static __always_inline struct table *table_of(u64 cookie)
{
	u32 key = (cookie & SPAN_MASK) * shards + (bpf_get_smp_processor_id() & (shards - 1));

	return bpf_map_lookup_elem(&tables, &key);
}

/* Position of the leading one of a number that is not 0. */
static __always_inline u32 exponent_of(u64 value)
{
	u32 exponent = 0;

	for (u32 step = 32; step; step >>= 1) {
		if (value >> step) {
			value >>= step;
			exponent += step;
		}
	}
	return exponent;
}

static __always_inline u32 bucket_of(u64 value)
{
	u32 exponent;

	if (value < 1 << OCTAVE_BITS)
		return value;
	exponent = exponent_of(value);
	return ((exponent - OCTAVE_BITS + 1) << OCTAVE_BITS) +
	       ((value >> (exponent - OCTAVE_BITS)) & ((1 << OCTAVE_BITS) - 1));
}

static __always_inline void raise(u64 *field, u64 value)
{
	u64 held = *(volatile u64 *)field;

	for (u32 i = 0; i < RETRIES && held < value; i++)
		held = __sync_val_compare_and_swap(field, held, value);
}

static __always_inline void count_return(struct table *t, u64 cookie, s32 code)
{
	struct return_key key = { .span = cookie & SPAN_MASK, .code = code };
	u32 first_key = key.span * shards;
	struct table *first;
	u64 one = 1, *count;

	count = bpf_map_lookup_elem(&return_codes, &key);
	if (!count) {
		first = bpf_map_lookup_elem(&tables, &first_key);
		if (!first)
			return;
		if (*(volatile u64 *)&first->returns >= MAX_RETURNS) {
			ADD(t->no_return_room, 1);
			return;
		}
		if (!bpf_map_update_elem(&return_codes, &key, &one, BPF_NOEXIST)) {
			ADD(first->returns, 1);
			return;
		}
		/* Another processor was faster, or the map is full. */
		count = bpf_map_lookup_elem(&return_codes, &key);
	}
	if (count)
		ADD(*count, 1);
	else
		ADD(t->no_return_room, 1);
}

/* A span has ended. bpf_ktime_get_ns may step back when the kernel adjusts the clock. */
static __always_inline void end(void *ctx, u64 cookie, u64 start, u64 now)
{
	u64 ns = now > start ? now - start : 0;
	struct table *t = table_of(cookie);
	u32 bucket = bucket_of(ns);

	if (!t || bucket >= BUCKETS)
		return;
	ADD(t->buckets[bucket], 1);
	ADD(t->ended, 1);
	ADD(t->sum, ns);
	raise(&t->max, ns);
	raise(&t->not_min, ~ns);
	if (cookie & COUNT_RETURNS)
		count_return(t, cookie, RETURN_VALUE(ctx));
}

/* Sessions, Linux 6.13: the kernel keeps a number for each call. */
SEC("uprobe")
int on_call(void *ctx)
{
	u64 now = bpf_ktime_get_ns(), cookie = bpf_get_attach_cookie(ctx);
	u64 *start = session_cookie(ctx);
	struct table *t;

	if (session_is_return(ctx)) {
		end(ctx, cookie, *start, now);
		return 0;
	}
	t = table_of(cookie);
	if (t)
		ADD(t->started, 1);
	*start = bpf_ktime_get_ns();
	return 0;
}

/* Ids of the initial pid namespace, whichever one user space is in: they only tell threads and processes apart here. */
static __always_inline struct open_key key_of(void *ctx, u64 cookie)
{
	u64 task = bpf_get_current_pid_tgid();
	struct open_key key = { .span = cookie & SPAN_MASK };

	if (cookie & BY_THREAD) {
		key.task = task;
	} else {
		key.task = task >> 32;
		key.frame = STACK_POINTER(ctx);
		if (cookie & RETURNED)
			key.frame -= 8;
	}
	return key;
}

SEC("uprobe")
int on_entry(void *ctx)
{
	u64 cookie = bpf_get_attach_cookie(ctx), *open, now;
	struct open_key key = key_of(ctx, cookie);
	struct table *t = table_of(cookie);

	if (!t)
		return 0;
	ADD(t->started, 1);
	open = bpf_map_lookup_elem(&open_spans, &key);
	if (open) {
		ADD(t->replaced, 1);
		*(volatile u64 *)open = bpf_ktime_get_ns();
		return 0;
	}
	now = bpf_ktime_get_ns();
	if (bpf_map_update_elem(&open_spans, &key, &now, BPF_ANY))
		ADD(t->no_room, 1);
	return 0;
}

SEC("uprobe")
int on_exit(void *ctx)
{
	u64 now = bpf_ktime_get_ns(), cookie = bpf_get_attach_cookie(ctx), *open, start;
	struct open_key key = key_of(ctx, cookie);
	struct table *t;

	open = bpf_map_lookup_elem(&open_spans, &key);
	if (!open) {
		t = table_of(cookie);
		if (t)
			ADD(t->no_entry, 1);
		return 0;
	}
	start = *(volatile u64 *)open;
	bpf_map_delete_elem(&open_spans, &key);
	end(ctx, cookie, start, now);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
