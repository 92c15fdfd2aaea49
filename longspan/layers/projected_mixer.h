// A token mixer whose last step is a linear layer: h + linear(mixed), row by row.
#pragma once

#include <utility>
#include <vector>

#include "longspan/layers/layer.h"

namespace longspan {

class ProjectedMixer : public TokenMixer {
 public:
  std::vector<Linear*> linears_after() override { return {&output_}; }
  std::vector<at::Tensor> parameters_after() const override { return output_.parameters(); }
  void output_out(at::Tensor sum_CD, const at::Tensor& h_CD, const at::Tensor& mixed_C,
                  const RowRange& rows) const override;
  void output_backward(const at::Tensor& dsum_CD, const at::Tensor& mixed_C, const RowRange& rows,
                       at::Tensor dmixed_C) const override;

 protected:
  /// `output` takes all numbers of a mixed row.
  explicit ProjectedMixer(Linear output) : output_(std::move(output)) {}

  Linear output_;
};

}  // namespace longspan
