#include "longspan/sequence_parallel/whole_sequence.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "longspan/sequence_parallel/head_exchange.h"

namespace longspan {
namespace {

at::Tensor in_order(const at::Tensor& x_TnH, const at::Tensor& places_T) {
  return places_T.defined() ? x_TnH.index_select(0, places_T.to(x_TnH.device())) : x_TnH;
}

}  // namespace

HeadRange heads_of_rank(int rank, int num_ranks, int64_t num_heads) {
  const int64_t begin = rank * num_heads / num_ranks;
  return {begin, (rank + 1) * num_heads / num_ranks - begin};
}

WholeSequence::WholeSequence(const SequenceParallel& strategy, const Packing& packing, Group group)
    : group_(std::move(group)), num_tokens_(packing.num_tokens()) {
  TORCH_CHECK(strategy.rank() == group_.rank(), "whole sequence: rank ", group_.rank(),
              " of a group whose strategy has rank ", strategy.rank());
  std::vector<int64_t> places;
  places.reserve(num_tokens_);
  for (int rank = 0; rank < group_.size(); ++rank) {
    // A padded row needs no more padding: the index counts in the row itself.
    const TokenOrder order = strategy.token_order_of(rank, packing, /*multiple=*/1);
    TORCH_CHECK(order.packing == packing, "whole sequence: a row of ", num_tokens_,
                " tokens that the strategy has not padded");
    places.insert(places.end(), order.index.begin(), order.index.end());
  }
  TORCH_CHECK(std::ssize(places) == num_tokens_, "whole sequence: ", group_.size(), " ranks hold ",
              places.size(), " of ", num_tokens_, " tokens");
  if (std::ranges::is_sorted(places)) return;
  std::vector<int64_t> gathered(places.size());
  for (size_t i = 0; i < places.size(); ++i) gathered[places[i]] = static_cast<int64_t>(i);
  row_places_T_ = at::tensor(places, at::kLong);
  gathered_places_T_ = at::tensor(gathered, at::kLong);
}

at::Tensor WholeSequence::over_whole_sequence(const at::Tensor& x_tNH,
                                              const Function& function) const {
  const int P = group_.size();
  const int64_t N = x_tNH.size(1), t = num_tokens_ / P;
  TORCH_CHECK(x_tNH.size(0) == t, "whole sequence: ", x_tNH.size(0), " tokens on each of ", P,
              " ranks, but the row has ", num_tokens_);
  const auto checked = [&](const at::Tensor& x_TnH, const HeadRange& heads) {
    at::Tensor y_TnG = function(x_TnH, heads);
    TORCH_CHECK(y_TnG.dim() == 3 && y_TnG.size(0) == num_tokens_ && y_TnG.size(1) == heads.count,
                "whole sequence: a function makes ", y_TnG.sizes(), " of ", x_TnH.sizes());
    return y_TnG;
  };
  if (P == 1) return checked(x_tNH, {0, N});

  BlocksByRank by_rank;
  for (int rank = 0; rank < P; ++rank) {
    const HeadRange heads = heads_of_rank(rank, P, N);
    by_rank.push_back({HeadBlock{heads.begin, heads.count, 0, num_tokens_}});
  }
  at::Tensor y_TnG;
  {
    const at::Tensor x_TnH =
        finish_tokens_to_heads(start_tokens_to_heads(x_tNH, by_rank, group_)).at(0);
    y_TnG =
        in_order(checked(in_order(x_TnH, gathered_places_T_), heads_of_rank(group_.rank(), P, N)),
                 row_places_T_);
  }
  return finish_heads_to_tokens(start_heads_to_tokens({y_TnG}, by_rank, group_, t));
}

}  // namespace longspan
