/* Attention of many new tokens of a row, as a prompt has them, over paged keys and values in float32.

   A piece of work is one KV head and as many queries as make STATES states with all heads that share it. It takes the tokens that any of
   them sees in blocks, whose keys and values are laid out as panels, so that scores and weighted values are products as those with weights
   are (FlashAttention-2, Dao 2023). Threads take pieces one by one, those that see the most tokens first. */

#include <omp.h>

#include "attention.h"
#include "product.h"

enum {
  TOKENS = 64,  /* of a block; a multiple of PANEL */
  STATES = 192, /* of a piece; a piece has one query at least */
};

/* Where one thread works on a piece of R states. */
struct desk {
  struct state *states; /* [R] */
  float *queries;       /* [R, D] */
  float *values;        /* [R, V], what the states have seen */
  float *scores;        /* [R, TOKENS] */
  float *faded;         /* [R] */
  float *key_panels;    /* [TOKENS / PANEL, D, PANEL] */
  float *value_panels;  /* [panels of V, TOKENS, PANEL] */
};

INLINE int64_t queries_of(const struct layer *layer) {
  const int64_t queries = STATES / (layer->heads / layer->kv_heads);
  return queries > 0 ? queries : 1;
}

INLINE int64_t states_of(const struct layer *layer) {
  return queries_of(layer) * (layer->heads / layer->kv_heads);
}

/* Numbers of memory that one thread works in. */
INLINE int64_t desk_numbers(const struct layer *layer) {
  const int64_t states = states_of(layer), each = (int64_t)(sizeof(struct state) / sizeof(float));
  const int64_t numbers = states * (each + layer->key_width + layer->value_width + TOKENS + 1) +
                          TOKENS * (layer->key_width + panels_of(layer->value_width) * PANEL);
  return (numbers + 1) / 2 * 2; /* so that the states of the next thread lie where addresses may */
}

int64_t chunk_numbers(const struct layer *layer, int64_t threads) {
  return threads * desk_numbers(layer);
}

static struct desk desk_at(const struct layer *layer, float *work) {
  const int64_t states = states_of(layer);
  struct desk desk = {.states = (struct state *)work};
  desk.queries = (float *)(desk.states + states);
  desk.values = desk.queries + states * layer->key_width;
  desk.scores = desk.values + states * layer->value_width;
  desk.faded = desk.scores + states * TOKENS;
  desk.key_panels = desk.faded + states;
  desk.value_panels = desk.key_panels + TOKENS * layer->key_width;
  return desk;
}

/* Turn 8 rows of 8 numbers into columns. */
INLINE void transpose(vec v[8]) {
  vec pairs[8], fours[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = __builtin_shuffle(v[i], v[i + 1], (ivec){0, 8, 1, 9, 4, 12, 5, 13});
    pairs[i + 1] = __builtin_shuffle(v[i], v[i + 1], (ivec){2, 10, 3, 11, 6, 14, 7, 15});
  }
  for (int i = 0; i < 8; i += 4)
    for (int x = 0; x < 2; x++) {
      fours[i + 2 * x] = __builtin_shuffle(pairs[i + x], pairs[i + x + 2], (ivec){0, 1, 8, 9, 4, 5, 12, 13});
      fours[i + 2 * x + 1] = __builtin_shuffle(pairs[i + x], pairs[i + x + 2], (ivec){2, 3, 10, 11, 6, 7, 14, 15});
    }
  for (int i = 0; i < 4; i++) {
    v[i] = __builtin_shuffle(fours[i], fours[i + 4], (ivec){0, 1, 2, 3, 8, 9, 10, 11});
    v[i + 4] = __builtin_shuffle(fours[i], fours[i + 4], (ivec){4, 5, 6, 7, 12, 13, 14, 15});
  }
}

/* Lay out the keys and values of `count` tokens of a KV head, and zeros in the place of tokens and of widths that there are not. */
static void lay_out(const struct layer *layer, const int64_t *slots, int64_t count, const float *keys, const float *values,
                    const struct desk *desk) {
  const int64_t width = layer->key_width, value_width = layer->value_width;
  for (int64_t first = 0; first < panels_of(count) * PANEL; first += 8) {
    float *to = desk->key_panels + first / PANEL * width * PANEL + first % PANEL;
    for (int64_t at = 0; at < width; at += WIDTH) {
      vec numbers[8];
      for (int j = 0; j < 8; j++)
        numbers[j] = first + j < count ? *(const vec *)(keys + slots[first + j] * layer->key_slot + at) : (vec){0};
      transpose(numbers);
      for (int x = 0; x < 8; x++) *(vec *)(to + (at + x) * PANEL) = numbers[x];
    }
  }
  for (int64_t j = 0; j < count; j++) {
    const float *value = values + slots[j] * layer->value_slot;
    for (int64_t at = 0; at < panels_of(value_width) * PANEL; at += WIDTH)
      *(vec *)(desk->value_panels + (at / PANEL * count + j) * PANEL + at % PANEL) =
          at < value_width ? *(const vec *)(value + at) : (vec){0};
  }
}

/* Have the states of queries first <= q < last of a row see `count` of its tokens from token `from` on. */
static void see_block(const struct layer *layer, const struct row *row, int64_t first, int64_t last, int64_t from, int64_t count,
                      const struct desk *desk) {
  const int64_t group = layer->heads / layer->kv_heads, states = (last - first) * group, tiles = tiles_of(states);
  for (int64_t tile = 0; tile < tiles; tile++) {
    const int64_t start = first_of(tile, tiles, states), rows = first_of(tile + 1, tiles, states) - start;
    for (int64_t panel = 0; panel < panels_of(count); panel++)
      multiply_rows(rows, desk->queries + start * layer->key_width, layer->key_width,
                    desk->key_panels + panel * layer->key_width * PANEL, layer->key_width,
                    desk->scores + start * TOKENS + panel * PANEL, TOKENS);
  }
  for (int64_t query = first; query < last; query++) {
    float numbers[TOKENS];
    const float *bias = bias_of(row, query, from, (int)count, TOKENS, numbers);
    for (int64_t state = (query - first) * group; state < (query - first + 1) * group; state++) {
      float *scores = desk->scores + state * TOKENS;
      for (int64_t j = count; j < TOKENS; j++) scores[j] = -INFINITY;
      desk->faded[state] = weigh(&desk->states[state], bias, layer->scaling, scores, TOKENS);
    }
  }
  for (int64_t tile = 0; tile < tiles; tile++) {
    const int64_t start = first_of(tile, tiles, states), rows = first_of(tile + 1, tiles, states) - start;
    for (int64_t panel = 0; panel < panels_of(layer->value_width); panel++) {
      float sums[TILE_ROWS][PANEL];
      multiply_rows(rows, desk->scores + start * TOKENS, TOKENS, desk->value_panels + panel * count * PANEL, count, sums[0], PANEL);
      const int64_t column = panel * PANEL;
      const int64_t numbers = layer->value_width - column < PANEL ? layer->value_width - column : PANEL;
      for (int64_t i = 0; i < rows; i++) {
        float *values = desk->values + (start + i) * layer->value_width + column;
        for (int64_t x = 0; x < numbers; x += WIDTH)
          *(vec *)(values + x) = *(vec *)(values + x) * desk->faded[start + i] + *(vec *)(sums[i] + x);
      }
    }
  }
}

/* How many of the tokens that a row sees come before the last that any of the queries first <= q < last sees, that one included. */
static int64_t reach(const struct row *row, int64_t first, int64_t last) {
  int64_t most = 0;
  for (int64_t query = first; query < last; query++) {
    int64_t seen = row->tail;
    while (seen > most && !row->sees[query * row->tail + seen - 1]) seen--;
    if (seen > most) most = seen;
  }
  return row->length - row->tail + most;
}

static void attend_to_piece(const struct layer *layer, const struct row *row, int64_t kv_head, int64_t first, int64_t last,
                            const float *queries, const float *keys, const float *values, float *out, const struct desk *desk) {
  const int64_t group = layer->heads / layer->kv_heads, width = layer->value_width, end = reach(row, first, last);
  for (int64_t query = first; query < last; query++)
    for (int64_t head = 0; head < group; head++)
      memcpy(desk->queries + ((query - first) * group + head) * layer->key_width,
             queries + (row->start + query) * layer->query_token + (kv_head * group + head) * layer->query_head,
             layer->key_width * sizeof(float));
  begin(desk->states, (last - first) * group, desk->values, width);
  for (int64_t at = 0; at < end; at += TOKENS) {
    const int64_t count = end - at < TOKENS ? end - at : TOKENS;
    lay_out(layer, row->slots + at, count, keys + kv_head * layer->key_head, values + kv_head * layer->value_head, desk);
    see_block(layer, row, first, last, at, count, desk);
  }
  for (int64_t query = first; query < last; query++)
    for (int64_t head = 0; head < group; head++) {
      const struct state *state = &desk->states[(query - first) * group + head];
      divide(state, width);
      memcpy(out + ((row->start + query) * layer->heads + kv_head * group + head) * width, state->values, width * sizeof(float));
    }
}

/* Attend to `count` rows by `threads` threads, as `attend` does; work: chunk_numbers. */
void attend_chunks(const struct layer *layer, const struct row *rows, int64_t count, const float *queries, const float *keys,
                   const float *values, float *out, float *work, int64_t threads) {
  const int64_t each = queries_of(layer), size = desk_numbers(layer);
  int64_t most = 0;
  for (int64_t i = 0; i < count; i++)
    if (rows[i].queries > most) most = rows[i].queries;
  const int64_t parts = (most + each - 1) / each, pieces = parts * count * layer->kv_heads;
#pragma omp parallel num_threads((int)threads)
  {
    const struct desk desk = desk_at(layer, work + omp_get_thread_num() * size);
#pragma omp for schedule(dynamic)
    for (int64_t piece = pieces - 1; piece >= 0; piece--) {
      const struct row *row = &rows[piece / layer->kv_heads % count];
      const int64_t first = piece / layer->kv_heads / count * each, last = first + each;
      if (first >= row->queries) continue;
      attend_to_piece(layer, row, piece % layer->kv_heads, first, last < row->queries ? last : row->queries, queries, keys, values, out, &desk);
    }
  }
}
