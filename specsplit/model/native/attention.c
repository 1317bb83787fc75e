/* Attention of a few new tokens of each row over paged keys and values in float32, where these lie: nothing is gathered or padded.

   H, K   query heads, KV heads; G = H / K     D, V   width of a head of keys, and of values; multiples of 8
   Q, L   new tokens of a row, tokens it sees  E      the last of those, which not every new token sees

   The tokens that all rows see stand in one line, of which every thread takes a stretch that costs as much as any other. A softmax is
   computed as it goes (Milakov and Gimelshein, arXiv 1805.02867). Where several threads share a row each computes its part, and the parts are
   joined (Flash-Decoding, Dao et al. 2023). A stretch is read in blocks, and all queries use a block before the next one is read. */

#include <omp.h>

#include "attention.h"

enum {
  BLOCK = 32, /* tokens that are read at once */
  TILE = 4    /* queries that share what is loaded of one token */
};

/* Up to TILE queries of one KV head. */
struct tile {
  const float *query[TILE];
  struct state *state[TILE];
  const float *bias[TILE]; /* [BLOCK] is added to scores; NULL: nothing is */
};

/* Products of `count` queries with two keys, to scores[i][0] and [1]. */
INLINE void score(const int count, const struct tile *tile, const float *first, const float *second, int64_t width,
                     float scores[][BLOCK]) {
  vec products[2 * TILE] = {{0}};
  for (int64_t at = 0; at < width; at += WIDTH) {
    const vec a = *(const vec *)(first + at), b = *(const vec *)(second + at);
#pragma GCC unroll 4
    for (int i = 0; i < count; i++) {
      const vec query = *(const vec *)(tile->query[i] + at);
      products[2 * i] += query * a;
      products[2 * i + 1] += query * b;
    }
  }
  const vec all = sums(products);
#pragma GCC unroll 4
  for (int i = 0; i < count; i++) {
    scores[i][0] = all[2 * i];
    scores[i][1] = all[2 * i + 1];
  }
}

/* Add weighted values, `count` queries and `vectors` vectors (VECTOR, of NUMBERS numbers) of each value at a time. */
#define ADD(NAME, VECTOR, NUMBERS)                                                                                   \
  INLINE void NAME(const int count, const int vectors, const struct tile *tile, const float *faded,                  \
                   float weights[][BLOCK], const float *const *values, int tokens, int64_t at) {                     \
    VECTOR added[TILE][TILE];                                                                                        \
    _Pragma("GCC unroll 4") for (int i = 0; i < count; i++)                                                          \
      _Pragma("GCC unroll 4") for (int x = 0; x < vectors; x++)                                                      \
        added[i][x] = *(VECTOR *)(tile->state[i]->values + at + x * NUMBERS) * faded[i];                             \
    for (int j = 0; j < tokens; j++)                                                                                 \
      _Pragma("GCC unroll 4") for (int x = 0; x < vectors; x++) {                                                    \
        const VECTOR value = *(const VECTOR *)(values[j] + at + x * NUMBERS);                                        \
        _Pragma("GCC unroll 4") for (int i = 0; i < count; i++) added[i][x] += value * weights[i][j];                \
      }                                                                                                              \
    _Pragma("GCC unroll 4") for (int i = 0; i < count; i++)                                                          \
      _Pragma("GCC unroll 4") for (int x = 0; x < vectors; x++)                                                      \
        *(VECTOR *)(tile->state[i]->values + at + x * NUMBERS) = added[i][x];                                        \
  }
ADD(add, vec, WIDTH)
#if defined __AVX512F__ /* 32 registers of 16 numbers: 16 sums */
enum { LONG = 16 };
typedef float longvec __attribute__((vector_size(4 * LONG), aligned(4), may_alias));
ADD(add_long, longvec, LONG)
#endif
#undef ADD

INLINE void fetch(const float *start, int64_t numbers) {
  for (int64_t at = 0; at < numbers; at += LINE) __builtin_prefetch(start + at);
}

/* Have `count` queries see the tokens of a block. keys has one more, so that they can be taken in pairs. */
INLINE void see(const int count, const struct layer *layer, const struct tile *tile, const float *const *keys,
                const float *const *values, int tokens, const float *const *next_keys, const float *const *next_values, int next) {
  float scores[TILE][BLOCK], faded[TILE];
  for (int j = 0; j < tokens; j += 2) {
    score(count, tile, keys[j], keys[j + 1], layer->key_width, (float(*)[BLOCK]) & scores[0][j]);
    for (int x = j; x < j + 2 && x < next; x++) {
      fetch(next_keys[x], layer->key_width);
      fetch(next_values[x], layer->value_width);
    }
  }
  for (int i = 0; i < count; i++) {
    for (int j = tokens; j < BLOCK; j++) scores[i][j] = -INFINITY;
    faded[i] = weigh(tile->state[i], tile->bias[i], layer->scaling, scores[i], BLOCK);
  }
  const int64_t width = layer->value_width;
  int64_t at = 0;
#if defined __AVX512F__
  for (; at + 4 * LONG <= width; at += 4 * LONG) add_long(count, 4, tile, faded, scores, values, tokens, at);
#endif
  if (count <= 2)
    for (; at + 4 * WIDTH <= width; at += 4 * WIDTH) add(count, 4, tile, faded, scores, values, tokens, at);
  for (; at + 2 * WIDTH <= width; at += 2 * WIDTH) add(count, 2, tile, faded, scores, values, tokens, at);
  for (; at < width; at += WIDTH) add(count, 1, tile, faded, scores, values, tokens, at);
}

/* Have all heads of all new tokens of a row see its tokens from <= i < to. states [Q, H] */
static void attend_to(const struct layer *layer, const struct row *row, int64_t from, int64_t to, const float *queries,
                      const float *keys, const float *values, struct state *states) {
  const int64_t group = layer->heads / layer->kv_heads, all = group * row->queries;
  const float *key[BLOCK + 1], *value[BLOCK], *next_key[BLOCK], *next_value[BLOCK];
  for (int64_t at = from; at < to; at += BLOCK) {
    const int tokens = (int)(to - at < BLOCK ? to - at : BLOCK);
    for (int64_t kv_head = 0; kv_head < layer->kv_heads; kv_head++) {
      const float *own_keys = keys + kv_head * layer->key_head, *own_values = values + kv_head * layer->value_head;
      for (int j = 0; j < tokens; j++) {
        key[j] = own_keys + row->slots[at + j] * layer->key_slot;
        value[j] = own_values + row->slots[at + j] * layer->value_slot;
        if (at + j + BLOCK >= to) continue;
        next_key[j] = own_keys + row->slots[at + j + BLOCK] * layer->key_slot;
        next_value[j] = own_values + row->slots[at + j + BLOCK] * layer->value_slot;
      }
      const int64_t behind = to - at - BLOCK;
      key[tokens] = key[0];
      for (int64_t first = 0; first < all; first += TILE) {
        float biases[TILE][BLOCK];
        struct tile tile;
        const int count = (int)(all - first < TILE ? all - first : TILE);
        for (int i = 0; i < count; i++) {
          const int64_t query = (first + i) / group, head = kv_head * group + (first + i) % group;
          tile.query[i] = queries + (row->start + query) * layer->query_token + head * layer->query_head;
          tile.state[i] = &states[query * layer->heads + head];
          tile.bias[i] = bias_of(row, query, at, tokens, BLOCK, biases[i]);
        }
        const int next = first > 0 || behind < 0 ? 0 : (int)(behind < BLOCK ? behind : BLOCK);
        switch (count) {
          case 4: see(4, layer, &tile, key, value, tokens, next_key, next_value, next); break;
          case 3: see(3, layer, &tile, key, value, tokens, next_key, next_value, next); break;
          case 2: see(2, layer, &tile, key, value, tokens, next_key, next_value, next); break;
          default: see(1, layer, &tile, key, value, tokens, next_key, next_value, next);
        }
      }
    }
  }
}

/* Add what another thread has seen to what `state` has. */
static void join(struct state *state, const struct state *other, int64_t width) {
  if (other->top == -INFINITY) return;
  const float top = state->top > other->top ? state->top : other->top;
  const float own = expf(state->top - top), theirs = expf(other->top - top);
  for (int64_t at = 0; at < width; at++) state->values[at] = state->values[at] * own + other->values[at] * theirs;
  state->total = state->total * own + other->total * theirs;
  state->top = top;
}

/* Numbers of memory that `attend` works in; most: of the row with the most new tokens. A thread shares two rows at most with others. */
int64_t working_numbers(const struct layer *layer, int64_t most, int64_t threads) {
  const int64_t states = 3 * (int64_t)(sizeof(struct state) / sizeof(float)), values = 2 * layer->value_width;
  return threads * most * layer->heads * (states + values);
}

/* Attend to `count` rows by `threads` threads: queries by the strides of the layer, out [tokens of the batch, H, V], work as above. */
void attend(const struct layer *layer, const struct row *rows, int64_t count, int64_t most, const float *queries,
            const float *keys, const float *values, float *out, float *work, int64_t threads) {
  enum { FIRST, LAST, WHOLE };
  const int64_t width = layer->value_width, heads = layer->heads, size = most * heads;
  struct state *all_states = (struct state *)work;
  float *all_values = (float *)(all_states + 3 * threads * size);
  int64_t shared[threads][2]; /* by thread, the rows that it shares, -1 for none: the one it is in first, and the one it is in last */
  int64_t cost = 0;
  for (int64_t i = 0; i < count; i++) cost += rows[i].length * (rows[i].queries + 2);

#pragma omp parallel num_threads((int)threads)
  {
    const int64_t me = omp_get_thread_num(), present = omp_get_num_threads();
    const int64_t start = cost * me / present, stop = cost * (me + 1) / present;
    int64_t passed = 0;
    shared[me][FIRST] = shared[me][LAST] = -1;
    for (int64_t i = 0; i < count && passed < stop; i++) {
      const struct row *row = &rows[i];
      const int64_t each = row->queries + 2, before = passed, states_of_row = row->queries * heads;
      passed += row->length * each;
      const int64_t from = start <= before ? 0 : (start - before + each - 1) / each;
      const int64_t to = stop >= passed ? row->length : (stop - before + each - 1) / each;
      if (from >= to) continue;
      const int place = from == 0 && to == row->length ? WHOLE : from == 0 ? LAST : FIRST;
      struct state *states = all_states + (3 * me + place) * size;
      float *own = place == WHOLE ? out + row->start * heads * width : all_values + (2 * me + place) * size * width;
      begin(states, states_of_row, own, width);
      attend_to(layer, row, from, to, queries, keys, values, states);
      if (place != WHOLE) shared[me][place] = i;
      else
        for (int64_t x = 0; x < states_of_row; x++) divide(&states[x], width);
    }
#pragma omp barrier
#pragma omp for
    for (int64_t i = 0; i < count; i++) {
      const int64_t states_of_row = rows[i].queries * heads;
      struct state *states = NULL;
      for (int64_t thread = 0; thread < present; thread++)
        for (int place = FIRST; place <= LAST; place++) {
          if (shared[thread][place] != i) continue;
          struct state *part = all_states + (3 * thread + place) * size;
          if (states == NULL) states = part;
          else
            for (int64_t x = 0; x < states_of_row; x++) join(&states[x], &part[x], width);
        }
      if (states == NULL) continue;
      for (int64_t x = 0; x < states_of_row; x++) divide(&states[x], width);
      memcpy(out + rows[i].start * heads * width, states[0].values, states_of_row * width * sizeof(float));
    }
  }
}
