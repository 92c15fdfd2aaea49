// Whole rows for layers other than attention: recurrences, convolutions. t: this rank's tokens, T:
// tokens of the padded row, N: heads, n: heads of a rank, H, G: elements of an input head and an
// output head.
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
/// Returns the heads, among `num_others` heads of another kind (e.g. key heads), that belong to
/// `heads` (e.g. value heads). Each of the `num_others` heads belongs to num_heads / num_others
/// consecutive heads.
HeadRange heads_that_go_with(const HeadRange& heads, int64_t num_heads, int64_t num_others);

/// Exchanges the tokens of one row between two distributions. In one distribution, each rank has
/// some tokens of all heads, in any order. In the other, each rank has all tokens of some heads.
/// One object per row serves all layers.
class WholeSequence : public WholeRow {
 public:
  /// Computes y_TnG from x_TnH of some heads and all tokens of the padded row, in row order.
  /// Differentiable. If there are fewer heads than ranks, some ranks call the function with n = 0,
  /// so that parameters have (zero) gradients and all ranks take part in the same backward.
  using HeadsFunction = std::function<at::Tensor(const at::Tensor& x_TnH, const HeadRange& heads)>;

  /// `strategy` assigns tokens to ranks, `packing` is the padded row of the strategy's
  /// token_order(), and `group` has the ranks that share a row.
  WholeSequence(const SequenceParallel& strategy, const Packing& packing, Group group,
                RecurrentWay way = RecurrentWay::kHeads);

  /// Returns y_tNG, the results of `function` for each head of x_tNH. A channel counts as a head of
  /// one element. Data of one head (query, key and value) are concatenated along H.
  ///
  /// Bytes sent by all P ranks together: whole_sequence_volume() in plan/exchange_volume.h.
  at::Tensor over_whole_sequence(const at::Tensor& x_tNH, const HeadsFunction& function) const;

  /// If another input has fewer heads than the first input, each rank gets the heads that belong to
  /// the rank's heads of the first input. A head may go to several ranks. Bytes for recurrences:
  /// recurrent_volume() in plan/recurrent_volume.h.
  at::Tensor over_heads(const std::vector<at::Tensor>& inputs,
                        const Function& function) const override;
  /// The two steps of over_heads(), for callers whose function runs between them. to_heads()
  /// returns x_TnH of this rank's heads of each input; to_tokens() takes y_TnG of the first input's
  /// heads, of which the layer has `num_heads`.
  std::vector<at::Tensor> to_heads(const std::vector<at::Tensor>& inputs) const;
  at::Tensor to_tokens(const at::Tensor& y_TnG, int64_t num_heads) const;

  /// Returns this rank's slice with RecurrentWay::kStates. Null with kHeads, and for rows with
  /// forks, because the state of a second branch does not continue from the preceding token of the
  /// row.
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
  /// row_places_T_: places in the row of the tokens of rank 0, of rank 1, and so on.
  /// gathered_places_T_: the inverse permutation. Undefined if the ranks hold the row in order.
  at::Tensor row_places_T_, gathered_places_T_;
  std::optional<RowSlices> slices_;
};

}  // namespace longspan
