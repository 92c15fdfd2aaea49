// What a layer that goes over whole rows (a recurrence, a convolution) knows of where the row is.
// t: this process's tokens, T: tokens of the padded row, s: tokens of its piece, N: heads, n: some
// of them, H, G: numbers in a head that goes in and that comes out, X: numbers of a token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "longspan/data/packing.h"

namespace longspan {

/// Some of a layer's heads: [begin, begin + count).
struct HeadRange {
  int64_t begin, count;
  bool operator==(const HeadRange&) const = default;
};

/// Consecutive tokens of a row.
struct RowPiece {
  Packing packing;  ///< its documents, as far as they are in it
  /// Tokens before the piece that belong to its first document.
  int64_t num_before = 0;
};

/// A row that other processes hold parts of. Made once a row, it serves all layers.
class WholeRow {
 public:
  virtual ~WholeRow() = default;

  /// Of each input x_TnH, the heads that go with some heads of the first input, all tokens in the
  /// row's order -> y_TnG of the first input's heads. Differentiable.
  using Function = std::function<at::Tensor(const std::vector<at::Tensor>& inputs,
                                            const std::vector<HeadRange>& heads)>;
  /// Inputs x_tNH of this process's tokens, in whatever order it holds them -> y_tNG of the same
  /// tokens: what `function` makes of all heads. The first input's number of heads is a multiple of
  /// that of each other input, whose head m goes with the first's heads [m N / M, (m + 1) N / M).
  /// Where there are fewer heads than processes the function is called with n = 0, too, so that
  /// parameters have gradients (of zeros).
  virtual at::Tensor over_heads(const std::vector<at::Tensor>& inputs,
                                const Function& function) const = 0;

  /// The other way: each process goes over one piece of the row with all heads. Null: this row goes
  /// by over_heads(). All below is differentiable.
  virtual const RowPiece* piece() const = 0;
  /// x_tX of this process's tokens -> x_sX of its piece; and back.
  virtual at::Tensor to_piece(const at::Tensor& x_tX) const = 0;
  virtual at::Tensor from_piece(const at::Tensor& x_sX) const = 0;
  /// The last tokens before the piece, of its first document, `size` or as many as there are.
  virtual at::Tensor before_piece(const at::Tensor& x_sX, int64_t size) const = 0;
  /// Over a piece a state S becomes `transition` S + `state`, in each head. -> S before this piece:
  /// that of all earlier ones, from zeros. Computed by processes whose pieces no document enters,
  /// too.
  virtual at::Tensor state_before(const at::Tensor& transition_NKK,
                                  const at::Tensor& state_NKV) const = 0;
};

}  // namespace longspan
