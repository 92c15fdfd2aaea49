#include "longspan/layers/router.h"

#include <ATen/ATen.h>

#include <limits>
#include <tuple>
#include <utility>

#include "longspan/kernels/gemm.h"
#include "longspan/kernels/linear.h"
#include "longspan/kernels/storage_type.h"

namespace longspan {
namespace {

using Scores = RouterSpec::Scores;

at::Tensor scores_of(Scores kind, const at::Tensor& logits_CE) {
  switch (kind) {
    case Scores::kSoftmax:
    case Scores::kSoftmaxOfChosen:
      return logits_CE.softmax(-1);
    case Scores::kSigmoid:
      return logits_CE.sigmoid();
  }
  TORCH_CHECK(false, "no scores of a router");
}

/// Returns d loss / d x of y = softmax(x), over the last dim.
at::Tensor softmax_backward(const at::Tensor& dy, const at::Tensor& y) {
  return y * (dy - (dy * y).sum(-1, /*keepdim=*/true));
}

/// Returns d loss / d logits of scores_of().
at::Tensor scores_backward(Scores kind, const at::Tensor& dscores, const at::Tensor& scores_CE) {
  switch (kind) {
    case Scores::kSoftmax:
    case Scores::kSoftmaxOfChosen:
      return softmax_backward(dscores, scores_CE);
    case Scores::kSigmoid:
      return dscores * scores_CE * (1 - scores_CE);
  }
  TORCH_CHECK(false, "no scores of a router");
}

}  // namespace

Router::Router(const MixtureOfExpertsSpec& spec, Weights weights)
    : spec_(spec), weights_(std::move(weights)) {}

/// Returns the scores by which experts are chosen.
at::Tensor Router::choice_scores(const at::Tensor& scores_CE) const {
  const RouterSpec& router = spec_.router;
  at::Tensor choice_CE = scores_CE.detach();
  if (const at::Tensor& correction_E = weights_.correction_E; correction_E.defined()) {
    choice_CE = choice_CE + correction_E.detach().to(choice_CE.scalar_type());
  }
  if (router.num_groups == 1) return choice_CE;
  const int64_t C = choice_CE.size(0), G = router.num_groups;
  const at::Tensor choice_CGM = choice_CE.view({C, G, spec_.num_experts / G});
  const at::Tensor best_two = std::get<0>(choice_CGM.topk(2, -1));
  const at::Tensor open = std::get<1>(best_two.sum(-1).topk(router.groups_per_token, -1));
  const at::Tensor closed_CG =
      at::ones({C, G}, choice_CE.options().dtype(at::kBool)).scatter_(1, open, false);
  return choice_CGM.masked_fill(closed_CG.unsqueeze(-1), -std::numeric_limits<double>::infinity())
      .view({C, spec_.num_experts});
}

Routing Router::route(const at::Tensor& x_CD, const at::Tensor& experts_CK) const {
  const RouterSpec& router = spec_.router;
  const auto dtype = arithmetic_dtype(x_CD.scalar_type());
  const at::Tensor& bias_E = weights_.bias_E;
  const at::Tensor logits_CE = at::linear(x_CD.to(dtype), as_input(weights_.weight_ED).to(dtype),
                                          bias_E.defined() ? as_input(bias_E).to(dtype) : bias_E);
  const bool of_chosen = traits_of(router.scores).by_chosen_logits;
  Routing routing;
  routing.scores_CE = scores_of(router.scores, logits_CE);
  const at::Tensor& by_CE = of_chosen ? logits_CE : routing.scores_CE;
  routing.experts_CK = experts_CK.defined()
                           ? experts_CK.to(at::kLong)
                           : std::get<1>(choice_scores(by_CE).topk(spec_.experts_per_token, -1));
  at::Tensor weights_CK = by_CE.gather(1, routing.experts_CK);
  if (of_chosen) {
    weights_CK = weights_CK.softmax(-1);
  } else if (router.normalises) {
    weights_CK = weights_CK / (weights_CK.sum(-1, /*keepdim=*/true) + router.epsilon);
  }
  routing.weights_CK = router.scale == 1.0 ? weights_CK : weights_CK * router.scale;
  return routing;
}

/// Returns the gradient of all logits.
at::Tensor Router::logit_gradients(const Routing& routing, const at::Tensor& dweights_CK,
                                   const at::Tensor& dscores_CE) const {
  const RouterSpec& router = spec_.router;
  const at::Tensor& scores_CE = routing.scores_CE;
  at::Tensor dchosen_CK = dweights_CK * router.scale;
  at::Tensor dscores = dscores_CE.defined() ? dscores_CE.clone() : at::zeros_like(scores_CE);
  if (traits_of(router.scores).by_chosen_logits) {
    dchosen_CK = softmax_backward(dchosen_CK, routing.weights_CK / router.scale);
    return scores_backward(router.scores, dscores, scores_CE)
        .scatter_add_(1, routing.experts_CK, dchosen_CK);
  }
  if (router.normalises) {
    const at::Tensor chosen_CK = scores_CE.gather(1, routing.experts_CK);
    const at::Tensor sum_C1 = chosen_CK.sum(-1, /*keepdim=*/true) + router.epsilon;
    const at::Tensor mean_C1 = (dchosen_CK * chosen_CK).sum(-1, /*keepdim=*/true) / sum_C1;
    dchosen_CK = (dchosen_CK - mean_C1) / sum_C1;
  }
  dscores.scatter_add_(1, routing.experts_CK, dchosen_CK);
  return scores_backward(router.scores, dscores, scores_CE);
}

void Router::backward(const Routing& routing, const at::Tensor& dweights_CK,
                      const at::Tensor& dscores_CE, const at::Tensor& x_CD,
                      at::Tensor& dx_CD) const {
  const at::Tensor dlogits_CE = logit_gradients(routing, dweights_CK, dscores_CE);
  const auto dtype = arithmetic_dtype(x_CD.scalar_type());
  if (weights_.weight_ED.requires_grad()) {
    add_gemm_gradient(weights_.weight_ED, dlogits_CE, x_CD.to(dtype));
  }
  if (const at::Tensor& bias_E = weights_.bias_E; bias_E.defined() && bias_E.requires_grad()) {
    add_gradient(bias_E, at::sum(dlogits_CE, {0}, /*keepdim=*/false, gradient_dtype(bias_E)));
  }
  add_gemm_(dx_CD, dlogits_CE, weights_.weight_ED.detach().to(dtype));
}

}  // namespace longspan
