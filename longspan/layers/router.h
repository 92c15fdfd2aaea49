// Chooses the experts of each row, and their weights (spec/mixture_of_experts_spec.h). C: rows, D:
// model dim, E: experts, K: experts of a row.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "longspan/spec/mixture_of_experts_spec.h"

namespace longspan {

/// The result of a router. Numbers are fp32, or fp64 for fp64 rows.
struct Routing {
  at::Tensor scores_CE;   // of all experts, for the auxiliary loss
  at::Tensor experts_CK;  // int64, distinct in each row
  at::Tensor weights_CK;
};

class Router {
 public:
  struct Weights {
    at::Tensor weight_ED;
    at::Tensor bias_E;        // added to the logits; undefined: none
    at::Tensor correction_E;  // added for the choice only, not trained; undefined: none
  };
  Router(const MixtureOfExpertsSpec& spec, Weights weights);

  /// Trainable parameters. Some may be undefined.
  std::vector<at::Tensor> parameters() const { return {weights_.weight_ED, weights_.bias_E}; }

  /// Routes rows like transformers, ties included, by ATen's softmax, sigmoid and topk. Weights are
  /// differentiable where autograd is on. `experts_CK`: an earlier choice for these rows;
  /// undefined: a new choice.
  Routing route(const at::Tensor& x_CD, const at::Tensor& experts_CK = {}) const;
  /// Takes d loss / d weights and d loss / d scores (undefined: none). Adds gradients of trained
  /// parameters, and d loss / d x to dx_CD, which is fp32 or fp64.
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
