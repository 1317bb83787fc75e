/* What attention kernels read, and a softmax that is computed as it goes (Milakov and Gimelshein, arXiv 1805.02867).

   H, K   query heads, KV heads; G = H / K     D, V   width of a head of keys, and of values; multiples of 8
   Q, L   new tokens of a row, tokens it sees  E      the last of those, which not every new token sees */

#pragma once

#include <math.h>
#include <string.h>

#include "vectors.h"

struct layer {
  int64_t heads, kv_heads, key_width, value_width;
  int64_t query_token, query_head; /* numbers from one token of the queries to the next, and from one head */
  int64_t key_slot, key_head, value_slot, value_head;
  float scaling;
};

struct row {
  int64_t start, queries, length, tail; /* first new token in the batch, Q, L, E */
  const int64_t *slots;                 /* [L] */
  const uint8_t *sees;                  /* [Q, E] */
};

/* What one head of one query has seen so far: the largest score, the sum of weights, and of weighted values [V]. */
struct state {
  float top, total;
  float *values;
};

INLINE vec larger(vec a, vec b) {
  const ivec first = a > b;
  return (vec)(((ivec)a & first) | ((ivec)b & ~first));
}

INLINE float largest(vec a) {
  a = larger(a, __builtin_shuffle(a, (ivec){4, 5, 6, 7, 0, 1, 2, 3}));
  a = larger(a, __builtin_shuffle(a, (ivec){2, 3, 0, 1, 6, 7, 4, 5}));
  return larger(a, __builtin_shuffle(a, (ivec){1, 0, 3, 2, 5, 4, 7, 6}))[0];
}

/* Make weights of the scores of one query for `tokens` tokens, a multiple of 8, and fade what its state holds by what comes back: that is
   still to be done to its values. */
INLINE float weigh(struct state *state, const float *bias, float scaling, float *scores, const int tokens) {
  vec tops = (vec){0} + state->top;
  for (int j = 0; j < tokens; j += WIDTH) {
    vec *score = (vec *)&scores[j];
    *score *= scaling;
    if (bias) *score += *(const vec *)&bias[j];
    tops = larger(*score, tops);
  }
  const float top = largest(tops);
  if (top == -INFINITY) { /* it sees nothing of this block, nor of what came before; or what it sees is not a number, and stays none */
    for (int j = 0; j < tokens; j += WIDTH) {
      vec *score = (vec *)&scores[j];
      const ivec unseen = *score == -INFINITY;
      *score = (vec)((ivec)*score & ~unseen);
    }
    return 1.0f;
  }
  vec total = {0};
  for (int j = 0; j < tokens; j += WIDTH) {
    vec *score = (vec *)&scores[j];
    *score = exponential(*score - top);
    total += *score;
  }
  const float faded = expf(state->top - top);
  state->top = top;
  state->total = state->total * faded + sum(total);
  return faded;
}

/* What is added to the scores of query `query` of a row for `tokens` tokens from token `from` on, and nothing for those behind them, of
   `most` in all; NULL: it sees all of them. */
INLINE const float *bias_of(const struct row *row, int64_t query, int64_t from, int tokens, const int most, float *bias) {
  const int64_t before = row->length - row->tail;
  if (from + tokens <= before) return NULL;
  for (int j = 0; j < most; j++) {
    const int seen = j >= tokens || from + j < before || row->sees[query * row->tail + from + j - before];
    bias[j] = seen ? 0.0f : -INFINITY;
  }
  return bias;
}

INLINE void begin(struct state *states, int64_t count, float *values, int64_t width) {
  memset(values, 0, count * width * sizeof(float));
  for (int64_t i = 0; i < count; i++) states[i] = (struct state){-INFINITY, 0.0f, values + i * width};
}

INLINE void divide(const struct state *state, int64_t width) {
  for (int64_t at = 0; at < width; at++) state->values[at] /= state->total;
}

