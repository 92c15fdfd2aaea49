#include "longspan/bench/gather_numbers.h"

#include <ATen/ATen.h>

namespace longspan {

std::vector<std::vector<double>> gather_numbers(const Group& group,
                                                const std::vector<double>& numbers,
                                                at::Device device) {
  const at::Tensor own =
      at::tensor(at::ArrayRef<double>(numbers), at::TensorOptions(at::kDouble)).unsqueeze(0);
  const at::Tensor all = group.all_gather(own.to(device)).wait().cpu();
  std::vector<std::vector<double>> rows;
  for (int64_t rank = 0; rank < all.size(0); ++rank) {
    const double* begin = all[rank].const_data_ptr<double>();
    rows.emplace_back(begin, begin + numbers.size());
  }
  return rows;
}

}  // namespace longspan
