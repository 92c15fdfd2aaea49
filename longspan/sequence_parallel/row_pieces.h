// A row in as many consecutive pieces as there are ranks, for recurrences that pass states on.
// t: tokens of a rank, T = P t: tokens of the padded row, s = t: tokens of a piece, X: numbers of a
// token, N: heads, K, V: numbers in a head of keys and of values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "longspan/attention/whole_row.h"
#include "longspan/comm/group.h"

namespace longspan {

class RowPieces {
 public:
  /// `places_by_rank[p][i]`: where token i of rank p is in the row.
  RowPieces(const Packing& packing, const std::vector<std::vector<int64_t>>& places_by_rank,
            Group group);

  const RowPiece& piece() const { return piece_; }
  /// Each token goes to the rank of its piece, and back. Where ranks hold pieces as it is, nothing
  /// is sent.
  at::Tensor to_piece(const at::Tensor& x_tX) const;
  at::Tensor from_piece(const at::Tensor& x_sX) const;
  at::Tensor before_piece(const at::Tensor& x_sX, int64_t size) const;
  /// All ranks' maps are gathered, and each rank composes those before it: as many bytes for a long
  /// row as for a short one.
  at::Tensor state_before(const at::Tensor& transition_NKK, const at::Tensor& state_NKV) const;

 private:
  /// Rows to other ranks and from them, in whose order.
  struct Route {
    at::Tensor order;                           // of the rows that are sent, by receiving rank
    std::vector<int64_t> send_rows, recv_rows;  // by rank
    at::Tensor places;                          // in what is received, of each row of the result
  };
  at::Tensor routed(const at::Tensor& x_X, const Route& there, const Route& back) const;

  Group group_;
  int64_t size_;
  RowPiece piece_;
  bool is_there_;  // ranks hold pieces
  Route to_piece_, from_piece_;
};

}  // namespace longspan
