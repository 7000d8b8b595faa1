/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Wakes the reader of the ring. The including file defines `ring` and `wake_bytes` before. */
#pragma once

/* What the reader waits for: a backlog of `wake_bytes`, or any record because none came for a while. */
enum waiting { NOT_WAITING = 0, FOR_BACKLOG, FOR_RECORD };

/* State of the reader, mapped into its process. Mappable array: Linux 5.5. */
struct reader {
	u32 waiting; /* enum waiting; set by the reader before it waits, cleared by who wakes it */
	u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct reader);
} readers SEC(".maps");

/*
 * Flags of a submission: wakes the reader if it has what it waits for, once for each wait: a sender that outruns the reader, or
 * whose reader is stopped, pays for no wake-up. The decision is by backlog, not by producer position, which wakes too late
 * when other processes are busy. The backlog is looked at only if `is_due`, because the query has a cost.
 */
static __always_inline u64 wake_flags(int is_due)
{
	struct reader *reader;
	u32 key = 0, waiting;

	reader = bpf_map_lookup_elem(&readers, &key);
	if (!reader)
		return BPF_RB_NO_WAKEUP;
	waiting = *(const volatile u32 *)&reader->waiting;
	if (waiting == NOT_WAITING)
		return BPF_RB_NO_WAKEUP;
	if (waiting == FOR_BACKLOG && (!is_due || bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA) < wake_bytes))
		return BPF_RB_NO_WAKEUP;
	return __sync_lock_test_and_set(&reader->waiting, 0) ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
}

/* Flags of a submission of `n` bytes, where records are small and many: the backlog is looked at every `wake_bytes` / 32. */
static __always_inline u64 wake_flags_of(u64 *bytes_since_query, u64 n)
{
	int is_due;

	*bytes_since_query += n;
	is_due = *bytes_since_query >= wake_bytes / 32;
	if (is_due)
		*bytes_since_query = 0;
	return wake_flags(is_due);
}
