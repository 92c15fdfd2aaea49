// Operators for layers other than attention (recurrences, convolutions), and the order of tokens in
// processes without the process group (workers of a data loader).

#include <ATen/ATen.h>
#include <torch/library.h>

#include <tuple>

#include "bindings/attention_context.h"
#include "bindings/registration.h"

namespace longspan {
namespace {

using Ints = at::IntArrayRef;

AttentionSpec heads_from(Ints heads) {
  TORCH_CHECK_VALUE(heads.size() == 4, "heads: ", heads.size(), " numbers, and 4 are needed");
  AttentionSpec spec = plain_attention(heads[0], heads[1], heads[2]);
  spec.value_dim = heads[3];
  return spec;
}

SharedRows shared_rows(const std::string& group, const std::string& method, Ints degrees) {
  TORCH_CHECK_VALUE(degrees.size() == 3, "degrees: ", degrees.size(), " numbers, and 3 are needed");
  return {group, method, {degrees[0], degrees[1], degrees[2]}};
}

Packing row_of(Ints documents) {
  for (const int64_t length : documents) {
    TORCH_CHECK_VALUE(length > 0, "documents: a length is ", length, ", and must be positive");
  }
  return Packing::from_lengths(documents.vec());
}

/// Consecutive layers of a row share one object.
std::shared_ptr<WholeSequence> whole_sequence_of(AttentionContext& context, Ints documents) {
  Packing packing = row_of(documents);
  if (!context.packing || !(*context.packing == packing)) {
    context.whole_sequence = std::make_shared<WholeSequence>(
        *context.attention, packing, context.attention->sharers(), RecurrentWay::kHeads);
    context.packing = std::move(packing);
  }
  return context.whole_sequence;
}

std::vector<at::Tensor> tokens_to_heads(at::TensorList inputs, Ints documents,
                                        const std::string& group, const std::string& method,
                                        Ints degrees, Ints heads, int64_t timeout) {
  return for_python([&] {
    AttentionContext& context = context_of(shared_rows(group, method, degrees), heads_from(heads),
                                           inputs.at(0).is_cuda(), timeout);
    return whole_sequence_of(context, documents)->to_heads(inputs.vec());
  });
}

at::Tensor heads_to_tokens(const at::Tensor& y_TnG, int64_t num_heads, Ints documents,
                           const std::string& group, const std::string& method, Ints degrees,
                           Ints heads, int64_t timeout) {
  return for_python([&] {
    AttentionContext& context = context_of(shared_rows(group, method, degrees), heads_from(heads),
                                           y_TnG.is_cuda(), timeout);
    return whole_sequence_of(context, documents)->to_tokens(y_TnG, num_heads);
  });
}

/// Returns the first head and the number of heads of `rank`, of `num_heads` heads, and the same for
/// the heads among `num_others` that belong to these.
std::tuple<int64_t, int64_t, int64_t, int64_t> share_of_heads(int64_t rank, int64_t size,
                                                              int64_t num_heads,
                                                              int64_t num_others) {
  const HeadRange heads = heads_of_rank(static_cast<int>(rank), static_cast<int>(size), num_heads);
  const HeadRange others = heads_that_go_with(heads, num_heads, num_others);
  return {heads.begin, heads.count, others.begin, others.count};
}

/// As token_order, for rank `rank` of `size` ranks.
std::tuple<at::Tensor, std::vector<int64_t>> token_order_of(Ints documents, int64_t rank,
                                                            int64_t size, const std::string& method,
                                                            Ints degrees, Ints heads,
                                                            int64_t multiple) {
  return for_python([&]() -> std::tuple<at::Tensor, std::vector<int64_t>> {
    const ParallelPlan plan =
        plan_for(static_cast<int>(size), shared_rows("", method, degrees), {{heads_from(heads), 1}},
                 {.num_tokens = 8192, .element_bytes = 4, .cuda = false});
    const TokenOrder order =
        plan.method->token_order(plan, row_of(documents), multiple, static_cast<int>(rank));
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < order.packing.num_documents(); ++i) {
      lengths.push_back(order.packing.length(i));
    }
    return {at::tensor(order.index, at::kLong), lengths};
  });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(longspan, library) {
  library.def(
      "tokens_to_heads(Tensor[] inputs, int[] documents, str group, str method, int[] degrees, "
      "int[] heads, int timeout) -> Tensor[]");
  library.def(
      "heads_to_tokens(Tensor y, int num_heads, int[] documents, str group, str method, "
      "int[] degrees, int[] heads, int timeout) -> Tensor");
  library.def(
      "share_of_heads(int rank, int size, int num_heads, int num_others) -> (int, int, int, int)",
      share_of_heads);
  library.def(
      "token_order_of(int[] documents, int rank, int size, str method, int[] degrees, "
      "int[] heads, int multiple) -> (Tensor, int[])",
      token_order_of);
}

TORCH_LIBRARY_IMPL(longspan, AutogradCPU, library) {
  library.impl("tokens_to_heads", tokens_to_heads);
  library.impl("heads_to_tokens", heads_to_tokens);
}
TORCH_LIBRARY_IMPL(longspan, AutogradCUDA, library) {
  library.impl("tokens_to_heads", tokens_to_heads);
  library.impl("heads_to_tokens", heads_to_tokens);
}
TORCH_LIBRARY_IMPL(longspan, CPU, library) {
  library.impl("tokens_to_heads", tokens_to_heads);
  library.impl("heads_to_tokens", heads_to_tokens);
}
TORCH_LIBRARY_IMPL(longspan, CUDA, library) {
  library.impl("tokens_to_heads", tokens_to_heads);
  library.impl("heads_to_tokens", heads_to_tokens);
}

}  // namespace longspan
