#include "longspan/objectives/load_balance.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace longspan {

at::Tensor load_balance_gradient(const at::Tensor& counts_LE, int64_t experts_per_token,
                                 double coefficient) {
  const at::Tensor counts_E = counts_LE.sum(0);
  // Tokens, each counted once a layer.
  const double tokens =
      std::max(1.0, counts_E.sum().item<double>() / static_cast<double>(experts_per_token));
  return counts_E * (coefficient * static_cast<double>(counts_E.size(0)) / (tokens * tokens));
}

}  // namespace longspan
