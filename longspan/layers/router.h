// Which experts each row goes to, and with what weights (spec/mixture_of_experts_spec.h).
// C: rows, D: model dim, E: experts, K: experts of a row.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "longspan/spec/mixture_of_experts_spec.h"

namespace longspan {

/// Numbers are fp32, fp64 for fp64 rows.
struct Routing {
  at::Tensor scores_CE;   // of all experts: what the auxiliary loss reads
  at::Tensor experts_CK;  // int64, all different in a row
  at::Tensor weights_CK;
};

class Router {
 public:
  struct Weights {
    at::Tensor weight_ED;
    at::Tensor bias_E;        // of the logits; undefined where the spec has none
    at::Tensor correction_E;  // of the choice, not trained; undefined where the spec has none
  };
  Router(const MixtureOfExpertsSpec& spec, Weights weights);

  /// Those that can be trained; some may be undefined.
  std::vector<at::Tensor> parameters() const { return {weights_.weight_ED, weights_.bias_E}; }

  /// As transformers computes it, ties included: by ATen's own softmax, sigmoid and topk. Weights
  /// are differentiable where autograd is on. `experts_CK`: those that were chosen for these rows
  /// before; undefined: chooses them.
  Routing route(const at::Tensor& x_CD, const at::Tensor& experts_CK = {}) const;
  /// Given d loss / d weights and d loss / d scores (undefined: none), adds the gradients of the
  /// parameters that are trained, and d loss / d x to dx_CD, which is fp32 or fp64.
  void backward(const Routing& routing, const at::Tensor& dweights_CK, const at::Tensor& dscores_CE,
                const at::Tensor& x_CD, at::Tensor& dx_CD) const;

 private:
  at::Tensor choice_scores(const at::Tensor& scores_CE) const;
  at::Tensor logit_gradients(const Routing& routing, const at::Tensor& dweights_CK,
                             const at::Tensor& dscores_CE) const;

  MixtureOfExpertsSpec spec_;
  Weights weights_;
};

}  // namespace longspan
