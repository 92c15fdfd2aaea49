// A layer's feed-forward sublayer, h + feed_forward(norm(h)), over any FeedForward, in chunks of
// rows: no tensor is at once as wide as the feed-forward and as long as the row.
// T: tokens, C: rows of a chunk, D: model dim.
#pragma once

#include <utility>
#include <vector>

#include "longspan/layers/layer.h"

namespace longspan {

/// What the backward gets from the forward beside h.
struct SavedFeedForward {
  SavedStep rows;                     // empty where the backward computes all of it again
  std::vector<SharedChoice> choices;  // of each chunk
};

/// Saves h, what was chosen, and what the feed-forward saves where the row has no tiles.
at::Tensor feed_forward_sublayer(const at::Tensor& h_TD, const Layer& layer, const RowContext& row);

/// The same without a graph, and what its backward gets: rows where `saves`, and the row has no
/// tiles.
std::pair<at::Tensor, SavedFeedForward> feed_forward_forward(const at::Tensor& h_TD,
                                                             const Layer& layer,
                                                             const RowContext& row, bool saves);

/// d loss / d h given d loss / d output, and gradients of the parameters. Overwrites what is saved;
/// where nothing is saved, computes it again from h, chunk by chunk.
at::Tensor feed_forward_backward(const at::Tensor& dout_TD, const at::Tensor& h_TD,
                                 SavedFeedForward saved, const Layer& layer, const RowContext& row);

/// Rows of the chunks in which a feed-forward works.
int64_t feed_forward_chunk_rows(int64_t num_rows, const Layer& layer, const RowContext& row);
int64_t feed_forward_num_chunks(int64_t num_rows, const Layer& layer, const RowContext& row);

/// The backward, a chunk of C rows at a time.
class FeedForwardBackward {
 public:
  /// `residual`: options of h. `layer` and `row` must outlive it.
  FeedForwardBackward(const at::TensorOptions& residual, int64_t num_rows, SavedFeedForward saved,
                      const Layer& layer, const RowContext& row);
  /// d loss / d h of rows [begin, begin + C) into dh_CD, which may be dout_CD.
  void chunk(int64_t begin, const at::Tensor& h_CD, const at::Tensor& dout_CD,
             const at::Tensor& dh_CD);
  /// After the last chunk: the gradient of the norm's weight.
  void finish();

 private:
  const Layer& layer_;
  const RowContext& row_;
  SavedFeedForward saved_;
  int64_t chunk_rows_;
  std::unique_ptr<FeedForward> cast_;  // in the dtype of computation
  at::Tensor room_, dnorm_D_;
  // Of a norm behind the feed-forward: its gradient, and what computes the output again.
  at::Tensor doutput_norm_D_, forward_room_;
  SavedStep again_;
  PreciseSums sums_;
};

}  // namespace longspan
