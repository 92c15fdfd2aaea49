#include "longspan/testing/tolerance.h"

#include <ATen/ATen.h>

namespace longspan::testing {

double relative_error(const at::Tensor& actual, const at::Tensor& expected) {
  TORCH_CHECK(actual.sizes() == expected.sizes(), "shapes differ: ", actual.sizes(), " and ",
              expected.sizes());
  const at::Tensor reference = expected.to(at::kDouble);
  const double difference = (actual.to(at::kDouble) - reference).norm().item<double>();
  const double size = reference.norm().item<double>();
  return size == 0 ? difference : difference / size;
}

}  // namespace longspan::testing
