"""Process calls of Linux and glibc: name, parent-death signal (prctl(2)), and memory trimming."""

def name(words: bytes) -> None:
    """Set the name that `ps -o comm` and `top` show; Linux keeps 15 bytes."""

def die_with_parent(signal_number: int = ...) -> None:
    """Request *signal_number* (default SIGKILL) for when the thread that forked this process ends.

    Check getppid() afterwards: the parent may already have ended.
    """

def trim() -> None:
    """Return freed memory to the kernel (malloc_trim(3)), if the C library supports it."""

def be_small() -> None:
    """Use a single malloc(3) arena for all threads: the agent has few, and they allocate little."""

def keep_large_apart() -> None:
    """Keep malloc(3) blocks of 128 KiB and more in mappings that are returned when freed."""

class Filling:
    """Holds the free memory between this process's objects while it lives. Create it before a fork.

    Objects created after the fork then go to new pages, not into gaps of shared pages, each of
    which would be copied for them. Only pages that were touched already are held.
    """
