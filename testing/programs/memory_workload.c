/* Executes memory commands from standard input and replies to each line. Functions hold known numbers of pages. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#define APART __attribute__((noinline, noclone))
#define PAGE 4096L

struct area {
	char *start;
	long pages;
};
static struct area areas[64];

APART static void touch(char *start, long pages)
{
	for (long i = 0; i < pages; i++)
		start[i * PAGE] = 1;
	__asm__ volatile("");
}
APART static char *map(long pages)
{
	return mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
APART void hold_one(struct area *a, long pages)
{
	a->start = map(pages);
	a->pages = pages;
	touch(a->start, pages);
	__asm__ volatile("");
}
APART void hold_two(struct area *a, long pages)
{
	a->start = map(pages);
	a->pages = pages;
	touch(a->start, pages);
	__asm__ volatile("");
}
APART void hold_heap(long bytes, long count)
{
	for (long i = 0; i < count; i++)
		memset(malloc(bytes), 1, bytes);
	__asm__ volatile("");
}
/* 2 MiB aligned for transparent huge pages. */
APART void hold_huge(struct area *a, long pages)
{
	char *start = map(pages + 512);
	start = (char *)(((unsigned long)start + (2 << 20) - 1) & ~((2UL << 20) - 1));
	madvise(start, pages * PAGE, MADV_HUGEPAGE);
	a->start = start;
	a->pages = pages;
	touch(start, pages);
	__asm__ volatile("");
}
/* Each page has a separate page table. */
APART void hold_sparse(struct area *a, long pages)
{
	a->start = map(pages * 512);
	a->pages = pages * 512;
	madvise(a->start, a->pages * PAGE, MADV_NOHUGEPAGE);
	for (long i = 0; i < pages; i++)
		touch(a->start + i * 512 * PAGE, 1);
	__asm__ volatile("");
}
APART long read_file(const char *path)
{
	static _Thread_local char buffer[1 << 16];
	long n, all = 0;
	int fd = open(path, O_RDONLY);
	while ((n = read(fd, buffer, sizeof buffer)) > 0)
		all += n;
	close(fd);
	return all;
}
APART int deep(long frames, struct area *a, long pages)
{
	if (!frames) {
		hold_one(a, pages);
		return 1;
	}
	int below = deep(frames - 1, a, pages);
	__asm__ volatile("" : "+r"(below)); /* prevents conversion to a loop */
	return below + 1;
}
APART void share(struct area *a, long pages)
{
	a->start = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	a->pages = pages;
	touch(a->start, pages);
	__asm__ volatile("");
}
/* Frees every other page. */
APART void thin_out(struct area *a)
{
	for (long i = 0; i < a->pages; i += 2)
		madvise(a->start + i * PAGE, PAGE, MADV_DONTNEED);
}
/* Into huge pages. EAGAIN: the kernel holds a page at this moment, to reclaim or to migrate it. */
APART int collapse(struct area *a)
{
	int result, tries = 0;
	while ((result = madvise(a->start, a->pages * PAGE, 25 /* MADV_COLLAPSE */)) && errno == EAGAIN && tries++ < 6000)
		usleep(10000);
	return result;
}

static void *library;
/* Loads a library at run time. */
APART int load(const char *path, struct area *a, long pages)
{
	void (*hold)(struct area *, long);
	library = dlopen(path, RTLD_NOW);
	if (!library)
		return -1;
	hold = (void (*)(struct area *, long))dlsym(library, "hold_plugin");
	hold(a, pages);
	return 0;
}

/* Threads that run random operations and keep their areas until the next run. */
#define THREADS 8
#define HELD 12
struct churner {
	pthread_t thread;
	unsigned seed;
	const char *path;
	struct area areas[HELD];
	void *blocks[HELD];
};
static struct churner churners[THREADS];
static atomic_int churning;

APART static void release(struct area *a)
{
	if (a->pages)
		munmap(a->start, a->pages * PAGE);
	a->pages = 0;
}
APART static void branch(struct area *a, long pages)
{
	pid_t child = fork();
	if (!child) {
		touch(a->start, pages);
		_exit(0);
	}
	waitpid(child, 0, 0);
}
static void *churn(void *me)
{
	struct churner *c = me;
	while (churning) {
		unsigned what = rand_r(&c->seed) % 100, one = rand_r(&c->seed) % HELD, much = rand_r(&c->seed);
		struct area *a = &c->areas[one];
		long part = a->pages ? much % a->pages : 0;
		if (what < 40) {
			release(a);
			deep(much % 40, a, 1 + much / 40 % 300);
		} else if (what < 60 && a->pages)
			madvise(a->start + part * PAGE, (a->pages - part) * PAGE, MADV_DONTNEED);
		else if (what < 75 && a->pages)
			touch(a->start + part * PAGE, a->pages - part);
		else if (what < 92) {
			free(c->blocks[one]);
			c->blocks[one] = malloc(1 + much % 300000);
			memset(c->blocks[one], 1, 1 + much % 300000);
		} else if (what < 95) {
			release(a);
			hold_huge(a, 1024);
		} else if (what < 98)
			read_file(c->path);
		else if (a->pages)
			branch(a, part);
	}
	return 0;
}
APART int churn_all(long milliseconds, unsigned seed, const char *path)
{
	churning = 1;
	for (int i = 0; i < THREADS; i++) {
		churners[i].seed = seed * THREADS + i;
		churners[i].path = path;
		if (pthread_create(&churners[i].thread, 0, churn, &churners[i]))
			return -1;
	}
	usleep(milliseconds * 1000);
	churning = 0;
	for (int i = 0; i < THREADS; i++)
		pthread_join(churners[i].thread, 0);
	return 0;
}
APART void settle(void)
{
	for (int i = 0; i < THREADS; i++)
		for (int j = 0; j < HELD; j++) {
			release(&churners[i].areas[j]);
			free(churners[i].blocks[j]);
			churners[i].blocks[j] = 0;
		}
}

int main(void)
{
	char line[512], word[32], path[256];
	setvbuf(stdin, 0, _IONBF, 0);
	setvbuf(stdout, 0, _IONBF, 0);
	while (fgets(line, sizeof line, stdin)) {
		long i = 0, n = 0, m = 0, result = 0;
		struct area *a;
		if (sscanf(line, "%31s %ld %ld %ld", word, &i, &n, &m) < 1)
			continue;
		a = &areas[i & 63];
		if (!strcmp(word, "one"))
			hold_one(a, n);
		else if (!strcmp(word, "two"))
			hold_two(a, n);
		else if (!strcmp(word, "heap"))
			hold_heap(i, n);
		else if (!strcmp(word, "huge"))
			hold_huge(a, n);
		else if (!strcmp(word, "sparse"))
			hold_sparse(a, n);
		else if (!strcmp(word, "deep"))
			result = deep(m, a, n);
		else if (!strcmp(word, "share"))
			share(a, n);
		else if (!strcmp(word, "load") && sscanf(line, "%*s %*d %*d %255s", path) == 1)
			result = load(path, a, n);
		else if (!strcmp(word, "unload"))
			result = dlclose(library);
		else if (!strcmp(word, "thin"))
			thin_out(a);
		else if (!strcmp(word, "exec"))
			result = execl("/proc/self/exe", "memory_workload", (char *)0);
		else if (!strcmp(word, "small")) /* disables huge pages */
			result = madvise(a->start, a->pages * PAGE, MADV_NOHUGEPAGE);
		else if (!strcmp(word, "collapse"))
			result = collapse(a);
		else if (!strcmp(word, "drop")) /* pages n..n+m */
			result = madvise(a->start + n * PAGE, m * PAGE, MADV_DONTNEED);
		else if (!strcmp(word, "unmap"))
			result = munmap(a->start, a->pages * PAGE);
		else if (!strcmp(word, "touch"))
			touch(a->start + n * PAGE, m);
		else if (!strcmp(word, "read") && sscanf(line, "%*s %255s", path) == 1)
			result = read_file(path);
		else if (!strcmp(word, "churn") && sscanf(line, "%*s %*d %*d %255s", path) == 1)
			result = churn_all(i, n, path);
		else if (!strcmp(word, "settle"))
			settle();
		else if (!strcmp(word, "fork")) { /* a child that writes to n pages of area i and waits for end of file */
			int in[2], out[2];
			char c;
			if (pipe(in) || pipe(out))
				return 1;
			result = fork();
			if (!result) {
				touch(a->start, n);
				if (write(out[1], "x", 1) != 1)
					_exit(1);
				close(in[1]);
				_exit(read(in[0], &c, 1) != 0);
			}
			close(in[0]);
			if (read(out[0], &c, 1) != 1)
				return 1;
			close(out[0]);
			close(out[1]);
			areas[63].start = (char *)(long)in[1];
			areas[63].pages = result;
		} else if (!strcmp(word, "children")) { /* forks i children in sequence, which exit at once */
			for (; i > 0; i--) {
				pid_t child = fork();
				if (!child)
					_exit(0);
				if (child < 0 || waitpid(child, 0, 0) != child)
					return 1;
			}
		} else if (!strcmp(word, "reap")) {
			int status;
			close((int)(long)areas[63].start);
			waitpid((int)areas[63].pages, &status, 0);
			result = status;
		} else if (!strcmp(word, "end"))
			return 0;
		printf("%ld\n", result);
	}
	return 0;
}
