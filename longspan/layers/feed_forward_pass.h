// A layer's feed-forward sublayer, h + feed_forward(norm(h)), for any FeedForward, in chunks of
// rows. Because of the chunks, no tensor of feed-forward width has all T rows. T: tokens, C: rows
// of a chunk, D: model dim.
#pragma once

#include <utility>
#include <vector>

#include "longspan/layers/layer.h"

namespace longspan {

/// Data that the forward passes to the backward, in addition to h.
struct SavedFeedForward {
  SavedStep rows;                     // empty where the backward recomputes them
  std::vector<SharedChoice> choices;  // one for each chunk
};

/// Returns the sublayer's output. Saves h, the choices and, in rows without tiles, the tensors that
/// the feed-forward saves.
at::Tensor feed_forward_sublayer(const at::Tensor& h_TD, const Layer& layer, const RowContext& row);

/// Returns the sublayer's output without an autograd graph, and the data for
/// feed_forward_backward(). Saves the rows of the feed-forward if `saves`, except for rows with
/// tiles.
std::pair<at::Tensor, SavedFeedForward> feed_forward_forward(const at::Tensor& h_TD,
                                                             const Layer& layer,
                                                             const RowContext& row, bool saves);

/// Returns d loss / d h. Adds gradients of the parameters. Overwrites saved tensors. Recomputes
/// unsaved tensors from h, chunk by chunk.
at::Tensor feed_forward_backward(const at::Tensor& dout_TD, const at::Tensor& h_TD,
                                 SavedFeedForward saved, const Layer& layer, const RowContext& row);

/// Rows of a chunk, and the number of chunks.
int64_t feed_forward_chunk_rows(int64_t num_rows, const Layer& layer, const RowContext& row);
int64_t feed_forward_num_chunks(int64_t num_rows, const Layer& layer, const RowContext& row);

/// The backward, one chunk of C rows at a time.
class FeedForwardBackward {
 public:
  /// `residual`: options of h. `layer` and `row` must outlive this object.
  FeedForwardBackward(const at::TensorOptions& residual, int64_t num_rows, SavedFeedForward saved,
                      const Layer& layer, const RowContext& row);
  /// Writes d loss / d h of rows [begin, begin + C) into dh_CD, which may be dout_CD.
  void chunk(int64_t begin, const at::Tensor& h_CD, const at::Tensor& dout_CD,
             const at::Tensor& dh_CD);
  /// Call after the last chunk: adds the gradient of the norm's weight.
  void finish();

 private:
  const Layer& layer_;
  const RowContext& row_;
  SavedFeedForward saved_;
  int64_t chunk_rows_;
  std::unique_ptr<FeedForward> cast_;  // in the dtype of computation
  at::Tensor room_, dnorm_D_;
  // For a norm after the feed-forward: its gradient, and memory to recompute the output.
  at::Tensor doutput_norm_D_, forward_room_;
  SavedStep again_;
  PreciseSums sums_;
};

}  // namespace longspan
