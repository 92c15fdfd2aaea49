// Operators for layers other than attention (recurrences, convolutions), and the order of tokens in
// processes without the process group (workers of a data loader).

#include <ATen/ATen.h>
#include <ATen/SavedTensorHooks.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <tuple>

#include "bindings/attention_context.h"
#include "bindings/registration.h"
#include "bindings/second_derivative.h"
#include "bindings/traced.h"
#include "longspan/kernels/fused_op.h"
#include "longspan/layers/gated_delta_net.h"

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

/// Consecutive layers of a row share one object. The object serves both ways.
std::shared_ptr<WholeSequence> whole_sequence_of(AttentionContext& context, Ints documents) {
  Packing packing = row_of(documents);
  if (!context.packing || !(*context.packing == packing)) {
    context.whole_sequence = std::make_shared<WholeSequence>(
        *context.attention, packing, context.attention->sharers(), RecurrentWay::kStates);
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

/// `net`: heads of keys and of values, and the elements of a head of each.
GatedDeltaNetSpec net_of(Ints net, int64_t conv_width) {
  TORCH_CHECK_VALUE(net.size() == 4 && net[0] > 0 && net[1] > 0 && net[1] % net[0] == 0,
                    "net: ", net, ": key heads, value heads that these divide, and elements");
  GatedDeltaNetSpec spec;
  spec.num_key_heads = net[0];
  spec.num_value_heads = net[1];
  spec.key_dim = net[2];
  spec.value_dim = net[3];
  spec.conv_width = conv_width;
  return spec;
}

/// Whether ranks of this plan pass states on. If not, they exchange heads.
bool passes_states(Ints net, int64_t conv_width, const std::string& group,
                   const std::string& method, Ints degrees, Ints heads, int64_t num_tokens,
                   int64_t element_bytes, bool cuda) {
  return for_python([&] {
    const ParallelPlan plan = plan_of(shared_rows(group, method, degrees), {{heads_from(heads), 1}},
                                      {.num_tokens = num_tokens,
                                       .element_bytes = element_bytes,
                                       .cuda = cuda,
                                       .recurrence = net_of(net, conv_width)});
    return plan.recurrent_way == RecurrentWay::kStates;
  });
}

/// The arguments that are no tensors.
struct NetOptions : torch::CustomClassHolder {
  std::vector<int64_t> net, documents, degrees, heads;
  std::string group, method;
  int64_t timeout = 0;

  NetOptions(Ints net, Ints documents, const std::string& group, const std::string& method,
             Ints degrees, Ints heads, int64_t timeout)
      : net(net.vec()),
        documents(documents.vec()),
        degrees(degrees.vec()),
        heads(heads.vec()),
        group(group),
        method(method),
        timeout(timeout) {}

  template <typename Operator, typename... Tensors>
  auto call(const Operator& function, const Tensors&... tensors) const {
    return function.call(tensors..., net, documents, group, method, degrees, heads, timeout);
  }
};

/// The tensors of a layer: outputs of its projections for this rank's tokens, and its parameters.
struct NetTensors {
  at::Tensor x_TJ, a_TN, b_TN;
  at::Tensor conv_J1W, a_log_N, dt_bias_N;

  std::vector<at::Tensor> all() const { return {x_TJ, a_TN, b_TN, conv_J1W, a_log_N, dt_bias_N}; }
};

void check_shapes(const NetTensors& x, const GatedDeltaNetSpec& spec, int64_t num_tokens) {
  const int64_t N = spec.num_value_heads, J = spec.num_channels();
  const auto is = [](const at::Tensor& y, Ints sizes) { return y.sizes() == sizes; };
  TORCH_CHECK_VALUE(is(x.x_TJ, {num_tokens, J}) && is(x.a_TN, {num_tokens, N}) &&
                        is(x.b_TN, {num_tokens, N}) && is(x.conv_J1W, {J, 1, spec.conv_width}) &&
                        is(x.a_log_N, {N}) && is(x.dt_bias_N, {N}),
                    "gated_delta_net: x ", x.x_TJ.sizes(), ", a ", x.a_TN.sizes(), ", b ",
                    x.b_TN.sizes(), ", conv ", x.conv_J1W.sizes(), ", a_log ", x.a_log_N.sizes(),
                    ", dt_bias ", x.dt_bias_N.sizes(), " for ", num_tokens,
                    " tokens of this rank, ", J, " channels and ", N, " value heads");
}

/// The layer adds gradients of its parameters to .grad. Here the layer gets copies of the
/// parameters. The operation that hands x, a and b to the layer is the last one in the backward of
/// the layer, and returns the copies' gradients to autograd.
at::Tensor net_over_row(NetTensors x, const NetOptions& options) {
  // Autocast would round the states.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  AttentionContext& context =
      context_of(shared_rows(options.group, options.method, options.degrees),
                 heads_from(options.heads), x.x_TJ.is_cuda(), options.timeout);
  TORCH_CHECK_VALUE(x.conv_J1W.dim() == 3, "gated_delta_net: conv ", x.conv_J1W.sizes());
  const GatedDeltaNetSpec spec = net_of(options.net, x.conv_J1W.size(2));
  const std::shared_ptr<WholeSequence> row = whole_sequence_of(context, options.documents);
  check_shapes(x, spec, context.packing->num_tokens() / context.plan.sequence_size);
  const std::vector<at::Tensor> all = x.all();
  const bool records = needs_backward(all, {});
  std::vector<at::Tensor> copies;
  for (at::Tensor* parameter : {&x.conv_J1W, &x.a_log_N, &x.dt_bias_N}) {
    const bool trains = records && parameter->requires_grad();
    copies.push_back(*parameter = parameter->detach().requires_grad_(trains));
  }
  if (records) {
    auto given = attach_backward({x.x_TJ.detach(), x.a_TN.detach(), x.b_TN.detach()}, all, {},
                                 [copies](std::vector<at::Tensor> gradients) {
                                   for (const at::Tensor& copy : copies) {
                                     gradients.push_back(copy.grad());
                                   }
                                   return gradients;
                                 });
    x.x_TJ = given[0], x.a_TN = given[1], x.b_TN = given[2];
  }
  const GatedDeltaNet layer(spec,
                            {.in_proj = {},
                             .out_proj = {},
                             .conv1d_J1W = x.conv_J1W,
                             .a_log_N = x.a_log_N,
                             .dt_bias_N = x.dt_bias_N,
                             .norm_V = {}},
                            /*norm_eps=*/0);
  RowContext layer_row{nullptr, *context.packing, {}, x.x_TJ.scalar_type()};
  layer_row.whole_row = row;
  return with_one_derivative(layer.over_row(x.x_TJ, x.a_TN, x.b_TN, layer_row), "gated_delta_net");
}

at::Tensor gated_delta_net(const at::Tensor& x_TJ, const at::Tensor& a_TN, const at::Tensor& b_TN,
                           const at::Tensor& conv_J1W, const at::Tensor& a_log_N,
                           const at::Tensor& dt_bias_N, Ints net, Ints documents,
                           const std::string& group, const std::string& method, Ints degrees,
                           Ints heads, int64_t timeout) {
  const at::NoGradGuard no_grad;
  return for_python([&] {
    return net_over_row({x_TJ, a_TN, b_TN, conv_J1W, a_log_N, dt_bias_N},
                        {net, documents, group, method, degrees, heads, timeout})
        .contiguous();
  });
}

using NetGradients =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

/// Computes the layer again.
NetGradients gated_delta_net_backward(const at::Tensor& dout_TNV, const at::Tensor& x_TJ,
                                      const at::Tensor& a_TN, const at::Tensor& b_TN,
                                      const at::Tensor& conv_J1W, const at::Tensor& a_log_N,
                                      const at::Tensor& dt_bias_N, Ints net, Ints documents,
                                      const std::string& group, const std::string& method,
                                      Ints degrees, Ints heads, int64_t timeout) {
  const NetOptions options(net, documents, group, method, degrees, heads, timeout);
  const auto d =
      gradients_by_replay({x_TJ, a_TN, b_TN, conv_J1W, a_log_N, dt_bias_N}, dout_TNV,
                          [&](const std::vector<at::Tensor>& x) {
                            return for_python([&] {
                              return net_over_row({x[0], x[1], x[2], x[3], x[4], x[5]}, options);
                            });
                          });
  return {d[0].contiguous(), d[1].contiguous(), d[2].contiguous(),
          d[3].contiguous(), d[4].contiguous(), d[5].contiguous()};
}

struct ReplayedNet : torch::autograd::Function<ReplayedNet> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x_TJ,
                            const at::Tensor& a_TN, const at::Tensor& b_TN,
                            const at::Tensor& conv_J1W, const at::Tensor& a_log_N,
                            const at::Tensor& dt_bias_N, c10::intrusive_ptr<NetOptions> options) {
    ctx->save_for_backward({x_TJ, a_TN, b_TN, conv_J1W, a_log_N, dt_bias_N});
    ctx->saved_data["options"] = c10::IValue::make_capsule(options);
    const at::AutoDispatchBelowADInplaceOrView guard;
    return options->call(operator_named<decltype(gated_delta_net)>("longspan::gated_delta_net"),
                         x_TJ, a_TN, b_TN, conv_J1W, a_log_N, dt_bias_N);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    refuse_second_derivative("gated_delta_net");
    const auto options =
        c10::static_intrusive_pointer_cast<NetOptions>(ctx->saved_data["options"].toCapsule());
    const auto x = ctx->get_saved_variables();
    const auto [dx, da, db, dconv, da_log, ddt_bias] = options->call(
        operator_named<decltype(gated_delta_net_backward)>("longspan::gated_delta_net_backward"),
        gradients[0], x[0], x[1], x[2], x[3], x[4], x[5]);
    return {dx, da, db, dconv, da_log, ddt_bias, {}};
  }
};

/// Whether saved tensors go through hooks, as in gradient checkpointing. The single steps of the
/// layer save their tensors without hooks.
bool has_saved_tensor_hooks() {
  return !at::SavedTensorDefaultHooks::get_tls_state().stack.empty();
}

at::Tensor gated_delta_net_and_record(const at::Tensor& x_TJ, const at::Tensor& a_TN,
                                      const at::Tensor& b_TN, const at::Tensor& conv_J1W,
                                      const at::Tensor& a_log_N, const at::Tensor& dt_bias_N,
                                      Ints net, Ints documents, const std::string& group,
                                      const std::string& method, Ints degrees, Ints heads,
                                      int64_t timeout) {
  if (is_traced(x_TJ) || has_saved_tensor_hooks()) {
    return ReplayedNet::apply(
        x_TJ, a_TN, b_TN, conv_J1W, a_log_N, dt_bias_N,
        c10::make_intrusive<NetOptions>(net, documents, group, method, degrees, heads, timeout));
  }
  return for_python([&] {
    return net_over_row({x_TJ, a_TN, b_TN, conv_J1W, a_log_N, dt_bias_N},
                        {net, documents, group, method, degrees, heads, timeout});
  });
}

/// As token_order, for rank `rank` of `size` ranks.
std::tuple<at::Tensor, std::vector<int64_t>> token_order_of(Ints documents, int64_t rank,
                                                            int64_t size, const std::string& method,
                                                            Ints degrees, Ints heads,
                                                            int64_t multiple) {
  return for_python([&]() -> std::tuple<at::Tensor, std::vector<int64_t>> {
    const ParallelPlan plan =
        plan_for(static_cast<int>(size), shared_rows("", method, degrees), {{heads_from(heads), 1}},
                 {.num_tokens = 8192, .element_bytes = 4, .cuda = false}, {});
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
      "passes_states(int[] net, int conv_width, str group, str method, int[] degrees, int[] heads, "
      "int num_tokens, int element_bytes, bool cuda) -> bool",
      passes_states);
  library.def(
      "gated_delta_net(Tensor x, Tensor a, Tensor b, Tensor conv, Tensor a_log, Tensor dt_bias, "
      "int[] net, int[] documents, str group, str method, int[] degrees, int[] heads, "
      "int timeout) -> Tensor");
  library.def(
      "gated_delta_net_backward(Tensor grad, Tensor x, Tensor a, Tensor b, Tensor conv, "
      "Tensor a_log, Tensor dt_bias, int[] net, int[] documents, str group, str method, "
      "int[] degrees, int[] heads, int timeout) -> "
      "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  library.def(
      "token_order_of(int[] documents, int rank, int size, str method, int[] degrees, "
      "int[] heads, int multiple) -> (Tensor, int[])",
      token_order_of);
}

TORCH_LIBRARY_IMPL(longspan, Autograd, library) {
  library.impl("gated_delta_net", gated_delta_net_and_record);
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
  library.impl("gated_delta_net", gated_delta_net);
  library.impl("gated_delta_net_backward", gated_delta_net_backward);
  library.impl("tokens_to_heads", tokens_to_heads);
  library.impl("heads_to_tokens", heads_to_tokens);
}
TORCH_LIBRARY_IMPL(longspan, CUDA, library) {
  library.impl("gated_delta_net", gated_delta_net);
  library.impl("gated_delta_net_backward", gated_delta_net_backward);
  library.impl("tokens_to_heads", tokens_to_heads);
  library.impl("heads_to_tokens", heads_to_tokens);
}

}  // namespace longspan
