/*
 * A program that loads a library while it runs: with -DPLUGIN the library, whose tracepoint has a semaphore. Executes commands
 * from standard input and replies to each with a line: `host N` and `plugin N` hit the tracepoint of the program or of the
 * library with a number, `load FILE` and `unload` the library.
 */
#define _SDT_HAS_SEMAPHORES 1
#include <sys/sdt.h>
#include <stdint.h>

#define SEMAPHORE(name) \
    __extension__ volatile unsigned short name##_semaphore __attribute__((section(".probes"), used))

#ifdef PLUGIN

SEMAPHORE(plugin_fired);

void plugin_fire(int64_t number) { STAP_PROBE1(plugin, fired, number); }

#else

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

SEMAPHORE(host_fired);

int main(void) {
    char line[4352], command[16], argument[4096];
    void (*plugin)(int64_t) = NULL;
    void *library = NULL;
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        argument[0] = 0;
        if (sscanf(line, "%15s %4095s", command, argument) < 1) continue;
        if (!strcmp(command, "load")) {
            library = dlopen(argument, RTLD_NOW);
            if (!library || !(plugin = (void (*)(int64_t))dlsym(library, "plugin_fire"))) {
                fprintf(stderr, "%s\n", dlerror());
                return 1;
            }
        } else if (!strcmp(command, "unload")) {
            if (dlclose(library)) return 1;
        } else if (!strcmp(command, "host")) {
            STAP_PROBE1(host, fired, (int64_t)atoll(argument));
        } else if (!strcmp(command, "plugin")) {
            plugin(atoll(argument));
        }
        puts("done");
    }
    return 0;
}

#endif
