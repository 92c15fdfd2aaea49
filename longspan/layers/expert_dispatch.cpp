#include "longspan/layers/expert_dispatch.h"

#include <ATen/ATen.h>

#include <utility>

#include "longspan/kernels/expert_rows.h"

namespace longspan {

ExpertDispatch::ExpertDispatch(const at::Tensor& experts_CK, int64_t num_experts,
                               ExpertExchange* exchange) {
  if (exchange != nullptr) {
    routes_ = exchange->open(rows_by_expert(experts_CK, num_experts));
  } else if (experts_CK.size(0) == 0) {
    known_E_.resize(static_cast<size_t>(num_experts));
  } else {
    counts_E_.emplace(rows_by_expert(experts_CK, num_experts));
  }
  sort(experts_CK);
}

ExpertDispatch::ExpertDispatch(const at::Tensor& experts_CK, std::vector<int64_t> numbers,
                               ExpertExchange* exchange) {
  if (exchange != nullptr) {
    routes_ = exchange->open_again(std::move(numbers));
  } else {
    known_E_ = std::move(numbers);
  }
  sort(experts_CK);
}

ExpertDispatch ExpertDispatch::on_device(const at::Tensor& experts_CK, int64_t num_experts) {
  ExpertDispatch dispatch;
  dispatch.device_counts_E_ = rows_by_expert(experts_CK, num_experts);
  dispatch.sort(experts_CK);
  return dispatch;
}

void ExpertDispatch::sort(const at::Tensor& experts_CK) {
  places_R_ = experts_CK.reshape({-1}).argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  rows_R_ = places_R_.div(experts_CK.size(1), "floor");
}

std::vector<int64_t> ExpertDispatch::numbers() const {
  if (device_counts_E_.defined()) return {};
  return routes_ ? routes_->numbers() : counts_on_host();
}

std::vector<int64_t> ExpertDispatch::counts_on_host() const {
  TORCH_CHECK(!device_counts_E_.defined(), "the host is told of no rows of these experts");
  if (routes_) return routes_->leaving();
  if (!counts_E_) return known_E_;
  const int64_t* const counts = counts_E_->here().const_data_ptr<int64_t>();
  return {counts, counts + counts_E_->here().numel()};
}

}  // namespace longspan
