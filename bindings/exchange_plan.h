// The heads and tokens that the ranks of a process group exchange. t: tokens of this rank, P:
// ranks, T = P t: tokens of the row, N: heads of the row, n: heads of this rank, H: elements of a
// head.
//
// Rank r has the query heads [r N / P, (r + 1) N / P), rounded down (heads_of_rank), as in
// recurrent layers. Rank r also has the key and value heads that its query heads use; a key or
// value head can go to several ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/sequence_parallel/head_exchange.h"
#include "longspan/sequence_parallel/whole_sequence.h"

namespace longspan {

/// The heads of one kind (query, or key and value) on one rank.
struct HeadShare {
  HeadRange heads;
  /// For each query head of the rank: the index of the head that it uses, relative to heads.begin.
  /// Empty: the query heads share the heads evenly, on all ranks.
  std::vector<int64_t> copies = {};
  int64_t count() const { return copies.empty() ? heads.count : std::ssize(copies); }
};

/// Returns the shares by rank. `num_queries`: query heads that use these heads; 0: the heads are
/// query heads. Throws UserError.
std::vector<HeadShare> head_shares(int num_ranks, int64_t num_heads, int64_t num_queries);

/// Returns `dim`, counted from the front. Throws UserError for a dimension that x lacks.
int64_t dim_in(const at::Tensor& x, int64_t dim, const char* name);

/// An exchange of one tensor.
struct ExchangePlan {
  Group group;
  int64_t seq_dim, head_dim;
  int64_t num_tokens, num_heads;  // T, N
  HeadShare mine;
  BlocksByRank by_rank;
};

/// The exchange of t tokens of N heads for T tokens of n heads. Throws UserError.
ExchangePlan plan_to_heads(const at::Tensor& x, const std::string& process_group, int64_t seq_dim,
                           int64_t head_dim, int64_t num_queries, int64_t timeout);
/// The reverse exchange. If N is not given, the ranks add up their heads. Throws UserError.
ExchangePlan plan_to_seq(const at::Tensor& x, const std::string& process_group, int64_t head_dim,
                         int64_t seq_dim, std::optional<int64_t> num_heads, int64_t num_queries,
                         int64_t timeout);

/// Returns x as [tokens, heads, elements].
at::Tensor rows_of(const at::Tensor& x, const ExchangePlan& plan);
/// The inverse of rows_of(), for the tokens and heads of `rows`. Contiguous.
at::Tensor laid_out(const at::Tensor& rows, const std::vector<int64_t>& sizes_of_x,
                    const ExchangePlan& plan);

/// Returns the received heads, repeated by HeadShare::copies.
at::Tensor with_copies(const at::Tensor& x_TnH, const ExchangePlan& plan);
/// The adjoint of with_copies().
at::Tensor without_copies(const at::Tensor& x_TnH, const ExchangePlan& plan);

}  // namespace longspan
