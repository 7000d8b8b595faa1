/* Eight threads that allocate and free in a loop, and fork children that write to inherited pages. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#define KEPT 16

static void touch(char *start, long pages)
{
	for (long i = 0; i < pages; i++)
		start[i * 4096] = 1;
}

static void *worker(void *number)
{
	char *areas[KEPT] = { 0 };
	long sizes[KEPT] = { 0 };
	unsigned seed = (long)number;

	for (int round = 0; round < 400; round++) {
		int i = rand_r(&seed) % KEPT;
		if (areas[i])
			munmap(areas[i], sizes[i] * 4096);
		sizes[i] = 1 + rand_r(&seed) % 200;
		areas[i] = mmap(0, sizes[i] * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		touch(areas[i], sizes[i]);
		if (round % 50 == 0) {
			pid_t child = fork();
			if (!child) {
				touch(areas[i], sizes[i] / 2);
				_exit(0);
			}
			waitpid(child, 0, 0);
		}
	}
	return 0;
}

int main(void)
{
	pthread_t threads[8];
	char line[16];

	puts("ready");
	fflush(stdout);
	if (!fgets(line, sizeof line, stdin))
		return 1;
	for (long i = 0; i < 8; i++)
		pthread_create(&threads[i], 0, worker, (void *)(i + 1));
	for (int i = 0; i < 8; i++)
		pthread_join(threads[i], 0);
	puts("done");
	fflush(stdout);
	return !fgets(line, sizeof line, stdin);
}
