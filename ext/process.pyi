"""Process calls of Linux and glibc: name, parent-death signal (prctl(2)), and memory trimming."""

def name(words: bytes) -> None:
    """Show as *words* in `ps -o comm` and `top`; Linux keeps 15 bytes."""

def die_with_parent(signal_number: int = ...) -> None:
    """Have the kernel send this process a signal when the thread that forked it ends: SIGKILL, unless another is given.

    Ask getppid() after it: the parent may have ended.
    """

def trim() -> None:
    """Give memory that was freed back to the kernel, where the C library keeps it (malloc_trim(3))."""

def be_small() -> None:
    """Have threads share one arena of malloc(3) rather than fill one each: few of ours, and they allocate little."""

def keep_large_apart() -> None:
    """Have malloc(3) keep pieces of 128 KiB and more in mappings of their own, so that they go back when freed."""

class Filling:
    """Holds what was free between the objects of this process, for as long as it lives itself. Before a fork.

    What a process makes after the fork then goes to pages of its own, rather than here and there into pages that
    it shares, each of which would be copied for it. What is held costs no page that was not touched already.
    """
