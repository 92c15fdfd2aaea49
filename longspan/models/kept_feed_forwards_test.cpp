// The tensors that checkpointing keeps of feed-forwards equal the recomputed ones to the bit, if
// the gemm library rounds chunks like the whole. Only gate and up take more memory.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "longspan/attention/block_kernel.h"
#include "longspan/kernels/gemm.h"
#include "longspan/memory/activation_offload.h"
#include "longspan/memory/counting_allocator.h"
#include "longspan/models/decoder.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/plain_model.h"
#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

struct Computed {
  std::map<std::string, at::Tensor> tensors;
  int64_t saved = 0;  // bytes held between forward and backward
};

class Model {
 public:
  Model(const ModelSpec& spec, const Batch& batch, at::ScalarType dtype)
      : spec_(spec), batch_(batch), dtype_(dtype), attention_(make_local(cpu_block_kernel())) {
    const at::ScalarType held = dtype == at::kDouble ? at::kDouble : at::kFloat;
    for (const NamedTensor& parameter : testing::random_leaves(spec)) {
      at::Tensor leaf = parameter.tensor.detach().to(at::kFloat).to(held);
      leaves_.push_back({parameter.name, leaf.requires_grad_(true)});
    }
  }

  /// Returns loss and gradients with `count` layers keeping their feed-forward's tensors.
  Computed keeping(int64_t count, ActivationStore* store = nullptr, int64_t tiles = 0) {
    Decoder model(spec_, leaves_, *attention_,
                  {.compute_dtype = dtype_, .mlp_tiles = tiles, .activation_store = store});
    model.keep_feed_forwards(count);
    Computed computed;
    {
      const AllocationCounter counter(AllocationCounter::Of::kThisThread);
      const at::Tensor loss = model.negative_log_likelihood_sum(batch_);
      if (store != nullptr) store->put({});  // waits until the last block has left the device
      computed.saved = counter.live_bytes();
      torch::autograd::backward({loss}, {});
      computed.tensors = testing::take_gradients(model.parameters());
      computed.tensors["loss"] = loss.detach();
    }
    return computed;
  }

 private:
  ModelSpec spec_;
  Batch batch_;
  at::ScalarType dtype_;
  std::unique_ptr<SequenceParallel> attention_;
  std::vector<NamedTensor> leaves_;
};

void check_same_bits(const Computed& actual, const Computed& expected) {
  CHECK(actual.tensors.size() == expected.tensors.size());
  for (const auto& [name, tensor] : expected.tensors) {
    INFO(name);
    REQUIRE(actual.tensors.contains(name));
    CHECK(at::equal(actual.tensors.at(name), tensor));
  }
}

// Rows of 2048 elements come in chunks of 1024, the minimum: three chunks here.
constexpr int64_t kTokens = 2500, kIntermediate = 2048, kChunk = 1024;

/// True if the gemm library rounds `num_rows` rows like all rows. Kept tensors come from the
/// forward's output projection of all rows, recomputed ones from the same projection in chunks.
/// MKL's AVX2 code rounds them differently.
bool parts_are_as_the_whole(const ModelSpec& spec, int64_t num_rows, at::ScalarType dtype) {
  const at::Tensor x = at::randn({num_rows, spec.hidden_size}, dtype),
                   w = at::randn({spec.hidden_size, spec.hidden_size}, dtype),
                   whole = gemm(x, w.t());
  bool same = true;
  for (int64_t begin = 0; begin < num_rows; begin += kChunk) {
    const int64_t size = std::min(kChunk, num_rows - begin);
    same = same && at::equal(gemm(x.narrow(0, begin, size), w.t()), whole.narrow(0, begin, size));
  }
  return same;
}

/// If gemms round differently: checks that both are equally near to exact arithmetic, in the norm.
void check_as_exact(const Computed& actual, const Computed& expected, const Computed& exact) {
  for (const auto& [name, tensor] : expected.tensors) {
    INFO(name);
    REQUIRE(actual.tensors.contains(name));
    CHECK(testing::relative_error(actual.tensors.at(name), exact.tensors.at(name)) <=
          testing::allowed_error(tensor, exact.tensors.at(name)));
  }
}

ModelSpec wide_model(bool norms_behind) {
  ModelSpec spec = testing::small_model(/*tied=*/true, /*biases=*/true);
  LayerSpec& layer = spec.pattern.front();
  std::get<GatedMlpSpec>(layer.feed_forward).intermediate_size = kIntermediate;
  if (norms_behind) layer.norms.behind = LayerNorms::Behind{"mixer_norm", "mlp_norm"};
  return spec;
}

TEST_CASE("kept feed-forwards: the bits of those that are computed again") {
  for (const bool norms_behind : {false, true}) {
    CAPTURE(norms_behind);
    const ModelSpec spec = wide_model(norms_behind);
    const Batch batch = testing::random_batch(spec, {1500, 1, kTokens - 1501}, 0.5);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      CAPTURE(dtype);
      Model model(spec, batch, dtype);
      const Computed none = model.keeping(0);
      const int64_t labels = batch.labels_T.ne(kIgnoreLabel).sum().item<int64_t>();
      const bool same_bits = parts_are_as_the_whole(spec, kTokens, dtype) &&
                             parts_are_as_the_whole(spec, labels, dtype);
      for (const int64_t count : {1, 2}) {
        CAPTURE(count);
        const Computed kept = model.keeping(count);
        if (same_bits) {
          check_same_bits(kept, none);
        } else {
          check_as_exact(kept, none, Model(spec, batch, at::kDouble).keeping(0));
        }
      }
    }
  }
}

TEST_CASE("kept feed-forwards: gate and up are saved, and nothing where the row has tiles") {
  const ModelSpec spec = wide_model(/*norms_behind=*/false);
  const Batch batch = testing::random_batch(spec, {kTokens}, 0.5);
  Model model(spec, batch, at::kFloat);
  const int64_t labels = batch.labels_T.ne(kIgnoreLabel).sum().item<int64_t>();
  const int64_t none = model.keeping(0).saved;
  // The last layer's feed-forward computes only the rows with labels.
  CHECK(model.keeping(1).saved - none == 4 * labels * 2 * kIntermediate);
  CHECK(model.keeping(2).saved - none == 4 * (labels + kTokens) * 2 * kIntermediate);
  CHECK(model.keeping(100).saved == model.keeping(2).saved);
  CHECK(model.keeping(2, nullptr, /*tiles=*/3).saved == model.keeping(0, nullptr, 3).saved);
}

TEST_CASE("kept feed-forwards: they stay on the device where activations leave it") {
  const ModelSpec spec = wide_model(/*norms_behind=*/true);
  const Batch batch = testing::random_batch(spec, {700, 300}, 0.5);
  Model model(spec, batch, at::kFloat);
  ActivationOffload store(at::kCPU);
  const Computed none = model.keeping(0, &store), kept = model.keeping(2, &store);
  check_same_bits(kept, none);
  check_same_bits(kept, model.keeping(0));
  const int64_t labels = batch.labels_T.ne(kIgnoreLabel).sum().item<int64_t>();
  CHECK(kept.saved - none.saved == 4 * (labels + 1000) * (2 * kIntermediate + spec.hidden_size));
}

}  // namespace
}  // namespace longspan
