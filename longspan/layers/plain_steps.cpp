#include "longspan/layers/plain_steps.h"

#include <ATen/ATen.h>

#include <cmath>
#include <stdexcept>

#include "longspan/base/user_error.h"
#include "longspan/kernels/fused_op.h"
#include "longspan/kernels/storage_type.h"

namespace longspan {
namespace {

at::Tensor factors(const at::Tensor& weight, NormKind kind) {
  switch (kind) {
    case NormKind::kWeight:
      return weight;
    case NormKind::kOnePlusWeight:
      return 1 + weight;
  }
  throw std::logic_error("no such norm");
}

/// Rotates all 2F numbers.
at::Tensor turned(const at::Tensor& x_TNJ, const RotaryTable& table) {
  const int64_t F = table.cos_TF.size(1);
  const at::Tensor cos = table.cos_TF.unsqueeze(1), sin = table.sin_TF.unsqueeze(1);
  switch (table.pairs) {
    case RotaryPairs::kHalves: {
      const at::Tensor a = x_TNJ.narrow(2, 0, F), b = x_TNJ.narrow(2, F, F);
      return at::cat({a * cos - b * sin, b * cos + a * sin}, -1);
    }
    case RotaryPairs::kNeighbours: {
      const at::Tensor a = x_TNJ.slice(2, 0, 2 * F, 2), b = x_TNJ.slice(2, 1, 2 * F, 2);
      return at::stack({a * cos - b * sin, b * cos + a * sin}, -1).flatten(2);
    }
  }
  throw std::logic_error("no such pairs of a rotation");
}

/// Returns x W^T + b, for parameters in the dtype of x.
at::Tensor base_product(const Linear& linear, const at::Tensor& weight_OI, const at::Tensor& bias_O,
                        const at::Tensor& x_TI) {
  if (!linear.eight_bits.defined()) return at::linear(x_TI, weight_OI, bias_O);
  const at::Tensor y_TO = at::empty({x_TI.size(0), weight_OI.size(0)}, x_TI.options());
  eight_bit_product_out(y_TO, x_TI.detach(), linear.eight_bits);
  if (bias_O.defined()) y_TO.add_(bias_O.detach());
  if (!needs_backward({x_TI}, {})) return y_TO;
  const auto backward = [weight_OI = weight_OI.detach()](std::vector<at::Tensor> gradients) {
    return std::vector<at::Tensor>{at::mm(gradients[0], weight_OI)};
  };
  return attach_backward({y_TO}, {x_TI}, {}, backward)[0];
}

}  // namespace

at::Tensor plain_linear(const Linear& linear, const at::Tensor& x_TI) {
  TORCH_CHECK(!linear.cast_of, "plain steps take linear layers with the parameters that are held");
  const auto read = [&](const at::Tensor& parameter) {
    return parameter.defined() ? as_input(parameter).to(x_TI.scalar_type()) : parameter;
  };
  const at::Tensor weight_OI = read(linear.weight);
  const at::Tensor y_TO = base_product(linear, weight_OI, read(linear.bias), x_TI);
  if (!linear.has_adapter()) return y_TO;
  at::Tensor kept_TI = x_TI;
  if (linear.dropout.active()) {
    if (linear.dropout.keys_T.numel() != x_TI.size(0)) {
      throw UserError(
          "lora_dropout: a layer of this model gives a linear layer other rows than its own "
          "tokens, whose dropout is not known. Set lora_dropout to 0, or leave that layer out of "
          "lora_target.");
    }
    kept_TI = x_TI * linear.dropout.apply(at::ones_like(x_TI.detach()));
  }
  const at::Tensor inner_TR = at::linear(kept_TI, read(linear.lora_a)) * linear.lora_scale;
  const at::Tensor b_OR = read(linear.lora_b).narrow(0, linear.lora_b_begin, linear.weight.size(0));
  const at::Tensor adapted_TO = at::linear(inner_TR, b_OR);
  if (!linear.magnitude.defined()) return y_TO + adapted_TO;
  const at::Tensor lengths_O = linear.with_lengths().lengths_O;
  const at::Tensor magnitudes_O = linear.own_rows_of(as_input(linear.magnitude));
  const at::Tensor factors_O = (magnitudes_O / lengths_O).to(x_TI.scalar_type());
  const at::Tensor base_TO = at::linear(kept_TI, weight_OI);
  return y_TO - base_TO + factors_O * (base_TO + adapted_TO);
}

at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& weight, NormKind kind, double eps) {
  const auto dtype = arithmetic_dtype(x.scalar_type());
  const at::Tensor wide = x.to(dtype);
  const at::Tensor normal = wide * (wide.square().mean(-1, /*keepdim=*/true) + eps).rsqrt();
  return (normal * factors(as_input(weight).to(dtype), kind)).to(x.scalar_type());
}

at::Tensor plain_rotation(const at::Tensor& x_TNH, const RotaryTable& table) {
  const int64_t J = 2 * table.cos_TF.size(1);
  return at::cat({turned(x_TNH.narrow(2, 0, J), table).to(x_TNH.scalar_type()),
                  x_TNH.narrow(2, J, x_TNH.size(2) - J)},
                 -1);
}

at::Tensor plain_softmax_attention(const at::Tensor& q_TNK, const at::Tensor& k_TMK,
                                   const at::Tensor& v_TMV, const AttentionSpec& attention,
                                   const Packing& packing, const at::Tensor& sinks_N) {
  const int64_t T = q_TNK.size(0), N = q_TNK.size(1);
  const auto by_head = [N](const at::Tensor& x_TMH) {
    return x_TMH.transpose(0, 1).repeat_interleave(N / x_TMH.size(1), /*dim=*/0);  // [N, T, H]
  };
  at::Tensor hidden_TT = at::ones({T, T}, at::kBool);
  for (int64_t d = 0; d < packing.num_documents(); ++d) {
    TORCH_CHECK(packing.tree(d).empty(), "plain attention has no branches");
    const int64_t begin = packing.begin(d), size = packing.length(d);
    const at::Tensor own = hidden_TT.narrow(0, begin, size).narrow(1, begin, size);
    own.triu_(1);
    for (const auto& [first, end] : packing.two_way()) {
      if (first < begin || end > packing.end(d)) continue;
      own.narrow(0, first - begin, end - first).narrow(1, first - begin, end - first).fill_(false);
    }
    if (attention.window) own.logical_or_(at::ones_like(own).tril(-*attention.window));
  }
  at::Tensor scores_NTT =
      at::matmul(by_head(q_TNK), by_head(k_TMK).transpose(1, 2)).mul(attention.scale);
  if (attention.softcap) {
    scores_NTT = *attention.softcap * at::tanh(scores_NTT / *attention.softcap);
  }
  scores_NTT = scores_NTT.masked_fill(hidden_TT.to(q_TNK.device()), -INFINITY);
  if (attention.has_sinks) {  // one more column, whose weight is dropped
    const at::Tensor sinks_NT1 =
        as_input(sinks_N).to(scores_NTT.scalar_type()).view({-1, 1, 1}).expand({-1, T, 1});
    scores_NTT = at::cat({scores_NTT, sinks_NT1}, -1);
  }
  const at::Tensor weights_NTT = scores_NTT.softmax(-1).narrow(2, 0, T);
  return at::matmul(weights_NTT, by_head(v_TMV)).transpose(0, 1);
}

}  // namespace longspan
