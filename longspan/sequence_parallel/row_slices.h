// A row in consecutive slices, one slice per rank, for recurrences that pass states from rank to
// rank. t: tokens of a rank, T = P t: tokens of the padded row, s = t: tokens of a slice, X:
// elements of a token, N: heads, K, V: elements of a head of keys and of values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "longspan/attention/whole_row.h"
#include "longspan/comm/group.h"

namespace longspan {

class RowSlices {
 public:
  /// places_by_rank[p][i]: place in the row of token i of rank p.
  RowSlices(const Packing& packing, const std::vector<std::vector<int64_t>>& places_by_rank,
            Group group);

  const RowSlice& slice() const { return slice_; }
  /// to_slice() sends each token to the rank of the token's slice; from_slice() sends each token
  /// back. Nothing is sent if the ranks already hold the slices. before_slice() returns the last
  /// `size` tokens before the slice (WholeRow::before_slice).
  at::Tensor to_slice(const at::Tensor& x_tX) const;
  at::Tensor from_slice(const at::Tensor& x_sX) const;
  at::Tensor before_slice(const at::Tensor& x_sX, int64_t size) const;
  /// All-gathers the slices' maps of states. Each rank composes the maps of the slices before its
  /// own. The bytes do not depend on the row's length.
  at::Tensor state_before(const at::Tensor& transition_NKK, const at::Tensor& state_NKV) const;

 private:
  /// An all-to-all of tensor rows (one row per token).
  struct Route {
    at::Tensor order;                           // indices of the rows to send, by receiving rank
    std::vector<int64_t> send_rows, recv_rows;  // by rank
    at::Tensor places;  // for each row of the result, its place among the received rows
  };
  at::Tensor routed(const at::Tensor& x_X, const Route& there, const Route& back) const;

  Group group_;
  int64_t size_;
  RowSlice slice_;
  bool is_there_;  // the ranks hold the slices already
  Route to_slice_, from_slice_;
};

}  // namespace longspan
