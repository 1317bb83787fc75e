/* Vectors of 8 numbers, those of GCC: where a processor has 4, the compiler makes two instructions of one. */

#pragma once

#include <stdint.h>

enum {
  WIDTH = 8, /* numbers of a vector */
  LINE = 16  /* numbers of a line of a cache */
};

#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

INLINE vec sums_of_pairs(vec a, vec b) {
  return __builtin_shuffle(a, b, (ivec){0, 2, 8, 10, 4, 6, 12, 14}) +
         __builtin_shuffle(a, b, (ivec){1, 3, 9, 11, 5, 7, 13, 15});
}

INLINE vec sums_of_halves(vec a, vec b) {
  return __builtin_shuffle(a, b, (ivec){0, 1, 2, 3, 8, 9, 10, 11}) +
         __builtin_shuffle(a, b, (ivec){4, 5, 6, 7, 12, 13, 14, 15});
}

/* The sum of each of 8 vectors. */
INLINE vec sums(const vec v[8]) {
  return sums_of_halves(sums_of_pairs(sums_of_pairs(v[0], v[1]), sums_of_pairs(v[2], v[3])),
                        sums_of_pairs(sums_of_pairs(v[4], v[5]), sums_of_pairs(v[6], v[7])));
}

INLINE float sum(vec v) {
  return sums((vec[8]){v})[0];
}

/* Define a function of a type of vectors: e to the power of numbers <= 0, to 2 units in the last place (polynomial of Cephes' expf); 0 from
   -87 down. NaN stays. n is the nearest whole number to x / ln 2. */
#define EXPONENTIAL(NAME, VEC, IVEC)                                            \
  INLINE VEC NAME(VEC x) {                                                      \
    const IVEC nothing = x <= -87.0f;                                           \
    const VEC n = x * 1.44269504088896341f + 12582912.0f - 12582912.0f;         \
    const VEC r = x - n * 0.693359375f + n * 2.12194440e-4f;                    \
    VEC p = r * 1.9875691500e-4f + 1.3981999507e-3f;                            \
    p = p * r + 8.3334519073e-3f;                                               \
    p = p * r + 4.1665795894e-2f;                                               \
    p = p * r + 1.6666665459e-1f;                                               \
    p = p * r + 5.0000001201e-1f;                                               \
    p = p * (r * r) + r + 1.0f;                                                 \
    const IVEC power = (__builtin_convertvector(n, IVEC) + 127) << 23;          \
    return (VEC)((IVEC)(p * (VEC)power) & ~nothing);                            \
  }

EXPONENTIAL(exponential, vec, ivec)
