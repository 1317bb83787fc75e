/* Products in float32 of rows with a panel: as many columns of a matrix as two vectors of the processor hold, [I, PANEL].

   It is read from front to back, once for every tile of rows, whose sums stay in registers meanwhile. (After Goto and van de Geijn,
   "Anatomy of high-performance matrix multiplication", 2008.) */

#pragma once

#include "vectors.h"

#if defined __AVX512F__
enum { WIDE = 16, TILE_ROWS = 12 }; /* 32 registers: 24 sums, 2 vectors of weights */
#elif defined __AVX2__
enum { WIDE = 8, TILE_ROWS = 6 }; /* 16 registers: 12 sums, 2 vectors of weights */
#else
enum { WIDE = 4, TILE_ROWS = 6 }; /* as many registers */
#endif
enum {
  PANEL = 2 * WIDE,
  AHEAD = 2048 /* numbers: a processor that computes with several rows does not see far enough ahead to be given them in time */
};

typedef float wide __attribute__((vector_size(4 * WIDE), aligned(4), may_alias));
typedef int32_t iwide __attribute__((vector_size(4 * WIDE), aligned(4), may_alias));

/* Sums of products of `rows` rows, of `count` numbers, `apart` from one to the next, with a panel [count, PANEL]; to has rows of sums
   `to_apart` from one to the next. */
INLINE void multiply_tile(const int rows, const float *from, int64_t apart, const float *panel, int64_t count, float *to,
                          int64_t to_apart) {
  wide total[TILE_ROWS][2] = {{{0}}};
  for (int64_t k = 0; k < count; k++, panel += PANEL) {
    for (int line = 0; line < PANEL; line += LINE) __builtin_prefetch(panel + AHEAD + line);
    const wide one = *(const wide *)panel, other = *(const wide *)(panel + WIDE);
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) {
      total[i][0] += one * from[i * apart + k];
      total[i][1] += other * from[i * apart + k];
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < rows; i++) {
    *(wide *)(to + i * to_apart) = total[i][0];
    *(wide *)(to + i * to_apart + WIDE) = total[i][1];
  }
}

/* The same for a number of rows that is known when it runs, TILE_ROWS at most. */
static void multiply_rows(int64_t rows, const float *from, int64_t apart, const float *panel, int64_t count, float *to,
                          int64_t to_apart) {
  switch (rows) {
#define ROWS(N) \
  case N: multiply_tile(N, from, apart, panel, count, to, to_apart); break
    ROWS(1); ROWS(2); ROWS(3); ROWS(4); ROWS(5); ROWS(6);
#if defined __AVX512F__
    ROWS(7); ROWS(8); ROWS(9); ROWS(10); ROWS(11); ROWS(12);
#endif
#undef ROWS
  }
}

/* The first of the rows that tile `tile` has, of `tiles`: they are of about one size, since a small one takes as long. */
INLINE int64_t first_of(int64_t tile, int64_t tiles, int64_t rows) {
  return rows * tile / tiles;
}

INLINE int64_t tiles_of(int64_t rows) {
  return (rows + TILE_ROWS - 1) / TILE_ROWS;
}

/* Panels that so many columns fill, the last one with zeros behind them. */
INLINE int64_t panels_of(int64_t columns) {
  return (columns + PANEL - 1) / PANEL;
}
