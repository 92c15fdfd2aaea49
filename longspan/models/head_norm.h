// RMSNorm of each head (Qwen3's q_norm and k_norm). T: rows, N: heads, H: head dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace longspan {

/// One use of it: what forward() keeps, backward() takes. Without a weight both do nothing.
class HeadNorm {
 public:
  HeadNorm(at::Tensor weight_H, double eps) : weight_H_(std::move(weight_H)), eps_(eps) {}

  /// [T, N, H] -> [T, N, H], not in autograd's graph.
  at::Tensor forward(const at::Tensor& x_TNH);
  /// d loss / d output -> d loss / d input; adds the weight's gradient to its .grad.
  at::Tensor backward(const at::Tensor& dy_TNH);

 private:
  at::Tensor weight_H_;
  double eps_;
  at::Tensor x_TNH_, rstd_R_;
};

}  // namespace longspan
