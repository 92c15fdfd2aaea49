// Whole rows for layers that are no attention: recurrences, convolutions, vision.
// t: this rank's tokens, T: tokens of the padded row, N: heads, n: heads of a rank, H, G: numbers
// in a head that goes in and that comes out.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "longspan/comm/group.h"
#include "longspan/data/packing.h"
#include "longspan/sequence_parallel/sequence_parallel.h"

namespace longspan {

/// Which of all heads a rank works on: [begin, begin + count). Counts differ by one at most.
struct HeadRange {
  int64_t begin, count;
  bool operator==(const HeadRange&) const = default;
};
HeadRange heads_of_rank(int rank, int num_ranks, int64_t num_heads);

/// The tokens of one row between the ranks that hold them, in whatever order, and ranks that each
/// hold all tokens of some heads. Made once a row, it serves all layers.
class WholeSequence {
 public:
  /// x_TnH of some heads, all tokens of the padded row in its order -> y_TnG of the same heads.
  /// Differentiable. Where there are fewer heads than ranks it is called with n = 0, too, so that
  /// parameters have gradients (of zeros) and all ranks take part in the same backward.
  using Function = std::function<at::Tensor(const at::Tensor& x_TnH, const HeadRange& heads)>;

  /// `strategy` says who holds which token, `packing` is what its token_order() made, and `group`
  /// are the ranks that share a row.
  WholeSequence(const SequenceParallel& strategy, const Packing& packing, Group group);

  /// x_tNH of this rank's tokens -> y_tNG, what `function` makes of each head. Channels are heads
  /// of one number; what belongs together (a head's query, key and value) is concatenated along H.
  ///
  /// Bytes sent by all P ranks together: whole_sequence_volume() in plan/exchange_volume.h.
  at::Tensor over_whole_sequence(const at::Tensor& x_tNH, const Function& function) const;

 private:
  Group group_;
  int64_t num_tokens_;
  /// Where the tokens of rank 0, of rank 1, ... are in the row, and where the tokens of the row are
  /// among those; undefined where the ranks hold the row as it is.
  at::Tensor row_places_T_, gathered_places_T_;
};

}  // namespace longspan
