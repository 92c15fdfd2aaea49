// Attention over rows that the ranks of a process group share. T: tokens of this rank, N: query
// heads, M: kv heads, H: elements of a query's or key's head, V: elements of a value's head.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <tuple>

#include "bindings/attention_arguments.h"
#include "bindings/attention_context.h"
#include "bindings/equal_calls.h"
#include "bindings/packing_numbers.h"
#include "bindings/registration.h"
#include "bindings/second_derivative.h"
#include "bindings/traced.h"
#include "longspan/base/user_error.h"
#include "longspan/comm/process_group.h"

namespace longspan {
namespace {

using Ints = at::IntArrayRef;
using MaybeTensor = const std::optional<at::Tensor>&;

int64_t rank_in(const std::string& process_group) {
  return process_group.empty() ? 0 : place_in(process_group).rank;
}

/// A number of heads, kv heads, elements of keys and of values.
AttentionSpec heads_of(Ints heads) {
  TORCH_CHECK_VALUE(heads.size() == 4, "heads: ", heads.size(), " numbers, and 4 are needed");
  for (const int64_t number : heads) {
    TORCH_CHECK_VALUE(number > 0, "heads: num_heads, num_kv_heads, head_dim and value_dim are ",
                      heads, ", and each must be at least 1");
  }
  TORCH_CHECK_VALUE(heads[0] % heads[1] == 0, "heads: num_heads is ", heads[0],
                    ", and must be a multiple of num_kv_heads, ", heads[1]);
  AttentionSpec spec = plain_attention(heads[0], heads[1], heads[2]);
  spec.value_dim = heads[3];
  return spec;
}

std::array<int64_t, 3> three(Ints degrees) {
  TORCH_CHECK_VALUE(degrees.size() == 3, "degrees: ", degrees.size(), " numbers, and 3 are needed");
  return {degrees[0], degrees[1], degrees[2]};
}

/// The method that is named, or the fastest one.
SharedRows chosen(const SharedRows& rows, const AttentionSpec& spec, const PlannedRows& planned,
                  int64_t timeout) {
  if (rows.method != "auto") return rows;
  const ParallelPlan plan = choose_plan(rows, {{spec, 1}}, planned, timeout);
  return {rows.process_group, std::string(plan.method->name), degrees_of(plan)};
}

/// The arguments that are no tensors.
struct AttendOptions : torch::CustomClassHolder {
  std::string group, method;
  std::vector<int64_t> degrees;
  double scale = 0;
  std::optional<int64_t> window;
  std::optional<double> softcap;
  int64_t timeout = 0;

  template <typename Operator, typename... Tensors>
  auto call(const Operator& function, const Tensors&... tensors) const {
    return function.call(tensors..., group, method, degrees, scale, window, softcap, timeout);
  }
};

c10::intrusive_ptr<AttendOptions> options_of(const std::string& group, const std::string& method,
                                             Ints degrees, double scale,
                                             std::optional<int64_t> window,
                                             std::optional<double> softcap, int64_t timeout) {
  auto options = c10::make_intrusive<AttendOptions>();
  options->group = group;
  options->method = method;
  options->degrees = degrees.vec();
  options->scale = scale;
  options->window = window;
  options->softcap = softcap;
  options->timeout = timeout;
  return options;
}

/// `documents`: of the padded or of the unpadded row (packing_numbers.h); empty: one document.
at::Tensor attend_with(const AttentionInputs& inputs, MaybeTensor documents,
                       const AttendOptions& options, AttentionCheckpoint checkpoint) {
  const at::Tensor &q_TNH = inputs.q_TNH, &k_TMH = inputs.k_SMH, &v_TMV = inputs.v_SMH;
  const AttentionArguments arguments{.q_TNH = q_TNH,
                                     .k_TMH = k_TMH,
                                     .v_TMV = v_TMV,
                                     .sinks_N = inputs.sinks_N,
                                     .documents = documents,
                                     .method = options.method,
                                     .degrees = options.degrees,
                                     .scale = options.scale,
                                     .window = options.window,
                                     .softcap = options.softcap};
  require_equal_calls(
      options.group, q_TNH.is_cuda(), options.timeout, [&] { check_arguments(arguments); },
      [&] { return text_of(arguments); });
  AttentionSpec spec = heads_of({q_TNH.size(1), k_TMH.size(1), q_TNH.size(2), v_TMV.size(2)});
  spec.scale = options.scale;
  spec.window = options.window;
  spec.softcap = options.softcap;
  spec.has_sinks = inputs.sinks_N.defined();
  const int64_t size = options.group.empty() ? 1 : place_in(options.group).size;
  const int64_t num_tokens = q_TNH.size(0) * size;
  const Packing row = documents ? packing_of_numbers(*documents) : Packing::single(num_tokens);
  const SharedRows rows = chosen({options.group, options.method, three(options.degrees)}, spec,
                                 {.num_tokens = row.num_tokens(),
                                  .element_bytes = static_cast<int64_t>(q_TNH.element_size()),
                                  .cuda = q_TNH.is_cuda()},
                                 options.timeout);
  AttentionContext& context = context_of(rows, spec, q_TNH.is_cuda(), options.timeout);
  const Packing packing = context.plan.method->padded_row(context.plan, row);
  if (packing.num_tokens() != num_tokens) {
    throw UserError(fmt::format(
        "attention: {} ranks with {} tokens each hold {}, and the documents of the padded row "
        "have {}: pass the lengths that token_order() returned",
        size, q_TNH.size(0), num_tokens, packing.num_tokens()));
  }
  return with_one_derivative(context.attention->attend(inputs, spec, packing, checkpoint),
                             "attention");
}

at::Tensor attend(const at::Tensor& q_TNH, const at::Tensor& k_TMH, const at::Tensor& v_TMV,
                  MaybeTensor sinks_N, MaybeTensor documents, const std::string& group,
                  const std::string& method, Ints degrees, double scale,
                  std::optional<int64_t> window, std::optional<double> softcap, int64_t timeout) {
  return for_python([&] {
    return attend_with({q_TNH, k_TMH, v_TMV, sinks_N.value_or(at::Tensor())}, documents,
                       *options_of(group, method, degrees, scale, window, softcap, timeout), {});
  });
}

at::Tensor attend_only(const at::Tensor& q_TNH, const at::Tensor& k_TMH, const at::Tensor& v_TMV,
                       MaybeTensor sinks_N, MaybeTensor documents, const std::string& group,
                       const std::string& method, Ints degrees, double scale,
                       std::optional<int64_t> window, std::optional<double> softcap,
                       int64_t timeout) {
  const at::NoGradGuard no_grad;
  return attend(q_TNH, k_TMH, v_TMV, sinks_N, documents, group, method, degrees, scale, window,
                softcap, timeout)
      .contiguous();
}

/// The attention results of one checkpointed region. Its forward saves them, and each recomputation
/// replays them, in the same order.
struct SavedResults : torch::CustomClassHolder {
  SavedAttention saved, replayed;
  std::vector<uint32_t> versions;  // of saved outputs
  bool replays = false;
};
using SavedPointer = c10::intrusive_ptr<SavedResults>;

SavedPointer saved_attention() {
  auto results = c10::make_intrusive<SavedResults>();
  results->saved.prefetches = true;
  return results;
}

void replay_attention(const SavedPointer& results) {
  results->replays = true;
  results->replayed = results->saved;
  for (size_t i = 0; i < results->versions.size(); ++i) {
    TORCH_CHECK_VALUE(
        results->saved.results[i].out_TNH._version() == results->versions[i],
        "attention: the output was changed in place after the forward, and gradient "
        "checkpointing saved the output: change a copy, or pass save_attention=False");
  }
}

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

/// Attends again. The gradient of sinks has no elements where there are none.
Gradients attend_backward(const at::Tensor& dout_TNV, const at::Tensor& q_TNH,
                          const at::Tensor& k_TMH, const at::Tensor& v_TMV, MaybeTensor sinks_N,
                          MaybeTensor documents, const std::string& group,
                          const std::string& method, Ints degrees, double scale,
                          std::optional<int64_t> window, std::optional<double> softcap,
                          int64_t timeout) {
  auto d = gradients_by_replay(
      {q_TNH, k_TMH, v_TMV, sinks_N.value_or(at::Tensor())}, dout_TNV,
      [&](const std::vector<at::Tensor>& x) {
        return attend(x[0], x[1], x[2], x[3].defined() ? std::optional(x[3]) : std::nullopt,
                      documents, group, method, degrees, scale, window, softcap, timeout);
      });
  return {d[0].contiguous(), d[1].contiguous(), d[2].contiguous(),
          d[3].defined() ? d[3].contiguous() : at::empty({0}, q_TNH.options())};
}

struct TracedAttention : torch::autograd::Function<TracedAttention> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& q_TNH,
                            const at::Tensor& k_TMH, const at::Tensor& v_TMV, MaybeTensor sinks_N,
                            MaybeTensor documents, c10::intrusive_ptr<AttendOptions> options) {
    ctx->save_for_backward(
        {q_TNH, k_TMH, v_TMV, sinks_N.value_or(at::Tensor()), documents.value_or(at::Tensor())});
    ctx->saved_data["options"] = c10::IValue::make_capsule(options);
    const at::AutoDispatchBelowADInplaceOrView guard;
    return options->call(operator_named<decltype(attend)>("longspan::attend"), q_TNH, k_TMH, v_TMV,
                         sinks_N, documents);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    refuse_second_derivative("attention");
    const auto options =
        c10::static_intrusive_pointer_cast<AttendOptions>(ctx->saved_data["options"].toCapsule());
    const auto saved = ctx->get_saved_variables();
    const auto given = [](const at::Tensor& x) {
      return x.defined() ? std::optional(x) : std::nullopt;
    };
    const auto [dq_TNH, dk_TMH, dv_TMV, dsinks_N] =
        options->call(operator_named<decltype(attend_backward)>("longspan::attend_backward"),
                      gradients[0], saved[0], saved[1], saved[2], given(saved[3]), given(saved[4]));
    return {dq_TNH, dk_TMH, dv_TMV, saved[3].defined() ? dsinks_N : at::Tensor(), {}, {}};
  }
};

at::Tensor attend_and_record(const at::Tensor& q_TNH, const at::Tensor& k_TMH,
                             const at::Tensor& v_TMV, MaybeTensor sinks_N, MaybeTensor documents,
                             const std::string& group, const std::string& method, Ints degrees,
                             double scale, std::optional<int64_t> window,
                             std::optional<double> softcap, int64_t timeout) {
  if (!is_traced(q_TNH)) {
    return attend(q_TNH, k_TMH, v_TMV, sinks_N, documents, group, method, degrees, scale, window,
                  softcap, timeout);
  }
  return TracedAttention::apply(
      q_TNH, k_TMH, v_TMV, sinks_N, documents,
      options_of(group, method, degrees, scale, window, softcap, timeout));
}

/// Attention within a checkpointed region. A tensor without values is recorded, and saves nothing.
at::Tensor attend_saved(const at::Tensor& q_TNH, const at::Tensor& k_TMH, const at::Tensor& v_TMV,
                        MaybeTensor sinks_N, MaybeTensor documents, const std::string& group,
                        const std::string& method, Ints degrees, double scale,
                        std::optional<int64_t> window, std::optional<double> softcap,
                        int64_t timeout, const SavedPointer& results) {
  if (is_symbolic(q_TNH)) {
    return attend_and_record(q_TNH, k_TMH, v_TMV, sinks_N, documents, group, method, degrees, scale,
                             window, softcap, timeout);
  }
  return for_python([&] {
    const AttentionCheckpoint checkpoint = results->replays
                                               ? AttentionCheckpoint::replaying(results->replayed)
                                               : AttentionCheckpoint::saving(results->saved);
    at::Tensor out_TNV = attend_with(
        {q_TNH, k_TMH, v_TMV, sinks_N.value_or(at::Tensor())}, documents,
        *options_of(group, method, degrees, scale, window, softcap, timeout), checkpoint);
    if (!results->replays) {
      for (size_t i = results->versions.size(); i < results->saved.results.size(); ++i) {
        results->versions.push_back(results->saved.results[i].out_TNH._version());
      }
    }
    return out_TNV;
  });
}

/// Returns, for each token of a rank, the index in the unpadded row (-1: padding), and the
/// padded row's documents.
std::tuple<at::Tensor, std::vector<int64_t>> token_order(Ints documents, const std::string& group,
                                                         const std::string& method, Ints degrees,
                                                         Ints heads, int64_t multiple) {
  return for_python([&]() -> std::tuple<at::Tensor, std::vector<int64_t>> {
    TORCH_CHECK_VALUE(multiple > 0, "token_order: multiple is ", multiple,
                      ", and must be at least 1");
    const ParallelPlan plan = plan_of({group, method, three(degrees)}, {{heads_of(heads), 1}},
                                      {.num_tokens = 8192, .element_bytes = 4, .cuda = false});
    const TokenOrder order = plan.method->token_order(plan, packing_of_numbers(documents), multiple,
                                                      static_cast<int>(rank_in(group)));
    return {at::tensor(order.index, at::kLong), numbers_of_packing(order.packing)};
  });
}

/// `layers`: six numbers for each kind of attention: layers, heads, kv heads, elements of keys and
/// of values, window (0: none). Returns the method, its degrees, and the reason.
std::tuple<std::string, std::vector<int64_t>, std::string> choose(
    const std::string& group, const std::string& mode, Ints degrees, Ints layers,
    int64_t num_tokens, int64_t element_bytes, bool cuda, int64_t timeout) {
  return for_python([&]() -> std::tuple<std::string, std::vector<int64_t>, std::string> {
    TORCH_CHECK_VALUE(!layers.empty() && layers.size() % 6 == 0, "layers: six numbers for each");
    AttentionLayers kinds;
    for (size_t i = 0; i < layers.size(); i += 6) {
      AttentionSpec spec = heads_of(layers.slice(i + 1, 4));
      if (layers[i + 5] > 0) spec.window = layers[i + 5];
      kinds.emplace_back(spec, layers[i]);
    }
    const ParallelPlan plan = choose_plan(
        {group, mode, three(degrees)}, kinds,
        {.num_tokens = num_tokens, .element_bytes = element_bytes, .cuda = cuda}, timeout);
    const std::array<int64_t, 3> chosen = degrees_of(plan);
    return {std::string(plan.method->name), {chosen.begin(), chosen.end()}, plan.reason};
  });
}

/// Returns the ranks of a machine (0: all are on one), bytes/s and seconds of a message between
/// machines (0: not measured).
std::vector<double> network(const std::string& group, bool cuda, int64_t timeout) {
  return for_python([&]() -> std::vector<double> {
    const GroupNetwork found = network_of(group, cuda, timeout);
    return {static_cast<double>(found.ranks_per_machine), found.rates.between_bytes,
            found.rates.between_delay};
  });
}

/// `numbers`: as network() returns them.
void set_network(const std::string& group, bool cuda, at::ArrayRef<double> numbers) {
  for_python([&] {
    TORCH_CHECK_VALUE(numbers.size() == 3, "numbers: three of a network");
    GroupNetwork network{.ranks_per_machine = static_cast<int>(numbers[0]), .rates = {}};
    network.rates.between_bytes = numbers[1];
    network.rates.between_delay = numbers[2];
    if (numbers[1] > 0) network.rates.ranks_per_machine = network.ranks_per_machine;
    take_network(group, cuda, network);
  });
}

void forget(const std::string& group) {
  for_python([&] { forget_contexts(group); });
}

std::string version() { return LONGSPAN_VERSION; }

}  // namespace

TORCH_LIBRARY_FRAGMENT(longspan, library) {
  library.def(
      "attend(Tensor q, Tensor k, Tensor v, Tensor? sinks, Tensor? documents, str group, "
      "str method, int[] degrees, float scale, int? window, float? softcap, int timeout) -> "
      "Tensor");
  library.def(
      "attend_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? sinks, "
      "Tensor? documents, str group, str method, int[] degrees, float scale, int? window, "
      "float? softcap, int timeout) -> (Tensor, Tensor, Tensor, Tensor)");
  library.class_<SavedResults>("SavedAttention");
  library.def("saved_attention() -> __torch__.torch.classes.longspan.SavedAttention",
              saved_attention);
  library.def("replay_attention(__torch__.torch.classes.longspan.SavedAttention results) -> ()",
              replay_attention);
  library.def(
      "attend_saved(Tensor q, Tensor k, Tensor v, Tensor? sinks, Tensor? documents, str group, "
      "str method, int[] degrees, float scale, int? window, float? softcap, int timeout, "
      "__torch__.torch.classes.longspan.SavedAttention results) -> Tensor",
      attend_saved);
  library.def(
      "token_order(int[] documents, str group, str method, int[] degrees, int[] heads, "
      "int multiple) -> (Tensor, int[])",
      token_order);
  library.def(
      "choose(str group, str mode, int[] degrees, int[] layers, int num_tokens, int element_bytes, "
      "bool cuda, int timeout) -> (str, int[], str)",
      choose);
  library.def("network(str group, bool cuda, int timeout) -> float[]", network);
  library.def("set_network(str group, bool cuda, float[] numbers) -> ()", set_network);
  library.def("forget(str group) -> ()", forget);
  library.def("version() -> str", version);
}

TORCH_LIBRARY_IMPL(longspan, Autograd, library) { library.impl("attend", attend_and_record); }
TORCH_LIBRARY_IMPL(longspan, CPU, library) {
  library.impl("attend", attend_only);
  library.impl("attend_backward", attend_backward);
}
TORCH_LIBRARY_IMPL(longspan, CUDA, library) {
  library.impl("attend", attend_only);
  library.impl("attend_backward", attend_backward);
}

}  // namespace longspan
