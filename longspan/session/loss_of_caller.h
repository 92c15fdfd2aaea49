// A loss that a program gives to a session, instead of a stage's loss. T: tokens of this rank, L:
// labels among them, D: model dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "longspan/stages/objective.h"

namespace longspan {

/// Inputs of a loss for one row, on one rank of its sequence group. Labels are in row order; a rank
/// may have none.
struct LossInput {
  const Row& row;
  /// [L] int64: places of the labels in row.local.
  /// row.local.columns.at(name).values.index_select(0, places_L) is a column's value at the token
  /// that predicts the label.
  at::Tensor places_L;
  at::Tensor logprobs_L;  // log p of each label, fp64; undefined if hidden states are asked for
  at::Tensor hidden_LD;   // final hidden states that predict the labels; undefined otherwise
  /// Sums over the ranks of the row; its backward is the identity.
  std::function<at::Tensor(const at::Tensor&)> sum_over_row;
};

/// A caller's loss. The rows' gradients are summed, so `of_row` must divide by denominators of the
/// global batch (Session::sum_over_groups).
struct LossOfCaller {
  enum class Reads { kLogprobs, kHiddenStates };
  Reads reads = Reads::kLogprobs;
  /// Returns a scalar. It must have an autograd graph to the input even if there are no labels, for
  /// example by logprobs_L.sum().
  std::function<at::Tensor(const LossInput&)> of_row;
  /// True if `of_row` returns the whole row's loss on every rank of the row (made of results of
  /// sum_over_row); false if it returns the part of this rank's labels.
  bool whole_row = false;
};

/// The interface of a stage to the loss. `context` and `loss` must outlive it.
std::unique_ptr<Objective> objective_of_caller(const ObjectiveContext& context,
                                               const LossOfCaller& loss);

}  // namespace longspan
