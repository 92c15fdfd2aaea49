#include "longspan/kernels/output_gate.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "longspan/kernels/fused_op.h"

namespace longspan {

std::pair<at::Tensor, at::Tensor> split_heads(const at::Tensor& x_TNJ, int64_t K) {
  const int64_t G = x_TNJ.size(2) - K;
  std::vector<at::Tensor> parts;
  {
    c10::NoGradGuard no_grad;
    parts = {x_TNJ.narrow(2, 0, K).contiguous(), x_TNJ.narrow(2, K, G).contiguous()};
  }
  if (needs_backward({x_TNJ}, {})) {
    parts = attach_backward(parts, {x_TNJ}, {}, [](const std::vector<at::Tensor>& gradients) {
      return std::vector<at::Tensor>{at::cat(gradients, 2)};
    });
  }
  return {parts[0], parts[1]};
}

at::Tensor gated(const at::Tensor& x_TNG, const at::Tensor& gate_TNG) {
  at::Tensor y_TNG;
  {
    c10::NoGradGuard no_grad;
    y_TNG = at::sigmoid(gate_TNG).mul_(x_TNG);
  }
  if (!needs_backward({x_TNG, gate_TNG}, {})) return y_TNG;
  return attach_backward(
      {y_TNG}, {x_TNG, gate_TNG}, {},
      [x_TNG = x_TNG.detach(), gate_TNG = gate_TNG.detach()](std::vector<at::Tensor> gradients) {
        const at::Tensor open_TNG = at::sigmoid(gate_TNG);
        const at::Tensor dgate_TNG = at::sigmoid_backward(gradients[0] * x_TNG, open_TNG);
        return std::vector<at::Tensor>{gradients[0] * open_TNG, dgate_TNG};
      })[0];
}

}  // namespace longspan
