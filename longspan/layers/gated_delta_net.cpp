#include "longspan/layers/gated_delta_net.h"

#include <ATen/ATen.h>

#include <string>
#include <utility>
#include <vector>

#include "longspan/attention/whole_row.h"
#include "longspan/kernels/causal_conv.h"
#include "longspan/kernels/delta_rule_gates.h"
#include "longspan/kernels/fused_op.h"
#include "longspan/kernels/gated_delta_rule.h"
#include "longspan/kernels/linear.h"
#include "longspan/kernels/storage_type.h"
#include "longspan/layers/plain_steps.h"
#include "longspan/layers/recurrent_row.h"
#include "longspan/memory/transfer.h"

namespace longspan {
namespace {

/// The recurrence of some value heads and their key heads.
struct Recurrence {
  const GatedDeltaNetSpec& spec;
  const GatedDeltaNet::Weights& weights;

  /// Returns the convolution's rows for these heads.
  ParameterRows channels(const HeadRange& keys, const HeadRange& values) const {
    const int64_t K = spec.key_dim, V = spec.value_dim, all = spec.num_queries();
    return {weights.conv1d_J1W,
            {{keys.begin * K, keys.count * K},
             {all + keys.begin * K, keys.count * K},
             {2 * all + values.begin * V, values.count * V}}};
  }

  /// Queries and keys of heads. Where a key head's value heads are only partly here, each value
  /// head gets a copy.
  struct KeyHeads {
    int64_t m, K;
    at::Tensor of_values_n;  // undefined: no copies

    at::Tensor operator()(const at::Tensor& x_TK) const {
      const at::Tensor x_TmK = x_TK.unflatten(1, {m, K});
      return of_values_n.defined() ? x_TmK.index_select(1, of_values_n) : x_TmK;
    }
  };
  KeyHeads key_heads(const HeadRange& keys, const HeadRange& values, at::Device device) const {
    const int64_t per_key = spec.num_value_heads / spec.num_key_heads;
    KeyHeads heads{keys.count, spec.key_dim, {}};
    if (values.begin % per_key == 0 && values.count % per_key == 0) return heads;
    heads.of_values_n = sent_to(at::arange(values.begin, values.begin + values.count, at::kLong)
                                    .floor_divide(per_key)
                                    .sub_(keys.begin),
                                device);
    return heads;
  }

  DeltaRuleGates gates(const at::Tensor& a_Tn, const at::Tensor& b_Tn,
                       const HeadRange& values) const {
    const auto some = [&](const at::Tensor& parameter) {
      return ParameterRows{parameter, {{values.begin, values.count}}};
    };
    return delta_rule_gates(a_Tn, b_Tn, some(weights.a_log_N), some(weights.dt_bias_N));
  }

  /// Splits the convolution's output into inputs of the rule.
  DeltaRuleInputs inputs(const at::Tensor& y_Tj, const DeltaRuleGates& gates, const KeyHeads& heads,
                         int64_t n) const {
    const int64_t keys = heads.m * spec.key_dim, values = n * spec.value_dim;
    return {heads(y_Tj.narrow(1, 0, keys)), heads(y_Tj.narrow(1, keys, keys)),
            y_Tj.narrow(1, 2 * keys, values).unflatten(1, {n, spec.value_dim}), gates.g_TN,
            gates.beta_TN};
  }

  /// Some heads of all tokens of a row: their channels and gates.
  struct SomeHeads {
    HeadRange keys, values;
    at::Tensor x_Tj, a_Tn, b_Tn;
  };

  /// Returns [T, n, V].
  at::Tensor over_heads(const SomeHeads& some, const Packing& row, RecurrentMemory* memory) const {
    const HeadRange &keys = some.keys, &values = some.values;
    const at::Tensor& x_Tj = some.x_Tj;
    const auto [g_Tn, beta_Tn] = gates(some.a_Tn, some.b_Tn, values);
    const ParameterRows conv = channels(keys, values);
    const KeyHeads heads = key_heads(keys, values, x_Tj.device());
    const Stretch stretch = [&](const std::vector<at::Tensor>& parts, const Packing& packing,
                                const CarriedStates& before) -> StretchResult {
      // Without training, fewer tokens than this are not worth the matrices of a chunk.
      constexpr int64_t kFewTokens = 8;
      const at::Tensor y_Tj = causal_conv_silu(parts[0], conv, packing, before.window_PJ);
      const DeltaRuleInputs all = inputs(y_Tj, {parts[1], parts[2]}, heads, values.count);
      const bool by_token = memory != nullptr && packing.num_tokens() <= kFewTokens;
      const DeltaRuleResult result = by_token
                                         ? gated_delta_rule_by_token(all, packing, before.state_NKV)
                                         : gated_delta_rule(all, packing, before.state_NKV);
      return {result.out_TNV,
              {last_rows(parts[0], before.window_PJ, spec.conv_width - 1), result.state_NKV}};
    };
    const std::vector<at::Tensor> all{x_Tj, g_Tn, beta_Tn};
    return memory == nullptr ? over_stretches(all, row, stretch)
                             : over_remembered(all, row, *memory, stretch);
  }

  /// Returns the output of a slice of the row, all heads, with the states from earlier slices: [s,
  /// N, V].
  at::Tensor over_slice(const at::Tensor& x_sJ, const at::Tensor& a_sN, const at::Tensor& b_sN,
                        const WholeRow& row) const {
    const int64_t N = spec.num_value_heads, K = spec.key_dim, V = spec.value_dim;
    const int64_t s = x_sJ.size(0);
    const HeadRange all_keys{0, spec.num_key_heads}, all_values{0, N};
    const RowSlice& slice = *row.slice();
    const at::Tensor window_PJ = row.before_slice(x_sJ, spec.conv_width - 1);
    const at::Tensor y_sJ =
        causal_conv_silu(x_sJ, channels(all_keys, all_values), slice.packing, window_PJ);
    const DeltaRuleInputs all = inputs(y_sJ, gates(a_sN, b_sN, all_values),
                                       key_heads(all_keys, all_values, x_sJ.device()), N);
    const auto part = [&](int64_t begin, int64_t size) -> DeltaRuleInputs {
      return {all.q_TMK.narrow(0, begin, size), all.k_TMK.narrow(0, begin, size),
              all.v_TNV.narrow(0, begin, size), all.g_TN.narrow(0, begin, size),
              all.beta_TN.narrow(0, begin, size)};
    };
    if (slice.num_before == 0) {
      const DeltaRuleResult result = gated_delta_rule(all, slice.packing, {});
      const at::Tensor nothing_NKK = at::zeros({N, K, K}, result.state_NKV.options());
      return after(result.out_TNV, row.state_before(nothing_NKK, result.state_NKV));
    }
    // Output and state are linear in the state before the slice. The first document gets K more
    // value columns of zeros, whose state begins as the identity. Their final state is the matrix
    // by which the slice maps its state.
    const int64_t first = slice.packing.length(0);
    DeltaRuleInputs entered = part(0, first);
    const auto options =
        x_sJ.options().dtype(arithmetic_dtype(x_sJ.scalar_type())).requires_grad(false);
    entered.v_TNV = at::cat(
        {entered.v_TNV.to(arithmetic_dtype(x_sJ.scalar_type())), at::zeros({first, N, K}, options)},
        2);
    const at::Tensor initial_NKX =
        at::cat({at::zeros({N, K, V}, options), at::eye(K, options).expand({N, K, K})}, 2);
    const DeltaRuleResult map = gated_delta_rule(entered, Packing::single(first), initial_NKX);
    at::Tensor transition_NKK = map.state_NKV.narrow(2, V, K),
               state_NKV = map.state_NKV.narrow(2, 0, V);
    std::vector<at::Tensor> outs;
    if (first < s) {
      std::vector<int64_t> lengths;
      for (int64_t d = 1; d < slice.packing.num_documents(); ++d) {
        lengths.push_back(slice.packing.length(d));
      }
      const DeltaRuleResult rest =
          gated_delta_rule(part(first, s - first), Packing::from_lengths(lengths), {});
      outs.push_back(rest.out_TNV);
      transition_NKK = at::zeros({N, K, K}, options);
      state_NKV = rest.state_NKV;
    }
    const at::Tensor before_NKV = row.state_before(transition_NKK, state_NKV);
    // A split has its gradient in one tensor; each part of two would have one of the whole size.
    const std::vector<at::Tensor> out = map.out_TNV.split_with_sizes({V, K}, 2);
    const at::Tensor carried_NsV = at::bmm(out[1].transpose(0, 1), before_NKV);
    const at::Tensor entered_sNV = out[0] + carried_NsV.transpose(0, 1);
    outs.insert(outs.begin(), entered_sNV.to(x_sJ.scalar_type()));
    return at::cat(outs);
  }

 private:
  /// Returns x. Its backward also gives y a zero gradient, so that every process enters the
  /// backward of the collective that made y.
  static at::Tensor after(const at::Tensor& x, const at::Tensor& y) {
    if (!needs_backward({x, y}, {})) return x;
    return attach_backward({x.detach()}, {x, y}, {},
                           [sizes = y.sizes().vec(), options = y.options().requires_grad(false)](
                               std::vector<at::Tensor> gradients) {
                             gradients.push_back(at::zeros(sizes, options));
                             return gradients;
                           })[0];
  }
};

}  // namespace

GatedDeltaNet::GatedDeltaNet(const GatedDeltaNetSpec& spec, Weights weights, double norm_eps)
    : ProjectedMixer(std::exchange(weights.out_proj, {})),
      spec_(spec),
      weights_(std::move(weights)),
      norm_eps_(norm_eps) {}

std::unique_ptr<TokenMixer> GatedDeltaNet::clone() const {
  return std::make_unique<GatedDeltaNet>(*this);
}

std::vector<Linear*> GatedDeltaNet::linears_before() {
  std::vector<Linear*> linears;
  for (Linear& linear : weights_.in_proj) linears.push_back(&linear);
  return linears;
}

std::vector<at::Tensor> GatedDeltaNet::parameters_before() const {
  std::vector<at::Tensor> parameters{weights_.conv1d_J1W, weights_.a_log_N, weights_.dt_bias_N,
                                     weights_.norm_V};
  for (const Linear& linear : weights_.in_proj) append_parameters(parameters, {&linear});
  return parameters;
}

int64_t GatedDeltaNet::width() const { return weights_.in_proj[0].weight.size(0); }

at::Tensor GatedDeltaNet::empty_input(int i, int64_t num_rows,
                                      const at::TensorOptions& options) const {
  return at::empty({num_rows, weights_.in_proj.at(i).weight.size(0)}, options);
}

at::Tensor GatedDeltaNet::input(int i, at::Tensor room, const InputRows& x,
                                SavedStep* /*saved*/) const {
  weights_.in_proj.at(i).for_rows(x.rows.begin, x.rows.size).forward_out(room, x.x_CD);
  return room;
}

void GatedDeltaNet::input_backward(int i, const at::Tensor& dinput_C, const InputRows& x,
                                   const SavedStep* /*saved*/, at::Tensor* dx_CD) const {
  weights_.in_proj.at(i).for_rows(x.rows.begin, x.rows.size).backward(dinput_C, x.x_CD, dx_CD);
}

GatedDeltaNet::Parts GatedDeltaNet::parts_of(const std::vector<at::Tensor>& inputs) const {
  const int64_t M = spec_.num_key_heads, N = spec_.num_value_heads;
  const int64_t K = spec_.key_dim, V = spec_.value_dim, per_key = N / M;
  const auto part = [](const at::Tensor& x_TMH, int64_t begin, int64_t size) {
    return x_TMH.narrow(2, begin, size).flatten(1);
  };
  switch (spec_.projections) {
    case GatedDeltaNetSpec::Projections::kApart:
      return {inputs[0], inputs[1].unflatten(1, {N, V}), inputs[2], inputs[3]};
    case GatedDeltaNetSpec::Projections::kByKeyHeads: {
      const at::Tensor all = inputs[0].unflatten(1, {M, 2 * (K + per_key * V)}),
                       gates = inputs[1].unflatten(1, {M, 2 * per_key});
      return {at::cat({part(all, 0, K), part(all, K, K), part(all, 2 * K, per_key * V)}, 1),
              part(all, 2 * K + per_key * V, per_key * V).unflatten(1, {N, V}),
              part(gates, 0, per_key), part(gates, per_key, per_key)};
    }
  }
  TORCH_CHECK(false, "no such projections");
}

at::Tensor GatedDeltaNet::over_row(const at::Tensor& x_tJ, const at::Tensor& a_tN,
                                   const at::Tensor& b_tN, const RowContext& row) const {
  const Recurrence recurrence{spec_, weights_};
  const HeadRange all_keys{0, spec_.num_key_heads}, all_values{0, spec_.num_value_heads};
  if (row.whole_row == nullptr) {
    return recurrence.over_heads({all_keys, all_values, x_tJ, a_tN, b_tN}, row.packing, row.memory);
  }
  if (row.whole_row->slice() != nullptr) {
    const int64_t J = spec_.num_channels(), N = spec_.num_value_heads;
    const at::Tensor x_sX = row.whole_row->to_slice(at::cat({x_tJ, a_tN, b_tN}, 1));
    const at::Tensor out_sNV = recurrence.over_slice(x_sX.narrow(1, 0, J), x_sX.narrow(1, J, N),
                                                     x_sX.narrow(1, J + N, N), *row.whole_row);
    return row.whole_row->from_slice(out_sNV.flatten(1)).unflatten(1, {N, spec_.value_dim});
  }
  const int64_t K = spec_.key_dim, V = spec_.value_dim, queries = spec_.num_queries();
  const auto heads = [&](int64_t begin, int64_t count, int64_t dim) {
    return x_tJ.narrow(1, begin, count * dim).unflatten(1, {count, dim});
  };
  // A value head travels with its gates, a key head with its queries.
  const at::Tensor values = at::cat({heads(2 * queries, all_values.count, V), a_tN.unsqueeze(2),
                                     b_tN.unsqueeze(2)},
                                    2),
                   keys =
                       at::cat({heads(0, all_keys.count, K), heads(queries, all_keys.count, K)}, 2);
  return row.whole_row->over_heads({values, keys}, [&](const std::vector<at::Tensor>& some,
                                                       const std::vector<HeadRange>& ranges) {
    const at::Tensor &v_TnG = some[0], &k_TmG = some[1];
    const at::Tensor x_Tj =
        at::cat({k_TmG.narrow(2, 0, K).flatten(1), k_TmG.narrow(2, K, K).flatten(1),
                 v_TnG.narrow(2, 0, V).flatten(1)},
                1);
    return recurrence.over_heads(
        {ranges[1], ranges[0], x_Tj, v_TnG.select(2, V), v_TnG.select(2, V + 1)}, row.packing,
        /*memory=*/nullptr);
  });
}

at::Tensor GatedDeltaNet::mix(const std::vector<at::Tensor>& inputs, const RowContext& row) const {
  const Parts parts = parts_of(inputs);
  const at::Tensor out_TNV = over_row(parts.x_TJ, parts.a_TN, parts.b_TN, row);
  return gated_rms_norm(out_TNV, parts.z_TNV, weights_.norm_V, norm_eps_).flatten(1);
}

at::Tensor GatedDeltaNet::plain(const at::Tensor& x_TD, const RowContext& row) const {
  const int64_t T = x_TD.size(0), M = spec_.num_key_heads, N = spec_.num_value_heads;
  const int64_t K = spec_.key_dim, V = spec_.value_dim, W = spec_.conv_width;
  TORCH_CHECK(!row.packing.has_forks(), "plain GatedDeltaNet has no forks");
  std::vector<at::Tensor> projected;
  for (const Linear& linear : weights_.in_proj) {
    projected.push_back(plain_linear(linear, x_TD));
  }
  const auto [x_TJ, z_TNV, b_TN, a_TN] = parts_of(projected);
  const at::Tensor weight_JW = as_input(weights_.conv1d_J1W).squeeze(1);
  std::vector<at::Tensor> rows;
  for (int64_t d = 0; d < row.packing.num_documents(); ++d) {
    for (int64_t t = row.packing.begin(d); t < row.packing.end(d); ++t) {
      at::Tensor sum_J = at::zeros_like(x_TJ[t]);
      for (int64_t w = 0; w < W; ++w) {
        const int64_t from = t - (W - 1) + w;
        if (from >= row.packing.begin(d)) sum_J = sum_J + weight_JW.select(1, w) * x_TJ[from];
      }
      rows.push_back(at::silu(sum_J));
    }
  }
  const at::Tensor y_TJ = at::stack(rows);
  const DeltaRuleInputs inputs{
      y_TJ.narrow(1, 0, M * K).view({T, M, K}), y_TJ.narrow(1, M * K, M * K).view({T, M, K}),
      y_TJ.narrow(1, 2 * M * K, N * V).view({T, N, V}),
      -as_input(weights_.a_log_N).exp() * at::softplus(a_TN + as_input(weights_.dt_bias_N)),
      at::sigmoid(b_TN)};
  const at::Tensor out_TNV = gated_delta_rule_by_token(inputs, row.packing, {}).out_TNV;
  const at::Tensor normal_TNV = plain_norm(out_TNV, weights_.norm_V, NormKind::kWeight, norm_eps_);
  return plain_linear(output_, (normal_TNV * at::silu(z_TNV)).flatten(1));
}

namespace {

/// Names of the projections before the convolution.
std::vector<const char*> names_before(GatedDeltaNetSpec::Projections projections) {
  switch (projections) {
    case GatedDeltaNetSpec::Projections::kApart:
      return {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"};
    case GatedDeltaNetSpec::Projections::kByKeyHeads:
      return {"in_proj_qkvz", "in_proj_ba"};
  }
  TORCH_CHECK(false, "no such projections");
}

}  // namespace

std::shared_ptr<const TokenMixer> make_token_mixer(const GatedDeltaNetSpec& spec,
                                                   const ModelSpec& model,
                                                   const LayerWeights& weights) {
  const std::string module = "linear_attn.";
  GatedDeltaNet::Weights own;
  for (const char* name : names_before(spec.projections))
    own.in_proj.push_back(weights.linear(module + name));
  own.out_proj = weights.linear(module + "out_proj");
  own.conv1d_J1W = weights.parameter(module + "conv1d.weight");
  own.a_log_N = weights.parameter(module + "A_log");
  own.dt_bias_N = weights.parameter(module + "dt_bias");
  own.norm_V = weights.norm(module + "norm");
  return std::make_shared<GatedDeltaNet>(spec, std::move(own), model.norm_eps);
}

}  // namespace longspan
