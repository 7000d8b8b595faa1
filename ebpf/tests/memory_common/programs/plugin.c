/* A library loaded at run time. PAD builds a variant with different code. */
#include <string.h>
#include <sys/mman.h>

struct area {
	char *start;
	long pages;
};

#ifdef PAD
__attribute__((noinline)) static long pad(volatile char *start, long pages)
{
	volatile char more[3000];
	long sum = 0;
	for (long i = 0; i < pages; i++)
		more[i % 3000] = start[i * 4096] = 1;
	for (long i = 0; i < 3000; i++)
		sum += more[i];
	return sum;
}
#endif

__attribute__((noinline)) void hold_plugin(struct area *a, long pages)
{
	a->start = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	a->pages = pages;
#ifdef PAD
	pad(a->start, pages);
#else
	for (long i = 0; i < pages; i++)
		a->start[i * 4096] = 1;
#endif
	__asm__ volatile("");
}
