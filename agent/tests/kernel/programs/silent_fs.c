/*
 * A FUSE file system that does not answer, and a process whose address space it keeps locked.
 *
 *   silent_fs mount DIR     mounts the file system until standard input ends; only the file DIR/page can be opened
 *   silent_fs lock DIR      holds its own mmap_lock until standard input ends, so that reads of its command line wait:
 *                           a child reads DIR/page in the address space of its parent, whose thread waits to unmap
 *   silent_fs map DIR       maps DIR/page as code until standard input ends
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE 4096
#define PAGE_NODE 2

static void fail(const char *what)
{
	perror(what);
	_exit(1);
}

static void ready(void)
{
	if (write(1, "ready\n", 6) != 6)
		fail("write");
}

static void reply(int fuse, const struct fuse_in_header *in, int error, const void *body, size_t length)
{
	struct fuse_out_header out = { .len = sizeof out + length, .error = -error, .unique = in->unique };
	struct iovec parts[] = { { &out, sizeof out }, { (void *)body, length } };
	if (writev(fuse, parts, 2) < 0)
		perror("reply");
}

static struct fuse_attr attributes(uint64_t node)
{
	struct fuse_attr a = { .ino = node, .size = PAGE, .blocks = 8, .nlink = 1, .blksize = PAGE };
	a.mode = node == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0644;
	return a;
}

static void serve(int fuse)
{
	static char request[1 << 17];
	const struct fuse_in_header *in = (void *)request;
	struct fuse_init_out init = { .major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION,
				      .max_readahead = PAGE, .max_write = PAGE };
	struct fuse_attr_out attr = { .attr_valid = 3600 };
	struct fuse_entry_out entry = { .nodeid = PAGE_NODE, .entry_valid = 3600, .attr_valid = 3600 };
	struct fuse_open_out open = {};

	if (read(fuse, request, sizeof request) < (ssize_t)sizeof *in)
		return;
	switch (in->opcode) {
	case FUSE_INIT:
		return reply(fuse, in, 0, &init, sizeof init);
	case FUSE_GETATTR:
		attr.attr = attributes(in->nodeid);
		return reply(fuse, in, 0, &attr, sizeof attr);
	case FUSE_LOOKUP:
		if (strcmp(request + sizeof *in, "page"))
			return;
		entry.attr = attributes(PAGE_NODE);
		return reply(fuse, in, 0, &entry, sizeof entry);
	case FUSE_OPEN:
		return reply(fuse, in, 0, &open, sizeof open);
	case FUSE_READ:
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		return;
	default:
		return reply(fuse, in, ENOSYS, NULL, 0);
	}
}

static void run_mount(const char *dir)
{
	char options[128];
	int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);

	if (fuse < 0)
		fail("/dev/fuse");
	snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fuse);
	if (mount("silent", dir, "fuse", 0, options))
		fail("mount");
	serve(fuse);
	ready();
	for (;;) {
		struct pollfd fds[] = { { .fd = 0, .events = POLLIN }, { .fd = fuse, .events = POLLIN } };
		if (poll(fds, 2, -1) < 0 || fds[0].revents)
			break;
		serve(fuse);
	}
	umount2(dir, MNT_FORCE | MNT_DETACH);
}

static int start_pipe[2];
static void *spare;
static volatile pid_t thread_id;

/* Waits for the lock, and lets later readers of it wait. */
static void *unmap(void *unused)
{
	char byte;

	thread_id = gettid();
	if (read(start_pipe[0], &byte, 1) == 1)
		munmap(spare, PAGE);
	return unused;
}

/* Waits until a thread waits in a system call. */
static void wait_blocked(const char *path, long call)
{
	char text[64];
	ssize_t n;

	do {
		int fd = open(path, O_RDONLY);
		n = read(fd, text, sizeof text - 1);
		close(fd);
		if (n <= 0)
			fail(path);
		text[n] = 0;
		usleep(1000);
	} while (text[0] == 'r' || strtol(text, NULL, 10) != call);
}

static void run_lock(const char *dir)
{
	char path[4096], byte;
	pthread_t thread;
	void *page;
	pid_t child, parent = getpid();
	int fd;

	snprintf(path, sizeof path, "%s/page", dir);
	fd = open(path, O_RDONLY);
	if (fd < 0)
		fail(path);
	page = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
	spare = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED || spare == MAP_FAILED || pipe(start_pipe) || pthread_create(&thread, NULL, unmap, NULL))
		fail("setup");
	child = fork();
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		snprintf(path, sizeof path, "/proc/%d/mem", parent);
		fd = open(path, O_RDONLY);
		_exit(pread(fd, &byte, 1, (off_t)page) != 1);
	}
	snprintf(path, sizeof path, "/proc/%d/syscall", child);
	wait_blocked(path, SYS_pread64);
	while (!thread_id)
		usleep(1000);
	snprintf(path, sizeof path, "/proc/%d/task/%d/syscall", parent, thread_id);
	if (write(start_pipe[1], "", 1) != 1)
		fail("write");
	wait_blocked(path, SYS_munmap);
	ready();
	while (read(0, &byte, 1) > 0)
		;
	_exit(0);
}

static void run_map(const char *dir)
{
	char path[4096], byte;
	int fd;

	snprintf(path, sizeof path, "%s/page", dir);
	fd = open(path, O_RDONLY);
	if (fd < 0 || mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED)
		fail(path);
	ready();
	while (read(0, &byte, 1) > 0)
		;
	_exit(0);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "mount"))
		run_mount(argv[2]);
	else if (argc == 3 && !strcmp(argv[1], "lock"))
		run_lock(argv[2]);
	else if (argc == 3 && !strcmp(argv[1], "map"))
		run_map(argv[2]);
	return 0;
}
