// A layer's feed-forward sublayer, h + feed_forward(norm(h)), over any FeedForward, in chunks of
// rows: no tensor is at once as wide as the feed-forward and as long as the row.
// T: tokens, C: rows of a chunk, D: model dim.
#pragma once

#include <utility>

#include "longspan/layers/layer.h"

namespace longspan {

/// Saves h, and what the feed-forward saves where the row has no tiles.
at::Tensor feed_forward_sublayer(const at::Tensor& h_TD, const Layer& layer, const RowContext& row);

/// The same without a graph, and, where `saves`, what the backward needs beside h: empty where it
/// needs nothing, and where the row has tiles.
std::pair<at::Tensor, SavedStep> feed_forward_forward(const at::Tensor& h_TD, const Layer& layer,
                                                      const RowContext& row, bool saves);

/// What is saved of these rows; empty where nothing is.
SavedStep saved_rows(const SavedStep& saved, const RowRange& rows);

/// d loss / d h given d loss / d output, and gradients of the parameters. Overwrites what is saved;
/// where nothing is saved, computes it again from h, chunk by chunk.
at::Tensor feed_forward_backward(const at::Tensor& dout_TD, const at::Tensor& h_TD,
                                 const SavedStep& saved, const Layer& layer, const RowContext& row);

/// Rows of the chunks in which a feed-forward works.
int64_t feed_forward_chunk_rows(int64_t num_rows, const Layer& layer, const RowContext& row);
int64_t feed_forward_num_chunks(int64_t num_rows, const Layer& layer, const RowContext& row);

/// The backward, a chunk of C rows at a time.
class FeedForwardBackward {
 public:
  /// `residual`: options of h. `layer` and `row` must outlive it.
  FeedForwardBackward(const at::TensorOptions& residual, int64_t num_rows, bool saved,
                      const Layer& layer, const RowContext& row);
  /// d loss / d h of rows [begin, begin + C) into dh_CD, which may be dout_CD. `saved`: of these
  /// rows, or empty.
  void chunk(int64_t begin, const at::Tensor& h_CD, const at::Tensor& dout_CD,
             const SavedStep& saved, const at::Tensor& dh_CD);
  /// After the last chunk: the gradient of the norm's weight.
  void finish();

 private:
  const Layer& layer_;
  const RowContext& row_;
  std::unique_ptr<FeedForward> cast_;  // in the dtype of computation
  at::Tensor room_, dnorm_D_;
  // Of a norm behind the feed-forward: its gradient, and what computes the output again.
  at::Tensor doutput_norm_D_, forward_room_;
  SavedStep again_;
  PreciseSums sums_;
};

}  // namespace longspan
