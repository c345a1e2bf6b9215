/* Lists of lists of numbers out of a posted group's JSON text, straight into int32 and float32 arrays.
 *
 * take(body) -> (rest, {field: (values, lengths)}) walks the members of one JSON object. A member of FIELDS whose value
 * is plainly a list of lists of numbers that fit is taken out, and stands as null in `rest`. Everything else is copied
 * to `rest` as it is, also a member that holds anything unusual: whoever parses `rest` judges it and says what is
 * wrong. So this file needs to know no errors; it only must never take what a JSON parser would refuse or read
 * differently.
 *
 * loss_mask(tokens, masks) -> (mask, sampled, odd, largest) makes of int32 masks one byte for each token, and says how
 * many are sampled, whether one of these has another mask than its token, and the largest token.
 *
 * The module is optional. Without it (no compiler at installation) the same groups are read by simdjson alone, which
 * takes twice the time.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

typedef enum { TOKENS, MASKS, FLOATS } Kind; /* TOKENS and MASKS are int32 */

static const struct {
    const char *name;
    Kind kind;
} FIELDS[] = {
    {"tokens", TOKENS},
    {"masks", MASKS},
    {"inference_logprobs", FLOATS},
    {"ref_logprobs", FLOATS},
    {"advantages", FLOATS},
};
enum { FIELD_COUNT = sizeof FIELDS / sizeof *FIELDS };

enum { MASKED = -100 };

enum { MOST_KEPT = 1 << 20 }; /* numbers */

typedef struct {
    size_t length;
    const char *end; /* where its ] stands */
} Row;

typedef struct {
    char *values;     /* 4 bytes each */
    uint32_t *starts; /* of tokens: where each begins in the text */
    size_t count, room;
    Row *rows;
    size_t row_count, row_room;
} Flat;

static int make_room(Flat *flat, size_t more)
{
    size_t room = flat->room;
    if (room - flat->count >= more)
        return 1;
    while (room - flat->count < more)
        room = room ? room * 2 : 4096;
    char *values = realloc(flat->values, room * 4);
    if (values != NULL)
        flat->values = values;
    uint32_t *starts = realloc(flat->starts, room * sizeof *starts);
    if (starts != NULL)
        flat->starts = starts;
    if (values == NULL || starts == NULL)
        return 0;
    flat->room = room;
    return 1;
}

/* Memory that a usual group never needs is given back. */
static void shrink(Flat *flat)
{
    if (flat->room <= MOST_KEPT && flat->row_room <= MOST_KEPT)
        return;
    free(flat->values);
    free(flat->starts);
    free(flat->rows);
    *flat = (Flat){0};
}

static int add_row(Flat *flat, size_t length, const char *end)
{
    if (flat->row_count == flat->row_room) {
        size_t room = flat->row_room ? flat->row_room * 2 : 64;
        Row *rows = realloc(flat->rows, room * sizeof *rows);
        if (rows == NULL)
            return 0;
        flat->rows = rows;
        flat->row_room = room;
    }
    flat->rows[flat->row_count++] = (Row){length, end};
    return 1;
}

static int is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static const char *skip_space(const char *p, const char *end)
{
    while (p < end && is_space(*p))
        p++;
    return p;
}

/* -- numbers ------------------------------------------------------------------------------------------------------- */

/* What is plain is read with few branches that depend on the number: digits are found from its end, eight at once. */
#if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && UINTPTR_MAX == UINT64_MAX
#define EIGHT_AT_ONCE 1
#else
#define EIGHT_AT_ONCE 0
#endif
enum { REACH = 24 }; /* so many bytes before a number's end are read */

#if EIGHT_AT_ONCE
/* The number that the last `count` (0 to 8) of the eight bytes before `end` are; `odd` gets bits if one is no digit. */
static inline uint64_t last_digits(const char *end, int count, uint64_t *odd)
{
    uint64_t text;
    int half = 4 * (8 - count);
    memcpy(&text, end - 8, 8);
    text = (text ^ 0x3030303030303030u) >> half >> half << half << half;
    *odd |= ((text + 0x7676767676767676u) | text) & 0x8080808080808080u;
    text = text * 2561 >> 8;
    text = (text & 0x00FF00FF00FF00FFu) * 6553601 >> 16;
    return (text & 0x0000FFFF0000FFFFu) * 42949672960001u >> 32;
}
#endif

static const uint64_t TENS[] = {
    1u, 10u, 100u, 1000u, 10000u, 100000u, 1000000u, 10000000u, 100000000u, 1000000000u, 10000000000u, 100000000000u,
    1000000000000u, 10000000000000u, 100000000000000u, 1000000000000000u, 10000000000000000u, 100000000000000000u,
    1000000000000000000u,
};

static const double POWERS_OF_TEN[] = {
    1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
};

/* mantissa * 10^exponent as the nearest double; false = it is not sure which that is. */
static inline int scale(uint64_t mantissa, int exponent, double *result)
{
#if LDBL_MANT_DIG == 64 && defined(__x86_64__)
    /* 10^0 to 10^27 and every mantissa are exact here, so the one operation rounds once, to 64 bits. Rounding to 53
     * bits then gives the nearest double, unless the 11 bits between lie exactly on the middle. */
    static const long double POWERS[] = {
        1e0L,  1e1L,  1e2L,  1e3L,  1e4L,  1e5L,  1e6L,  1e7L,  1e8L,  1e9L,  1e10L, 1e11L, 1e12L, 1e13L,
        1e14L, 1e15L, 1e16L, 1e17L, 1e18L, 1e19L, 1e20L, 1e21L, 1e22L, 1e23L, 1e24L, 1e25L, 1e26L, 1e27L,
    };
    if (exponent < -27 || exponent > 27 || mantissa > INT64_MAX)
        return 0;
    long double value = (long double)(int64_t)mantissa;
    value = exponent < 0 ? value / POWERS[-exponent] : value * POWERS[exponent];
    uint64_t bits;
    memcpy(&bits, &value, 8);
    *result = (double)value;
    return (bits & 0x7FF) != 0x400;
#else
    if (mantissa > (uint64_t)1 << 53 || exponent < -22 || exponent > 22 || FLT_EVAL_METHOD != 0)
        return 0;
    *result = exponent < 0 ? (double)mantissa / POWERS_OF_TEN[-exponent] : (double)mantissa * POWERS_OF_TEN[exponent];
    return 1;
#endif
}

static int is_digit(char c)
{
    return (unsigned char)(c - '0') < 10;
}

/* Digits at p, taken into the mantissa; NULL if it gets too large. */
static const char *read_digits(const char *p, uint64_t *mantissa)
{
    for (; is_digit(*p); p++) {
        if (*mantissa >= TENS[18])
            return NULL;
        *mantissa = *mantissa * 10 + (uint64_t)(*p - '0');
    }
    return p;
}

/* Any number that JSON knows, between s and end; false = it is none, or does not fit. */
static int read_any(const char *s, const char *end, Kind kind, void *place)
{
    char text[64] = {0};
    while (s < end && is_space(*s))
        s++;
    while (s < end && is_space(end[-1]))
        end--;
    if (s == end || (size_t)(end - s) >= sizeof text)
        return 0;
    memcpy(text, s, (size_t)(end - s));
    int negative = *text == '-', exponent = 0;
    uint64_t mantissa = 0;
    const char *digits = text + negative, *p = read_digits(digits, &mantissa);
    if (p == NULL || p == digits || (*digits == '0' && p - digits > 1))
        return 0;
    int whole = p - text == end - s;
    if (*p == '.') {
        const char *point = ++p;
        if ((p = read_digits(p, &mantissa)) == NULL || p == point)
            return 0;
        exponent = -(int)(p - point);
    }
    if (*p == 'e' || *p == 'E') {
        int minus = *++p == '-';
        uint64_t value = 0;
        p += *p == '-' || *p == '+';
        digits = p;
        if ((p = read_digits(p, &value)) == NULL || p == digits || value > 999)
            return 0;
        exponent += minus ? -(int)value : (int)value;
    }
    if (p - text != end - s)
        return 0;
    if (kind != FLOATS) {
        int32_t number = (int32_t)mantissa;
        if (!whole || mantissa > INT32_MAX || (negative && kind == TOKENS))
            return 0;
        number = negative ? -number : number;
        memcpy(place, &number, 4);
        return 1;
    }
    double value = 0;
    if (mantissa != 0 && !scale(mantissa, exponent, &value)) {
        value = fabs(PyOS_string_to_double(text, NULL, NULL));
        if (PyErr_Occurred()) {
            PyErr_Clear();
            return 0;
        }
    }
    float number = (float)(negative && !(whole && mantissa == 0) ? -value : value); /* -0 is the whole number 0 */
    memcpy(place, &number, 4);
    return isfinite(number);
}

/* A whole number of up to eight digits and nothing else; false = it is something else. */
static inline int read_int(const char *s, const char *end, void *place)
{
#if EIGHT_AT_ONCE
    int negative = *s == '-';
    s += negative;
    int count = (int)(end - s);
    if (count < 1 || count > 8)
        return 0;
    uint64_t odd = *s == '0' && count > 1;
    int32_t number = (int32_t)last_digits(end, count, &odd);
    number = negative ? -number : number;
    memcpy(place, &number, 4);
    return odd == 0;
#else
    return 0;
#endif
}

/* One digit, a point, up to 17 digits and nothing else; false = it is something else. */
static inline int read_float(const char *s, const char *end, void *place)
{
#if EIGHT_AT_ONCE
    int negative = *s == '-';
    s += negative;
    int count = (int)(end - s) - 2;
    if (count < 1 || count > 17 || s[1] != '.' || !is_digit(*s))
        return 0;
    uint64_t odd = 0, mantissa;
    if (count <= 8) {
        mantissa = last_digits(end, count, &odd);
    } else {
        mantissa = last_digits(end, 8, &odd) + last_digits(end - 8, count > 16 ? 8 : count - 8, &odd) * TENS[8];
        if (count > 16 && !is_digit(end[-17]))
            return 0;
        mantissa += count > 16 ? (uint64_t)(end[-17] - '0') * TENS[16] : 0;
    }
    mantissa += (uint64_t)(*s - '0') * TENS[count];
    /* Both are at most one rounding away from what they stand for, so the quotient is at most two bits away from the
     * nearest double. That rounds to the same float, unless it lies so close to the middle of two floats. */
    double value = (double)(int64_t)mantissa / POWERS_OF_TEN[count];
    uint64_t bits;
    memcpy(&bits, &value, 8);
    if (((bits & 0x1FFFFFFF) - 0x0FFFFFFC) <= 8 && !scale(mantissa, -(int)count, &value))
        return 0;
    float number = (float)(negative ? -value : value);
    memcpy(place, &number, 4);
    return odd == 0;
#else
    return 0;
#endif
}

/* -- lists --------------------------------------------------------------------------------------------------------- */

/* Which of the 64 bytes at p are a comma or the end of a list. */
static inline uint64_t separators(const char *p)
{
    uint64_t found = 0;
#if defined(__SSE2__)
    for (int i = 0; i < 4; i++) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(p + 16 * i));
        __m128i commas = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(',')), ends = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(']'));
        found |= (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_or_si128(commas, ends)) << 16 * i;
    }
#else
    for (int i = 0; i < 64; i++)
        found |= (uint64_t)(p[i] == ',' || p[i] == ']') << i;
#endif
    return found;
}

static inline int lowest(uint64_t bits)
{
#if defined(__GNUC__)
    return __builtin_ctzll(bits);
#else
    int place = 0;
    for (; !(bits & 1); bits >>= 1)
        place++;
    return place;
#endif
}

/* A row of tokens, and which of `tokens` it begins with. */
typedef struct {
    const Flat *tokens;
    const Row *row;
    size_t first;
} Same;

/* The masks of a row usually are its tokens, from the first that was sampled to the end: the same text, which then is
 * compared and not read again. There is room for them. NULL = it is another text. */
static const char *repeat(
    const char *start, const char *text, const char *end, const Same *same, size_t index, Flat *flat)
{
    if (same->row == NULL || index >= same->row->length)
        return NULL;
    const char *tokens = text + same->tokens->starts[same->first + index];
    size_t size = (size_t)(same->row->end - tokens), count = same->row->length - index;
    if ((size_t)(end - start) <= size || start[size] != ']' || memcmp(start, tokens, size) != 0)
        return NULL;
    memcpy(flat->values + 4 * flat->count, same->tokens->values + 4 * (same->first + index), 4 * count);
    flat->count += count;
    return start + size;
}

/* The numbers from p on, to the end of their row; NULL = there is something else. `text` is where reading back ends. */
static const char *read_row(const char *p, const char *text, const char *end, Kind kind, const Same *same, Flat *flat)
{
    size_t before = flat->count;
    int sampled = 0;
    for (const char *block = p; block < end; block += 64) {
        char last[64] = {0};
        uint64_t found = separators(end - block >= 64 ? block : memcpy(last, block, (size_t)(end - block)));
        if (!make_room(flat, 64))
            return NULL;
        char *place = flat->values + 4 * flat->count;
        uint32_t *begins = flat->starts + flat->count;
        for (; found; found &= found - 1, place += 4) {
            const char *stop = block + lowest(found);
            const char *start = p + (*p == ' '); /* as Python's json writes it */
            if (kind == TOKENS)
                *begins++ = (uint32_t)(start - text);
            if (kind == MASKS && sampled != (*start != '-') && (sampled = !sampled)) {
                flat->count = (size_t)(place - flat->values) / 4;
                const char *behind = repeat(start, text, end, same, flat->count - before, flat);
                if (behind != NULL)
                    return behind;
            }
            int plain = stop - text >= REACH && !(kind == TOKENS && *start == '-') &&
                        (kind == FLOATS ? read_float(start, stop, place) : read_int(start, stop, place));
            if (!plain && !read_any(p, stop, kind, place))
                return NULL;
            p = stop + 1;
            if (*stop == ']') {
                flat->count = (size_t)(place + 4 - flat->values) / 4;
                return stop;
            }
        }
        flat->count = (size_t)(place - flat->values) / 4;
    }
    return NULL;
}

/* The list of lists of numbers at p, to behind its end; NULL = it is something else. `tokens`: those read before. */
static const char *read_rows(
    const char *p, const char *text, const char *end, Kind kind, const Flat *tokens, Flat *flat)
{
    Same same = {tokens, NULL, 0};
    flat->count = flat->row_count = 0;
    if (*p != '[')
        return NULL;
    do {
        p = skip_space(p + 1, end);
        if (p == end || *p != '[')
            return NULL;
        size_t before = flat->count;
        same.row = tokens != NULL && flat->row_count < tokens->row_count ? &tokens->rows[flat->row_count] : NULL;
        if (same.row != NULL && !make_room(flat, same.row->length))
            return NULL;
        p = skip_space(p + 1, end);
        if (p < end && *p != ']')
            p = read_row(p, text, end, kind, &same, flat);
        if (p == NULL || p == end || *p != ']' || !add_row(flat, flat->count - before, p))
            return NULL;
        same.first += same.row != NULL ? same.row->length : 0;
        p = skip_space(p + 1, end);
    } while (p < end && *p == ',');
    return p < end && *p == ']' ? p + 1 : NULL;
}

/* -- members ------------------------------------------------------------------------------------------------------- */

/* Behind the string at p; `end` if it does not end. */
static const char *skip_string(const char *p, const char *end)
{
    for (p++; p < end && *p != '"'; p++)
        if (*p == '\\')
            p++;
    return p < end ? p + 1 : end;
}

/* Behind the value at p, whatever it is. */
static const char *skip_value(const char *p, const char *end)
{
    size_t depth = 0;
    while (p < end) {
        char c = *p;
        if (c == '"') {
            p = skip_string(p, end);
            if (depth == 0)
                return p;
            continue;
        }
        if (c == '[' || c == '{') {
            depth++;
        } else if (c == ']' || c == '}') {
            if (depth == 0)
                return p;
            if (--depth == 0)
                return p + 1;
        } else if (depth == 0 && (c == ',' || is_space(c))) {
            return p;
        }
        p++;
    }
    return end;
}

static int find_field(const char *name, size_t length)
{
    for (int field = 0; field < FIELD_COUNT; field++)
        if (strlen(FIELDS[field].name) == length && memcmp(FIELDS[field].name, name, length) == 0)
            return field;
    return -1;
}

/* Put one list into the dictionary; false = an exception is set. */
static int keep(PyObject *taken, int field, const Flat *flat)
{
    PyObject *values = PyBytes_FromStringAndSize(flat->values, (Py_ssize_t)(4 * flat->count));
    PyObject *lengths = PyList_New((Py_ssize_t)flat->row_count);
    int kept = values != NULL && lengths != NULL;
    for (size_t row = 0; kept && row < flat->row_count; row++) {
        PyObject *length = PyLong_FromSize_t(flat->rows[row].length);
        kept = length != NULL && PyList_SetItem(lengths, (Py_ssize_t)row, length) == 0;
    }
    PyObject *pair = kept ? PyTuple_Pack(2, values, lengths) : NULL;
    kept = pair != NULL && PyDict_SetItemString(taken, FIELDS[field].name, pair) == 0;
    Py_XDECREF(pair);
    Py_XDECREF(values);
    Py_XDECREF(lengths);
    return kept;
}

typedef struct {
    const char *from, *to;
} Span;

/* What is left between the spans that were taken out, null in the place of each. */
static PyObject *without(const char *text, const char *end, const Span *spans, int count)
{
    Py_ssize_t size = end - text;
    for (int i = 0; i < count; i++)
        size += 4 - (spans[i].to - spans[i].from);
    PyObject *rest = PyBytes_FromStringAndSize(NULL, size);
    char *to = rest != NULL ? PyBytes_AsString(rest) : NULL;
    if (to == NULL)
        return NULL;
    for (int i = 0; i < count; i++) {
        memcpy(to, text, (size_t)(spans[i].from - text));
        to += spans[i].from - text;
        memcpy(to, "null", 4);
        to += 4;
        text = spans[i].to;
    }
    memcpy(to, text, (size_t)(end - text));
    return rest;
}

static PyObject *take(PyObject *module, PyObject *body)
{
    (void)module;
    static Flat tokens, others; /* used again and again, under the interpreter's lock */
    Py_buffer view;
    if (PyObject_GetBuffer(body, &view, PyBUF_SIMPLE) != 0)
        return NULL;
    PyObject *taken = PyDict_New(), *rest = NULL, *result = NULL;
    if (taken == NULL)
        goto done;
    const char *text = view.buf, *end = text + view.len;
    Span spans[FIELD_COUNT];
    const Flat *known = NULL;
    int count = 0, seen[FIELD_COUNT] = {0};
    const char *p = skip_space(text, end);
    if (p == end || *p != '{' || (uint64_t)view.len > UINT32_MAX)
        goto walked;
    do {
        p = skip_space(p + 1, end);
        if (p == end || *p != '"')
            break;
        const char *name = p + 1;
        p = skip_string(p, end);
        int field = find_field(name, (size_t)(p - 1 - name));
        p = skip_space(p, end);
        if (p == end || *p != ':')
            break;
        p = skip_space(p + 1, end);
        const char *behind = NULL;
        if (p < end && field >= 0 && !seen[field]++) /* the first of a name counts, as it does for simdjson */
            behind = read_rows(p, text, end, FIELDS[field].kind, known, field == 0 ? &tokens : &others);
        if (behind != NULL) {
            if (!keep(taken, field, field == 0 ? &tokens : &others))
                goto done;
            if (field == 0)
                known = &tokens;
            spans[count++] = (Span){p, behind};
        }
        p = skip_space(behind != NULL ? behind : skip_value(p, end), end);
    } while (p < end && *p == ',');
walked:
    rest = count ? without(text, end, spans, count) : Py_NewRef(body);
    if (rest != NULL)
        result = PyTuple_Pack(2, rest, taken);
done:
    shrink(&tokens);
    shrink(&others);
    Py_XDECREF(rest);
    Py_XDECREF(taken);
    PyBuffer_Release(&view);
    return result;
}

/* In one pass what numpy takes five for. */
static PyObject *loss_mask(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer tokens, masks;
    if (!PyArg_ParseTuple(arguments, "y*y*", &tokens, &masks))
        return NULL;
    PyObject *result = NULL, *mask = PyBytes_FromStringAndSize(NULL, masks.len / 4);
    char *to = mask != NULL ? PyBytes_AsString(mask) : NULL;
    if (to != NULL && tokens.len != masks.len) {
        PyErr_SetString(PyExc_ValueError, "there is not one mask for each token");
    } else if (to != NULL) {
        int32_t largest = 0, sampled = 0, odd = 0;
        for (Py_ssize_t i = 0; i < masks.len / 4; i++) {
            int32_t token, masked;
            memcpy(&token, (const char *)tokens.buf + 4 * i, 4);
            memcpy(&masked, (const char *)masks.buf + 4 * i, 4);
            int32_t loss = masked != MASKED;
            to[i] = (char)loss;
            sampled += loss;
            odd |= loss & (masked != token);
            largest = token > largest ? token : largest;
        }
        result = Py_BuildValue("(OiOi)", mask, (int)sampled, odd ? Py_True : Py_False, (int)largest);
    }
    Py_XDECREF(mask);
    PyBuffer_Release(&tokens);
    PyBuffer_Release(&masks);
    return result;
}

static PyMethodDef METHODS[] = {
    {"loss_mask", loss_mask, METH_VARARGS, "loss_mask(tokens, masks) -> (mask, sampled, odd, largest token)"},
    {"take", take, METH_O, "take(body) -> (rest, {field: (values, lengths)})"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, .m_name = "flat", .m_doc = "Lists of lists of numbers out of JSON text.", .m_size = -1,
    .m_methods = METHODS,
};

PyMODINIT_FUNC PyInit_flat(void)
{
    return PyModule_Create(&MODULE);
}
