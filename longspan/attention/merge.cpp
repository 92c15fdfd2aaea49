#include "longspan/attention/merge.h"

#include <ATen/ATen.h>

#include <limits>

namespace longspan {
namespace {

constexpr double kEmptyLse = -std::numeric_limits<double>::infinity();

}  // namespace

void merge_(AttentionResult& total, const AttentionResult& part) {
  // -inf - -inf is NaN. So a part in which a query saw no key gets weight 0.
  const at::Tensor weight_NT =
      at::sigmoid(part.lse_NT - total.lse_NT).masked_fill_(part.lse_NT == kEmptyLse, 0.0);
  total.out_TNH.lerp_(part.out_TNH.to(total.out_TNH.scalar_type()),
                      weight_NT.transpose(0, 1).unsqueeze(-1));
  at::logaddexp_out(total.lse_NT, total.lse_NT, part.lse_NT);
}

}  // namespace longspan
