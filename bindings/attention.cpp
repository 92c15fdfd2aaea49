// Attention over rows that the ranks of a process group share. T: tokens of this rank, N: query
// heads, M: kv heads, H: elements of a query's or key's head, V: elements of a value's head.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/library.h>

#include <tuple>

#include "bindings/attention_context.h"
#include "bindings/registration.h"
#include "longspan/base/user_error.h"
#include "longspan/comm/process_group.h"

namespace longspan {
namespace {

using Ints = at::IntArrayRef;

int64_t rank_in(const std::string& process_group) {
  return process_group.empty() ? 0 : place_in(process_group).rank;
}

Packing packing_of(Ints documents) {
  for (const int64_t length : documents) {
    if (length > 0) continue;
    throw UserError(fmt::format("documents: a length is {}, and lengths must be positive", length));
  }
  return Packing::from_lengths(documents.vec());
}

/// A number of heads, kv heads, elements of keys and of values.
AttentionSpec heads_of(Ints heads) {
  TORCH_CHECK_VALUE(heads.size() == 4, "heads: ", heads.size(), " numbers, and 4 are needed");
  AttentionSpec spec = plain_attention(heads[0], heads[1], heads[2]);
  spec.value_dim = heads[3];
  return spec;
}

std::array<int64_t, 3> three(Ints degrees) {
  TORCH_CHECK_VALUE(degrees.size() == 3, "degrees: ", degrees.size(), " numbers, and 3 are needed");
  return {degrees[0], degrees[1], degrees[2]};
}

void check_shapes(const at::Tensor& q_TNH, const at::Tensor& k_TMH, const at::Tensor& v_TMV,
                  const std::optional<at::Tensor>& sinks_N) {
  const auto fail = [&](const char* limit) {
    throw UserError(fmt::format("attention: q {}, k {}, v {}: {}", q_TNH.sizes(), k_TMH.sizes(),
                                v_TMV.sizes(), limit));
  };
  if (q_TNH.dim() != 3 || k_TMH.dim() != 3 || v_TMV.dim() != 3) {
    fail("each must be [tokens, heads, elements]");
  }
  if (k_TMH.size(0) != q_TNH.size(0) || v_TMV.size(0) != q_TNH.size(0)) {
    fail("all must have the same tokens");
  }
  if (v_TMV.size(1) != k_TMH.size(1) || q_TNH.size(1) % std::max<int64_t>(k_TMH.size(1), 1) != 0) {
    fail("k and v must have the same heads, whose number divides the heads of q");
  }
  if (k_TMH.size(2) != q_TNH.size(2)) fail("q and k must have the same elements of a head");
  for (const at::Tensor& x : {k_TMH, v_TMV}) {
    if (x.scalar_type() != q_TNH.scalar_type() || x.device() != q_TNH.device()) {
      fail("all must have the same dtype and device");
    }
  }
  if (sinks_N && (sinks_N->dim() != 1 || sinks_N->size(0) != q_TNH.size(1))) {
    throw UserError(fmt::format("attention: sinks {} must be one number for each of {} heads",
                                sinks_N->sizes(), q_TNH.size(1)));
  }
}

at::Tensor attend(const at::Tensor& q_TNH, const at::Tensor& k_TMH, const at::Tensor& v_TMV,
                  const std::optional<at::Tensor>& sinks_N, Ints documents,
                  const std::string& group, const std::string& method, Ints degrees, double scale,
                  std::optional<int64_t> window, std::optional<double> softcap, int64_t timeout) {
  return for_python([&] {
    check_shapes(q_TNH, k_TMH, v_TMV, sinks_N);
    AttentionSpec spec = heads_of({q_TNH.size(1), k_TMH.size(1), q_TNH.size(2), v_TMV.size(2)});
    AttentionContext& context =
        context_of({group, method, three(degrees)}, spec, q_TNH.is_cuda(), timeout);
    const Packing packing = packing_of(documents);
    const int64_t num_tokens = q_TNH.size(0) * context.plan.sequence_size;
    if (packing.num_tokens() != num_tokens) {
      throw UserError(fmt::format(
          "attention: {} ranks with {} tokens each hold {}, and the documents of the padded row "
          "have {}: pass the lengths that token_order() returned",
          context.plan.sequence_size, q_TNH.size(0), num_tokens, packing.num_tokens()));
    }
    spec.scale = scale;
    spec.window = window;
    spec.softcap = softcap;
    spec.has_sinks = sinks_N.has_value();
    return context.attention->attend({q_TNH, k_TMH, v_TMV, sinks_N.value_or(at::Tensor())}, spec,
                                     packing);
  });
}

/// Returns, for each token of a rank, the index in the unpadded row (-1: padding), and the lengths
/// of the padded row's documents.
std::tuple<at::Tensor, std::vector<int64_t>> token_order(Ints documents, const std::string& group,
                                                         const std::string& method, Ints degrees,
                                                         Ints heads, int64_t multiple) {
  return for_python([&]() -> std::tuple<at::Tensor, std::vector<int64_t>> {
    const ParallelPlan plan = plan_of({group, method, three(degrees)}, {{heads_of(heads), 1}},
                                      {.num_tokens = 8192, .element_bytes = 4, .cuda = false});
    const TokenOrder order = plan.method->token_order(plan, packing_of(documents), multiple,
                                                      static_cast<int>(rank_in(group)));
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < order.packing.num_documents(); ++i) {
      lengths.push_back(order.packing.length(i));
    }
    return {at::tensor(order.index, at::kLong), lengths};
  });
}

/// `layers`: six numbers for each kind of attention: layers, heads, kv heads, elements of keys and
/// of values, window (0: none). Returns the method, its degrees, and the reason.
std::tuple<std::string, std::vector<int64_t>, std::string> choose(
    const std::string& group, const std::string& mode, Ints degrees, Ints layers,
    int64_t num_tokens, int64_t element_bytes, bool cuda) {
  return for_python([&]() -> std::tuple<std::string, std::vector<int64_t>, std::string> {
    TORCH_CHECK_VALUE(!layers.empty() && layers.size() % 6 == 0, "layers: six numbers for each");
    AttentionLayers kinds;
    for (size_t i = 0; i < layers.size(); i += 6) {
      AttentionSpec spec = heads_of(layers.slice(i + 1, 4));
      if (layers[i + 5] > 0) spec.window = layers[i + 5];
      kinds.emplace_back(spec, layers[i]);
    }
    const ParallelPlan plan =
        plan_of({group, mode, three(degrees)}, kinds,
                {.num_tokens = num_tokens, .element_bytes = element_bytes, .cuda = cuda});
    const std::array<int64_t, 3> chosen = degrees_of(plan);
    return {std::string(plan.method->name), {chosen.begin(), chosen.end()}, plan.reason};
  });
}

void forget(const std::string& group) {
  for_python([&] { forget_contexts(group); });
}

std::string version() { return LONGSPAN_VERSION; }

}  // namespace

TORCH_LIBRARY_FRAGMENT(longspan, library) {
  library.def(
      "attend(Tensor q, Tensor k, Tensor v, Tensor? sinks, int[] documents, str group, "
      "str method, int[] degrees, float scale, int? window, float? softcap, int timeout) -> "
      "Tensor");
  library.def(
      "token_order(int[] documents, str group, str method, int[] degrees, int[] heads, "
      "int multiple) -> (Tensor, int[])",
      token_order);
  library.def(
      "choose(str group, str mode, int[] degrees, int[] layers, int num_tokens, int element_bytes, "
      "bool cuda) -> (str, int[], str)",
      choose);
  library.def("forget(str group) -> ()", forget);
  library.def("version() -> str", version);
}

// Autograd records the steps of the attention. Below autograd the same function records none.
TORCH_LIBRARY_IMPL(longspan, AutogradCPU, library) { library.impl("attend", attend); }
TORCH_LIBRARY_IMPL(longspan, AutogradCUDA, library) { library.impl("attend", attend); }
TORCH_LIBRARY_IMPL(longspan, CPU, library) { library.impl("attend", attend); }
TORCH_LIBRARY_IMPL(longspan, CUDA, library) { library.impl("attend", attend); }

}  // namespace longspan
