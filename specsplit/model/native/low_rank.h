/* What adapters of low rank (LoRA, arXiv 2106.09685) add to what a linear layer makes of rows, each to rows of its own, in float32.

   I, O   numbers of a row that goes in, and that comes out     R   rank of an adapter, MOST_RANK at most

   A tile of rows reads the two matrices of its adapter once, from front to back. What is added to a row depends on no other row. */

#pragma once

#include "product.h"

enum {
  ROWS = 4, /* of a tile at most; as many as `sums` and `multiply_rows` take */
  MOST_RANK = 64
};

struct low_rank {
  const float *down; /* [R, I] */
  const float *up;   /* [panels of O, R, PANEL] */
  int64_t rank;      /* R; 0: it adds nothing to this layer */
};

struct tile {
  int64_t adapter, count; /* its place in the table, rows of it */
  int64_t rows[ROWS];
};

/* Products of `count` rows with two rows of `down`, to low[i][0] and [1]. */
INLINE void lower(const int count, const float *const *rows, const float *first, const float *second, int64_t in,
                  float low[][MOST_RANK]) {
  vec products[2 * ROWS] = {{0}};
  int64_t at = 0;
  for (; at + WIDTH <= in; at += WIDTH) {
    const vec a = *(const vec *)(first + at), b = *(const vec *)(second + at);
#pragma GCC unroll 4
    for (int i = 0; i < count; i++) {
      const vec numbers = *(const vec *)(rows[i] + at);
      products[2 * i] += numbers * a;
      products[2 * i + 1] += numbers * b;
    }
  }
  const vec all = sums(products);
#pragma GCC unroll 4
  for (int i = 0; i < count; i++) {
    float one = all[2 * i], other = all[2 * i + 1];
    for (int64_t x = at; x < in; x++) {
      one += rows[i][x] * first[x];
      other += rows[i][x] * second[x];
    }
    low[i][0] = one;
    low[i][1] = other;
  }
}

/* Products of the rows of a tile with `down`, to low [count, R]. The last two rows of `down` overlap the two before if there is an odd number. */
static void lower_all(const struct low_rank *adapter, const struct tile *tile, const float *from, int64_t in,
                      float low[ROWS][MOST_RANK]) {
  const float *rows[ROWS];
  for (int64_t i = 0; i < tile->count; i++) rows[i] = from + tile->rows[i] * in;
  for (int64_t r = 0; r < adapter->rank; r += 2) {
    const int64_t one = r + 1 < adapter->rank || r == 0 ? r : r - 1, other = one + 1 < adapter->rank ? one + 1 : one;
    const float *first = adapter->down + one * in, *second = adapter->down + other * in;
    float(*to)[MOST_RANK] = (float(*)[MOST_RANK]) & low[0][one];
    switch (tile->count) {
      case 4: lower(4, rows, first, second, in, to); break;
      case 3: lower(3, rows, first, second, in, to); break;
      case 2: lower(2, rows, first, second, in, to); break;
      default: lower(1, rows, first, second, in, to);
    }
  }
}

/* Add what `up` makes of low [count, R] to the rows of a tile in `to`, `apart` from one to the next. */
static void raise_all(const struct low_rank *adapter, const struct tile *tile, float low[ROWS][MOST_RANK], int64_t out, float *to,
                      int64_t apart) {
  float added[ROWS][PANEL];
  for (int64_t column = 0; column < out; column += PANEL) {
    const int64_t count = out - column < PANEL ? out - column : PANEL;
    multiply_rows(tile->count, low[0], MOST_RANK, adapter->up + column * adapter->rank, adapter->rank, added[0], PANEL);
    for (int64_t i = 0; i < tile->count; i++) {
      float *row = to + tile->rows[i] * apart + column;
      for (int64_t x = 0; x < count; x++) row[x] += added[i][x];
    }
  }
}

/* In a parallel region: add (x down^T) up^T to the rows of `to` that tiles name, O numbers of each, `apart` from one to the next, of the
   same rows x of from [T, I]. No row is in two tiles. Threads share out tiles. */
INLINE void add_tiles(const struct low_rank *adapters, int64_t in, int64_t out, const struct tile *tiles, int64_t count,
                      const float *from, float *to, int64_t apart) {
#pragma omp for schedule(dynamic)
  for (int64_t i = 0; i < count; i++) {
    const struct low_rank *adapter = &adapters[tiles[i].adapter];
    if (adapter->rank == 0) continue;
    float low[ROWS][MOST_RANK];
    lower_all(adapter, &tiles[i], from, in, low);
    raise_all(adapter, &tiles[i], low, out, to, apart);
  }
}
