/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Locates the buffers of a system call in the memory of the process, from the registers at entry (x86-64; arguments are
 * preserved until the call returns).
 */
#pragma once
#include "socket.h"

enum {
	NR_READ = 0, NR_WRITE = 1, NR_READV = 19, NR_WRITEV = 20, NR_SENDTO = 44, NR_RECVFROM = 45, NR_SENDMSG = 46,
	NR_RECVMSG = 47, NR_RECVMMSG = 299, NR_SENDMMSG = 307, NR_PREADV2 = 327, NR_PWRITEV2 = 328, NR_IO_URING_ENTER = 426,
};

#define MSG_OOB 1
#define MSG_PEEK 2
#define MSG_TRUNC 0x20
#define MSG_ERRQUEUE 0x2000

#define PF_IO_WORKER 0x00000010
#define PF_KTHREAD 0x00200000
#define TS_COMPAT 0x0002
#define ENOSYS 38

/* struct iovec, struct user_msghdr and struct mmsghdr of the process. */
struct user_iovec {
	u64 base, length;
};
struct user_msghdr {
	u64 name, name_length, iov, iovs;
};
#define MMSGHDR_SIZE 64
#define MMSGHDR_LENGTH 56

/* Iterator over the user buffers that remain to be copied. It lives in a map: the verifier tracks state on the stack for
 * each iteration of a loop. */
struct user_iov_iter {
	u64 left;             /* remaining bytes of the call */
	u64 offset;           /* stream offset of the next byte */
	u64 base, segment;    /* remainder of the current buffer */
	u64 iov, iovs;        /* the buffers after it */
	u64 messages;         /* recvmmsg and sendmmsg at system call exit: remaining messages */
	u64 message_left;     /* remaining bytes of the current message */
	u32 message_count;
	u32 iovs_left;        /* limit of buffers for the whole call */
};

/* The kernel's limit of buffers in a message (UIO_MAXIOV). The process may change its vectors while the call is running, so
 * the number that is read afterwards is not to be trusted: each costs a read in a program that is not preempted. */
#define MAX_IOVS 1024
/* Limit for all messages of a sendmmsg or recvmmsg; the kernel's is UIO_MAXIOV for each of them. */
#define MAX_MMSG_IOVS 8192

/* Selects the buffers of one msghdr; returns 0 if it cannot be read. */
static __always_inline int iter_message(struct user_iov_iter *w, u64 message)
{
	struct user_msghdr m;
	if (bpf_probe_read_user(&m, sizeof m, (void *)message))
		return 0;
	w->iov = m.iov;
	w->iovs = m.iovs;
	w->segment = 0;
	return 1;
}

/*
 * Index of the message that this event belongs to: each message of a sendmmsg or recvmmsg has an event of its own, without
 * an index. It is the message after that of the previous event if both belong to the same call: if the kernel has since
 * written the length (`msg_len`) of the previous one, and that one did not end the loop, as an error or a partial send
 * does. Returns -1 if uncertain.
 */
static __always_inline s64 message_index(const struct pt_regs *r, const void *sk, u32 call, s64 ret)
{
	u64 thread = bpf_get_current_pid_tgid();
	struct mmsg_cursor now = { .messages = r->si, .sock = (u64)sk, .vector_length = (u32)r->dx, .call = call, .ret = ret };
	struct mmsg_cursor *before = bpf_map_lookup_elem(&mmsg_cursors, &thread);
	u32 length = 0;
	int uncertain = 0;

	if (ret < 0) {
		if (before)
			bpf_map_delete_elem(&mmsg_cursors, &thread);
		return -1;
	}
	if (before && before->messages == now.messages && before->sock == now.sock && before->call == call &&
	    before->vector_length == now.vector_length && before->complete && before->index + 1 < now.vector_length &&
	    !bpf_probe_read_user(&length, 4, (void *)(now.messages + MMSGHDR_SIZE * (u64)before->index + MMSGHDR_LENGTH)) &&
	    length == (u32)before->ret) {
		now.index = before->index + 1;
		/* A timeout ends the loop after any message, so this may be the first message of a new call. */
		uncertain = call == NR_RECVMMSG && r->r8;
	}
	now.complete = 1;
	if (call == NR_SENDMMSG) {
		/* A partial send ends the loop. */
		struct user_msghdr m;
		struct user_iovec v;
		u64 whole = 0;
		if (bpf_probe_read_user(&m, sizeof m, (void *)(now.messages + MMSGHDR_SIZE * (u64)now.index)))
			return -1;
		for (u32 i = 0; i < 8 && i < m.iovs; i++) {
			if (bpf_probe_read_user(&v, sizeof v, (void *)(m.iov + 16 * i)))
				return -1;
			whole += v.length;
		}
		/* The sum of 8 buffers is a lower bound: whether the send was partial is unknown. */
		now.complete = m.iovs <= 8 ? whole == (u64)ret : 2;
		if (before && before->complete == 2 && now.index)
			uncertain = 1;
	}
	bpf_map_update_elem(&mmsg_cursors, &thread, &now, BPF_ANY);
	return uncertain ? -1 : (s64)now.index;
}

/* Initialises the iterator over `n` bytes. Returns why that is impossible, or NOT_MISSING. */
static __always_inline u8 locate_buffers(struct user_iov_iter *w, const struct pt_regs *r, u64 nr, u64 n)
{
	w->left = n;
	w->messages = 0;
	w->message_left = n;
	w->message_count = 0;
	w->segment = 0;
	w->iovs_left = MAX_IOVS;
	switch (nr) {
	case NR_READ:
	case NR_WRITE:
	case NR_SENDTO:
	case NR_RECVFROM:
		w->base = r->si;
		w->segment = n;
		w->iovs = 0;
		return NOT_MISSING;
	case NR_READV:
	case NR_WRITEV:
	case NR_PREADV2:
	case NR_PWRITEV2:
		w->iov = r->si;
		w->iovs = (u32)r->dx;
		return NOT_MISSING;
	case NR_SENDMSG:
	case NR_RECVMSG:
		return iter_message(w, r->si) ? NOT_MISSING : UNREADABLE;
	case NR_IO_URING_ENTER:
		return IO_URING;
	default:
		return NO_USER_BUFFER;
	}
}

static __always_inline int is_socket_call(u64 nr)
{
	return nr >= NR_SENDTO && nr != NR_PREADV2 && nr != NR_PWRITEV2;
}

/* The socket of a file descriptor of the current process; 0 if the file is no socket. */
static __always_inline struct sock *sock_from_fd(struct task_struct *task, u32 fd)
{
	struct file **files, *file = 0;
	struct socket *socket;
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);

	if (fd >= BPF_CORE_READ(table, max_fds))
		return 0;
	files = BPF_CORE_READ(table, fd);
	if (bpf_probe_read_kernel(&file, sizeof file, &files[fd]) || !file)
		return 0;
	if ((BPF_CORE_READ(file, f_inode, i_mode) & 0170000) != 0140000)
		return 0;
	socket = BPF_CORE_READ(file, private_data);
	return BPF_CORE_READ(socket, sk);
}

/*
 * Whether the registers of the current task belong to the system call that caused this socket event; NOT_MISSING if so.
 * Workers of io_uring have no system call; its task work may run at the end of another system call, where `ax` already
 * holds the result.
 */
static __always_inline u8 check_registers(struct task_struct *task, const struct pt_regs *r, const void *sk)
{
	if (task->flags & (PF_IO_WORKER | PF_KTHREAD))
		return task->flags & PF_IO_WORKER ? IO_URING : NO_USER_BUFFER;
	if (task->thread_info.status & TS_COMPAT)
		return COMPAT;
	if ((s64)r->ax != -ENOSYS)
		return IO_URING;
	if (bpf_core_field_exists(task->io_uring) && task->io_uring && r->orig_ax != NR_IO_URING_ENTER &&
	    sock_from_fd(task, r->di) != sk)
		return IO_URING;
	return NOT_MISSING;
}
