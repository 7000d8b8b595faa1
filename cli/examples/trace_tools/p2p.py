#!/usr/bin/env python3
"""Prints the P2P messages of a process with bcc: what trace_tools compares with."""
import sys

from bcc import BPF, USDT

PROGRAM = """
#include <uapi/linux/ptrace.h>

struct message {
    u64 peer_id;
    char peer_addr[68];
    char peer_conn_type[20];
    char msg_type[20];
    u64 msg_size;
};

BPF_PERF_OUTPUT(inbound);
BPF_PERF_OUTPUT(outbound);

#define TRACE(direction) \\
    int trace_##direction(struct pt_regs *ctx) { \\
        struct message message = {}; \\
        u64 address = 0, connection_type = 0, type = 0; \\
        bpf_usdt_readarg(1, ctx, &message.peer_id); \\
        bpf_usdt_readarg(2, ctx, &address); \\
        bpf_probe_read_user_str(&message.peer_addr, sizeof(message.peer_addr), (void *)address); \\
        bpf_usdt_readarg(3, ctx, &connection_type); \\
        bpf_probe_read_user_str(&message.peer_conn_type, sizeof(message.peer_conn_type), (void *)connection_type); \\
        bpf_usdt_readarg(4, ctx, &type); \\
        bpf_probe_read_user_str(&message.msg_type, sizeof(message.msg_type), (void *)type); \\
        bpf_usdt_readarg(5, ctx, &message.msg_size); \\
        direction.perf_submit(ctx, &message, sizeof(message)); \\
        return 0; \\
    }
TRACE(inbound)
TRACE(outbound)
"""

usdt = USDT(pid=int(sys.argv[1]))
bpf_functions = {"inbound": "trace_inbound", "outbound": "trace_outbound"}
for direction, function in bpf_functions.items():
    usdt.enable_probe_or_bail(f"net:{direction}_message", function)
bpf = BPF(text=PROGRAM, usdt_contexts=[usdt])


def printer(direction):
    def show(_cpu, data, _size):
        event = bpf[direction].event(data)
        print(
            f"{direction} '{event.msg_type.decode()}' msg peer {event.peer_id} "
            f"({event.peer_conn_type.decode()}, {event.peer_addr.decode()}) with {event.msg_size} bytes"
        )

    return show


for direction in bpf_functions:
    # The scripts' default of 8 pages.
    bpf[direction].open_perf_buffer(printer(direction))
try:
    while True:
        bpf.perf_buffer_poll()
except KeyboardInterrupt:
    sys.stdout.flush()
