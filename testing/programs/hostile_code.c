/*
 * Executes code of files that are damaged copies of its own: `hostile_code COUNT DIRECTORY [PAGES]`. Damaged are the ELF header, sections,
 * symbols and call frame information; the build id is another one in each. Some files are cut, some claim to be 1 TiB. Every
 * mapping takes pages of memory, so that a profiler meets each file in a call stack. Prints "mapped COUNT"; goes on for ever. With
 * PAGES it waits for a line first, prints "holds PAGES" once it holds them, and waits to be killed.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <err.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES 16384

typedef void touch_fn(volatile char *page);

/* In a page of its own, and executable wherever it is mapped. */
__attribute__((section(".text.touch"), aligned(PAGE), noinline)) static void touch(volatile char *page)
{
	*page = 1;
}
__attribute__((section(".text.touch"), aligned(PAGE), used)) static void end_of_page(void)
{
}

/* The place of `touch` in the file. */
static size_t offset_of_touch(void)
{
	const Elf64_Phdr *segment = (void *)getauxval(AT_PHDR);
	size_t count = getauxval(AT_PHNUM), address = (size_t)touch;

	for (size_t i = 0; i < count; i++)
		if (segment[i].p_type == PT_LOAD && address - segment[i].p_vaddr < segment[i].p_filesz)
			return address - segment[i].p_vaddr + segment[i].p_offset;
	errx(1, "no segment of the code");
}

static size_t below(size_t limit)
{
	return ((size_t)random() << 31 ^ random()) % limit;
}

static void damage(char *bytes, size_t *size, size_t code, int kind)
{
	Elf64_Ehdr *header = (void *)bytes;
	Elf64_Shdr *sections = (void *)(bytes + header->e_shoff);
	char *id = memmem(bytes, PAGE, "\3\0\0\0GNU\0", 8);

	for (int i = 0; id && i < 20; i++)
		id[8 + i] = random();
	if (kind % 4 == 1) {
		for (int i = 0; i < header->e_shnum; i++) {
			Elf64_Xword *fields[] = { &sections[i].sh_size, &sections[i].sh_offset, &sections[i].sh_entsize };
			*fields[below(3)] = below(2) ? ~0ull >> below(40) : below(*size);
		}
		header->e_shnum = below(2) ? 0xffff : header->e_shnum;
	} else if (kind % 4 == 3) {
		for (int i = 0; i < header->e_shnum; i++)
			if (sections[i].sh_type == SHT_SYMTAB || sections[i].sh_type == SHT_STRTAB)
				sections[i].sh_size = 1ull << 39;
	} else {
		for (int i = 0; i < 64; i++) {
			size_t at = below(3) ? below(*size) : *size - 1 - below(PAGE);
			if (at > EI_NIDENT && (at < code || at >= code + PAGE))
				bytes[at] = random();
		}
		if (kind % 4 == 2)
			*size = code + PAGE + below(*size - code - PAGE);
	}
}

static touch_fn *map_copy(const char *own, size_t size, size_t code, int number, const char *directory)
{
	char *bytes = malloc(size), path[4096];
	void *mapped;
	int fd;

	memcpy(bytes, own, size);
	damage(bytes, &size, code, number);
	snprintf(path, sizeof path, "%s/copy-%d.so", directory, number);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
	if (fd < 0 || write(fd, bytes, size) != (ssize_t)size)
		err(1, "%s", path);
	if (number % 4 == 3 && ftruncate(fd, 1ll << 40))
		warn("1 TiB");
	mapped = mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, code);
	if (mapped == MAP_FAILED)
		err(1, "mmap of %s", path);
	close(fd);
	if (number % 8 == 0)
		unlink(path);
	free(bytes);
	return mapped;
}

int main(int argc, char **argv)
{
	int count = argc > 2 ? atoi(argv[1]) : 0;
	size_t last = argc > 3 ? strtoul(argv[3], NULL, 10) : 0;
	touch_fn **functions = calloc(count, sizeof *functions);
	char *pages = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0), *own;
	int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	struct stat stat;

	if (count < 1 || fstat(fd, &stat))
		errx(1, "hostile_code COUNT DIRECTORY [PAGES]");
	own = mmap(NULL, stat.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	for (int i = 0; i < count; i++)
		functions[i] = map_copy(own, stat.st_size, offset_of_touch(), i, argv[2]);
	printf("mapped %d\n", count);
	fflush(stdout);
	if (last)
		getchar();
	for (size_t page = 0;; page++) {
		if (last && page == last) {
			printf("holds %zu\n", last);
			fflush(stdout);
			for (;;)
				pause();
		}
		functions[page % count](pages + page % PAGES * PAGE);
		if (page % PAGES == PAGES - 1)
			madvise(pages, PAGES * PAGE, MADV_DONTNEED);
		if (page % 64 == 0)
			usleep(1000);
	}
}
