/* The hot loops of arrays.py and of the compressors, for contiguous float32 vectors in main memory.
 *
 * Nothing is defined here. Each function gives the bits that the numpy code of its caller gives, and a test holds it to that; so
 * results are the same with and without a compiler. Every function checks what it is handed, raises ValueError, and works without the
 * interpreter's lock. Sums and products are never reordered or contracted: the file must not be built with -ffast-math.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#include <immintrin.h>
#define F16C
#define CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#elif defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && (defined(__clang__) ? __clang_major__ >= 14 : defined(__GNUC__) && __GNUC__ >= 9)
#define CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define CLONES
#endif

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

#define MAGNITUDE 0x7FFFFFFFu
#define INFINITE 0x7F800000u

enum { SET, ADD, SUBTRACT };

INLINE uint32_t word_of(float value) {
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    return word;
}

INLINE float float_of(uint32_t word) {
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

INLINE void put(float *into, float value, int how) {
    if (how == SET)
        *into = value;
    else if (how == ADD)
        *into += value;
    else
        *into -= value;
}

INLINE Py_ssize_t at_most(Py_ssize_t a, Py_ssize_t b) { return a < b ? a : b; }

/* A loop that writes, adds or subtracts is compiled once for each of the three. */
#define EACH_WAY(how, body, ...)                \
    do {                                        \
        if ((how) == SET)                       \
            body(__VA_ARGS__, SET);             \
        else if ((how) == ADD)                  \
            body(__VA_ARGS__, ADD);             \
        else                                    \
            body(__VA_ARGS__, SUBTRACT);        \
    } while (0)

/* --- Magnitudes: without its sign, the word of a float orders like the float, and NaN lies above infinity ------------------------- */

INLINE uint32_t top_body(const uint32_t *restrict word, Py_ssize_t n) {
    int32_t top = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        int32_t key = (int32_t)(word[i] & MAGNITUDE);
        top = key > top ? key : top;
    }
    return (uint32_t)top;
}

CLONES static uint32_t top_of(const uint32_t *word, Py_ssize_t n) { return top_body(word, n); }

CLONES static uint32_t top_of_16(const uint16_t *restrict word, Py_ssize_t n) {
    int16_t top = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        int16_t key = (int16_t)(word[i] & 0x7FFF);
        top = key > top ? key : top;
    }
    return (uint32_t)top;
}

CLONES static void tops_of(const uint32_t *restrict word, Py_ssize_t rows, Py_ssize_t length, uint32_t *restrict tops) {
    for (Py_ssize_t r = 0; r < rows; r++)
        tops[r] = top_body(word + r * length, length);
}

/* --- 16-bit floats ----------------------------------------------------------------------------------------------------------------- */

INLINE uint16_t half_of(uint32_t word) {
    uint32_t sign = (word >> 16) & 0x8000u, key = word & MAGNITUDE;
    uint32_t normal = (key + 0xFFFu + ((key >> 13) & 1u) - (112u << 23)) >> 13;
    uint32_t denormal = word_of(float_of(key) + 0.5f) - 0x3F000000u; /* the addition rounds to multiples of 2**-24 */
    uint32_t half = key < (113u << 23) ? denormal : normal;
    half = key >= 0x477FF000u ? 0x7C00u : half;
    half = key > INFINITE ? 0x7E00u | ((key >> 13) & 0x3FFu) : half;
    return (uint16_t)(sign | half);
}

INLINE float of_half(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, key = (uint32_t)(half & 0x7FFFu) << 13;
    uint32_t normal = key + (112u << 23) + (key >= 0x0F800000u ? 112u << 23 : 0u);
    uint32_t denormal = word_of(float_of(key + (113u << 23)) - 0x1p-14f);
    return float_of(sign | (key < 0x00800000u ? denormal : normal));
}

INLINE uint16_t bfloat_of(uint32_t word) {
    uint32_t rounded = (word + 0x7FFFu + ((word >> 16) & 1u)) >> 16;
    return (uint16_t)((word & MAGNITUDE) > INFINITE ? ((word >> 16) & 0x8000u) | 0x7FC0u : rounded);
}

CLONES static void to_half_in_integers(const float *restrict from, float factor, uint16_t *restrict to, Py_ssize_t n) {
    for (Py_ssize_t i = 0; i < n; i++)
        to[i] = half_of(word_of(from[i] * factor));
}

CLONES static void to_bfloat(const uint32_t *restrict from, uint16_t *restrict to, Py_ssize_t n) {
    for (Py_ssize_t i = 0; i < n; i++)
        to[i] = bfloat_of(from[i]);
}

INLINE void from_half_body(const uint16_t *restrict from, float unit, float *restrict into, Py_ssize_t n, int how) {
    for (Py_ssize_t i = 0; i < n; i++)
        put(&into[i], of_half(from[i]) * unit, how);
}

CLONES static void from_half_in_integers(const uint16_t *from, float unit, float *into, Py_ssize_t n, int how) {
    EACH_WAY(how, from_half_body, from, unit, into, n);
}

#ifdef F16C /* instructions for it, which compilers do not find by themselves */
__attribute__((target("avx2,f16c"))) static void to_half_f16c(const float *restrict from, float factor, uint16_t *restrict to, Py_ssize_t n) {
    Py_ssize_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(to + i), _mm256_cvtps_ph(_mm256_mul_ps(_mm256_loadu_ps(from + i), _mm256_set1_ps(factor)), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; i++)
        to[i] = half_of(word_of(from[i] * factor));
}

__attribute__((target("avx2,f16c"))) static void from_half_f16c(const uint16_t *restrict from, float unit, float *restrict into, Py_ssize_t n, int how) {
    Py_ssize_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 wide = _mm256_mul_ps(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))), _mm256_set1_ps(unit));
        if (how == ADD)
            wide = _mm256_add_ps(_mm256_loadu_ps(into + i), wide);
        else if (how == SUBTRACT)
            wide = _mm256_sub_ps(_mm256_loadu_ps(into + i), wide);
        _mm256_storeu_ps(into + i, wide);
    }
    for (; i < n; i++)
        put(&into[i], of_half(from[i]) * unit, how);
}
#endif

static void to_half(const float *from, float factor, uint16_t *to, Py_ssize_t n) {
#ifdef F16C
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
        to_half_f16c(from, factor, to, n);
        return;
    }
#endif
    to_half_in_integers(from, factor, to, n);
}

static void from_half(const uint16_t *from, float unit, float *into, Py_ssize_t n, int how) {
#ifdef F16C
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
        from_half_f16c(from, unit, into, n, how);
        return;
    }
#endif
    from_half_in_integers(from, unit, into, n, how);
}

INLINE void from_bfloat_body(const uint16_t *restrict from, float *restrict into, Py_ssize_t n, int how) {
    for (Py_ssize_t i = 0; i < n; i++)
        put(&into[i], float_of((uint32_t)from[i] << 16), how);
}

CLONES static void from_bfloat(const uint16_t *from, float *into, Py_ssize_t n, int how) { EACH_WAY(how, from_bfloat_body, from, into, n); }

/* --- Evenly spaced levels, in units of one scale a block --------------------------------------------------------------------------- */

#define ROUNDER 12582912.0f /* 1.5 * 2**23: a small number added to it is rounded to a whole one, halves to even */

INLINE uint32_t level_of(float value, float scale) { return word_of(value / scale + ROUNDER) - 0x4B400000u; } /* as a signed number */

INLINE float level_scale(const float *from, Py_ssize_t block, float per_level, uint32_t mask) {
    float scale = float_of(top_body((const uint32_t *)from, block)) * per_level;
    return float_of(word_of(scale < 0x1p-126f ? 0x1p-126f : scale) & mask);
}

CLONES static void to_levels_8(const float *restrict from, int8_t *restrict to, float *restrict scales, Py_ssize_t blocks, Py_ssize_t block, float per_level,
                               uint32_t mask) {
    for (Py_ssize_t b = 0; b < blocks; b++, from += block, to += block) {
        float scale = scales[b] = level_scale(from, block, per_level, mask);
        for (Py_ssize_t i = 0; i < block; i++)
            to[i] = (int8_t)(int32_t)level_of(from[i], scale);
    }
}

CLONES static void to_levels_4(const float *restrict from, int8_t *restrict to, float *restrict scales, Py_ssize_t blocks, Py_ssize_t block, float per_level,
                               uint32_t mask) {
    Py_ssize_t half = block / 2;
    for (Py_ssize_t b = 0; b < blocks; b++, from += block, to += half) {
        float scale = scales[b] = level_scale(from, block, per_level, mask);
        for (Py_ssize_t i = 0; i < half; i++)
            to[i] = (int8_t)(int32_t)((level_of(from[i], scale) + 8) | (level_of(from[i + half], scale) + 8) << 4);
    }
}

INLINE void from_levels_8_body(const int8_t *restrict from, const float *restrict scales, float *restrict into, Py_ssize_t n, Py_ssize_t block, int how) {
    for (; n > 0; n -= block, from += block, into += block, scales++) {
        float scale = *scales;
        for (Py_ssize_t i = 0, stop = at_most(n, block); i < stop; i++)
            put(&into[i], (float)from[i] * scale, how);
    }
}

CLONES static void from_levels_8(const int8_t *from, const float *scales, float *into, Py_ssize_t n, Py_ssize_t block, int how) {
    EACH_WAY(how, from_levels_8_body, from, scales, into, n, block);
}

INLINE void from_levels_4_body(const int8_t *restrict from, const float *restrict scales, float *restrict into, Py_ssize_t n, Py_ssize_t block, int how) {
    Py_ssize_t half = block / 2;
    for (; n > 0; n -= block, from += half, into += block, scales++) {
        float scale = *scales;
        const uint8_t *pair = (const uint8_t *)from;
        for (Py_ssize_t i = 0, stop = at_most(n, half); i < stop; i++)
            put(&into[i], (float)((int32_t)(pair[i] & 15) - 8) * scale, how);
        for (Py_ssize_t i = 0, stop = at_most(n - half, half); i < stop; i++)
            put(&into[half + i], (float)((int32_t)(pair[i] >> 4) - 8) * scale, how);
    }
}

CLONES static void from_levels_4(const int8_t *from, const float *scales, float *into, Py_ssize_t n, Py_ssize_t block, int how) {
    EACH_WAY(how, from_levels_4_body, from, scales, into, n, block);
}

/* --- Signs: bit k of byte j of a block is the sign of entry k * block / 8 + j ------------------------------------------------------- */

CLONES static void to_signs(const uint32_t *restrict from, uint8_t *restrict to, float *restrict scales, Py_ssize_t blocks, Py_ssize_t block,
                            double *restrict sums) {
    Py_ssize_t half = block / 2, bytes = block / 8;
    for (Py_ssize_t b = 0; b < blocks; b++, from += block, to += bytes) {
        for (Py_ssize_t i = 0; i < half; i++) /* in double no sum overflows; half is added to half, so the order is the same everywhere */
            sums[i] = (double)float_of(from[i] & MAGNITUDE) + (double)float_of(from[i + half] & MAGNITUDE);
        for (Py_ssize_t width = half / 2; width; width /= 2)
            for (Py_ssize_t i = 0; i < width; i++)
                sums[i] += sums[i + width];
        scales[b] = (float)(sums[0] / (double)block);
#define SIGN(k) (from[(k) * bytes + j] >> 31 << (k))
        for (Py_ssize_t j = 0; j < bytes; j++)
            to[j] = (uint8_t)(SIGN(0) | SIGN(1) | SIGN(2) | SIGN(3) | SIGN(4) | SIGN(5) | SIGN(6) | SIGN(7));
    }
}

INLINE void from_signs_body(const uint8_t *restrict from, const uint32_t *restrict scales, float *restrict into, Py_ssize_t n, Py_ssize_t block, int how) {
    Py_ssize_t bytes = block / 8;
    for (; n > 0; n -= block, from += bytes, into += block, scales++) {
        uint32_t scale = *scales;
        for (int k = 0; k < 8; k++)
            for (Py_ssize_t j = 0, stop = at_most(n - k * bytes, bytes); j < stop; j++)
                put(&into[k * bytes + j], float_of(scale ^ (uint32_t)from[j] >> k << 31), how);
    }
}

CLONES static void from_signs(const uint8_t *from, const uint32_t *scales, float *into, Py_ssize_t n, Py_ssize_t block, int how) {
    EACH_WAY(how, from_signs_body, from, scales, into, n, block);
}

/* --- The largest entries ------------------------------------------------------------------------------------------------------------ */

enum { FIRST = 12, SECOND = 10, THIRD = 9, TABLES = 4, STRIDE = 16, SAMPLED_FROM = 1 << 16, STEP = 61 };

typedef struct {
    int32_t at;
    uint32_t word;
} Entry;

/* The bin, counted from the top, in which the k-th largest lies; *k becomes its place within that bin. */
static uint32_t bin_of(const uint32_t *counts, uint32_t bins, Py_ssize_t *k) {
    uint32_t bin = bins - 1;
    for (; bin > 0 && (Py_ssize_t)counts[bin] < *k; bin--)
        *k -= counts[bin];
    return bin;
}

/* A magnitude that about `k` entries reach, at the lower end of a bin: of every `step`-th entry, k / step and some more. */
static uint32_t about(const uint32_t *word, Py_ssize_t n, Py_ssize_t k, Py_ssize_t step, Py_ssize_t *expected) {
    uint32_t counts[TABLES][1 << FIRST]; /* several tables: equal neighbours would wait for one another */
    Py_ssize_t i = 0, among = step == 1 ? k : k / step * 5 / 4 + 32, place = among;
    memset(counts, 0, sizeof counts);
    for (; i < n - (TABLES - 1) * step; i += TABLES * step)
        for (int t = 0; t < TABLES; t++)
            counts[t][(word[i + t * step] & MAGNITUDE) >> (SECOND + THIRD)]++;
    for (; i < n; i += step)
        counts[0][(word[i] & MAGNITUDE) >> (SECOND + THIRD)]++;
    for (int t = 1; t < TABLES; t++)
        for (int bin = 0; bin < 1 << FIRST; bin++)
            counts[0][bin] += counts[t][bin];
    uint32_t bin = bin_of(counts[0], 1 << FIRST, &place);
    *expected = step * (among - place + (Py_ssize_t)counts[0][bin]);
    return bin << (SECOND + THIRD);
}

/* The entries whose magnitude is at least `least`, in order; more than `room` if there are so many. `list` has room for STRIDE more. */
CLONES static Py_ssize_t reaching(const uint32_t *restrict word, Py_ssize_t n, uint32_t least, Entry *restrict list, Py_ssize_t room) {
    Py_ssize_t found = 0, i = 0;
    for (; i + STRIDE <= n && found <= room; i += STRIDE) {
        if (top_body(word + i, STRIDE) < least)
            continue;
        for (Py_ssize_t j = i; j < i + STRIDE; j++) {
            list[found].at = (int32_t)j;
            list[found].word = word[j];
            found += (word[j] & MAGNITUDE) >= least;
        }
    }
    for (; i < n && found <= room; i++) {
        list[found].at = (int32_t)i;
        list[found].word = word[i];
        found += (word[i] & MAGNITUDE) >= least;
    }
    return found;
}

/* The next `bits` bits of the k-th largest magnitude, whose higher bits are `prefix`. */
static uint32_t refined(const Entry *list, Py_ssize_t n, uint32_t prefix, int shift, int bits, Py_ssize_t *k) {
    uint32_t counts[1 << FIRST], mask = (1u << bits) - 1;
    memset(counts, 0, sizeof counts);
    for (Py_ssize_t i = 0; i < n; i++) {
        uint32_t key = (list[i].word & MAGNITUDE) >> shift;
        counts[key & mask] += key >> bits == prefix;
    }
    return prefix << bits | bin_of(counts, mask + 1, k);
}

/* List what reaches a magnitude that a sample suggests, then compare within the list. If the sample deceived, all entries are counted
 * instead. Returns 0 when there is no memory for the list. */
static int largest(const uint32_t *word, Py_ssize_t n, Py_ssize_t k, int32_t *index, uint32_t *values) {
    Entry *list = NULL;
    Py_ssize_t listed = -1, room = 0, found = 0, wanted = k;
    for (Py_ssize_t step = n < SAMPLED_FROM ? 1 : STEP; listed < k || listed > room; step = 1) {
        uint32_t least = about(word, n, k, step, &room);
        if (step > 1)
            room += room / 2 + SAMPLED_FROM;
        free(list);
        list = malloc(((size_t)room + STRIDE + 1) * sizeof *list);
        if (list == NULL)
            return 0;
        listed = reaching(word, n, least, list, room);
    }
    uint32_t threshold = refined(list, listed, 0, SECOND + THIRD, FIRST, &k);
    threshold = refined(list, listed, threshold, THIRD, SECOND, &k);
    threshold = refined(list, listed, threshold, 0, THIRD, &k);
    for (Py_ssize_t i = 0; i < listed && found < wanted; i++) { /* k has become the number of entries to take that equal the threshold */
        uint32_t key = list[i].word & MAGNITUDE;
        int equal = key == threshold && k > 0;
        index[found] = list[i].at;
        values[found] = list[i].word;
        found += key > threshold || equal;
        k -= equal;
    }
    free(list);
    return 1;
}

/* --- Sums ---------------------------------------------------------------------------------------------------------------------------- */

enum { TILE = 4096 };

/* Of two, entry by entry: the output may be one of them. (a + b) * 1 is a + b to the last bit. */
INLINE void sum_of_two(const float *a, const float *b, float factor, float *into, Py_ssize_t n) {
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC ivdep
#endif
    for (Py_ssize_t i = 0; i < n; i++)
        into[i] = (a[i] + b[i]) * factor;
}

INLINE void sum_of_many(const float *const *shares, Py_ssize_t count, Py_ssize_t start, float factor, float *restrict into, Py_ssize_t n) {
    memcpy(into, shares[0] + start, (size_t)n * sizeof *into);
    for (Py_ssize_t s = 1; s < count; s++) {
        const float *share = shares[s] + start;
        for (Py_ssize_t i = 0; i < n; i++)
            into[i] += share[i];
    }
    if (factor != 1.0f)
        for (Py_ssize_t i = 0; i < n; i++)
            into[i] *= factor;
}

/* A tile is read from every share before it is written to any other output, so an output may be one of the shares. */
CLONES static void sum_of(const float *const *shares, Py_ssize_t count, float factor, float *const *outs, Py_ssize_t out_count, Py_ssize_t n) {
    float apart[TILE];
    for (Py_ssize_t start = 0; start < n; start += TILE) {
        Py_ssize_t length = at_most(n - start, TILE);
        float *total = count == 2 ? outs[0] + start : apart;
        if (count == 2)
            sum_of_two(shares[0] + start, shares[1] + start, factor, total, length);
        else
            sum_of_many(shares, count, start, factor, total, length);
        for (Py_ssize_t o = count == 2; o < out_count; o++)
            memcpy(outs[o] + start, total, (size_t)length * sizeof *total);
    }
}

/* Copy, and return the largest magnitude: the word of a NaN if there is one. */
CLONES static uint32_t copied(const uint32_t *restrict from, uint32_t *restrict into, Py_ssize_t n) {
    int32_t top = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        int32_t key = (int32_t)(from[i] & MAGNITUDE);
        into[i] = from[i];
        top = key > top ? key : top;
    }
    return (uint32_t)top;
}

/* --- Products of two thin matrices: p (rows x rank) times q (rank x columns), rank by rank from the first -------------------------------- */

enum { STRIP = 512 };

INLINE void strip_of(const float *restrict p, const float *restrict q, Py_ssize_t rank, Py_ssize_t columns, float *restrict strip, Py_ssize_t n) {
    for (Py_ssize_t i = 0; i < n; i++)
        strip[i] = p[0] * q[i];
    Py_ssize_t k = 1;
    for (; k + 3 <= rank; k += 3) {
        const float *a = q + k * columns, *b = a + columns, *c = b + columns;
        for (Py_ssize_t i = 0; i < n; i++)
            strip[i] = ((strip[i] + p[k] * a[i]) + p[k + 1] * b[i]) + p[k + 2] * c[i];
    }
    for (; k < rank; k++)
        for (Py_ssize_t i = 0; i < n; i++)
            strip[i] += p[k] * q[k * columns + i];
}

CLONES static void low_rank(const float *p, const float *q, Py_ssize_t rows, Py_ssize_t rank, Py_ssize_t columns, float *into) {
    for (Py_ssize_t r = 0; r < rows; r++)
        for (Py_ssize_t start = 0; start < columns; start += STRIP)
            strip_of(p + r * rank, q + start, rank, columns, into + r * columns + start, at_most(columns - start, STRIP));
}

/* given = (given - p q) + more */
CLONES static void fold_low_rank(const float *p, const float *q, Py_ssize_t rows, Py_ssize_t rank, Py_ssize_t columns, const float *restrict more,
                                 float *restrict given) {
    float strip[STRIP];
    for (Py_ssize_t r = 0; r < rows; r++)
        for (Py_ssize_t start = 0; start < columns; start += STRIP) {
            Py_ssize_t n = at_most(columns - start, STRIP), at = r * columns + start;
            strip_of(p + r * rank, q + start, rank, columns, strip, n);
            for (Py_ssize_t i = 0; i < n; i++)
                given[at + i] = (given[at + i] - strip[i]) + more[at + i];
        }
}

/* out[at[i]] += values[i], until an index lies outside; the number of those that do not. */
static Py_ssize_t add_at(float *restrict out, Py_ssize_t n, const int32_t *restrict at, const float *restrict values, Py_ssize_t count) {
    Py_ssize_t i = 0;
    for (; i < count && at[i] >= 0 && at[i] < n; i++)
        out[at[i]] += values[i];
    return i;
}

/* --- What Python sees ---------------------------------------------------------------------------------------------------------------- */

typedef struct {
    Py_buffer view;
    Py_ssize_t count;
    int held, written;
} Vector;

static int demand(int condition, const char *what) {
    if (!condition)
        PyErr_SetString(PyExc_ValueError, what);
    return condition;
}

/* Take hold of an array whose entries are of a kind: f float32, i int32, h 16 bits, b 8 bits; a capital if it will be written. */
static int take(Vector *vector, PyObject *object, char kind) {
    vector->written = kind < 'a';
    kind = vector->written ? (char)(kind - 'A' + 'a') : kind;
    const char *letters = kind == 'f' ? "f" : kind == 'i' ? "il" : kind == 'h' ? "ehH" : "bB"; /* of the struct module */
    Py_ssize_t size = kind == 'f' || kind == 'i' ? 4 : kind == 'h' ? 2 : 1;
    if (PyObject_GetBuffer(object, &vector->view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (vector->written ? PyBUF_WRITABLE : 0)) < 0) {
        if (!PyErr_ExceptionMatches(PyExc_MemoryError)) {
            PyErr_Clear();
            demand(0, vector->written ? "expected a contiguous array that may be written" : "expected a contiguous array");
        }
        return 0;
    }
    vector->held = 1;
    const char *given = vector->view.format ? vector->view.format : "B", *format = *given == '@' || *given == '=' ? given + 1 : given;
    if (!*format || format[1] || !strchr(letters, *format) || vector->view.itemsize != size) {
        PyErr_Format(PyExc_ValueError, "expected an array of format '%c' and %zd bytes an entry, not of '%s' and %zd", kind, size, given,
                     vector->view.itemsize);
        return 0;
    }
    vector->count = vector->view.len / size;
    return demand(!vector->view.len || (uintptr_t)vector->view.buf % (uintptr_t)size == 0, "expected an array at an aligned address");
}

static int apart(const Vector *a, const Vector *b) {
    const char *x = a->view.buf, *y = b->view.buf;
    return demand(!a->view.len || !b->view.len || x + a->view.len <= y || y + b->view.len <= x, "what is written overlaps something else");
}

/* Take hold of an array for each letter of `kinds`. None that is written overlaps another. */
static int take_all(Vector *vectors, PyObject *const *objects, const char *kinds) {
    for (int i = 0; kinds[i]; i++) {
        if (!take(&vectors[i], objects[i], kinds[i]))
            return 0;
        for (int j = 0; j < i; j++)
            if ((vectors[i].written || vectors[j].written) && !apart(&vectors[i], &vectors[j]))
                return 0;
    }
    return 1;
}

/* Let go of the arrays; the result is None, or NULL with the error that is set. */
static PyObject *finish(Vector *vectors, Py_ssize_t count, int good) {
    for (Py_ssize_t i = 0; i < count; i++)
        if (vectors[i].held)
            PyBuffer_Release(&vectors[i].view);
    if (!good)
        return NULL;
    Py_INCREF(Py_None);
    return Py_None;
}

static int known(int how) { return demand(how == SET || how == ADD || how == SUBTRACT, "how must be 0, 1 or 2"); }

/* A float that Python holds as a double: it must not change on the way. */
static int exact(double value, float *out) {
    *out = (float)value;
    return demand((double)*out == value || value != value, "expected a value that float32 holds");
}

/* Whether `scales` blocks are `bytes` bytes of `each` entries; then *entries says how many entries they are. */
static int whole_blocks(Py_ssize_t scales, Py_ssize_t block, Py_ssize_t bytes, Py_ssize_t each, Py_ssize_t *entries) {
    int good = demand(block > 0 && block % each == 0 && scales <= PY_SSIZE_T_MAX / block && bytes == scales * block / each,
                      "lengths are not those of whole blocks");
    *entries = good ? scales * block : 0;
    return good;
}

#define WITHOUT_THE_LOCK(work)      \
    do {                            \
        Py_BEGIN_ALLOW_THREADS;     \
        work;                       \
        Py_END_ALLOW_THREADS;       \
    } while (0)

static PyObject *py_magnitude(PyObject *self, PyObject *args) {
    PyObject *object, *result;
    Vector v = {{0}, 0, 0, 0};
    uint32_t top = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "O", &object))
        return NULL;
    int good = take(&v, object, 'f');
    if (good)
        WITHOUT_THE_LOCK(top = top_of(v.view.buf, v.count));
    result = finish(&v, 1, good);
    Py_XDECREF(result);
    return good ? PyFloat_FromDouble(float_of(top)) : NULL;
}

static PyObject *py_magnitude_16(PyObject *self, PyObject *args) {
    PyObject *object, *result;
    Vector v = {{0}, 0, 0, 0};
    uint32_t top = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "O", &object))
        return NULL;
    int good = take(&v, object, 'h');
    if (good)
        WITHOUT_THE_LOCK(top = top_of_16(v.view.buf, v.count));
    result = finish(&v, 1, good);
    Py_XDECREF(result);
    return good ? PyLong_FromUnsignedLong(top) : NULL;
}

static PyObject *py_magnitudes(PyObject *self, PyObject *args) {
    PyObject *o[2];
    Vector v[2] = {{{0}, 0, 0, 0}};
    (void)self;
    if (!PyArg_ParseTuple(args, "OO", &o[0], &o[1]))
        return NULL;
    int good = take_all(v, o, "fF") && demand(v[1].count ? v[0].count % v[1].count == 0 : v[0].count == 0, "rows differ in length");
    if (good && v[1].count)
        WITHOUT_THE_LOCK(tops_of(v[0].view.buf, v[1].count, v[0].count / v[1].count, v[1].view.buf));
    return finish(v, 2, good);
}

static PyObject *py_to_half(PyObject *self, PyObject *args) {
    PyObject *o[2];
    double written;
    float factor;
    Vector v[2] = {{{0}, 0, 0, 0}};
    (void)self;
    if (!PyArg_ParseTuple(args, "OOd", &o[0], &o[1], &written))
        return NULL;
    int good = exact(written, &factor) && take_all(v, o, "fH") && demand(v[0].count == v[1].count, "lengths differ");
    if (good)
        WITHOUT_THE_LOCK(to_half(v[0].view.buf, factor, v[1].view.buf, v[0].count));
    return finish(v, 2, good);
}

static PyObject *py_from_half(PyObject *self, PyObject *args) {
    PyObject *o[2];
    double written;
    float unit;
    int how;
    Vector v[2] = {{{0}, 0, 0, 0}};
    (void)self;
    if (!PyArg_ParseTuple(args, "OdOi", &o[0], &written, &o[1], &how))
        return NULL;
    int good = exact(written, &unit) && known(how) && take_all(v, o, "hF") && demand(v[1].count <= v[0].count, "too few entries to decode");
    if (good)
        WITHOUT_THE_LOCK(from_half(v[0].view.buf, unit, v[1].view.buf, v[1].count, how));
    return finish(v, 2, good);
}

static PyObject *py_to_bfloat(PyObject *self, PyObject *args) {
    PyObject *o[2];
    Vector v[2] = {{{0}, 0, 0, 0}};
    (void)self;
    if (!PyArg_ParseTuple(args, "OO", &o[0], &o[1]))
        return NULL;
    int good = take_all(v, o, "fH") && demand(v[0].count == v[1].count, "lengths differ");
    if (good)
        WITHOUT_THE_LOCK(to_bfloat(v[0].view.buf, v[1].view.buf, v[0].count));
    return finish(v, 2, good);
}

static PyObject *py_from_bfloat(PyObject *self, PyObject *args) {
    PyObject *o[2];
    int how;
    Vector v[2] = {{{0}, 0, 0, 0}};
    (void)self;
    if (!PyArg_ParseTuple(args, "OOi", &o[0], &o[1], &how))
        return NULL;
    int good = known(how) && take_all(v, o, "hF") && demand(v[1].count <= v[0].count, "too few entries to decode");
    if (good)
        WITHOUT_THE_LOCK(from_bfloat(v[0].view.buf, v[1].view.buf, v[1].count, how));
    return finish(v, 2, good);
}

static PyObject *py_to_levels(PyObject *self, PyObject *args) {
    PyObject *o[3];
    Py_ssize_t block, entries;
    int bits;
    double written;
    long long mask;
    Vector v[3] = {{{0}, 0, 0, 0}};
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOnidL", &o[0], &o[1], &o[2], &block, &bits, &written, &mask))
        return NULL;
    float per_level = (float)written;
    void (*encode)(const float *, int8_t *, float *, Py_ssize_t, Py_ssize_t, float, uint32_t) = bits == 8 ? to_levels_8 : to_levels_4;
    int good = demand(bits == 8 || bits == 4, "bits must be 8 or 4") && take_all(v, o, "fBF") &&
               whole_blocks(v[2].count, block, v[1].count, 8 / bits, &entries) && demand(v[0].count == entries, "lengths differ");
    if (good)
        WITHOUT_THE_LOCK(encode(v[0].view.buf, v[1].view.buf, v[2].view.buf, v[2].count, block, per_level, (uint32_t)mask));
    return finish(v, 3, good);
}

static PyObject *py_from_levels(PyObject *self, PyObject *args) {
    PyObject *o[3];
    Py_ssize_t block, entries;
    int bits, how;
    Vector v[3] = {{{0}, 0, 0, 0}};
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOnii", &o[0], &o[1], &o[2], &block, &bits, &how))
        return NULL;
    int good = known(how) && demand(bits == 8 || bits == 4, "bits must be 8 or 4") && take_all(v, o, "bfF") &&
               whole_blocks(v[1].count, block, v[0].count, 8 / bits, &entries) && demand(v[2].count <= entries, "too few entries to decode");
    if (good)
        WITHOUT_THE_LOCK((bits == 8 ? from_levels_8 : from_levels_4)(v[0].view.buf, v[1].view.buf, v[2].view.buf, v[2].count, block, how));
    return finish(v, 3, good);
}

static PyObject *py_to_signs(PyObject *self, PyObject *args) {
    PyObject *o[3];
    Py_ssize_t block, entries;
    double *sums = NULL;
    Vector v[3] = {{{0}, 0, 0, 0}};
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOn", &o[0], &o[1], &o[2], &block))
        return NULL;
    int good = demand(block >= 8 && (block & (block - 1)) == 0, "block must be a power of two from 8") && take_all(v, o, "fBF") &&
               whole_blocks(v[2].count, block, v[1].count, 8, &entries) && demand(v[0].count == entries, "lengths differ");
    if (good && entries) {
        sums = malloc((size_t)block / 2 * sizeof *sums); /* no more than the vector's own size, for there is a block of it */
        if (sums != NULL) {
            WITHOUT_THE_LOCK(to_signs(v[0].view.buf, v[1].view.buf, v[2].view.buf, v[2].count, block, sums));
        } else {
            PyErr_NoMemory();
            good = 0;
        }
        free(sums);
    }
    return finish(v, 3, good);
}

static PyObject *py_from_signs(PyObject *self, PyObject *args) {
    PyObject *o[3];
    Py_ssize_t block, entries;
    int how;
    Vector v[3] = {{{0}, 0, 0, 0}};
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOni", &o[0], &o[1], &o[2], &block, &how))
        return NULL;
    int good = known(how) && take_all(v, o, "bfF") && whole_blocks(v[1].count, block, v[0].count, 8, &entries) &&
               demand(v[2].count <= entries, "too few entries to decode");
    if (good)
        WITHOUT_THE_LOCK(from_signs(v[0].view.buf, v[1].view.buf, v[2].view.buf, v[2].count, block, how));
    return finish(v, 3, good);
}

static PyObject *py_largest(PyObject *self, PyObject *args) {
    PyObject *o[3];
    int enough_memory = 1;
    Vector v[3] = {{{0}, 0, 0, 0}};
    (void)self;
    if (!PyArg_ParseTuple(args, "OOO", &o[0], &o[1], &o[2]))
        return NULL;
    int good = take_all(v, o, "fIF") && demand(v[0].count <= INT32_MAX && v[1].count == v[2].count && v[1].count <= v[0].count, "lengths do not fit");
    if (good && v[1].count)
        WITHOUT_THE_LOCK(enough_memory = largest(v[0].view.buf, v[0].count, v[1].count, v[1].view.buf, v[2].view.buf));
    if (!enough_memory)
        PyErr_NoMemory();
    return finish(v, 3, good && enough_memory);
}

static PyObject *py_add_at(PyObject *self, PyObject *args) {
    PyObject *o[3];
    Py_ssize_t done = 0;
    Vector v[3] = {{{0}, 0, 0, 0}};
    (void)self;
    if (!PyArg_ParseTuple(args, "OOO", &o[0], &o[1], &o[2]))
        return NULL;
    int good = take_all(v, o, "Fif") && demand(v[1].count == v[2].count, "lengths differ");
    if (good) {
        WITHOUT_THE_LOCK(done = add_at(v[0].view.buf, v[0].count, v[1].view.buf, v[2].view.buf, v[1].count));
        good = demand(done == v[1].count, "an index lies outside the vector");
    }
    return finish(v, 3, good);
}

/* Take hold of every array of a tuple. */
static int take_each(Vector *vectors, PyObject *tuple, char kind, float **data) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(tuple); i++) {
        if (!take(&vectors[i], PyTuple_GetItem(tuple, i), kind) || !demand(vectors[i].count == vectors[0].count, "lengths differ"))
            return 0;
        data[i] = vectors[i].view.buf;
    }
    return 1;
}

/* Each output is one of the shares, or apart from all; and apart from the other outputs. */
static int may_write(const Vector *shares, Py_ssize_t count, const Vector *outs, Py_ssize_t out_count) {
    for (Py_ssize_t o = 0; o < out_count; o++) {
        for (Py_ssize_t s = 0; s < count; s++)
            if (shares[s].view.buf != outs[o].view.buf && !apart(&shares[s], &outs[o]))
                return 0;
        for (Py_ssize_t other = 0; other < o; other++)
            if (!apart(&outs[other], &outs[o]))
                return 0;
    }
    return demand(shares[0].count == outs[0].count, "lengths differ");
}

static PyObject *py_sum_of(PyObject *self, PyObject *args) {
    PyObject *shares, *outs;
    double written;
    float factor;
    (void)self;
    if (!PyArg_ParseTuple(args, "O!O!d", &PyTuple_Type, &shares, &PyTuple_Type, &outs, &written))
        return NULL;
    Py_ssize_t count = PyTuple_Size(shares), out_count = PyTuple_Size(outs);
    if (!demand(count > 0 && out_count > 0, "nothing to sum, or nowhere to write it") || !exact(written, &factor))
        return NULL;
    Vector *v = calloc((size_t)(count + out_count), sizeof *v);
    float **data = calloc((size_t)(count + out_count), sizeof *data);
    if (v == NULL || data == NULL) {
        free(v);
        free((void *)data);
        return PyErr_NoMemory();
    }
    int good = take_each(v, shares, 'f', data) && take_each(v + count, outs, 'F', data + count) && may_write(v, count, v + count, out_count);
    if (good)
        WITHOUT_THE_LOCK(sum_of((const float *const *)data, count, factor, data + count, out_count, v[0].count));
    PyObject *result = finish(v, count + out_count, good);
    free(v);
    free((void *)data);
    return result;
}

static PyObject *py_copied(PyObject *self, PyObject *args) {
    PyObject *o[2];
    Vector v[2] = {{{0}, 0, 0, 0}};
    uint32_t top = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "OO", &o[0], &o[1]))
        return NULL;
    int good = take_all(v, o, "fF") && demand(v[0].count == v[1].count, "lengths differ");
    if (good)
        WITHOUT_THE_LOCK(top = copied(v[0].view.buf, v[1].view.buf, v[0].count));
    PyObject *result = finish(v, 2, good);
    if (result == NULL)
        return NULL;
    Py_DECREF(result);
    return PyFloat_FromDouble((double)float_of(top));
}

/* Whether p holds rows x rank entries, q rank x columns, and the product rows x columns. */
static int product_fits(const Vector *p, const Vector *q, const Vector *product, Py_ssize_t rank) {
    if (!demand(rank > 0 && p->count % rank == 0 && q->count % rank == 0, "rank does not divide the factors"))
        return 0;
    Py_ssize_t rows = p->count / rank, columns = q->count / rank;
    return demand(columns == 0 ? product->count == 0 : product->count % columns == 0 && product->count / columns == rows, "lengths do not fit");
}

static PyObject *py_low_rank(PyObject *self, PyObject *args) {
    PyObject *o[3];
    Py_ssize_t rank;
    Vector v[3] = {{{0}, 0, 0, 0}};
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOn", &o[0], &o[1], &o[2], &rank))
        return NULL;
    int good = take_all(v, o, "ffF") && product_fits(&v[0], &v[1], &v[2], rank);
    if (good)
        WITHOUT_THE_LOCK(low_rank(v[0].view.buf, v[1].view.buf, v[0].count / rank, rank, v[1].count / rank, v[2].view.buf));
    return finish(v, 3, good);
}

static PyObject *py_fold_low_rank(PyObject *self, PyObject *args) {
    PyObject *o[4];
    Py_ssize_t rank;
    Vector v[4] = {{{0}, 0, 0, 0}};
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOn", &o[0], &o[1], &o[2], &o[3], &rank))
        return NULL;
    int good = take_all(v, o, "fffF") && product_fits(&v[0], &v[1], &v[3], rank) && demand(v[2].count == v[3].count, "lengths differ");
    if (good)
        WITHOUT_THE_LOCK(fold_low_rank(v[0].view.buf, v[1].view.buf, v[0].count / rank, rank, v[1].count / rank, v[2].view.buf, v[3].view.buf));
    return finish(v, 4, good);
}

static PyMethodDef METHODS[] = {
    {"magnitude", py_magnitude, METH_VARARGS, "magnitude(vector): the largest; NaN if there is one"},
    {"magnitudes", py_magnitudes, METH_VARARGS, "magnitudes(matrix, out): the largest of each row"},
    {"magnitude_16", py_magnitude_16, METH_VARARGS, "magnitude_16(vector): the largest word of 16 bits, but for its sign"},
    {"to_half", py_to_half, METH_VARARGS, "to_half(vector, out, factor): float16 of vector * factor"},
    {"from_half", py_from_half, METH_VARARGS, "from_half(half, unit, into, how)"},
    {"to_bfloat", py_to_bfloat, METH_VARARGS, "to_bfloat(vector, out)"},
    {"from_bfloat", py_from_bfloat, METH_VARARGS, "from_bfloat(narrow, into, how)"},
    {"to_levels", py_to_levels, METH_VARARGS, "to_levels(vector, levels, scales, block, bits, per_level, mask)"},
    {"from_levels", py_from_levels, METH_VARARGS, "from_levels(levels, scales, into, block, bits, how)"},
    {"to_signs", py_to_signs, METH_VARARGS, "to_signs(vector, signs, scales, block)"},
    {"from_signs", py_from_signs, METH_VARARGS, "from_signs(signs, scales, into, block, how)"},
    {"largest", py_largest, METH_VARARGS, "largest(vector, index, values)"},
    {"add_at", py_add_at, METH_VARARGS, "add_at(out, index, values)"},
    {"sum_of", py_sum_of, METH_VARARGS, "sum_of(vectors, outs, factor)"},
    {"copied", py_copied, METH_VARARGS, "copied(vector, out): the largest magnitude; NaN if there is one"},
    {"low_rank", py_low_rank, METH_VARARGS, "low_rank(p, q, out, rank): the product of two thin matrices"},
    {"fold_low_rank", py_fold_low_rank, METH_VARARGS, "fold_low_rank(p, q, vector, given, rank): given = (given - p q) + vector"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_kernels", "Compiled loops behind hvdlite.arrays.", 0, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernels(void) { return PyModuleDef_Init(&MODULE); }
