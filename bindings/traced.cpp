#include "bindings/traced.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/autograd.h>

namespace longspan {

bool is_symbolic(const at::Tensor& x) {
  constexpr c10::DispatchKeySet kRecorded{c10::DispatchKey::Python,
                                          c10::DispatchKey::Functionalize};
  return x.is_meta() || x.key_set().has_any(kRecorded);
}

bool is_traced(const at::Tensor& x) { return is_symbolic(x) || c10::impl::dispatch_mode_enabled(); }

std::vector<at::Tensor> gradients_by_replay(
    const std::vector<at::Tensor>& inputs, const at::Tensor& dresult,
    const std::function<at::Tensor(const std::vector<at::Tensor>&)>& function) {
  // An operator runs below autograd, whose keys are then excluded.
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  keys.excluded_ = keys.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
  const c10::impl::ForceDispatchKeyGuard with_autograd(keys.included_, keys.excluded_);
  const c10::AutoGradMode record(true);
  std::vector<at::Tensor> leaves, recording;
  for (const at::Tensor& input : inputs) {
    leaves.push_back(input.defined() ? input.detach().requires_grad_() : input);
    if (input.defined()) recording.push_back(leaves.back());
  }
  std::vector<at::Tensor> gradients =
      torch::autograd::grad({function(leaves)}, recording, {dresult});
  std::vector<at::Tensor> of_inputs;
  auto next = gradients.begin();
  for (const at::Tensor& input : inputs) {
    of_inputs.push_back(input.defined() ? std::move(*next++) : at::Tensor());
  }
  return of_inputs;
}

}  // namespace longspan
