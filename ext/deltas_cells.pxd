# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Encodes cells as differences to earlier cells, in few bits, and decodes them. C only.

A batch has the cells of a signal for eight devices. A bit per batch says whether a cell changed; a
code per changed batch gives the bits of each difference. A double that is a decimal of few places
(watts from milliwatts, a ratio from percents) is encoded as the difference of whole numbers of its
last place: its bits would be noise.
"""

from libc.math cimport fabs, llrint
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint64_t
from libc.string cimport memcpy, memset

from planes cimport turn

cdef enum:
    #: Flag of a table whose set of valid cells changed.
    VALIDITY = 4
    BATCH = 8
    #: Bits of a difference of unconverted cells: the codes up to here.
    WIDTH_MAX = 64
    #: Bits of a difference of decimals: the codes after WIDTH_MAX, in a range per number of places.
    DECIMAL_WIDTH_MAX = 47
    DECIMALS = 4


cdef struct Cells:
    #: The last cells of a table, column by column, as in a Block.
    Py_ssize_t rows
    Py_ssize_t width
    uint64_t *cells
    uint8_t *valid


cdef inline uint64_t zigzag(uint64_t step) noexcept nogil:
    return (step << 1) ^ (0 - (step >> 63))


cdef inline uint64_t unzigzag(uint64_t folded) noexcept nogil:
    return (folded >> 1) ^ (0 - (folded & 1))


cdef inline Py_ssize_t bit_length(uint64_t value) noexcept nogil:
    cdef Py_ssize_t bits = 0
    while value:
        value >>= 1
        bits += 1
    return bits


cdef inline uint8_t *put(uint8_t *to, uint64_t value) noexcept nogil:
    """Append *value*: seven bits per byte, lowest first; the highest bit means that more follow."""
    while value >= 128:
        to[0] = <uint8_t>(value | 128)
        value >>= 7
        to += 1
    to[0] = <uint8_t>value
    return to + 1


cdef inline double places_of(Py_ssize_t at) noexcept nogil:
    """Return the factor that makes decimals whole: 1, 100, 1000 or 1000000."""
    return 1.0 if at == 0 else 100.0 if at == 1 else 1000.0 if at == 2 else 1000000.0


cdef inline double as_double(uint64_t cell) noexcept nogil:
    cdef double value
    memcpy(&value, &cell, 8)
    return value


cdef inline uint64_t as_cell(double value) noexcept nogil:
    cdef uint64_t cell
    memcpy(&cell, &value, 8)
    return cell


cdef inline bint is_decimal(uint64_t cell, double places, int64_t *whole) noexcept nogil:
    """Return whether the double is exactly *whole* / *places*, and set *whole*."""
    # Whole numbers below 2**53 are doubles.
    cdef double value = as_double(cell)
    if not fabs(value * places) < 9007199254740992.0:
        return False
    whole[0] = llrint(value * places)
    return as_cell(<double>whole[0] / places) == cell


cdef inline int64_t nearest(uint64_t cell, double places) noexcept nogil:
    cdef double value = as_double(cell)
    return llrint(value * places) if fabs(value * places) < 9007199254740992.0 else 0


cdef inline uint8_t *put_validity(uint8_t *to, uint8_t *flags, Cells *table, const uint8_t *packed, const uint16_t *chosen, Py_ssize_t rows) noexcept nogil:
    """Update the valid cells, and append their bits if any changed."""
    cdef Py_ssize_t column, row, i, cell, bits = (rows * table.width + 7) // 8
    cdef uint8_t one, changed = 0
    for column in range(table.width):
        for row in range(rows):
            i, cell = column * rows + row, column * table.rows + chosen[row]
            one = packed[i >> 3] >> (i & 7) & 1
            changed |= one ^ table.valid[cell]
            table.valid[cell] = one
    if not changed:
        return to
    flags[0] |= VALIDITY
    memcpy(to, packed, bits)
    return to + bits


cdef inline const uint8_t *get_validity(const uint8_t *at, Cells *table, const uint16_t *chosen, Py_ssize_t rows) noexcept nogil:
    cdef Py_ssize_t column, row, i
    for column in range(table.width):
        for row in range(rows):
            i = column * rows + row
            table.valid[column * table.rows + chosen[row]] = at[i >> 3] >> (i & 7) & 1
    return at + (rows * table.width + 7) // 8


cdef inline uint8_t *put_cells(uint8_t *to, Cells *table, const uint8_t *packed, const uint16_t *chosen, Py_ssize_t rows) noexcept nogil:
    """Append the batches; NULL if an invalid cell does not repeat the previous cell."""
    cdef Py_ssize_t count = rows * table.width, per_column = (rows + BATCH - 1) // BATCH
    cdef Py_ssize_t batch, size, row, i, byte, used = 0
    cdef const uint8_t *plane = packed + (count + 7) // 8
    cdef uint8_t *changed = to
    cdef uint8_t *codes = to + (per_column * table.width + 7) // 8
    cdef uint8_t *code = codes
    cdef uint64_t value = 0, step
    cdef uint64_t[BATCH] now
    cdef uint64_t[BATCH] folded
    cdef uint64_t *last
    # The differences are appended after the space for all codes, and moved once the codes end.
    cdef uint8_t *bits = codes + per_column * table.width
    memset(to, 0, 8 * count + (codes - to) + per_column * table.width)
    for batch in range(per_column * table.width):
        last = table.cells + batch // per_column * table.rows
        row = batch % per_column * BATCH
        if row == 0:
            value = 0
        size = min(BATCH, rows - row)
        for i in range(size):
            step = 0
            for byte in range(8):
                step |= <uint64_t>plane[byte * count + batch // per_column * rows + row + i] << (8 * byte)
            value += step
            if table.valid[batch // per_column * table.rows + chosen[row + i]]:
                now[i] = value
            elif step:
                return NULL
            else:
                now[i] = last[chosen[row + i]]
        code[0] = fold(now, last, chosen + row, size, folded)
        if code[0]:
            changed[batch >> 3] |= <uint8_t>(1 << (batch & 7))
            for i in range(size):
                used = put_bits(bits, used, folded[i], width_of(code[0]))
                last[chosen[row + i]] = now[i]
            code += 1
    for i in range((used + 7) // 8):
        code[i] = bits[i]
    return code + (used + 7) // 8


cdef inline uint8_t fold(const uint64_t *now, const uint64_t *last, const uint16_t *chosen, Py_ssize_t size, uint64_t *folded) noexcept nogil:
    """Find the shortest differences of a batch; return their code, 0 without a difference."""
    cdef uint64_t most = 0, step
    cdef int64_t[BATCH] whole
    cdef Py_ssize_t i, place, width, decimal_width
    for i in range(size):
        folded[i] = zigzag(now[i] - last[chosen[i]])
        most |= folded[i]
    width = bit_length(most)
    if width <= BATCH:
        return <uint8_t>width
    for place in range(DECIMALS):
        most = 0
        for i in range(size):
            if not is_decimal(now[i], places_of(place), &whole[i]):
                break
            whole[i] -= nearest(last[chosen[i]], places_of(place))
            most |= zigzag(<uint64_t>whole[i])
        else:
            decimal_width = max(bit_length(most), 1)
            if decimal_width >= width or decimal_width > DECIMAL_WIDTH_MAX:
                return <uint8_t>width
            for i in range(size):
                folded[i] = zigzag(<uint64_t>whole[i])
            return <uint8_t>(WIDTH_MAX + place * DECIMAL_WIDTH_MAX + decimal_width)
    return <uint8_t>width


cdef inline Py_ssize_t width_of(uint8_t code) noexcept nogil:
    """Return the bits of each difference; 0 for an invalid code."""
    if code <= WIDTH_MAX:
        return code
    if code > WIDTH_MAX + DECIMALS * DECIMAL_WIDTH_MAX:
        return 0
    return 1 + (code - WIDTH_MAX - 1) % DECIMAL_WIDTH_MAX


cdef inline Py_ssize_t put_bits(uint8_t *bits, Py_ssize_t used, uint64_t value, Py_ssize_t width) noexcept nogil:
    cdef Py_ssize_t room, end = used + width
    while used < end:
        room = 8 - (used & 7)
        bits[used >> 3] |= <uint8_t>(value << (used & 7))
        value >>= room
        used += room
    return end


cdef inline uint64_t get_bits(const uint8_t *bits, Py_ssize_t used, Py_ssize_t width) noexcept nogil:
    cdef uint64_t value = bits[used >> 3] >> (used & 7)
    cdef Py_ssize_t have = 8 - (used & 7)
    while have < width:
        used += 8
        value |= <uint64_t>bits[used >> 3] << have
        have += 8
    return value & (<uint64_t>0xFFFFFFFFFFFFFFFF >> (64 - width))


cdef inline uint64_t get_bits_of(const uint8_t *bits, Py_ssize_t used, Py_ssize_t width, const uint8_t *end) noexcept nogil:
    """As `get_bits`, with a single load if eight bytes can be read."""
    cdef uint64_t value
    if width > 56 or end - (bits + (used >> 3)) < 8:
        return get_bits(bits, used, width)
    memcpy(&value, bits + (used >> 3), 8)
    return value >> (used & 7) & (<uint64_t>0xFFFFFFFFFFFFFFFF >> (64 - width))


cdef inline const uint8_t *get_cells(const uint8_t *at, const uint8_t *end, Cells *table, const uint16_t *chosen, Py_ssize_t rows) noexcept nogil:
    """Update the slot's cells; NULL, without a change, if the bytes are not complete batches."""
    cdef Py_ssize_t per_column = (rows + BATCH - 1) // BATCH, batches = per_column * table.width
    cdef Py_ssize_t batch, row, i, size, used = 0, width
    cdef const uint8_t *changed = at
    cdef const uint8_t *code = at + (batches + 7) // 8
    cdef const uint8_t *bits
    cdef uint64_t *last
    cdef uint64_t step
    cdef double places, value
    if end - at < (batches + 7) // 8:
        return NULL
    bits = code
    for batch in range(batches):
        if changed[batch >> 3] >> (batch & 7) & 1:
            if bits >= end or not width_of(bits[0]):
                return NULL
            used += width_of(bits[0]) * min(BATCH, rows - batch % per_column * BATCH)
            bits += 1
    if end - bits < (used + 7) // 8:
        return NULL
    end, used = bits + (used + 7) // 8, 0
    for batch in range(batches):
        if not changed[batch >> 3] >> (batch & 7) & 1:
            continue
        last = table.cells + batch // per_column * table.rows
        row = batch % per_column * BATCH
        size, width = min(BATCH, rows - row), width_of(code[0])
        places = 0 if code[0] <= WIDTH_MAX else places_of((code[0] - WIDTH_MAX - 1) // DECIMAL_WIDTH_MAX)
        for i in range(row, row + size):
            step = unzigzag(get_bits_of(bits, used, width, end))
            used += width
            if places == 0:
                last[chosen[i]] += step
            else:
                value = <double>(<int64_t>(<uint64_t>nearest(last[chosen[i]], places) + step)) / places
                last[chosen[i]] = as_cell(value)
        code += 1
    return end


cdef inline uint8_t *pack_cells(uint8_t *to, Cells *table, const uint16_t *chosen, Py_ssize_t rows) noexcept nogil:
    """Encode as `columns.pyx`: validity, then differences to the previous row, by byte plane."""
    cdef Py_ssize_t count = rows * table.width, column, batch, row, i, at, size, cell
    cdef uint8_t *plane = to + (count + 7) // 8
    cdef uint64_t before, last
    cdef uint64_t[BATCH] w
    memset(w, 0, sizeof(w))
    memset(to, 0, (count + 7) // 8)
    for column in range(table.width):
        last = before = 0
        for batch in range((rows + BATCH - 1) // BATCH):
            row = batch * BATCH
            size = min(BATCH, rows - row)
            at = column * rows + row
            for i in range(size):
                cell = column * table.rows + chosen[row + i]
                if table.valid[cell]:
                    to[at + i >> 3] |= <uint8_t>(1 << (at + i & 7))
                    last = table.cells[cell]
                w[i] = last - before
                before = last
            turn(w)
            if size == BATCH:
                for i in range(8):
                    memcpy(plane + i * count + at, &w[i], 8)
            else:
                for i in range(8):
                    memcpy(plane + i * count + at, &w[i], size)
    return plane + 8 * count
