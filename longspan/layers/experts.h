// The experts of a mixture: gated MLPs of the rows that a router sends to them. C: rows, R: rows of
// one expert, D: model dim, I: intermediate dim, K: experts of a row.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "longspan/layers/expert_dispatch.h"
#include "longspan/layers/expert_exchange.h"
#include "longspan/layers/expert_mlp.h"
#include "longspan/layers/layer.h"
#include "longspan/layers/router.h"

namespace longspan {

/// The experts of a chunk's rows, and the rows sorted by expert.
struct RoutedRows {
  Routing routing;
  ExpertDispatch sorted;
};

/// Computes all experts at once in bf16 on a GPU with kernels for experts (grouped_experts.h).
/// Otherwise computes one expert after the other: gathers the expert's rows, runs the expert's MLP,
/// and adds the outputs to the rows' places. Therefore no row is padded, and no tensor of expert
/// width has C K rows.
class Experts {
 public:
  /// `weights`: the weights of all experts or, with an exchange, of this process's experts.
  /// `exchange` (null: this process has all experts) must outlive this object.
  Experts(const MixtureOfExpertsSpec& spec, std::vector<ExpertMlp> weights,
          ExpertExchange* exchange);

  std::vector<Linear*> linears();
  void append_parameters_to(std::vector<at::Tensor>& parameters) const;
  /// Whether the shapes allow a GPU to compute all experts at once, in bf16.
  bool can_be_grouped() const;
  bool are_exchanged() const { return exchange_ != nullptr; }
  const std::vector<ExpertMlp>& weights() const { return weights_; }

  /// For a pass over `num_rows` rows of these options: where kernels compute all experts at once,
  /// and the rows are enough (spec/expert_casts.h), casts matrices and adapters in fp32 to bf16,
  /// once for all gemms of the pass. Gradients go to the parameters that are held.
  void cast_for_pass(int64_t num_rows, const at::TensorOptions& options);

  /// Returns working memory for up to `num_rows` rows; undefined where a GPU has kernels for all
  /// experts at once.
  at::Tensor forward_room(int64_t num_rows, const at::TensorOptions& options) const;
  at::Tensor backward_room(int64_t num_rows, const at::TensorOptions& options) const;

  /// Returns the dispatch that add() and backward() need for rows x. Where experts run one after
  /// the other, the host waits for the dispatch's numbers in add() and backward(), unless `numbers`
  /// gives the numbers of an earlier dispatch of the same rows (ExpertDispatch::numbers()).
  ExpertDispatch dispatch(const at::Tensor& x_CD, const Routing& routing,
                          const std::vector<int64_t>* numbers) const;
  /// Adds the weighted sum over each row's experts to sum_CD, which is fp32 or fp64.
  void add(at::Tensor& sum_CD, const RoutedRows& routed, const at::Tensor& x_CD,
           const RowRange& rows, const at::Tensor& room) const;
  /// Returns d loss / d weights, [C, K]. Adds d loss / d x to dx_CD, and the experts' gradients.
  at::Tensor backward(at::Tensor& dx_CD, const RoutedRows& routed, const at::Tensor& dout_CD,
                      const at::Tensor& x_CD, const RowRange& rows, const at::Tensor& room) const;

 private:
  bool are_grouped(const at::Tensor& x_CD) const;
  at::Tensor room_of(int64_t num_parts, int64_t num_rows, const at::TensorOptions& options) const;
  ExpertMlp weights_for(size_t expert, const at::Tensor& rows_R, int64_t begin,
                        at::ScalarType dtype) const;
  void add_grouped(at::Tensor& sum_CD, const RoutedRows& routed, const at::Tensor& x_CD) const;
  at::Tensor grouped_backward(at::Tensor& dx_CD, const RoutedRows& routed,
                              const at::Tensor& dout_CD, const at::Tensor& x_CD) const;
  at::Tensor outputs_of_arrived(at::Tensor x_SD, const std::vector<int64_t>& counts) const;
  at::Tensor gradients_of_arrived(at::Tensor& dweights_S, at::Tensor x_SD,
                                  const at::Tensor& dout_SD, const at::Tensor& weights_S,
                                  const std::vector<int64_t>& counts) const;
  void add_exchanged(at::Tensor& sum_CD, const RoutedRows& routed, const at::Tensor& x_CD) const;
  at::Tensor exchanged_backward(at::Tensor& dx_CD, const RoutedRows& routed,
                                const at::Tensor& dout_CD, const at::Tensor& x_CD) const;

  MixtureOfExpertsSpec spec_;
  std::vector<ExpertMlp> weights_;
  ExpertExchange* exchange_;
};

}  // namespace longspan
