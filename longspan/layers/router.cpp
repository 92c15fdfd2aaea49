#include "longspan/layers/router.h"

#include <ATen/ATen.h>

#include <limits>
#include <tuple>
#include <utility>

#include "longspan/kernels/gemm.h"
#include "longspan/kernels/linear.h"

namespace longspan {
namespace {

at::ScalarType dtype_for(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace

Router::Router(const MixtureOfExpertsSpec& spec, at::Tensor weight_ED, at::Tensor bias_E)
    : spec_(spec), weight_ED_(std::move(weight_ED)), bias_E_(std::move(bias_E)) {}

/// What experts are chosen by.
at::Tensor Router::choice_scores(const at::Tensor& scores_CE) const {
  const RouterSpec& router = spec_.router;
  at::Tensor choice_CE = scores_CE.detach();
  if (bias_E_.defined()) choice_CE = choice_CE + bias_E_.detach().to(choice_CE.scalar_type());
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

Routing Router::route(const at::Tensor& x_CD) const {
  const RouterSpec& router = spec_.router;
  const auto dtype = dtype_for(x_CD);
  const at::Tensor logits_CE = at::linear(x_CD.to(dtype), weight_ED_.to(dtype));
  Routing routing;
  routing.scores_CE =
      router.scores == RouterSpec::Scores::kSoftmax ? logits_CE.softmax(-1) : logits_CE.sigmoid();
  routing.experts_CK =
      std::get<1>(choice_scores(routing.scores_CE).topk(spec_.experts_per_token, -1));
  at::Tensor weights_CK = routing.scores_CE.gather(1, routing.experts_CK);
  if (router.normalises) {
    weights_CK = weights_CK / (weights_CK.sum(-1, /*keepdim=*/true) + router.epsilon);
  }
  routing.weights_CK = router.scale == 1.0 ? weights_CK : weights_CK * router.scale;
  return routing;
}

void Router::backward(const Routing& routing, const at::Tensor& dweights_CK,
                      const at::Tensor& dscores_CE, const at::Tensor& x_CD,
                      at::Tensor& dx_CD) const {
  const RouterSpec& router = spec_.router;
  const at::Tensor& scores_CE = routing.scores_CE;
  at::Tensor dchosen_CK = dweights_CK * router.scale;
  if (router.normalises) {
    const at::Tensor chosen_CK = scores_CE.gather(1, routing.experts_CK);
    const at::Tensor sum_C1 = chosen_CK.sum(-1, /*keepdim=*/true) + router.epsilon;
    const at::Tensor mean_C1 = (dchosen_CK * chosen_CK).sum(-1, /*keepdim=*/true) / sum_C1;
    dchosen_CK = (dchosen_CK - mean_C1) / sum_C1;
  }
  at::Tensor dscores = dscores_CE.defined() ? dscores_CE.clone() : at::zeros_like(scores_CE);
  dscores.scatter_add_(1, routing.experts_CK, dchosen_CK);
  const at::Tensor dlogits_CE =
      router.scores == RouterSpec::Scores::kSoftmax
          ? scores_CE * (dscores - (dscores * scores_CE).sum(-1, /*keepdim=*/true))
          : dscores * scores_CE * (1 - scores_CE);
  const auto dtype = dtype_for(x_CD);
  if (weight_ED_.requires_grad()) {
    add_product_gradient(weight_ED_, dlogits_CE, x_CD.to(dtype));
  }
  add_gemm_(dx_CD, dlogits_CE, weight_ED_.detach().to(dtype));
}

}  // namespace longspan
