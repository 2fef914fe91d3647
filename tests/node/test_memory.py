"""How the node's process holds memory."""

from __future__ import annotations

import subprocess
import sys

_MANY_HEAPS = """
import ctypes, sys, tempfile, threading
from slotwheel.node import memory, process  # with all that a node loads
if sys.argv[1] == "set up":
    memory.set_up()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
together = threading.Barrier(8)
def use():
    together.wait()
    for _ in range(20_000):  # ctypes lets go of the interpreter: these meet
        libc.malloc(64)
    together.wait()
threads = [threading.Thread(target=use) for _ in range(8)]
for one in threads: one.start()
for one in threads: one.join()
libc.fopen.restype = ctypes.c_void_p
with tempfile.NamedTemporaryFile() as told:
    stream = ctypes.c_void_p(libc.fopen(told.name.encode(), b"w"))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    print(open(told.name).read().count("<heap nr="))
"""


def _heaps(how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", _MANY_HEAPS, how],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return int(done.stdout)


def test_threads_share_two_heaps() -> None:
    assert _heaps("set up") <= 2
    assert _heaps("as it is") > 2  # what is measured can tell the difference
