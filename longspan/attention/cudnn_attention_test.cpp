// cuDNN's attention and its sums with other kernels', by stand-ins for ATen's operators on CPUs.
// L, K: queries and keys of a call, N: query heads, M: kv heads, H: head dim.
#include "longspan/attention/cudnn_attention.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <doctest/doctest.h>
#include <torch/library.h>

#include <string>
#include <vector>

#include "longspan/attention/block_kernel.h"
#include "longspan/attention/load_attention.h"
#include "longspan/testing/kernel_check.h"
#include "longspan/text/deferred_warnings.h"

namespace longspan {
namespace {

using at::Tensor;
using testing::KernelCase;
using testing::KernelShape;

struct CudnnCall {
  int64_t N, M, L, K;
  bool causal, is_backward;
  bool operator==(const CudnnCall&) const = default;
};
std::vector<CudnnCall> made_calls;
/// Calls of cuDNN that are refused, by their numbers.
int first_refused = 0, last_refused = -1;

Tensor as_cudnn(const Tensor& x_LNH, const Tensor& like) {
  return x_LNH.transpose(0, 1).unsqueeze(0).to(like.scalar_type());
}

Block cudnn_block(const Tensor& q, const Tensor& k, bool causal, bool is_backward) {
  const int64_t L = q.size(2), K = k.size(2), number = std::ssize(made_calls);
  made_calls.push_back({q.size(1), k.size(1), L, K, causal, is_backward});
  TORCH_CHECK(number < first_refused || number > last_refused,
              "Expected mha_graph->execute(handle, variant_pack, workspace).is_good() to be true");
  TORCH_CHECK(!causal || L == K, "the mask begins in the upper left corner");
  return {0, L, 0, K, causal};
}

/// Arguments of a call, by name, since versions of torch have added some.
struct OperatorArguments {
  const c10::FunctionSchema& schema;
  c10::Stack stack;

  const c10::IValue& of(const char* name) const {
    return stack.at(schema.argumentIndexWithName(name).value());
  }
  Tensor tensor(const char* name) const { return of(name).toTensor(); }
  Tensor wide(const char* name) const { return tensor(name).to(at::kDouble); }
  /// Returns a tensor of cuDNN: [1, N, L, H] -> [L, N, H].
  Tensor tokens(const char* name) const { return wide(name).squeeze(0).transpose(0, 1); }
  bool causal() const { return of("is_causal").toBool(); }
  AttentionSpec spec(int64_t N, int64_t M, int64_t H) const {
    AttentionSpec spec = plain_attention(N, M, H);
    spec.scale = of("scale").toDouble();
    return spec;
  }
};

using Compute = std::vector<c10::IValue> (*)(const OperatorArguments& in);
template <Compute kCompute>
void lent_operator(const c10::OperatorHandle& here, c10::Stack* stack) {
  *stack = kCompute({here.schema(), *stack});
  stack->resize(here.schema().returns().size(), Tensor());
}

std::vector<c10::IValue> lent_cudnn_forward(const OperatorArguments& in) {
  const Tensor q = in.tensor("query"), k = in.tensor("key");
  const Block block = cudnn_block(q, k, in.causal(), /*is_backward=*/false);
  const AttentionResult result =
      cpu_block_kernel().forward(in.tokens("query"), in.tokens("key"), in.tokens("value"),
                                 in.spec(q.size(1), k.size(1), q.size(3)), {block});
  return {as_cudnn(result.out_TNH, q),
          result.lse_NT.to(at::kFloat).view({1, q.size(1), q.size(2), 1}),
          Tensor(),
          Tensor(),
          q.size(2),
          k.size(2)};
}

std::vector<c10::IValue> lent_cudnn_backward(const OperatorArguments& in) {
  const Tensor q = in.tensor("query"), k = in.tensor("key");
  const Block block = cudnn_block(q, k, in.causal(), /*is_backward=*/true);
  const AttentionGradients gradients = cpu_block_kernel().backward(
      {in.tokens("grad_out"), in.tokens("query"), in.tokens("key"), in.tokens("value"),
       in.tokens("out"), in.wide("logsumexp").view({q.size(1), q.size(2)})},
      in.spec(q.size(1), k.size(1), q.size(3)), {block});
  return {as_cudnn(gradients.dq_TNH, q), as_cudnn(gradients.dk_SMH, q),
          as_cudnn(gradients.dv_SMH, q)};
}

/// Segments of flash attention 2, whose last query is aligned with the last key.
std::vector<Block> lent_segments_of(const OperatorArguments& in) {
  std::vector<Block> blocks;
  const auto end = [&](const char* of, int64_t i) { return in.tensor(of)[i].item<int64_t>(); };
  for (int64_t i = 0; i + 1 < in.tensor("cum_seq_q").size(0); ++i) {
    const int64_t q = end("cum_seq_q", i), k = end("cum_seq_k", i);
    Block block{q, end("cum_seq_q", i + 1) - q, k, end("cum_seq_k", i + 1) - k, in.causal()};
    const int64_t ahead = block.k_length - block.q_length;
    if (block.causal) block.offset = ahead;
    if (in.of("window_size_left").isInt() && in.of("window_size_left").toInt() >= 0) {
      block.lower = ahead - in.of("window_size_left").toInt();
    }
    blocks.push_back(block);
  }
  return blocks;
}

AttentionSpec lent_flash_spec(const OperatorArguments& in) {
  const Tensor q = in.tensor("query");
  return in.spec(q.size(1), in.tensor("key").size(1), q.size(2));
}

std::vector<c10::IValue> lent_flash_forward(const OperatorArguments& in) {
  const AttentionResult result =
      cpu_block_kernel().forward(in.wide("query"), in.wide("key"), in.wide("value"),
                                 lent_flash_spec(in), lent_segments_of(in));
  return {result.out_TNH.to(in.tensor("query").scalar_type()), result.lse_NT.to(at::kFloat)};
}

std::vector<c10::IValue> lent_flash_backward(const OperatorArguments& in) {
  const AttentionGradients gradients =
      cpu_block_kernel().backward({in.wide("grad_out"), in.wide("query"), in.wide("key"),
                                   in.wide("value"), in.wide("out"), in.wide("logsumexp")},
                                  lent_flash_spec(in), lent_segments_of(in));
  const at::ScalarType dtype = in.tensor("query").scalar_type();
  return {gradients.dq_TNH.to(dtype), gradients.dk_SMH.to(dtype), gradients.dv_SMH.to(dtype)};
}

/// cuDNN and flash attention 2 on CPUs, for the object's lifetime. Refuses cuDNN's calls
/// [first, last].
struct LentCudnn {
  explicit LentCudnn(int first = 0, int last = -1)
      : library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__) {
    made_calls.clear();
    first_refused = first;
    last_refused = last;
    lend<lent_cudnn_forward>("_cudnn_attention_forward");
    lend<lent_cudnn_backward>("_cudnn_attention_backward");
    lend<lent_flash_forward>("_flash_attention_forward");
    lend<lent_flash_backward>("_flash_attention_backward");
    take_deferred_warnings();
  }
  template <Compute kCompute>
  void lend(const char* name) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&lent_operator<kCompute>>());
  }
  torch::Library library;
  cudnn::ForCpus for_cpus;
};

const KernelShape kCudnnShape{2, 1, 16, 16};
const std::vector<Block> kLongDocuments{
    {0, 2100, 0, 2100, true}, {2100, 300, 2100, 300, true}, {2400, 2060, 2400, 2060, true}};

void check_cudnn(const KernelCase& one) {
  // As on a GPU (cuda_kernel_test.cpp).
  testing::check_kernel(cuda_block_kernel(), at::kCPU, at::kBFloat16, kCudnnShape, one, 4 * 0x1p-9);
}

TEST_CASE("cudnn attention: long blocks, with short ones and windows of another kernel") {
  for (const KernelCase& one : std::vector<KernelCase>{
           {"one document, filled up", 2100, 2100, {{0, 2100, 0, 2100, true}}},
           {"documents", 4460, 4460, kLongDocuments},
           {"queries without a block", 2300, 2300, {{100, 2100, 0, 2100, true}}},
           {"a step of a ring", 2048, 2304, {{0, 2048, 0, 2304, false}}},
           {"a window beside it",
            4300,
            4300,
            {{0, 2100, 0, 2100, true}, {2100, 2200, 2100, 2200, true, 0, -99}}},
       }) {
    const LentCudnn lent;
    check_cudnn(one);
    CHECK(!made_calls.empty());
    CHECK(take_deferred_warnings().empty());
  }
  CHECK(!cudnn::takes(at::empty({1, 2, 16}, at::kBFloat16), plain_attention(2, 1, 16)));
}

TEST_CASE("cudnn attention: a call refused once is made again") {
  const KernelCase documents{"documents", 4460, 4460, kLongDocuments};
  // The second call of a forward, then of a backward.
  for (const int refused : {1, 3}) {
    const LentCudnn lent(refused, refused);
    check_cudnn(documents);
    CHECK(made_calls.size() == 5);
    CHECK(take_deferred_warnings().empty());
  }
}

TEST_CASE("cudnn attention: a call refused twice gives cuDNN up, and nothing is summed twice") {
  const KernelCase documents{"documents", 4460, 4460, kLongDocuments};
  for (const int refused : {1, 3}) {
    const LentCudnn lent(refused, refused + 1);
    check_cudnn(documents);
    CHECK(made_calls.size() == static_cast<size_t>(refused) + 2);
    const std::vector<std::string> warnings = take_deferred_warnings();
    REQUIRE(warnings.size() == 1);
    CHECK(warnings[0].find("cuDNN refuses attention (Expected mha_graph") != std::string::npos);
  }
}

TEST_CASE("cudnn attention: what a run needs is tried at its start") {
  const LentCudnn lent;
  const AttentionSpec spec = plain_attention(4, 2, 16);
  const std::vector<AttentionOfBlock> of_row{{4, 2, {0, 2500, 0, 2500, true}},
                                             {2, 1, {0, 2048, 512, 2304, false}},
                                             {2, 1, {2048, 2048, 0, 2304, false}},
                                             {4, 2, {0, 1000, 0, 1000, true}}};
  load_attention(cuda_block_kernel(), at::kCPU, at::kBFloat16, {{spec, 2500, of_row}});
  const std::vector<CudnnCall> wanted{
      {2, 1, 2048, 2048, true, false},  {2, 1, 2048, 2048, true, true},
      {2, 1, 2048, 2048, false, false}, {2, 1, 2048, 2048, false, true},
      {4, 2, 2560, 2560, true, false},  {4, 2, 2560, 2560, true, true},
      {2, 1, 2048, 2304, false, false}, {2, 1, 2048, 2304, false, true}};
  CHECK((made_calls == wanted));
  // In shorter rows no block is cuDNN's.
  made_calls.clear();
  load_attention(cuda_block_kernel(), at::kCPU, at::kBFloat16, {{spec, 2047, {}}});
  CHECK(made_calls.empty());
  // Nor has cuDNN a block of 2^31 numbers.
  constexpr int64_t N = 1 << 16;
  load_attention(cuda_block_kernel(), at::kCPU, at::kBFloat16,
                 {{spec, 2047, {{N, N, {0, 2048, 0, 2048, true}}}}});
  CHECK(made_calls.empty());
}

}  // namespace
}  // namespace longspan
