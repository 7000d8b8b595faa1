/* Creates COUNT mappings, the first CODE of them executable: mappings COUNT CODE */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

int main(int count, char **arguments)
{
	long all = count > 1 ? atol(arguments[1]) : 1000, code = count > 2 ? atol(arguments[2]) : 10;
	char line[16], *start = mmap(0, 2 * all * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	for (long i = 0; i < all; i++)
		if (mprotect(start + 2 * i * 4096, 4096, i < code ? PROT_READ | PROT_EXEC : PROT_READ | PROT_WRITE))
			break;
	puts("ready");
	fflush(stdout);
	if (!fgets(line, sizeof line, stdin))
		return 1;
	for (long i = code; i < all; i += 10)
		start[2 * i * 4096] = 1;
	puts("done");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin))
		;
	return 0;
}
