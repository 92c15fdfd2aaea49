#include "longspan/stages/step_values.h"

#include <ATen/ATen.h>

namespace longspan {

std::vector<double> values_of(const Group& group, const std::vector<double>& own,
                              at::Device device) {
  const auto summed = [&](const at::Tensor& x) {
    const at::Tensor there = x.to(device);
    group.sum_(there);
    return there.cpu();
  };
  at::Tensor counts = at::zeros({group.size()}, at::kDouble);
  counts[group.rank()].fill_(static_cast<double>(own.size()));
  counts = summed(counts);
  const auto total = static_cast<int64_t>(counts.sum().item<double>());
  const auto begin = static_cast<int64_t>(counts.narrow(0, 0, group.rank()).sum().item<double>());
  if (total == 0) return {};
  at::Tensor all = at::zeros({total}, at::kDouble);
  all.narrow(0, begin, std::ssize(own)).copy_(at::tensor(own, at::kDouble));
  all = summed(all);
  return {all.const_data_ptr<double>(), all.const_data_ptr<double>() + total};
}

}  // namespace longspan
