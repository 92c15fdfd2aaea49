// The experts of a mixture: gated MLPs, each of the rows that a router sends to it.
// C: rows, R: those of one expert, D: model dim, I: intermediate dim, K: experts of a row.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "longspan/layers/expert_dispatch.h"
#include "longspan/layers/expert_exchange.h"
#include "longspan/layers/expert_mlp.h"
#include "longspan/layers/layer.h"
#include "longspan/layers/router.h"

namespace longspan {

/// On a GPU that has kernels for it works on all experts at once (grouped_experts.h), in bf16. Else
/// on one after the other: gathers its rows, computes its gated MLP of them, adds them where they
/// belong. So no row is padded, and nothing as wide as an expert is as long as the rows times the
/// experts of each.
class Experts {
 public:
  /// `weights`: those of all experts, or with an exchange of those that are here. `exchange` (null:
  /// all experts are here) outlives it.
  Experts(const MixtureOfExpertsSpec& spec, std::vector<ExpertMlp> weights,
          ExpertExchange* exchange);

  std::vector<Linear*> linears();
  void append_parameters_to(std::vector<at::Tensor>& parameters) const;
  /// Whether nothing in their shapes keeps a GPU from working on all of them at once, in bf16.
  bool can_be_grouped() const;
  bool are_exchanged() const { return exchange_ != nullptr; }
  const std::vector<ExpertMlp>& weights() const { return weights_; }

  /// Memory to work in, for up to so many rows; undefined where a GPU has kernels for all experts
  /// at once.
  at::Tensor forward_room(int64_t num_rows, const at::TensorOptions& options) const;
  at::Tensor backward_room(int64_t num_rows, const at::TensorOptions& options) const;

  /// What the following two are given for rows x. Where experts are not worked on at once, the host
  /// waits in these two, and not where it has kept the `numbers` of an earlier dispatch of the same
  /// rows (ExpertDispatch::numbers()).
  ExpertDispatch dispatch(const at::Tensor& x_CD, const Routing& routing,
                          const std::vector<int64_t>* numbers) const;
  /// Adds the weighed sum over each row's experts to sum_CD, in fp32 or fp64.
  void add(at::Tensor& sum_CD, const Routing& routing, const ExpertDispatch& sorted,
           const at::Tensor& x_CD, const RowRange& rows, const at::Tensor& room) const;
  /// d loss / d weights, [C, K]. Adds d loss / d x to dx_CD, and the gradients of the experts.
  at::Tensor backward(at::Tensor& dx_CD, const Routing& routing, const ExpertDispatch& sorted,
                      const at::Tensor& dout_CD, const at::Tensor& x_CD, const RowRange& rows,
                      const at::Tensor& room) const;

 private:
  bool are_grouped(const at::Tensor& x_CD) const;
  at::Tensor room_of(int64_t num_parts, int64_t num_rows, const at::TensorOptions& options) const;
  ExpertMlp weights_for(size_t expert, const at::Tensor& rows_R, int64_t begin,
                        at::ScalarType dtype) const;
  void add_grouped(at::Tensor& sum_CD, const Routing& routing, const ExpertDispatch& sorted,
                   const at::Tensor& x_CD) const;
  at::Tensor grouped_backward(at::Tensor& dx_CD, const Routing& routing,
                              const ExpertDispatch& sorted, const at::Tensor& dout_CD,
                              const at::Tensor& x_CD) const;
  at::Tensor outputs_of_arrived(at::Tensor x_SD, const std::vector<int64_t>& counts) const;
  at::Tensor gradients_of_arrived(at::Tensor& dweights_S, at::Tensor x_SD,
                                  const at::Tensor& dout_SD, const at::Tensor& weights_S,
                                  const std::vector<int64_t>& counts) const;
  void add_exchanged(at::Tensor& sum_CD, const Routing& routing, const ExpertDispatch& sorted,
                     const at::Tensor& x_CD) const;
  at::Tensor exchanged_backward(at::Tensor& dx_CD, const Routing& routing,
                                const ExpertDispatch& sorted, const at::Tensor& dout_CD,
                                const at::Tensor& x_CD) const;

  MixtureOfExpertsSpec spec_;
  std::vector<ExpertMlp> weights_;
  ExpertExchange* exchange_;
};

}  // namespace longspan
