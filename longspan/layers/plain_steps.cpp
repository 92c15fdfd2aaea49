#include "longspan/layers/plain_steps.h"

#include <ATen/ATen.h>

#include <stdexcept>

namespace longspan {
namespace {

at::Tensor factors(const at::Tensor& weight, NormKind kind) {
  switch (kind) {
    case NormKind::kWeight:
      return weight;
    case NormKind::kOnePlusWeight:
      return 1 + weight;
  }
  throw std::logic_error("no such norm");
}

/// Of the 2F numbers that are rotated.
at::Tensor turned(const at::Tensor& x_TNJ, const RotaryTable& table) {
  const int64_t F = table.cos_TF.size(1);
  const at::Tensor cos = table.cos_TF.unsqueeze(1), sin = table.sin_TF.unsqueeze(1);
  switch (table.pairs) {
    case RotaryPairs::kHalves: {
      const at::Tensor a = x_TNJ.narrow(2, 0, F), b = x_TNJ.narrow(2, F, F);
      return at::cat({a * cos - b * sin, b * cos + a * sin}, -1);
    }
    case RotaryPairs::kNeighbours: {
      const at::Tensor a = x_TNJ.slice(2, 0, 2 * F, 2), b = x_TNJ.slice(2, 1, 2 * F, 2);
      return at::stack({a * cos - b * sin, b * cos + a * sin}, -1).flatten(2);
    }
  }
  throw std::logic_error("no such pairs of a rotation");
}

}  // namespace

at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& weight, NormKind kind, double eps) {
  return x * (x.square().mean(-1, /*keepdim=*/true) + eps).rsqrt() * factors(weight, kind);
}

at::Tensor plain_rotation(const at::Tensor& x_TNH, const RotaryTable& table) {
  const int64_t J = 2 * table.cos_TF.size(1);
  return at::cat({turned(x_TNH.narrow(2, 0, J), table), x_TNH.narrow(2, J, x_TNH.size(2) - J)}, -1);
}

}  // namespace longspan
