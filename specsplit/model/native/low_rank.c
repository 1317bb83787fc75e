/* What adapters of low rank add to the output of one linear layer. */

#include <omp.h>

#include "low_rank.h"

/* Add (x down^T) up^T to the rows of to [T, O] that tiles name, of the same rows x of from [T, I]. */
void add_low_rank(const struct low_rank *adapters, int64_t in, int64_t out, const struct tile *tiles, int64_t count,
                  const float *from, float *to, int64_t threads) {
#pragma omp parallel num_threads((int)(count < threads ? count : threads))
  add_tiles(adapters, in, out, tiles, count, from, to, out);
}
