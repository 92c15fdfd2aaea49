#include "longspan/objectives/load_balance.h"

#include <ATen/ATen.h>

namespace longspan {

at::Tensor load_balance_gradient(const at::Tensor& counts_LE, int64_t experts_per_token,
                                 double coefficient) {
  const at::Tensor counts_E = counts_LE.sum(0);
  // Tokens, counted once per layer.
  const at::Tensor tokens =
      (counts_E.sum() / static_cast<double>(experts_per_token)).clamp_min(1.0);
  return counts_E * (coefficient * static_cast<double>(counts_E.size(0)) / (tokens * tokens));
}

}  // namespace longspan
