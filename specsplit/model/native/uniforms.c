/* Uniform numbers by splitmix64 (Steele, Lea, Flood, OOPSLA 2014). */

#include <stdint.h>

static const uint64_t golden = 0x9E3779B97F4A7C15, mix_1 = 0xBF58476D1CE4E5B9, mix_2 = 0x94D049BB133111EB;

static inline uint64_t mixed(uint64_t z) {
  z = (z ^ z >> 30) * mix_1;
  z = (z ^ z >> 27) * mix_2;
  return z ^ z >> 31;
}

/* Write the negatives of uniforms to [rows, width]: row r has the stream of (seeds[r], positions[r]), and number v is its draw v. */
void negated_uniforms(const uint64_t *seeds, const uint64_t *positions, int64_t rows, int64_t width, double *to) {
  for (int64_t row = 0; row < rows; row++) {
    const uint64_t stream = mixed(mixed(seeds[row] + golden) + (positions[row] + 1) * golden);
    for (int64_t v = 0; v < width; v++) {
      const int64_t odd = (int64_t)(mixed(stream + (uint64_t)(v + 1) * golden) >> 11 | 1);
      to[row * width + v] = (double)odd * -0x1p-53;
    }
  }
}
