// The head and its cross-entropy, without the logits of all rows (kernels/linear_cross_entropy.h).
// T: tokens, L: tokens with a label, D: model dim, V: vocabulary.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/registration.h"
#include "bindings/second_derivative.h"
#include "bindings/traced.h"
#include "longspan/base/user_error.h"
#include "longspan/kernels/fused_op.h"
#include "longspan/kernels/linear_cross_entropy.h"

namespace longspan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using TwoTensors = std::tuple<at::Tensor, at::Tensor>;

void check_head(const at::Tensor& x_TD, const at::Tensor& weight_VD, const at::Tensor& labels_T,
                std::optional<double> softcap) {
  const auto fail = [&](const char* limit) {
    throw UserError(fmt::format("linear_cross_entropy: x {} {}, weight {} {}, labels {} {}: {}",
                                c10::toString(x_TD.scalar_type()), x_TD.sizes(),
                                c10::toString(weight_VD.scalar_type()), weight_VD.sizes(),
                                c10::toString(labels_T.scalar_type()), labels_T.sizes(), limit));
  };
  if (x_TD.dim() != 2 || weight_VD.dim() != 2 || labels_T.dim() != 1) {
    fail("x must be [tokens, dim], weight [vocabulary, dim], labels [tokens]");
  }
  if (x_TD.size(1) != weight_VD.size(1)) fail("x and weight must have the same dim");
  if (x_TD.size(0) != labels_T.size(0)) fail("x and labels must have the same tokens");
  if (!x_TD.is_floating_point() || !weight_VD.is_floating_point()) {
    fail("x and weight must be floating-point");
  }
  if (labels_T.scalar_type() != at::kLong) fail("labels must be int64");
  if (x_TD.device() != weight_VD.device() || x_TD.device() != labels_T.device()) {
    fail("all must be on the same device");
  }
  if (softcap && !(*softcap > 0)) {
    throw UserError(
        fmt::format("linear_cross_entropy: softcap is {}, and must be positive", *softcap));
  }
}

/// The tokens with a label, and their labels. No index: all tokens.
struct LabelledTokens {
  std::optional<at::Tensor> index_L;
  at::Tensor labels_L;

  LabelledTokens(const at::Tensor& labels_T, int64_t ignore_index, int64_t num_classes) {
    const at::Tensor index = labels_T.ne(ignore_index).nonzero().squeeze(1);
    if (index.size(0) < labels_T.size(0)) index_L = index;
    labels_L = of(labels_T);
    if (labels_L.numel() == 0) return;
    const auto [least, most] = at::aminmax(labels_L);
    const int64_t first = least.item<int64_t>(), last = most.item<int64_t>();
    if (first >= 0 && last < num_classes) return;
    throw UserError(fmt::format(
        "linear_cross_entropy: a label is {}, and labels must be ignore_index ({}) or from 0 to {}",
        first < 0 ? first : last, ignore_index, num_classes - 1));
  }

  at::Tensor of(const at::Tensor& x) const {
    return (index_L ? x.index_select(0, *index_L) : x).contiguous();
  }
  /// [T, ...] with zeros for the other tokens.
  at::Tensor spread(const at::Tensor& x, int64_t num_tokens) const {
    if (!index_L) return x;
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes[0] = num_tokens;
    return at::zeros(sizes, x.options()).index_copy_(0, *index_L, x);
  }
};

/// Returns the losses of tokens, [T] in fp32 (fp64 for fp64), and the log-sum-exp of their logits,
/// [T] in fp64.
TwoTensors token_losses(const at::Tensor& x_TD, const at::Tensor& weight_VD,
                        const at::Tensor& labels_T, int64_t ignore_index,
                        std::optional<double> softcap) {
  return for_python([&]() -> TwoTensors {
    const at::NoGradGuard no_grad;
    check_head(x_TD, weight_VD, labels_T, softcap);
    const LabelledTokens labelled(labels_T, ignore_index, weight_VD.size(0));
    const TokenScores scores =
        linear_token_scores(labelled.of(x_TD), weight_VD, labelled.labels_L, {.softcap = softcap});
    const auto dtype = x_TD.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    return {labelled.spread(scores.logprobs_L.neg().to(dtype), x_TD.size(0)),
            labelled.spread(scores.lse_L, x_TD.size(0))};
  });
}

/// Computes the logits again. `trains_weight`: else the weight's gradient is undefined.
TwoTensors recomputed_gradients(const at::Tensor& dlosses_T, const at::Tensor& x_TD,
                                const at::Tensor& weight_VD, const at::Tensor& labels_T,
                                const at::Tensor& lse_T, int64_t ignore_index,
                                std::optional<double> softcap, bool trains_weight) {
  return for_python([&]() -> TwoTensors {
    const at::NoGradGuard no_grad;
    const LabelledTokens labelled(labels_T, ignore_index, weight_VD.size(0));
    // The .grad takes the gradient.
    const at::Tensor weight = weight_VD.detach().requires_grad_(trains_weight);
    const at::Tensor dx =
        linear_token_scores_backward(labelled.of(dlosses_T).neg(), labelled.of(x_TD), weight,
                                     labelled.labels_L, labelled.of(lse_T), {.softcap = softcap});
    return {labelled.spread(dx, x_TD.size(0)).contiguous(),
            trains_weight ? weight.grad().contiguous() : at::Tensor()};
  });
}

TwoTensors token_losses_backward(const at::Tensor& dlosses_T, const at::Tensor& x_TD,
                                 const at::Tensor& weight_VD, const at::Tensor& labels_T,
                                 const at::Tensor& lse_T, int64_t ignore_index,
                                 std::optional<double> softcap) {
  return recomputed_gradients(dlosses_T, x_TD, weight_VD, labels_T, lse_T, ignore_index, softcap,
                              /*trains_weight=*/true);
}

struct TokenLosses : torch::autograd::Function<TokenLosses> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x_TD,
                               const at::Tensor& weight_VD, const at::Tensor& labels_T,
                               int64_t ignore_index, std::optional<double> softcap) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    auto [losses_T, lse_T] = operator_named<decltype(token_losses)>("longspan::token_losses")
                                 .call(x_TD, weight_VD, labels_T, ignore_index, softcap);
    ctx->save_for_backward({x_TD, weight_VD, labels_T, lse_T});
    ctx->mark_non_differentiable({lse_T});
    ctx->saved_data["ignore_index"] = ignore_index;
    ctx->saved_data["softcap"] = softcap;
    return {losses_T, lse_T};
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    refuse_second_derivative("linear_cross_entropy");
    const auto saved = ctx->get_saved_variables();
    if (!is_traced(gradients[0]) && !ctx->needs_input_grad(1)) {
      const auto [dx_TD, none] = recomputed_gradients(
          gradients[0], saved[0], saved[1], saved[2], saved[3],
          ctx->saved_data["ignore_index"].toInt(), ctx->saved_data["softcap"].toOptional<double>(),
          /*trains_weight=*/false);
      return {dx_TD, none, {}, {}, {}};
    }
    const auto [dx_TD, dweight_VD] =
        operator_named<decltype(token_losses_backward)>("longspan::token_losses_backward")
            .call(gradients[0], saved[0], saved[1], saved[2], saved[3],
                  ctx->saved_data["ignore_index"].toInt(),
                  ctx->saved_data["softcap"].toOptional<double>());
    return {dx_TD, dweight_VD, {}, {}, {}};
  }
};

/// The gradients of the sum of losses. Undefined: that of an input without a gradient, and both
/// after the first backward.
struct GradientsOfSum : torch::CustomClassHolder {
  at::Tensor dx_LD, dweight_VD;
};

/// Whether all numbers are equal. On a GPU, where the host would wait for them, the numbers of a
/// tensor that is not expanded count as different.
bool is_uniform(const at::Tensor& x_T) {
  if (x_T.stride(0) == 0) return true;
  if (!x_T.is_cpu()) return false;
  const auto [least, most] = at::aminmax(x_T);
  return least.equal(most);
}

/// TokenLosses for a caller that adds the losses up. The forward, which has the logits, computes
/// the gradients of the sum: three gemms instead of four. The first backward scales them in place.
/// A backward with different gradients of losses, and a second backward, compute the logits again.
struct SummedLosses : torch::autograd::Function<SummedLosses> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_TD,
                            const at::Tensor& weight_VD, const at::Tensor& labels_T,
                            int64_t ignore_index) {
    const LabelledTokens labelled(labels_T, ignore_index, weight_VD.size(0));
    const at::Tensor x_LD = labelled.of(x_TD).detach().requires_grad_(x_TD.requires_grad());
    const at::Tensor weight = weight_VD.detach().requires_grad_(weight_VD.requires_grad());
    std::vector<at::Tensor> nll, lse;
    const auto keep = [&](const LossChunk& chunk) {
      const at::Tensor picked_C1 = chunk.logits_CV.gather(1, chunk.labels_C.unsqueeze(1));
      nll.push_back(chunk.nll_C);
      lse.push_back(chunk.nll_C + picked_C1.squeeze(1));
      return at::ones_like(chunk.nll_C);
    };
    {
      const at::AutoGradMode record(true);
      linear_nll_sum(x_LD, weight, labelled.labels_L, {}, {}, keep).backward();
    }
    auto of_sum = c10::make_intrusive<GradientsOfSum>();
    of_sum->dx_LD = x_LD.grad();
    of_sum->dweight_VD = weight.grad();
    ctx->save_for_backward(
        {x_TD, weight_VD, labels_T, labelled.spread(at::cat(lse), x_TD.size(0))});
    ctx->saved_data["ignore_index"] = ignore_index;
    ctx->saved_data["of_sum"] = c10::IValue::make_capsule(of_sum);
    return labelled.spread(at::cat(nll).to(x_TD.scalar_type()), x_TD.size(0));
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    refuse_second_derivative("linear_cross_entropy");
    const auto saved = ctx->get_saved_variables();
    const int64_t ignore_index = ctx->saved_data["ignore_index"].toInt();
    auto of_sum =
        c10::static_intrusive_pointer_cast<GradientsOfSum>(ctx->saved_data["of_sum"].toCapsule());
    at::Tensor dx = std::exchange(of_sum->dx_LD, {}),
               dweight_VD = std::exchange(of_sum->dweight_VD, {});
    const bool is_first = dx.defined() || dweight_VD.defined();
    if (!is_first || !is_uniform(gradients[0])) {
      dx.reset();
      dweight_VD.reset();
      std::tie(dx, dweight_VD) =
          recomputed_gradients(gradients[0], saved[0], saved[1], saved[2], saved[3], ignore_index,
                               std::nullopt, ctx->needs_input_grad(1));
      return {dx, dweight_VD, {}, {}};
    }
    const at::Tensor factor = gradients[0][0];
    if (dweight_VD.defined()) dweight_VD.mul_(factor);
    if (dx.defined()) {
      dx = LabelledTokens(saved[2], ignore_index, saved[1].size(0))
               .spread(dx.mul_(factor), saved[0].size(0));
    }
    return {dx, dweight_VD, {}, {}};
  }
};

TwoTensors token_losses_and_record(const at::Tensor& x_TD, const at::Tensor& weight_VD,
                                   const at::Tensor& labels_T, int64_t ignore_index,
                                   std::optional<double> softcap) {
  const variable_list both = TokenLosses::apply(x_TD, weight_VD, labels_T, ignore_index, softcap);
  return {both[0], both[1]};
}

/// The losses of token_losses(), for a caller that adds them up.
at::Tensor summed_token_losses(const at::Tensor& x_TD, const at::Tensor& weight_VD,
                               const at::Tensor& labels_T, int64_t ignore_index,
                               std::optional<double> softcap) {
  // Gradients in 16 bits would be rounded before and after the scale.
  const bool precise = x_TD.element_size() >= 4 && x_TD.scalar_type() == weight_VD.scalar_type();
  if (is_traced(x_TD) || softcap || !precise || !needs_backward({x_TD, weight_VD}, {})) {
    return std::get<0>(operator_named<decltype(token_losses)>("longspan::token_losses")
                           .call(x_TD, weight_VD, labels_T, ignore_index, softcap));
  }
  return for_python([&] {
    check_head(x_TD, weight_VD, labels_T, softcap);
    if (labels_T.eq(ignore_index).all().item<bool>()) {
      return std::get<0>(token_losses_and_record(x_TD, weight_VD, labels_T, ignore_index, softcap));
    }
    return SummedLosses::apply(x_TD, weight_VD, labels_T, ignore_index);
  });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(longspan, library) {
  library.def(
      "token_losses(Tensor x, Tensor weight, Tensor labels, int ignore_index, float? softcap) -> "
      "(Tensor, Tensor)");
  library.def(
      "token_losses_backward(Tensor grad, Tensor x, Tensor weight, Tensor labels, Tensor lse, "
      "int ignore_index, float? softcap) -> (Tensor, Tensor)");
  library.def(
      "summed_token_losses(Tensor x, Tensor weight, Tensor labels, int ignore_index, "
      "float? softcap) -> Tensor",
      summed_token_losses);
}
TORCH_LIBRARY_IMPL(longspan, Autograd, library) {
  library.impl("token_losses", token_losses_and_record);
}
TORCH_LIBRARY_IMPL(longspan, CPU, library) {
  library.impl("token_losses", token_losses);
  library.impl("token_losses_backward", token_losses_backward);
}
TORCH_LIBRARY_IMPL(longspan, CUDA, library) {
  library.impl("token_losses", token_losses);
  library.impl("token_losses_backward", token_losses_backward);
}

}  // namespace longspan
