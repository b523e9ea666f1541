# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The lists of processes on a GPU: read, and compared with the last read. C only."""

from libc.stdlib cimport realloc
from libc.string cimport memcmp, memcpy, memset

from nvml_abi cimport NVML_ERROR_FUNCTION_NOT_FOUND, NVML_ERROR_INSUFFICIENT_SIZE, NVML_SUCCESS, nvmlDevice_t, nvmlProcessInfo_t, nvmlReturn_t
from nvml_account cimport Account, account_enter
from nvml_parts_fields cimport lacking
from place_abi cimport Place, place_leave

cdef enum:
    LISTS = 3  # compute, graphics, MPS
    ENTRIES_MAX = 4096
    ATTEMPTS_MAX = 4  # entries may be added between two calls

ctypedef nvmlReturn_t (*ProcessesCall)(nvmlDevice_t, unsigned int *, nvmlProcessInfo_t *) noexcept nogil

# Memory for a list; it grows up to ENTRIES_MAX.
cdef struct Entries:
    nvmlProcessInfo_t *first
    unsigned int count
    unsigned int room

# The last lists of a GPU.
cdef struct Listed:
    nvmlDevice_t device
    Account *account
    Entries lists[LISTS]
    int failed  # the list whose call failed, after which none is read; -1: none
    nvmlReturn_t code  # the error; NVML_SUCCESS: the call was skipped
    unsigned int claimed  # number of entries by the driver


cdef inline bint make_room(Entries *list, unsigned int entries) noexcept nogil:
    """Reserve memory for *entries* and a few more; False without memory."""
    cdef unsigned int wanted = min(max(entries, 48u) + 16u, <unsigned int>ENTRIES_MAX)
    cdef nvmlProcessInfo_t *first
    if wanted > list.room:
        first = <nvmlProcessInfo_t *>realloc(list.first, wanted * sizeof(nvmlProcessInfo_t))
        if first == NULL:
            return False
        list.first, list.room = first, wanted
    return True


cdef inline bint keep(Entries *list, const Entries *said) noexcept nogil:
    """Store the entries; return whether they are unchanged."""
    cdef size_t size = said.count * sizeof(nvmlProcessInfo_t)
    if list.count == said.count and (size == 0 or memcmp(list.first, said.first, size) == 0):
        return True
    if not make_room(list, said.count):
        list.count = 0
        return False
    memcpy(list.first, said.first, size)
    list.count = said.count
    return False


cdef inline bint ask_list(Listed *gpu, ProcessesCall call, const char *name, Place *place, Entries *said) noexcept nogil:
    """Read a list into *said*; False, with a code, after a failure."""
    cdef int attempt
    said.count = gpu.claimed = 0
    gpu.code = NVML_ERROR_INSUFFICIENT_SIZE
    for attempt in range(ATTEMPTS_MAX):
        if gpu.code != NVML_ERROR_INSUFFICIENT_SIZE or not make_room(said, gpu.claimed):
            break
        if account_enter(gpu.account, place, name, 0, 0) == 0:
            gpu.code = NVML_SUCCESS
            return False
        gpu.claimed = said.room
        memset(said.first, 0, said.room * sizeof(nvmlProcessInfo_t))
        gpu.code = call(gpu.device, &gpu.claimed, said.first)
        place_leave(place)
    if gpu.code == NVML_SUCCESS:
        said.count = min(gpu.claimed, said.room)
    return gpu.code == NVML_SUCCESS or lacking(gpu.code)


cdef inline bint ask_gpu(Listed *gpu, ProcessesCall *calls, const char **names, Place *place, Entries *said) noexcept nogil:
    """Read a GPU's lists; return whether all calls succeeded and nothing changed."""
    cdef bint is_same = gpu.failed < 0
    cdef int i
    gpu.failed = -1
    for i in range(LISTS):
        said.count = 0
        if calls[i] != NULL and not ask_list(gpu, calls[i], names[i], place, said):
            gpu.failed = i
            return False
        is_same &= keep(&gpu.lists[i], said)
    return is_same
