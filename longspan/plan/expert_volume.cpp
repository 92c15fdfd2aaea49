#include "longspan/plan/expert_volume.h"

namespace longspan {

ExpertVolume expert_volume(int expert_parallel_size, const ExpertShape& shape, int64_t num_rows,
                           int64_t num_forwards) {
  const int64_t P = expert_parallel_size;
  const int64_t counts = num_forwards * (P - 1) * (shape.num_experts / P) * 8;
  const int64_t row = shape.hidden_size * shape.element_bytes;
  return {.forward = num_rows * 2 * row + counts,
          .backward = num_rows * (3 * row + 2 * shape.weight_bytes)};
}

}  // namespace longspan
