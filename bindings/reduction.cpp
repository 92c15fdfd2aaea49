// Sums over the ranks of a process group.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <string>

#include "bindings/attention_context.h"
#include "bindings/registration.h"
#include "bindings/traced.h"

namespace longspan {
namespace {

at::Tensor sum_of_ranks(const at::Tensor& x, const std::string& group, int64_t timeout) {
  return for_python([&] {
    const at::NoGradGuard no_grad;
    at::Tensor sum = x.clone(at::MemoryFormat::Contiguous);
    group_of(group, x.is_cuda(), timeout).sum_(sum);
    return sum;
  });
}

/// The backward is the identity, as that of sum_over() (comm/differentiable.h).
struct SumOfRanks : torch::autograd::Function<SumOfRanks> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x,
                            const std::string& group, int64_t timeout) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return operator_named<decltype(sum_of_ranks)>("longspan::sum_of_ranks").call(x, group, timeout);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0], {}, {}};
  }
};

at::Tensor sum_of_ranks_and_record(const at::Tensor& x, const std::string& group, int64_t timeout) {
  return SumOfRanks::apply(x, group, timeout);
}

int64_t first_timeout_of(const std::string& group, bool cuda, int64_t timeout) {
  return for_python([&] { return first_timeout(group, cuda, timeout); });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(longspan, library) {
  library.def("sum_of_ranks(Tensor x, str group, int timeout) -> Tensor");
  library.def("first_timeout(str group, bool cuda, int timeout) -> int", first_timeout_of);
}
TORCH_LIBRARY_IMPL(longspan, Autograd, library) {
  library.impl("sum_of_ranks", sum_of_ranks_and_record);
}
TORCH_LIBRARY_IMPL(longspan, CPU, library) { library.impl("sum_of_ranks", sum_of_ranks); }
TORCH_LIBRARY_IMPL(longspan, CUDA, library) { library.impl("sum_of_ranks", sum_of_ranks); }

}  // namespace longspan
