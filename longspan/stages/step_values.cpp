#include "longspan/stages/step_values.h"

#include <ATen/ATen.h>

namespace longspan {

at::Tensor gathered_rows(const at::Tensor& own, const Group& group, const Group& counting,
                         at::Device counts_on) {
  at::Tensor counts = at::zeros({counting.size()}, at::dtype(at::kDouble).device(counts_on));
  counts[counting.rank()].fill_(static_cast<double>(own.size(0)));
  counting.sum_(counts);
  counts = counts.cpu();
  const auto total = static_cast<int64_t>(counts.sum().item<double>());
  const auto begin =
      static_cast<int64_t>(counts.narrow(0, 0, counting.rank()).sum().item<double>());
  std::vector<int64_t> sizes = own.sizes().vec();
  sizes[0] = total;
  const at::Tensor all = at::zeros(sizes, own.options());
  if (own.size(0) > 0) all.narrow(0, begin, own.size(0)).copy_(own);
  if (total > 0) group.sum_(all);
  return all;
}

std::vector<double> values_of(const Group& group, const std::vector<double>& own,
                              at::Device device) {
  const at::Tensor all =
      gathered_rows(at::tensor(own, at::kDouble).to(device), group, group, device).cpu();
  return {all.const_data_ptr<double>(), all.const_data_ptr<double>() + all.numel()};
}

}  // namespace longspan
