#include "longspan/layers/expert_dispatch.h"

#include <ATen/ATen.h>

#include "longspan/kernels/expert_rows.h"

namespace longspan {

ExpertDispatch::ExpertDispatch(const at::Tensor& experts_CK, int64_t num_experts,
                               ExpertExchange* exchange) {
  const at::Tensor counts_E = rows_by_expert(experts_CK, num_experts);
  if (exchange != nullptr) {
    routes_ = exchange->open(counts_E);
  } else {
    counts_E_.emplace(counts_E);
  }
  places_R_ = experts_CK.reshape({-1}).argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  rows_R_ = places_R_.div(experts_CK.size(1), "floor");
}

std::vector<int64_t> ExpertDispatch::counts_on_host() const {
  if (routes_) return routes_->leaving();
  const int64_t* const counts = counts_E_->here().const_data_ptr<int64_t>();
  return {counts, counts + counts_E_->here().numel()};
}

}  // namespace longspan
