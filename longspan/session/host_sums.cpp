#include "longspan/session/host_sums.h"

#include <ATen/ops/tensor.h>

#include "longspan/memory/transfer.h"

namespace longspan {

std::vector<double> sums_over(const Group& group, const std::vector<double>& values,
                              at::Device device) {
  if (group.size() == 1) return values;
  const at::Tensor sums =
      sent_to(at::tensor(values, at::TensorOptions().dtype(at::kDouble)), device);
  group.sum_(sums);
  const ToHost arriving(sums);
  const double* data = arriving.here().const_data_ptr<double>();
  return {data, data + sums.numel()};
}

}  // namespace longspan
