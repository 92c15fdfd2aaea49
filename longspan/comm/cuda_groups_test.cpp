// Groups whose tensors are on a GPU, as far as one GPU can show them: NCCL takes a GPU for each
// rank, so that here it has one rank, and ranks that share a GPU exchange through the host.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "longspan/comm/backend.h"
#include "longspan/comm/group.h"
#include "longspan/testing/gpu.h"
#include "longspan/testing/ranks.h"

namespace longspan {
namespace {

TEST_CASE("cuda groups: NCCL connects at once and is shut down") {
  if (!testing::has_gpu()) return;
  for (int time = 0; time < 2; ++time) {
    const auto backend = load_cuda().make_backend(c10::make_intrusive<c10d::HashStore>(), 0, 1, 60);
    std::vector<at::Tensor> x{at::full({1000}, 3.0, at::TensorOptions(at::kCUDA))};
    backend->allreduce(x)->wait();
    CHECK(x[0].sum().item<double>() == 3000);
    CHECK_NOTHROW(backend->shutdown());
  }
}

}  // namespace
}  // namespace longspan
