// A caller's loss: a loss function that a program passes to a session, instead of a stage's loss.
// T: tokens of this rank, L: labels of these tokens, D: model dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "longspan/stages/objective.h"

namespace longspan {

/// Inputs of a loss for one row, on one rank of its sequence group. Labels are in row order. A rank
/// may have no labels.
struct LossInput {
  const Row& row;
  /// [L] int64: indices of the labels in row.local. The value of a column at the tokens that
  /// predict the labels is row.local.columns.at(name).values.index_select(0, places_L).
  at::Tensor places_L;
  at::Tensor logprobs_L;  // log p of each label, fp64; undefined if hidden states are asked for
  at::Tensor hidden_LD;   // final hidden states that predict the labels; undefined otherwise
  /// Sums a tensor over the ranks of the row. The backward is the identity.
  std::function<at::Tensor(const at::Tensor&)> sum_over_row;
};

/// A caller's loss. Gradients of rows are summed without averaging, so `of_row` must divide by
/// denominators of the global batch (Session::sum_over_groups).
struct LossOfCaller {
  enum class Reads { kLogprobs, kHiddenStates };
  Reads reads = Reads::kLogprobs;
  /// Returns the row's loss, a scalar. The scalar must have an autograd graph to the input even
  /// without labels, for example through logprobs_L.sum().
  std::function<at::Tensor(const LossInput&)> of_row;
  /// True if `of_row` returns the whole row's loss on every rank of the row (computed from results
  /// of sum_over_row); false if `of_row` returns the loss of this rank's labels only.
  bool whole_row = false;
};

/// Returns the caller's loss as an Objective, the interface of a stage's loss. `context` and `loss`
/// must outlive the result.
std::unique_ptr<Objective> objective_of_caller(const ObjectiveContext& context,
                                               const LossOfCaller& loss);

}  // namespace longspan
