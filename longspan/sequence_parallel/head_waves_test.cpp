// Memory of head waves. T: tokens of the row, P: ranks, H: head dim.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>

#include "longspan/memory/counting_allocator.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/ranks.h"

namespace longspan {
namespace {

constexpr int64_t kTokens = 2048, kHeads = 32, kKvHeads = 8, kHeadDim = 64;
constexpr int kRanks = 2;

struct Buffers {
  int64_t in_kernel = 0;  // live bytes when the backward kernel has computed its results
  int64_t peak = 0;       // peak of the backward
};

/// Records the live bytes at the end of the kernel's backward, the peak of attention.
class WatchingKernel : public BlockKernel {
 public:
  const AllocationCounter* counter = nullptr;
  mutable int64_t most_alive = 0;

  KernelAbilities abilities() const override { return cpu_block_kernel().abilities(); }

 protected:
  AttentionResult forward_round(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const AttentionSpec& spec,
                                const std::vector<Block>& blocks) const override {
    return cpu_block_kernel().forward(q, k, v, spec, blocks);
  }
  AttentionGradients backward_blocks(const AttentionGradientInputs& inputs,
                                     const AttentionSpec& spec,
                                     const std::vector<Block>& blocks) const override {
    AttentionGradients gradients = cpu_block_kernel().backward(inputs, spec, blocks);
    most_alive = std::max(most_alive, counter->live_bytes());
    return gradients;
  }
};

/// Returns the bytes on rank 0 above its inputs and output, and above attention's output and lse,
/// which every backward needs.
Buffers backward_buffers(int head_waves) {
  ParallelPlan plan;
  plan.world_size = plan.sequence_size = plan.ulysses_size = kRanks;
  plan.method = method_named("ulysses");
  plan.head_waves = head_waves;
  Buffers buffers;
  testing::run_ranks(plan, [&](const Mesh& mesh) {
    const auto random = [](int64_t heads) {
      return at::randn({kTokens / kRanks, heads, kHeadDim}).requires_grad_(true);
    };
    WatchingKernel kernel;
    const auto attention = make_attention(plan, mesh, kernel);
    const at::Tensor q = random(kHeads), k = random(kKvHeads), v = random(kKvHeads);
    const at::Tensor dout = at::randn(q.sizes());
    AllocationCounter counter(AllocationCounter::Of::kThisThread);
    kernel.counter = &counter;
    const at::Tensor out = attention->attend({q, k, v}, plain_attention(kHeads, kKvHeads, kHeadDim),
                                             Packing::single(kTokens));
    const int64_t numbers = out.numel() + kHeads / kRanks * kTokens;  // saved: out and lse
    const auto saved_and_output = static_cast<int64_t>(out.nbytes()) + numbers * 4;
    counter.restart_peak();
    out.backward(dout);
    if (mesh.world.rank() != 0) return;
    buffers = {kernel.most_alive - saved_and_output, counter.peak_bytes() - saved_and_output};
  });
  return buffers;
}

}  // namespace

TEST_CASE("head waves: eight of them need at most a quarter of one wave's buffers") {
  const int64_t gradients = kTokens / kRanks * (kHeads + 2 * kKvHeads) * kHeadDim * 4;
  // A single wave allocates the gradients that it returns after the kernel. Several waves fill them
  // step by step, so they exist throughout and count as results there.
  const int64_t one = backward_buffers(1).in_kernel;
  const int64_t eight = backward_buffers(8).peak - gradients;
  CHECK(eight > 0);
  CHECK(eight <= one / 4);
  const int64_t two = backward_buffers(2).peak - gradients;
  CHECK(eight < two);
}

}  // namespace longspan
