// Whole rows for layers that are no attention: recurrences, convolutions, vision. t: this rank's
// tokens, T: tokens of the padded row, N: heads, n: heads of a rank, H, G: elements of an input
// head and an output head.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "longspan/attention/whole_row.h"
#include "longspan/comm/group.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/rows/packing.h"
#include "longspan/sequence_parallel/row_slices.h"
#include "longspan/sequence_parallel/sequence_parallel.h"

namespace longspan {

/// Returns the heads that a rank processes. Counts differ by at most one.
HeadRange heads_of_rank(int rank, int num_ranks, int64_t num_heads);
/// Returns those of `num_others` heads (e.g. key heads) that belong to `heads` (e.g. value heads).
/// Each of the others belongs to num_heads / num_others heads.
HeadRange heads_that_go_with(const HeadRange& heads, int64_t num_heads, int64_t num_others);

/// Exchanges the tokens of one row: from ranks that hold some tokens of all heads, in any order, to
/// ranks that hold all tokens of some heads, and back. Made once per row for all layers.
class WholeSequence : public WholeRow {
 public:
  /// Computes y_TnG from x_TnH of some heads and all tokens of the padded row, in row order.
  /// Differentiable. If there are fewer heads than ranks, it is also called with n = 0, so that
  /// parameters have (zero) gradients and all ranks take part in the same backward.
  using HeadsFunction = std::function<at::Tensor(const at::Tensor& x_TnH, const HeadRange& heads)>;

  /// `strategy` assigns tokens to ranks, `packing` is the result of its token_order(), and `group`
  /// are the ranks that share a row.
  WholeSequence(const SequenceParallel& strategy, const Packing& packing, Group group,
                RecurrentWay way = RecurrentWay::kHeads);

  /// Returns y_tNG, the results of `function` for each head of x_tNH. Channels are heads of one
  /// element; data that belong together (a head's query, key and value) are concatenated along H.
  ///
  /// Bytes sent by all P ranks together: whole_sequence_volume() in plan/exchange_volume.h.
  at::Tensor over_whole_sequence(const at::Tensor& x_tNH, const HeadsFunction& function) const;

  /// If an input has fewer heads than the first, each rank gets those that belong to its own heads.
  /// A head may go to several ranks. Bytes for recurrences: recurrent_volume() in
  /// plan/recurrent_volume.h.
  at::Tensor over_heads(const std::vector<at::Tensor>& inputs,
                        const Function& function) const override;

  /// This rank's consecutive tokens with RecurrentWay::kStates. Null with kHeads, and for rows with
  /// forks, since a second branch does not continue from the token before it.
  const RowSlice* slice() const override { return slices_ ? &slices_->slice() : nullptr; }
  at::Tensor to_slice(const at::Tensor& x_tX) const override { return slices_->to_slice(x_tX); }
  at::Tensor from_slice(const at::Tensor& x_sX) const override { return slices_->from_slice(x_sX); }
  at::Tensor before_slice(const at::Tensor& x_sX, int64_t size) const override {
    return slices_->before_slice(x_sX, size);
  }
  at::Tensor state_before(const at::Tensor& transition_NKK,
                          const at::Tensor& state_NKV) const override {
    return slices_->state_before(transition_NKK, state_NKV);
  }

 private:
  Group group_;
  int64_t num_tokens_;
  /// Places in the row of the tokens of rank 0, of rank 1, ..., and the inverse; undefined if the
  /// ranks hold the row in order.
  at::Tensor row_places_T_, gathered_places_T_;
  std::optional<RowSlices> slices_;
};

}  // namespace longspan
