#include "longspan/report/averages.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <utility>

namespace longspan {

void Averages::add(const std::vector<std::pair<std::string, at::Tensor>>& sums, double count) {
  if (sums.empty()) return;
  std::vector<std::string> names;
  std::vector<at::Tensor> numbers;
  for (const auto& [name, sum] : sums) {
    names.push_back(name);
    numbers.push_back(sum.detach().to(at::kDouble));
  }
  arriving_.push_back({std::move(names), ToHost(at::stack(numbers)), count});
}

void Averages::take_arriving() {
  for (const auto& [names, sums, count] : std::exchange(arriving_, {})) {
    const double* sum = sums.here().const_data_ptr<double>();
    for (const std::string& name : names) add(name, *sum++, count);
  }
}

const std::map<std::string, std::pair<double, double>>& Averages::sums() {
  take_arriving();
  return sums_;
}

std::vector<std::pair<std::string, double>> Averages::means(const Group& world,
                                                            const std::vector<std::string>& names,
                                                            at::Device device) {
  if (names.empty()) return {};
  take_arriving();
  std::vector<double> values;
  for (const std::string& name : names) {
    const auto found = sums_.find(name);
    values.push_back(found == sums_.end() ? 0.0 : found->second.first);
    values.push_back(found == sums_.end() ? 0.0 : found->second.second);
  }
  at::Tensor sums = at::tensor(values, at::TensorOptions().dtype(at::kDouble));
  if (world.size() > 1) {
    sums = sent_to(sums, device);
    world.sum_(sums);
    sums = sums.cpu();
  }
  const double* data = sums.const_data_ptr<double>();
  std::vector<std::pair<std::string, double>> means;
  for (size_t i = 0; i < names.size(); ++i) {
    if (data[2 * i + 1] > 0) means.emplace_back(names[i], data[2 * i] / data[2 * i + 1]);
  }
  return means;
}

}  // namespace longspan
