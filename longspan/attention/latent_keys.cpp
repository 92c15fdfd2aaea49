#include "longspan/attention/latent_keys.h"

#include <c10/core/GradMode.h>

#include "longspan/kernels/fused_op.h"

namespace longspan {

LatentKeys::Heads expanded(const at::Tensor& x_TJ, const std::shared_ptr<const LatentKeys>& keys) {
  LatentKeys::Heads heads;
  {
    c10::NoGradGuard no_grad;
    heads = keys->expand(x_TJ.detach());
  }
  if (!needs_backward({x_TJ}, keys->parameters())) return heads;
  const std::vector<at::Tensor> outputs = attach_backward(
      {heads.k_SMH, heads.v_SMH}, {x_TJ}, keys->parameters(),
      [x_TJ = x_TJ.detach(), keys](const std::vector<at::Tensor>& gradients) {
        return std::vector<at::Tensor>{keys->backward(x_TJ, {gradients[0], gradients[1]})};
      });
  return {outputs[0], outputs[1]};
}

}  // namespace longspan
