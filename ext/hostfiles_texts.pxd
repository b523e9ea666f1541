# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Numbers in texts of /proc: at the beginning of a line, and after a word. C only."""

from libc.stdint cimport uint64_t
from libc.string cimport memchr, memcmp, memset, strlen

cdef extern from "<stdint.h>" nogil:
    const uint64_t U64_MAX "UINT64_MAX"
    const uint64_t U32_MAX "UINT32_MAX"

cdef struct Value:
    bint known
    bint gauge  # `number` is used, else `whole`
    double number
    uint64_t whole


cdef inline Value _whole(uint64_t whole) noexcept nogil:
    """Return a whole number; missing if all 32 or 64 bits are set."""
    cdef Value value
    value.known, value.gauge, value.number, value.whole = whole != U32_MAX and whole != U64_MAX, False, 0, whole
    return value


cdef inline Value _gauge(double number) noexcept nogil:
    cdef Value value
    value.known, value.gauge, value.number, value.whole = True, True, number, 0
    return value


cdef inline bint _is_blank(char c) noexcept nogil:
    return c == c" " or c == c"\t" or c == c"\r"


cdef inline const char *_blanks(const char *text, const char *end) noexcept nogil:
    while text < end and _is_blank(text[0]):
        text += 1
    return text


cdef inline const char *_line_end(const char *text, const char *end) noexcept nogil:
    cdef const char *found = <const char *>memchr(text, c"\n", end - text)
    return found if found != NULL else end


cdef inline bint _begins(const char *text, const char *end, const char *beginning) noexcept nogil:
    cdef Py_ssize_t size = strlen(beginning)
    return end - text >= size and memcmp(text, beginning, size) == 0


cdef inline const char *_behind(const char *text, const char *end, const char *word) noexcept nogil:
    """Return the text after *word* in the line, or NULL."""
    while text < end:
        if _begins(text, end, word):
            return text + strlen(word)
        text += 1
    return NULL


cdef inline bint _number(const char **text, const char *end, uint64_t *value) noexcept nogil:
    """Read blanks and digits. False without a digit, or beyond 64 bits."""
    cdef const char *at = _blanks(text[0], end)
    cdef uint64_t total = 0, digit
    cdef const char *begin = at
    while at < end and c"0" <= at[0] <= c"9":
        digit = <uint64_t>(at[0] - c"0")
        if total > (U64_MAX - digit) // 10:
            return False
        total = 10 * total + digit
        at += 1
    text[0], value[0] = at, total
    return at > begin


cdef inline Value _first(const char *text, const char *end) noexcept nogil:
    """Return the number at the text's beginning, before a blank or the end; else missing."""
    cdef uint64_t number
    cdef bint is_number = _number(&text, end, &number) and (text == end or _is_blank(text[0]))
    return _whole(number if is_number else U64_MAX)


cdef inline void _shares_of_line(const char *text, const char *end, Value *ratio, Value *total) noexcept nogil:
    """Set share of the last 10 s and microseconds from `some avg10=1.84 ... total=4498343`."""
    cdef const char *at = _behind(text, end, b" avg10=")
    cdef const char *mark
    cdef uint64_t whole = 0, fraction = 0
    cdef double share, part
    ratio.known = total.known = False
    if at != NULL and _number(&at, end, &whole):
        part = 0
        if at < end and at[0] == c".":
            at += 1
            mark = at
            if _number(&at, end, &fraction):
                part = <double>fraction
                while mark < at:
                    part /= 10
                    mark += 1
        share = (<double>whole + part) / 100
        if share <= 1:
            ratio[0] = _gauge(share)
    at = _behind(text, end, b" total=")
    if at != NULL:
        total[0] = _first(at, end)


cdef inline void _pressure(const char *text, const char *end, Value *values) noexcept nogil:
    """Set the shares (some, full), then the microseconds (some, full)."""
    cdef const char *line_end
    memset(values, 0, 4 * sizeof(Value))
    while text < end:
        line_end = _line_end(text, end)
        if _begins(text, line_end, b"some "):
            _shares_of_line(text, line_end, &values[0], &values[2])
        elif _begins(text, line_end, b"full "):
            _shares_of_line(text, line_end, &values[1], &values[3])
        text = line_end + 1


cdef inline Value _in_bytes(const char *text, const char *end) noexcept nogil:
    """Return `  1234 kB` in bytes, or `  1234` unchanged; missing with another unit."""
    cdef Value value = _first(text, end)
    cdef uint64_t number
    _number(&text, end, &number)
    text = _blanks(text, end)
    while end > text and _is_blank((end - 1)[0]):
        end -= 1
    if end - text == 2 and text[0] == c"k" and text[1] == c"B" and value.whole < <uint64_t>1 << 54:
        value.whole *= 1024
    elif text < end:
        value.known = False
    return value


cdef inline void _line_numbers(
    const char *text, const char *end, const char **names, Py_ssize_t count, bint indented, Value *values
) noexcept nogil:
    cdef const char *line_end
    cdef Py_ssize_t i, left = count
    cdef uint64_t seen = 0
    memset(values, 0, count * sizeof(Value))
    while text < end and left:
        line_end = _line_end(text, end)
        text = _blanks(text, line_end) if indented else text
        for i in range(count):
            if not seen >> i & 1 and _begins(text, line_end, names[i]):
                text += strlen(names[i])
                values[i] = _first(text, line_end) if indented else _in_bytes(text, line_end)
                seen |= <uint64_t>1 << i
                left -= 1
                break
        text = line_end + 1
