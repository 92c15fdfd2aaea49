#include "longspan/testing/tolerance.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

namespace longspan::testing {

double relative_error(const at::Tensor& actual, const at::Tensor& expected) {
  TORCH_CHECK(actual.sizes() == expected.sizes(), "shapes differ: ", actual.sizes(), " and ",
              expected.sizes());
  const at::Tensor reference = expected.to(at::kDouble);
  const double difference = (actual.to(at::kDouble) - reference).norm().item<double>();
  const double size = reference.norm().item<double>();
  return size == 0 ? difference : difference / size;
}

double allowed_error(const at::Tensor& other, const at::Tensor& exact) {
  double rounding = 0;
  AT_DISPATCH_FLOATING_TYPES(other.scalar_type(), "allowed_error", [&] {  // fp32 and fp64
    rounding = static_cast<double>(std::numeric_limits<scalar_t>::epsilon()) / 2;
  });
  return 4 * std::max(relative_error(other, exact), 8 * rounding);
}

}  // namespace longspan::testing
