/* What a decoder layer of Llama and its descendants does around its attention, in float32.

   T   tokens     I, O   numbers of a row that goes into a product, and that comes out
   W   width of a hidden state      H, K   query heads, KV heads     D   width of a head     M   width inside of the MLP

   Threads share out panels of weights, or rows where there are no weights. */

#include <math.h>
#include <omp.h>
#include <stddef.h>
#include <string.h>

#include "low_rank.h"

struct weights {
  const float *panels; /* [panels, I, PANEL] */
  const float *bias;   /* [panels, PANEL], or NULL */
  int64_t in, out;     /* I, O */
};

struct norm {
  const float *weight; /* NULL: there is none */
  float epsilon;
};

struct decoder {
  int64_t width, heads, kv_heads, head_width; /* W, H, K, D */
  struct norm before_attention, of_queries, of_keys, before_mlp;
  struct weights projections, output; /* W to (H + 2 K) D, of queries, keys, values; H D to W */
  struct weights gate, up, down;      /* W to M, M to W */
};

/* What adapters add to the products of a layer: a table of adapters for each, NULL where none of them adds anything. */
struct adapted {
  const struct low_rank *queries, *keys, *values, *output, *gate, *up, *down;
};

/* Rows of a forward that have adapters. */
struct tiles {
  const struct tile *each;
  int64_t count; /* 0: no row has one */
};

/* What becomes of sums. */
enum how {
  STORED,
  ADDED,     /* to what `to` points at, number by number, from `before` */
  SWITCHED,  /* x to x sigmoid(x): SiLU (Hendrycks and Gimpel, arXiv 1606.08415) */
  MULTIPLIED /* with what is there */
};

EXPONENTIAL(wide_exponential, wide, iwide)

INLINE wide silu(wide x) {
  const iwide negative = x < 0;
  const wide small = wide_exponential((wide)(((iwide)x & negative) | ((iwide)-x & ~negative)));
  const wide numerator = (wide)(((iwide)small & negative) | ((iwide)((wide){0} + 1.0f) & ~negative));
  return x * numerator / (small + 1.0f);
}

/* Write sums of one row in one panel, and what becomes of them, to its numbers there. */
INLINE void keep_panel(enum how how, const float sums[PANEL], const float *bias, const float before[PANEL], float to[PANEL]) {
  for (int x = 0; x < PANEL; x += WIDE) {
    wide each = *(const wide *)(sums + x);
    if (bias) each += *(const wide *)(bias + x);
    if (how == SWITCHED) each = silu(each);
    if (how == ADDED) each += *(const wide *)(before + x);
    if (how == MULTIPLIED) each *= *(const wide *)(to + x);
    *(wide *)(to + x) = each;
  }
}

/* Write sums of one row in one panel, in which it has `count` numbers. */
INLINE void keep(enum how how, const float sums[PANEL], const float *bias, const float *before, float *to, int64_t count) {
  if (count == PANEL) {
    keep_panel(how, sums, bias, before, to);
    return;
  }
  float whole[PANEL] = {0};
  if (how == ADDED || how == MULTIPLIED) memcpy(whole, how == ADDED ? before : to, count * sizeof(float));
  keep_panel(how, sums, bias, whole, whole);
  memcpy(to, whole, count * sizeof(float));
}

/* Products of rows from [T, I] with one panel, to and before [T, O]. */
static void multiply_panel(enum how how, const float *from, int64_t rows, const struct weights *weights, int64_t panel,
                           const float *before, float *to) {
  const int64_t tiles = tiles_of(rows), in = weights->in, out = weights->out, column = panel * PANEL;
  const int64_t count = out - column < PANEL ? out - column : PANEL;
  const float *numbers = weights->panels + column * in, *bias = weights->bias ? weights->bias + column : NULL;
  float sums[TILE_ROWS][PANEL];
  for (int64_t tile = 0; tile < tiles; tile++) {
    const int64_t first = first_of(tile, tiles, rows), last = first_of(tile + 1, tiles, rows);
    multiply_rows(last - first, from + first * in, in, numbers, in, sums[0], PANEL);
    for (int64_t row = first; row < last; row++) {
      const int64_t place = row * out + column;
      keep(how, sums[row - first], bias, how == ADDED ? before + place : NULL, to + place, count);
    }
  }
}

/* Root mean square norm (arXiv 1910.07467) of `count` numbers. */
INLINE void normalise(const struct norm *norm, const float *from, float *to, int64_t count) {
  vec squares = {0};
  int64_t at = 0;
  for (; at + WIDTH <= count; at += WIDTH) {
    const vec x = *(const vec *)(from + at);
    squares += x * x;
  }
  float total = sum(squares);
  for (; at < count; at++) total += from[at] * from[at];
  const float scale = 1.0f / sqrtf(total / (float)count + norm->epsilon);
  for (at = 0; at < count; at++) to[at] = from[at] * scale * norm->weight[at];
}

static void multiply_all(enum how how, const float *from, int64_t rows, const struct weights *weights, const float *before,
                     float *to) {
#pragma omp for schedule(static)
  for (int64_t panel = 0; panel < panels_of(weights->out); panel++) multiply_panel(how, from, rows, weights, panel, before, to);
}

INLINE void normalise_rows(const struct norm *norm, const float *from, float *to, int64_t rows, int64_t width) {
#pragma omp for schedule(static)
  for (int64_t row = 0; row < rows; row++) normalise(norm, from + row * width, to + row * width, width);
}

/* silu(gate(x)) up(x), to [T, M] */
INLINE void multiply_gated(const float *from, int64_t rows, const struct weights *gate, const struct weights *up, float *to) {
#pragma omp for schedule(static)
  for (int64_t panel = 0; panel < panels_of(gate->out); panel++) {
    multiply_panel(SWITCHED, from, rows, gate, panel, NULL, to);
    multiply_panel(MULTIPLIED, from, rows, up, panel, NULL, to);
  }
}

/* Add what adapters add to one product, from [T, I]; to: O numbers of each row, `apart` from one to the next. */
static void adapt(const struct low_rank *adapters, int64_t in, int64_t out, const struct tiles *tiles, const float *from, float *to,
                  int64_t apart) {
  if (adapters && tiles->count) add_tiles(adapters, in, out, tiles->each, tiles->count, from, to, apart);
}

/* silu(a) b of `count` numbers, to a */
INLINE void gate_row(float *a, const float *b, int64_t count) {
  for (int64_t at = 0; at < count; at += WIDE) {
    const size_t size = (size_t)(count - at < WIDE ? count - at : WIDE) * sizeof(float);
    wide one = {0}, other = {0};
    memcpy(&one, a + at, size);
    memcpy(&other, b + at, size);
    one = silu(one) * other;
    memcpy(a + at, &one, size);
  }
}

/* silu(gate(x)) up(x) with what adapters add to either, to [T, M], by way of lifted [T, M] */
static void multiply_adapted(const float *from, int64_t rows, const struct decoder *decoder, const struct adapted *adapted,
                             const struct tiles *tiles, float *lifted, float *to) {
  const int64_t width = decoder->width, inside = decoder->gate.out;
  multiply_all(STORED, from, rows, &decoder->gate, NULL, to);
  multiply_all(STORED, from, rows, &decoder->up, NULL, lifted);
  adapt(adapted->gate, width, inside, tiles, from, to, inside);
  adapt(adapted->up, width, inside, tiles, from, lifted, inside);
#pragma omp for schedule(static)
  for (int64_t row = 0; row < rows; row++) gate_row(to + row * inside, lifted + row * inside, inside);
}

/* x cos + rotate_half(x) sin (arXiv 2104.09864) of a head, cos and sin [D]. */
INLINE void rotate(float *head, const float *cos, const float *sin, int64_t width) {
  const int64_t half = width / 2;
  for (int64_t i = 0; i < half; i++) {
    const float first = head[i], second = head[half + i];
    head[i] = first * cos[i] - second * sin[i];
    head[half + i] = second * cos[half + i] + first * sin[half + i];
  }
}

int64_t panel_width(void) {
  return PANEL;
}

/* y = x W^T + b, from [T, I] to [T, O] */
void product(const struct weights *weights, int64_t rows, const float *from, float *to, int64_t threads) {
#pragma omp parallel num_threads((int)threads)
  multiply_all(STORED, from, rows, weights, NULL, to);
}

/* down(silu(gate(x)) up(x)), from and to [T, W], by way of gated [T, M] */
void mlp(const struct weights *gate, const struct weights *up, const struct weights *down, int64_t rows, const float *from,
         float *gated, float *to, int64_t threads) {
#pragma omp parallel num_threads((int)threads)
  {
    multiply_gated(from, rows, gate, up, gated);
    multiply_all(STORED, gated, rows, down, NULL, to);
  }
}

/* Queries and keys, rotated by cos and sin [T, D], and values, to [T, H + 2 K, D], of hidden states [T, W], by way of normed [T, W]. */
void project(const struct decoder *decoder, const struct adapted *adapted, const struct tile *tile, int64_t tile_count, int64_t rows,
             const float *hidden, const float *cos, const float *sin, float *normed, float *to, int64_t threads) {
  const struct tiles tiles = {tile, tile_count};
  const int64_t width = decoder->head_width, turned = decoder->heads + decoder->kv_heads, all = turned + decoder->kv_heads;
#pragma omp parallel num_threads((int)threads)
  {
    normalise_rows(&decoder->before_attention, hidden, normed, rows, decoder->width);
    multiply_all(STORED, normed, rows, &decoder->projections, NULL, to);
    if (tile_count) {
      const int64_t in = decoder->width, queries = decoder->heads * width, keys = decoder->kv_heads * width, apart = all * width;
      adapt(adapted->queries, in, queries, &tiles, normed, to, apart);
      adapt(adapted->keys, in, keys, &tiles, normed, to + queries, apart);
      adapt(adapted->values, in, keys, &tiles, normed, to + queries + keys, apart);
    }
#pragma omp for schedule(static)
    for (int64_t each = 0; each < rows * turned; each++) {
      const int64_t row = each / turned, head = each % turned;
      float *place = to + (row * all + head) * width;
      const struct norm *norm = head < decoder->heads ? &decoder->of_queries : &decoder->of_keys;
      if (norm->weight) normalise(norm, place, place, width);
      rotate(place, cos + row * width, sin + row * width, width);
    }
  }
}

/* The layer's hidden states to [T, W], of those that it reads and of what its heads have seen [T, H, D], by way of normed [T, W] and
   gated [T, M], and lifted [T, M] if there are tiles. */
void finish(const struct decoder *decoder, const struct adapted *adapted, const struct tile *tile, int64_t tile_count, int64_t rows,
            const float *hidden, const float *seen, float *normed, float *gated, float *lifted, float *to, int64_t threads) {
  const struct tiles tiles = {tile, tile_count};
  const int64_t width = decoder->width, inside = decoder->gate.out;
#pragma omp parallel num_threads((int)threads)
  {
    multiply_all(ADDED, seen, rows, &decoder->output, hidden, to);
    if (tile_count) adapt(adapted->output, decoder->output.in, width, &tiles, seen, to, width);
    normalise_rows(&decoder->before_mlp, to, normed, rows, width);
    if (tile_count && (adapted->gate || adapted->up))
      multiply_adapted(normed, rows, decoder, adapted, &tiles, lifted, gated);
    else
      multiply_gated(normed, rows, &decoder->gate, &decoder->up, gated);
    multiply_all(ADDED, gated, rows, &decoder->down, to, to);
    if (tile_count) adapt(adapted->down, inside, width, &tiles, gated, to, width);
  }
}
