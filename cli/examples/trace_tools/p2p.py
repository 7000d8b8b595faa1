#!/usr/bin/env python3
"""Prints the P2P messages of a process with bcc: what trace_tools compares with."""
import signal
import sys
import threading

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

"""

# Of each direction: bcc expands its functions in no macro.
FUNCTION = """
BPF_PERF_OUTPUT(DIRECTION);

int trace_DIRECTION(struct pt_regs *ctx) {
    struct message message = {};
    u64 address = 0, connection_type = 0, type = 0;
    bpf_usdt_readarg(1, ctx, &message.peer_id);
    bpf_usdt_readarg(2, ctx, &address);
    bpf_probe_read_user_str(&message.peer_addr, sizeof(message.peer_addr), (void *)address);
    bpf_usdt_readarg(3, ctx, &connection_type);
    bpf_probe_read_user_str(&message.peer_conn_type, sizeof(message.peer_conn_type), (void *)connection_type);
    bpf_usdt_readarg(4, ctx, &type);
    bpf_probe_read_user_str(&message.msg_type, sizeof(message.msg_type), (void *)type);
    bpf_usdt_readarg(5, ctx, &message.msg_size);
    DIRECTION.perf_submit(ctx, &message, sizeof(message));
    return 0;
}
"""

usdt = USDT(pid=int(sys.argv[1]))
directions = ["inbound", "outbound"]
for direction in directions:
    usdt.enable_probe_or_bail(f"net:{direction}_message", f"trace_{direction}")
functions = [FUNCTION.replace("DIRECTION", direction) for direction in directions]
bpf = BPF(text=PROGRAM + "".join(functions), usdt_contexts=[usdt])


def printer(direction):
    def show(_cpu, data, _size):
        event = bpf[direction].event(data)
        print(
            f"{direction} '{event.msg_type.decode()}' msg peer {event.peer_id} "
            f"({event.peer_conn_type.decode()}, {event.peer_addr.decode()}) with {event.msg_size} bytes"
        )

    return show


for direction in directions:
    # The scripts' default of 8 pages.
    bpf[direction].open_perf_buffer(printer(direction))

# An exception in a callback of bcc would be lost.
stopped = threading.Event()
signal.signal(signal.SIGINT, lambda _signal, _frame: stopped.set())
while not stopped.is_set():
    bpf.perf_buffer_poll(timeout=100)
