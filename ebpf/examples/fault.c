/* Touches pages at the bottom of DEPTH frames without frame pointers; prints nanoseconds a page for each line it reads. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#define PAGES 8192L

static unsigned long seed = 88172645463325252UL;
static char *area;
static long at;

__attribute__((noinline, noclone)) static int leaf(int all)
{
	if (all)
		for (; at < PAGES; at++)
			area[at * 4096] = 1;
	else if (at < PAGES)
		area[at++ * 4096] = 1;
	__asm__ volatile("");
	return 1;
}
__attribute__((noinline, noclone)) static int left(int depth, unsigned long way, int all);
__attribute__((noinline, noclone)) static int right(int depth, unsigned long way, int all)
{
	int below = depth ? way & 1 ? left(depth - 1, way >> 1, all) : right(depth - 1, way >> 1, all) : leaf(all);
	__asm__ volatile("" : "+r"(below));
	return below + 1;
}
static int left(int depth, unsigned long way, int all)
{
	int below = depth ? way & 1 ? left(depth - 1, way >> 1, all) : right(depth - 1, way >> 1, all) : leaf(all);
	__asm__ volatile("" : "+r"(below));
	return below + 2;
}

int main(int count, char **arguments)
{
	int depth = count > 1 ? atoi(arguments[1]) : 12, vary = count > 2;
	char line[16];

	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		double best = 1e9;
		for (int round = 0; round < 12; round++) {
			struct timespec from, to;
			clock_gettime(CLOCK_MONOTONIC, &from);
			area = mmap(0, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			for (at = 0; at < PAGES;) {
				seed = seed * 6364136223846793005UL + 1442695040888963407UL;
				left(depth, vary ? seed >> 20 : 0x5a5a5a5a, !vary);
			}
			munmap(area, PAGES * 4096);
			clock_gettime(CLOCK_MONOTONIC, &to);
			double ns = ((to.tv_sec - from.tv_sec) * 1e9 + to.tv_nsec - from.tv_nsec) / PAGES;
			best = ns < best ? ns : best;
		}
		printf("%.0f\n", best);
		fflush(stdout);
	}
	return 0;
}
