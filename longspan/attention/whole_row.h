// A whole row whose tokens are on several processes, for layers that go over whole rows
// (recurrences, convolutions). t: tokens of this process, T: tokens of the padded row, s: tokens of
// this process's slice, N: heads, n: some of the heads, H, G: numbers in an input's head and in an
// output's head, X: numbers of a token.
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
  Packing packing;  ///< documents of the slice, cut to it
  /// Tokens before the slice that belong to its first document.
  int64_t num_before = 0;
};

/// A row of which this process holds a part. It is made once a row and serves all layers.
class WholeRow {
 public:
  virtual ~WholeRow() = default;

  /// A layer's function over all tokens of some heads. `inputs`: x_TnH, tokens in the row's order.
  /// `heads`: the range of heads of each input; the first input's range determines the others (see
  /// over_heads()). Returns y_TnG of the first input's heads. Differentiable.
  using Function = std::function<at::Tensor(const std::vector<at::Tensor>& inputs,
                                            const std::vector<HeadRange>& heads)>;
  /// Applies `function` to all heads. Inputs are x_tNH and the result is y_tNG, both of this
  /// process's tokens in the order in which it holds them. The first input has N heads, another
  /// input M heads, which divide N: head m goes with heads [m N / M, (m + 1) N / M) of the first.
  /// Where there are fewer heads than processes, some processes call the function with n = 0, so
  /// that parameters have gradients (of zeros).
  virtual at::Tensor over_heads(const std::vector<at::Tensor>& inputs,
                                const Function& function) const = 0;

  /// The alternative to over_heads(): each process goes over one slice of the row with all heads.
  /// Null: this row is processed by over_heads(). The functions below are for slices, and are
  /// differentiable.
  virtual const RowSlice* slice() const = 0;
  /// Moves x_tX of this process's tokens to x_sX of its slice, and back.
  virtual at::Tensor to_slice(const at::Tensor& x_tX) const = 0;
  virtual at::Tensor from_slice(const at::Tensor& x_sX) const = 0;
  /// Returns the last `size` tokens before the slice that belong to its first document, or as many
  /// as there are.
  virtual at::Tensor before_slice(const at::Tensor& x_sX, int64_t size) const = 0;
  /// Returns the state S before this slice. Each slice maps S to `transition` S + `state`, in each
  /// head; the result composes the maps of all earlier slices, from zeros. Every process must call
  /// it, even if no document continues into its slice.
  virtual at::Tensor state_before(const at::Tensor& transition_NKK,
                                  const at::Tensor& state_NKV) const = 0;
};

}  // namespace longspan
