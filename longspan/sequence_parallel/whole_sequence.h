// Whole rows for layers that are no attention: recurrences, convolutions, vision.
// t: this rank's tokens, T: tokens of the padded row, N: heads, n: heads of a rank, H, G: numbers
// in a head that goes in and that comes out.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "longspan/attention/whole_row.h"
#include "longspan/comm/group.h"
#include "longspan/data/packing.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/sequence_parallel/row_pieces.h"
#include "longspan/sequence_parallel/sequence_parallel.h"

namespace longspan {

/// Which of all heads a rank works on. Counts differ by one at most.
HeadRange heads_of_rank(int rank, int num_ranks, int64_t num_heads);
/// The key heads, say, that go with these value heads: of `num_others` heads, each of which goes
/// with num_heads / num_others heads in turn, those that go with `heads`.
HeadRange heads_that_go_with(const HeadRange& heads, int64_t num_heads, int64_t num_others);

/// Exchanges the tokens of one row: from ranks that each hold some tokens of all heads, in any
/// order, to ranks that each hold all tokens of some heads, and back. It is made once a row and
/// serves all layers.
class WholeSequence : public WholeRow {
 public:
  /// x_TnH of some heads, all tokens of the padded row in its order -> y_TnG of the same heads.
  /// Differentiable. Where there are fewer heads than ranks it is called with n = 0, too, so that
  /// parameters have gradients (of zeros) and all ranks take part in the same backward.
  using HeadsFunction = std::function<at::Tensor(const at::Tensor& x_TnH, const HeadRange& heads)>;

  /// `strategy` says who holds which token, `packing` is what its token_order() made, and `group`
  /// are the ranks that share a row.
  WholeSequence(const SequenceParallel& strategy, const Packing& packing, Group group,
                RecurrentWay way = RecurrentWay::kHeads);

  /// x_tNH of this rank's tokens -> y_tNG, what `function` makes of each head. Channels are heads
  /// of one number; what belongs together (a head's query, key and value) is concatenated along H.
  ///
  /// Bytes sent by all P ranks together: whole_sequence_volume() in plan/exchange_volume.h.
  at::Tensor over_whole_sequence(const at::Tensor& x_tNH, const HeadsFunction& function) const;

  /// An input with fewer heads than the first sends each rank the heads that go with the rank's
  /// own. One head may go to several ranks. Bytes: whole_row_volume() in plan/exchange_volume.h.
  at::Tensor over_heads(const std::vector<at::Tensor>& inputs,
                        const Function& function) const override;

  /// This rank's consecutive tokens, under RecurrentWay::kStates. Null under kHeads, and for rows
  /// with forks: a second branch does not go on from the token before it.
  const RowPiece* piece() const override { return pieces_ ? &pieces_->piece() : nullptr; }
  at::Tensor to_piece(const at::Tensor& x_tX) const override { return pieces_->to_piece(x_tX); }
  at::Tensor from_piece(const at::Tensor& x_sX) const override { return pieces_->from_piece(x_sX); }
  at::Tensor before_piece(const at::Tensor& x_sX, int64_t size) const override {
    return pieces_->before_piece(x_sX, size);
  }
  at::Tensor state_before(const at::Tensor& transition_NKK,
                          const at::Tensor& state_NKV) const override {
    return pieces_->state_before(transition_NKK, state_NKV);
  }

 private:
  Group group_;
  int64_t num_tokens_;
  /// Where the tokens of rank 0, of rank 1, ... are in the row, and where the tokens of the row are
  /// among those; undefined where the ranks hold the row as it is.
  at::Tensor row_places_T_, gathered_places_T_;
  std::optional<RowPieces> pieces_;
};

}  // namespace longspan
