# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The statistics of an NFS mount in /proc/self/mountstats. C only."""

from libc.string cimport memcmp, memcpy, memset, strlen

from hostfiles_texts cimport U64_MAX, Value, _blanks, _first, _is_blank, _line_end

cdef enum:
    NFS_COLUMNS = 12
    NFS_CALLS = 3  # after age and bytes: reads and writes with 7 values each, and 4 sums of all
    NFS_TRANSPORT = 21
    NFS_VALUES = 27


cdef inline bint _is_word(const char *text, Py_ssize_t size, const char *word) noexcept nogil:
    return <size_t>size == strlen(word) and memcmp(text, word, size) == 0


cdef inline bint _is_upper(const char *text, Py_ssize_t size) noexcept nogil:
    """Return whether it is an operation's name: capitals with `_` or digits between them."""
    cdef Py_ssize_t i
    cdef bint has_letter = False
    for i in range(size):
        if c"A" <= text[i] <= c"Z":
            has_letter = True
        elif text[i] != c"_" and not c"0" <= text[i] <= c"9":
            return False
    return has_letter


cdef inline Py_ssize_t _columns(const char *text, const char *end, Value *columns) noexcept nogil:
    """Set the numbers of a line; return the number of columns, up to NFS_COLUMNS.

    A text that is not a number is missing, and so is a number that looks negative: no sum is that
    large.
    """
    cdef Py_ssize_t count = 0
    memset(columns, 0, NFS_COLUMNS * sizeof(Value))
    text = _blanks(text, end)
    while text < end and count < NFS_COLUMNS:
        columns[count] = _first(text, end)
        columns[count].known = columns[count].known and not columns[count].whole >> 63
        count += 1
        while text < end and not _is_blank(text[0]):
            text += 1
        text = _blanks(text, end)
    return count


cdef inline void _add(Value *total, const Value *part, bint is_first) noexcept nogil:
    """Add to a total; it is missing if any part is, so that it never seems to fall."""
    if is_first:
        total[0] = part[0]
    elif not part.known or part.whole > U64_MAX - total.whole:
        total.known = False
    else:
        total.whole += part.whole


cdef inline void _add_operation(
    const char *name, Py_ssize_t size, const Value *columns, Py_ssize_t count, Value *calls, bint is_first
) noexcept nogil:
    """Add an operation to the reads or writes, and to the sums of all operations.

    Columns: calls, transmissions, major timeouts, bytes sent, bytes received, three times, errors
    (Linux 5.3).
    """
    cdef Value wanted[7]
    cdef Value *sums = calls + 14
    cdef Py_ssize_t i
    memset(wanted, 0, sizeof(wanted))
    if count >= 8:
        for i in range(7):
            wanted[i] = columns[i if i < 3 else i + 2]
    if _is_word(name, size, b"READ"):
        memcpy(calls, wanted, sizeof(wanted))
    elif _is_word(name, size, b"WRITE"):
        memcpy(calls + 7, wanted, sizeof(wanted))
    for i in range(4):
        _add(&sums[i], &wanted[i if i < 3 else 6], is_first)


cdef inline bint _add_transport(const char *text, const char *end, Value *sums, bint is_first) noexcept nogil:
    """Add a connection's connects, sends, receives, bad replies, backlog; set the least idle time.

    False: its type or form is unknown.
    """
    cdef Value columns[NFS_COLUMNS]
    cdef Value wanted[6]
    cdef Py_ssize_t size, i, first
    cdef bint is_udp
    text = _blanks(text, end)
    size = 0
    while text + size < end and not _is_blank(text[size]):
        size += 1
    is_udp = _is_word(text, size, b"udp")
    if not is_udp and not _is_word(text, size, b"tcp") and not _is_word(text, size, b"rdma"):
        return False
    _columns(text + size, end, columns)
    memset(wanted, 0, sizeof(wanted))
    first = 2 if is_udp else 5
    wanted[1], wanted[2], wanted[3], wanted[4] = columns[first], columns[first + 1], columns[first + 2], columns[first + 4]
    if not is_udp:  # UDP has no connection
        wanted[0], wanted[5] = columns[2], columns[4]
    for i in range(1, 5):
        if not wanted[i].known:
            return False
    for i in range(5):
        _add(&sums[i], &wanted[i], is_first)
    if wanted[5].known and (not sums[5].known or wanted[5].whole < sums[5].whole):
        sums[5] = wanted[5]
    return True


cdef inline void _nfs_values(const char *text, const char *end, Value *values) noexcept nogil:
    """Set the statistics of a mount, in the order of `nfs_values`."""
    cdef Value columns[NFS_COLUMNS]
    cdef const char *line_end
    cdef const char *name
    cdef const char *at
    cdef Py_ssize_t size, count, operations = 0, transports = 0
    cdef bint whole = True  # the form of every transport is known
    memset(values, 0, NFS_VALUES * sizeof(Value))
    while text < end:
        line_end = _line_end(text, end)
        name = at = _blanks(text, line_end)
        while at < line_end and not _is_blank(at[0]) and at[0] != c":":
            at += 1
        size = at - name
        if name > text and at + 1 < line_end and at[0] == c":" and _is_blank(at[1]):
            if _is_word(name, size, b"xprt"):
                whole = _add_transport(at + 1, line_end, values + NFS_TRANSPORT, transports == 0) and whole
                transports += 1
            else:
                count = _columns(at + 1, line_end, columns)
                if _is_word(name, size, b"age"):
                    values[0] = columns[0]
                elif _is_word(name, size, b"bytes"):
                    values[1], values[2] = columns[4], columns[5]
                elif _is_upper(name, size):
                    _add_operation(name, size, columns, count, values + NFS_CALLS, operations == 0)
                    operations += 1
        text = line_end + 1
    if not whole:
        memset(values + NFS_TRANSPORT, 0, (NFS_VALUES - NFS_TRANSPORT) * sizeof(Value))
