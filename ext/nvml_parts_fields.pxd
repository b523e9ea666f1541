# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Converts a field of a link to a cell. C only.

A value is missing, never zero, after an error, for a blank, or beyond the reading's range.
"""

from libc.math cimport isfinite, pow
from libc.stdint cimport uint8_t, uint64_t

from nvml_abi cimport *
from nvml_parts_abi cimport *
from nvml_pass cimport blank

cdef enum:
    INTEGER_FORM, FLOAT_FORM, BIT_ERROR_RATIO_FORM


cdef inline bint lacking(nvmlReturn_t code) noexcept nogil:
    """Return whether the driver or GPU lacks the function, which is not a failure."""
    return code in (
        NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NOT_FOUND,
        NVML_ERROR_FUNCTION_NOT_FOUND, NVML_ERROR_ARGUMENT_VERSION_MISMATCH, NVML_ERROR_DEPRECATED,
    )


cdef inline bint decode_bit_error_ratio(uint64_t code, double *ratio) noexcept nogil:
    """Set mantissa * 10^-exponent; False for a code with more bits than in the header."""
    cdef unsigned int mantissa = (code >> NVML_NVLINK_BER_MANTISSA_SHIFT) & NVML_NVLINK_BER_MANTISSA_WIDTH
    cdef unsigned int exponent = (code >> NVML_NVLINK_BER_EXP_SHIFT) & NVML_NVLINK_BER_EXP_WIDTH
    ratio[0] = mantissa * pow(10, -<double>exponent)
    return code >> 12 == 0 and ratio[0] <= 1


cdef inline bint integer_of(nvmlFieldValue_t *field, uint64_t *value) noexcept nogil:
    """Set a field's unsigned value; False if it is negative, or not an integer."""
    cdef long long signed_value
    if field.valueType == NVML_VALUE_TYPE_UNSIGNED_INT:
        value[0] = field.value.uiVal
    elif field.valueType == NVML_VALUE_TYPE_UNSIGNED_LONG:
        value[0] = field.value.ulVal
    elif field.valueType == NVML_VALUE_TYPE_UNSIGNED_LONG_LONG:
        value[0] = field.value.ullVal
    elif field.valueType == NVML_VALUE_TYPE_UNSIGNED_SHORT:
        value[0] = field.value.usVal
    elif field.valueType in (NVML_VALUE_TYPE_SIGNED_INT, NVML_VALUE_TYPE_SIGNED_LONG_LONG):
        signed_value = field.value.siVal if field.valueType == NVML_VALUE_TYPE_SIGNED_INT else field.value.sllVal
        value[0] = <uint64_t>signed_value
        return signed_value >= 0
    elif field.valueType == NVML_VALUE_TYPE_DOUBLE:
        value[0] = 0
        if not isfinite(field.value.dVal) or field.value.dVal < 0 or field.value.dVal >= 9e15:
            return False
        value[0] = <uint64_t>field.value.dVal
    else:
        return False
    return True


cdef struct Ask:
    int device
    unsigned int field
    unsigned int scope
    int form
    uint64_t multiplier
    uint64_t raw_max
    uint64_t *cell
    uint8_t *valid
    bint has  # its last read gave a value, and no earlier request for this cell did


cdef inline void put(Ask *ask, nvmlFieldValue_t *field) noexcept nogil:
    """Write a field's value, unless an earlier request for the cell had one."""
    cdef uint64_t raw = 0
    ask.has = not lacking(field.nvmlReturn) and not ask.valid[0]
    if not ask.has or field.nvmlReturn != NVML_SUCCESS or not integer_of(field, &raw):
        return
    if blank(raw) or raw > ask.raw_max:
        return
    if ask.form == INTEGER_FORM:
        ask.cell[0] = raw * ask.multiplier
    elif ask.form == FLOAT_FORM:
        (<double *>ask.cell)[0] = <double>raw * ask.multiplier
    elif not decode_bit_error_ratio(raw, <double *>ask.cell):
        return
    ask.valid[0] = 1
