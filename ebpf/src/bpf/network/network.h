/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Interface of the network programs to user space: records of the ring, maps and counters. `src/network/record.rs` parses
 * the records, `src/network/abi.rs` mirrors the values of the maps; sizes are asserted on both sides.
 */
#pragma once
#include "../pidns.h"
#include <bpf/bpf_tracing.h>

enum direction { SENT = 0, RECEIVED = 1 };
enum role { ROLE_UNKNOWN = 0, ROLE_INITIATOR = 1, ROLE_RESPONDER = 2 };
enum verdict { UNDECIDED = 0, KEEP = 1, LEAVE_ALONE = 2 };
enum closed_by { BY_UNKNOWN = 0, BY_LOCAL = 1, BY_REMOTE = 2, BY_RESET = 3 };
enum record_kind { R_NONE = 0, R_DATA = 1, R_LISTENING = 2, R_EXEC = 3, R_OPENED = 4, R_INODE = 5, R_CLOSED = 6 };

/* Why bytes that passed are not in the ring; `src/network/event.rs` has the names. */
enum reason {
	NOT_MISSING = 0,
	BYPASSED,       /* the stream advanced without an observed call: splice, zero-copy receive, ... */
	NO_USER_BUFFER, /* sendfile, splice: the system call has no buffer of the process */
	IO_URING,
	COMPAT,         /* a 32-bit system call */
	UNREADABLE,     /* the user memory could not be read without a page fault */
	RING_FULL,
	AMBIGUOUS,      /* the message of a sendmmsg/recvmmsg that the bytes belong to is not certain */
	CONCURRENT,     /* several threads use one direction of the socket: the position is not certain */
	DISCARDED,      /* recv with MSG_TRUNC: TCP discards the bytes without copying them */
	SOCKET_TABLE_FULL,        /* the map `sockets` is full */
	REASONS,
};

/* Flags of a data record. */
enum { CALL_START = 1, SOCKET_CALL = 2 };

struct data_header {
	u8 kind, direction, flags, reason;
	u32 length; /* payload bytes that follow */
	u64 socket;
	u64 offset; /* stream offset of the first byte that the record covers */
	u64 covers;
	u64 time;
};
_Static_assert(sizeof(struct data_header) == 40, "src/network/record.rs");

/* Every record that is not data. Fields that do not apply are 0. */
struct notice {
	u8 kind, role, closed_by, pad;
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
_Static_assert(sizeof(struct notice) == 96, "src/network/record.rs");

/* Written by the I/O programs in process context only. One for each direction, because the programs of the two directions
 * may preempt each other where tracepoints are preemptible. */
struct flow_counters {
	u64 seen, captured, left_alone;
	u64 records, dropped_records;
	u64 dropped[REASONS]; /* [NOT_MISSING] is unused */
};

/* One for each watched process and CPU. */
struct account {
	struct flow_counters flow[2];
	u64 bypassed_at_close; /* bypassed bytes found when a socket closed: written in softirq, so not part of `flow` */
};
_Static_assert(sizeof(struct account) == 2 * 8 * (5 + REASONS) + 8, "src/network/abi.rs");

struct port_key {
	u32 netns; /* 0: any */
	u16 port;
	u16 pad;
};

/* Local address of a listening socket: of IPv4 as IPv4-mapped. */
struct listen_key {
	u32 netns;
	u16 port;
	u16 pad;
	__be32 address[4];
};

struct listener {
	u32 pid;
	u32 count; /* listening sockets (SO_REUSEPORT) */
};

/* State of a tracked socket. Arrays are by direction. */
struct socket_state {
	u64 id;
	u64 next[2];   /* stream offset after the last byte accounted for */
	u64 first[2];  /* stream offset of the first captured byte */
	u64 inode;
	u64 opened;    /* time */
	u64 last_sent; /* final offset + 1; set by the transition to CLOSE */
	u32 base[2];   /* sequence number of stream offset 0 */
	u32 pid, netns;
	u16 family, local_port, remote_port;
	/* One byte each: different programs write them, possibly at the same time. */
	u8 role, verdict, established, reported, muted, fin_sent, closed_by, inode_reported;
	u8 local[16], remote[16];
};

/* A notice that did not fit in the ring, stored until user space fetches it. */
struct overflow_notice {
	struct notice opened; /* kind R_NONE if it was delivered through the ring */
	struct notice last;
};

/* Position of a thread in its sendmmsg or recvmmsg: the tracepoints do not say which message an event belongs to. */
struct mmsg_cursor {
	u64 messages, sock, vector_length;
	u32 index;
	u32 call;
	s64 ret;
	u8 complete;
};

/* Options, set by the loader. */
const volatile u32 wake_bytes = 2 << 20;   /* backlog of the ring at which the reader is woken */
const volatile u32 report_every_exec = 0;  /* report executions of processes that are not watched */

struct globals {
	u64 last_id;
	u64 overflowed; /* notices stored in `overflow_notices` */
	u64 lost_notices;     /* notices that did not fit there either */
	u64 refused_processes; /* not watched because too many are unconfirmed */
} globals;

/* Records for user space. Linux 5.8. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 32 << 20);
} ring SEC(".maps");

/* Tracked sockets. Hash map: Linux 3.19. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, u64); /* struct sock * */
	__type(value, struct socket_state);
} sockets SEC(".maps");

/* Watched processes by tgid, with their counters. Per-CPU hash map: Linux 4.6. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, struct account);
} processes SEC(".maps");

/*
 * Processes that the programs watch by themselves and that user space has not confirmed or removed yet, with the slot of
 * their cgroup below. The capacity leaves entries of `processes` to those that user space adds, whatever other processes
 * execute. Linux 3.19.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, u32);
	__type(value, u32);
} unconfirmed SEC(".maps");

#define MAX_UNCONFIRMED_OF_CGROUP 32
#define CGROUP_SLOTS 1024

/* Number of unconfirmed processes by cgroup id modulo CGROUP_SLOTS; user space subtracts. Mappable array: Linux 5.5. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, CGROUP_SLOTS);
	__type(key, u32);
	__type(value, u64);
} cgroup_slots SEC(".maps");

/* Number of tracked sockets by watched process. Linux 3.19. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, u32);
} socket_counts SEC(".maps");

/* A quarter of `sockets`: one process cannot fill it. */
#define MAX_SOCKETS_OF_PROCESS 16384

/* Children of watched processes, which may use inherited sockets. Syscall mode only, which filters by the calling process
 * before it looks up the socket. Linux 3.19. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, u32);
	__type(value, u32);
} children SEC(".maps");

/* A process that begins to listen on one of these ports becomes a watched process. Linux 3.19. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct port_key);
	__type(value, u8);
} watched_ports SEC(".maps");

/* Listening sockets of watched processes. Linux 3.19. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct listen_key);
	__type(value, struct listener);
} listeners SEC(".maps");

/* Name of a program, truncated like `task_struct.comm`. */
struct program_name {
	u8 name[16];
};

/* A process that executes one of these programs becomes a watched process. Linux 3.19. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, struct program_name);
	__type(value, u8);
} watched_programs SEC(".maps");

/* By process, the only port whose accepted sockets are captured. Linux 3.19. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, u16);
} port_filters SEC(".maps");

/* Verdicts of user space by socket id. LRU (Linux 4.10), because the verdict on a closed socket is never fetched. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, u64);
	__type(value, u8);
} verdicts SEC(".maps");

/* Notices that did not fit in the ring, by a number that grows with time. Linux 3.19. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, u64);
	__type(value, struct overflow_notice);
} overflow_notices SEC(".maps");

/* Positions in sendmmsg and recvmmsg. LRU hash map: Linux 4.10. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, u64); /* thread */
	__type(value, struct mmsg_cursor);
} mmsg_cursors SEC(".maps");

/* Whether this CPU is running `on_state`. Per-CPU array: Linux 4.6. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} state_running SEC(".maps");
