// The projections around attention, split into the parts that an overlapping attention requests. T:
// tokens, L: wanted rows, D: model dim, N: query heads, M: kv heads, n: some heads, H: head dim.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "longspan/layers/layer.h"

namespace longspan {

/// One layer's AttentionProjections. All references must outlive this object. The graph holds the
/// tensors that it needs.
class ChunkedProjections {
 public:
  ChunkedProjections(const at::Tensor& h_TD, const Layer& layer, const RowContext& row,
                     const at::Tensor& rows_L);

  AttentionProjections as_functions();

 private:
  struct Shared;

  at::Tensor input(int i);
  at::Tensor begin_output();
  at::Tensor add_output(const at::Tensor& y_LD, const at::Tensor& out_TnH,
                        const std::vector<int64_t>& numbers);

  const at::Tensor& h_TD_;
  const Layer& layer_;
  const RowContext& row_;
  const at::Tensor& rows_L_;
  TokenMixer::Overlap overlap_;
  at::Tensor x_TD_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace longspan
