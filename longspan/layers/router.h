// Which experts each row goes to, and with what weights (spec/mixture_of_experts_spec.h).
// C: rows, D: model dim, E: experts, K: experts of a row.
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/spec/mixture_of_experts_spec.h"

namespace longspan {

/// Numbers are fp32, fp64 for fp64 rows.
struct Routing {
  at::Tensor scores_CE;
  at::Tensor experts_CK;  // int64, all different in a row
  at::Tensor weights_CK;
};

class Router {
 public:
  /// `bias_E`: of the choice; undefined where the spec has none.
  Router(const MixtureOfExpertsSpec& spec, at::Tensor weight_ED, at::Tensor bias_E);

  const at::Tensor& weight() const { return weight_ED_; }
  const at::Tensor& bias() const { return bias_E_; }

  /// As transformers computes it, ties included: by ATen's own softmax, sigmoid and topk. Weights
  /// are differentiable where autograd is on.
  Routing route(const at::Tensor& x_CD) const;
  /// Given d loss / d weights and d loss / d scores (undefined: none), adds the gradient of the
  /// matrix, where it is trained, and d loss / d x to dx_CD, which is fp32 or fp64.
  void backward(const Routing& routing, const at::Tensor& dweights_CK, const at::Tensor& dscores_CE,
                const at::Tensor& x_CD, at::Tensor& dx_CD) const;

 private:
  at::Tensor choice_scores(const at::Tensor& scores_CE) const;

  MixtureOfExpertsSpec spec_;
  at::Tensor weight_ED_, bias_E_;
};

}  // namespace longspan
