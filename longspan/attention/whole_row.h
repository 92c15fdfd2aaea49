// A whole row whose tokens are on several processes, for layers that process whole rows
// (recurrences, convolutions). t: tokens of this process, T: tokens of the padded row, s: tokens of
// this process's slice, N: heads, n: some of the heads, H, G: elements of an input head and of an
// output head, X: elements of a token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "longspan/rows/packing.h"

namespace longspan {

/// Heads [begin, begin + count) of a layer.
struct HeadRange {
  int64_t begin, count;
  bool operator==(const HeadRange&) const = default;
};

/// Consecutive tokens of a row.
struct RowSlice {
  Packing packing;  ///< documents of the slice, cut at its ends
  /// Tokens of the slice's first document that are before the slice.
  int64_t num_before = 0;
};

/// A row of which this process holds a part. One object per row serves all layers.
class WholeRow {
 public:
  virtual ~WholeRow() = default;

  /// A layer's function over all tokens of some heads. `inputs`: x_TnH, tokens in the row's order.
  /// `heads`: the range of heads of each input. The range of the first input determines the ranges
  /// of the other inputs (see over_heads()). Returns y_TnG of the first input's heads.
  /// Differentiable.
  using Function = std::function<at::Tensor(const std::vector<at::Tensor>& inputs,
                                            const std::vector<HeadRange>& heads)>;
  /// Applies `function` to all heads. Inputs are x_tNH and the result is y_tNG, both for this
  /// process's tokens in the process's token order. The first input has N heads. Another input may
  /// have M heads if M divides N: its head m belongs to heads [m N / M, (m + 1) N / M) of the first
  /// input. If there are fewer heads than processes, some processes call the function with n = 0,
  /// so that parameters have gradients (of zeros).
  virtual at::Tensor over_heads(const std::vector<at::Tensor>& inputs,
                                const Function& function) const = 0;

  /// The alternative to over_heads(): each process processes one slice of the row with all heads.
  /// Null: layers must call over_heads() for this row. The functions below are for slices, and are
  /// differentiable.
  virtual const RowSlice* slice() const = 0;
  /// to_slice() converts x_tX of this process's tokens to x_sX of the process's slice; from_slice()
  /// converts back.
  virtual at::Tensor to_slice(const at::Tensor& x_tX) const = 0;
  virtual at::Tensor from_slice(const at::Tensor& x_sX) const = 0;
  /// Returns the last `size` tokens before the slice that belong to the slice's first document.
  /// Returns fewer tokens if the document has fewer tokens before the slice.
  virtual at::Tensor before_slice(const at::Tensor& x_sX, int64_t size) const = 0;
  /// Returns the state S before this slice. Each slice maps S to `transition` S + `state`, in each
  /// head. The result is the composition of the maps of all earlier slices, applied to zeros. Every
  /// process must call state_before(), even if no document continues into the process's slice.
  virtual at::Tensor state_before(const at::Tensor& transition_NKK,
                                  const at::Tensor& state_NKV) const = 0;
};

}  // namespace longspan
