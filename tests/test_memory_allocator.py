import os
import subprocess
import sys

import pytest

# Pages that the system hands out while 64 MB come and go ten times, in this process or in one of its threads.
PAGES = """
import resource, threading
from efficientdet.devices.runtime_environment import keep_freed_memory

def allocate():
    for _ in range(10):
        b"x" * (64 << 20)

keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
allocate()
thread = threading.Thread(target=allocate)
thread.start()
thread.join()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
OF_ONE_BLOCK = (64 << 20) // os.sysconf("SC_PAGESIZE")


def pages(**environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", PAGES], env=clean | environment, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is Linux's")
def test_what_is_freed_is_used_again():
    assert pages() < 2 * OF_ONE_BLOCK


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is Linux's")
def test_what_the_environment_says_of_allocation_stays():
    assert pages(MALLOC_MMAP_THRESHOLD_="65536") > 10 * OF_ONE_BLOCK
