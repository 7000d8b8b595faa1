/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What kernel and user space share about sockets: records in the ring, maps, counters. `src/record.rs` reads the records
 * and `src/maps.rs` the counters; sizes are asserted on both sides.
 */
#pragma once
#include "vmlinux_min.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

enum direction { SENT = 0, RECEIVED = 1 };
enum role { ROLE_UNKNOWN = 0, ROLE_INITIATOR = 1, ROLE_RESPONDER = 2 };
enum verdict { UNDECIDED = 0, KEEP = 1, LEAVE_ALONE = 2 };
enum closed_by { BY_UNKNOWN = 0, BY_LOCAL = 1, BY_REMOTE = 2, BY_RESET = 3 };
enum record_kind { R_NONE = 0, R_DATA = 1, R_LISTENING = 2, R_EXEC = 3, R_OPENED = 4, R_INODE = 5, R_CLOSED = 6 };

/* Why bytes that were seen are not in the ring; the names are in `src/event.rs`. */
enum reason {
	NOT_MISSING = 0,
	BYPASSED,       /* the stream moved on without a call that was seen: splice, zero-copy receive, ... */
	NO_USER_BUFFER, /* sendfile, splice: the system call has no buffer of the process */
	IO_URING,
	COMPAT,         /* a 32-bit system call */
	UNREADABLE,     /* the memory could not be read without a page fault */
	RING_FULL,
	AMBIGUOUS,      /* which message of a sendmmsg/recvmmsg it was is not certain */
	CONCURRENT,     /* several threads in the same direction of one socket: position not certain */
	DISCARDED,      /* recv with MSG_TRUNC: TCP throws the bytes away unread */
	NO_ROOM,        /* the table of sockets is full */
	REASONS,
};

/* Flags of a data record. */
enum { CALL_START = 1, SOCKET_CALL = 2 };

struct data_header {
	u8 kind, direction, flags, reason;
	u32 length; /* bytes that follow */
	u64 socket;
	u64 offset; /* stream offset of the first byte it covers */
	u64 covers;
	u64 time;
};
_Static_assert(sizeof(struct data_header) == 40, "src/record.rs");

/* Everything that is not data. Fields that do not apply are 0. */
struct notice {
	u8 kind, role, by, pad;
	u32 pid;
	u64 socket;
	u64 time;
	u64 inode;
	u64 sent, received; /* stream offsets */
	u32 netns;
	u16 local_port, remote_port;
	u16 family, pad2[3];
	u8 local[16], remote[16];
};
_Static_assert(sizeof(struct notice) == 96, "src/record.rs");

/* Written by the I/O programs in process context only; each direction has its own, because the programs of the two
 * directions may interrupt each other where tracepoints are preemptible. */
struct flow {
	u64 seen, captured, left_alone;
	u64 records, dropped_records;
	u64 dropped[REASONS]; /* [NOT_MISSING] is unused */
};

/* One for each watched process and CPU. */
struct account {
	struct flow flow[2];
	u64 tail; /* bypassed bytes found when a socket went away: written in softirq, so not part of `flow` */
};
_Static_assert(sizeof(struct account) == 2 * 8 * (5 + REASONS) + 8, "src/maps.rs");

struct listen_key {
	u32 netns; /* 0: any */
	u16 port;
	u16 pad;
};

struct listener {
	u32 pid;
	u32 count; /* sockets that listen there (SO_REUSEPORT) */
};

struct socket_state {
	u64 id;
	u64 next[2];  /* stream offset after the last byte accounted for, by direction */
	u64 first[2]; /* where capture began */
	u64 inode;
	u64 opened;    /* time */
	u64 last_sent; /* final offset + 1, known from the transition to CLOSE on */
	u32 base[2];   /* sequence number of stream offset 0 */
	u32 pid, netns;
	u16 family, local_port, remote_port;
	/* One byte each: they are written by different programs, possibly at once. */
	u8 role, verdict, established, announced, silent, fin_sent, by, inode_asked;
	u8 local[16], remote[16];
};
_Static_assert(sizeof(struct socket_state) == 128, "src/maps.rs");

/* A notice that did not fit in the ring, kept for user space to fetch. */
struct orphan {
	struct notice opened; /* kind R_NONE if it was delivered */
	struct notice last;
};

/* The place of a thread in its sendmmsg or recvmmsg, whose events do not say which message they are about. */
struct cursor {
	u64 messages, sock, vector_length;
	u32 index;
	u32 call;
	s64 ret;
	u8 complete;
};

const volatile u32 wake_bytes = 2 << 20;
const volatile u32 every_exec = 0;

struct globals {
	u64 last_id;
	u64 orphaned; /* notices that did not fit in the ring and were kept in `orphans` */
	u64 lost;     /* notices that did not fit there either */
} globals;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 32 << 20);
} ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, u64); /* struct sock * */
	__type(value, struct socket_state);
} sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, struct account);
} processes SEC(".maps");

/* Children of watched processes: they may use sockets that they inherited. Syscall mode only, which asks who calls first. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, u32);
	__type(value, u32);
} children SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct listen_key);
	__type(value, u8);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct listen_key);
	__type(value, struct listener);
} listeners SEC(".maps");

/* The name of a program as the kernel keeps it of a task. */
struct program {
	u8 name[16];
};

/* Programs whose processes are watched from their execution on. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, struct program);
	__type(value, u8);
} programs SEC(".maps");

/* The only port whose accepted sockets are captured, by process. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, u16);
} filters SEC(".maps");

/* LRU: a verdict on a socket that is gone is never fetched. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, u64);
	__type(value, u8);
} verdicts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, u64);
	__type(value, struct orphan);
} orphans SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, u64); /* thread */
	__type(value, struct cursor);
} cursors SEC(".maps");

/* Whether this processor is running `on_state`. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} runs SEC(".maps");
