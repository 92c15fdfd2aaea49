#include "longspan/report/averages.h"

#include <ATen/ops/tensor.h>

namespace longspan {

std::vector<std::pair<std::string, double>> Averages::means(const Group& world,
                                                            const std::vector<std::string>& names,
                                                            at::Device device) const {
  if (names.empty()) return {};
  std::vector<double> values;
  for (const std::string& name : names) {
    const auto found = sums_.find(name);
    values.push_back(found == sums_.end() ? 0.0 : found->second.first);
    values.push_back(found == sums_.end() ? 0.0 : found->second.second);
  }
  at::Tensor sums = at::tensor(values, at::TensorOptions().dtype(at::kDouble)).to(device);
  world.sum_(sums);
  sums = sums.cpu();
  const double* data = sums.const_data_ptr<double>();
  std::vector<std::pair<std::string, double>> means;
  for (size_t i = 0; i < names.size(); ++i) {
    if (data[2 * i + 1] > 0) means.emplace_back(names[i], data[2 * i] / data[2 * i + 1]);
  }
  return means;
}

}  // namespace longspan
