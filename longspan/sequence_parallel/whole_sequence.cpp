#include "longspan/sequence_parallel/whole_sequence.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "longspan/memory/transfer.h"
#include "longspan/plan/recurrent_volume.h"
#include "longspan/sequence_parallel/head_exchange.h"

namespace longspan {
namespace {

at::Tensor in_order(const at::Tensor& x_TnH, const at::Tensor& places_T) {
  return places_T.defined() ? x_TnH.index_select(0, sent_to(places_T, x_TnH.device())) : x_TnH;
}

}  // namespace

HeadRange heads_of_rank(int rank, int num_ranks, int64_t num_heads) {
  const auto [begin, end] = heads_of_rank_in(rank, num_ranks, num_heads);
  return {begin, end - begin};
}

HeadRange heads_that_go_with(const HeadRange& heads, int64_t num_heads, int64_t num_others) {
  const auto [begin, end] =
      heads_along({heads.begin, heads.begin + heads.count}, num_heads, num_others);
  return {begin, end - begin};
}

namespace {

/// Returns the heads of an input of M heads that belong to a rank's share of N heads.
HeadRange range_of(int rank, int num_ranks, int64_t N, int64_t M) {
  return heads_that_go_with(heads_of_rank(rank, num_ranks, N), N, M);
}

BlocksByRank blocks_of(int num_ranks, int64_t num_tokens, int64_t N, int64_t M) {
  BlocksByRank blocks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const HeadRange heads = range_of(rank, num_ranks, N, M);
    blocks.push_back({HeadBlock{heads.begin, heads.count, 0, num_tokens}});
  }
  return blocks;
}

}  // namespace

WholeSequence::WholeSequence(const SequenceParallel& strategy, const Packing& packing, Group group,
                             RecurrentWay way)
    : group_(std::move(group)), num_tokens_(packing.num_tokens()) {
  TORCH_CHECK(strategy.rank() == group_.rank(), "whole sequence: rank ", group_.rank(),
              " of a group whose strategy has rank ", strategy.rank());
  std::vector<int64_t> places;
  std::vector<std::vector<int64_t>> by_rank;
  places.reserve(num_tokens_);
  for (int rank = 0; rank < group_.size(); ++rank) {
    // A padded row needs no further padding, so the index counts in the row itself.
    const TokenOrder order = strategy.token_order_of(rank, packing, /*multiple=*/1);
    TORCH_CHECK(order.packing == packing, "whole sequence: a row of ", num_tokens_,
                " tokens that the strategy has not padded");
    places.insert(places.end(), order.index.begin(), order.index.end());
    by_rank.push_back(order.index);
  }
  TORCH_CHECK(std::ssize(places) == num_tokens_, "whole sequence: ", group_.size(), " ranks hold ",
              places.size(), " of ", num_tokens_, " tokens");
  if (!goes_by_heads(way, packing) && group_.size() > 1) {
    slices_.emplace(packing, by_rank, group_);
  }
  if (std::ranges::is_sorted(places)) return;
  std::vector<int64_t> gathered(places.size());
  for (size_t i = 0; i < places.size(); ++i) gathered[places[i]] = static_cast<int64_t>(i);
  row_places_T_ = at::tensor(places, at::kLong);
  gathered_places_T_ = at::tensor(gathered, at::kLong);
}

at::Tensor WholeSequence::over_whole_sequence(const at::Tensor& x_tNH,
                                              const HeadsFunction& function) const {
  return over_heads(
      {x_tNH}, [&](const std::vector<at::Tensor>& inputs, const std::vector<HeadRange>& heads) {
        return function(inputs[0], heads[0]);
      });
}

std::vector<at::Tensor> WholeSequence::to_heads(const std::vector<at::Tensor>& inputs) const {
  const int P = group_.size();
  const int64_t N = inputs.at(0).size(1), t = num_tokens_ / P;
  for (const at::Tensor& x_tMH : inputs) {
    TORCH_CHECK(x_tMH.size(0) == t, "whole sequence: ", x_tMH.size(0), " tokens on each of ", P,
                " ranks, but the row has ", num_tokens_);
    TORCH_CHECK(x_tMH.size(1) > 0 && N % x_tMH.size(1) == 0, "whole sequence: inputs of ", N,
                " and of ", x_tMH.size(1), " heads");
  }
  if (P == 1) return inputs;
  std::vector<StartedExchange> started;
  for (const at::Tensor& x_tMH : inputs) {
    started.push_back(
        start_tokens_to_heads(x_tMH, blocks_of(P, num_tokens_, N, x_tMH.size(1)), group_));
  }
  std::vector<at::Tensor> of_heads;
  for (const StartedExchange& exchange : started) {
    of_heads.push_back(in_order(finish_tokens_to_heads(exchange).at(0), gathered_places_T_));
  }
  return of_heads;
}

at::Tensor WholeSequence::to_tokens(const at::Tensor& y_TnG, int64_t num_heads) const {
  const int P = group_.size();
  const int64_t count = heads_of_rank(group_.rank(), P, num_heads).count;
  TORCH_CHECK(y_TnG.dim() == 3 && y_TnG.size(0) == num_tokens_ && y_TnG.size(1) == count,
              "whole sequence: ", y_TnG.sizes(), " for ", count, " heads of ", num_tokens_,
              " tokens");
  if (P == 1) return y_TnG;
  return finish_heads_to_tokens(start_heads_to_tokens(
      {in_order(y_TnG, row_places_T_)}, blocks_of(P, num_tokens_, num_heads, num_heads), group_,
      num_tokens_ / P, /*output_is_known=*/false));
}

at::Tensor WholeSequence::over_heads(const std::vector<at::Tensor>& inputs,
                                     const Function& function) const {
  const int64_t N = inputs.at(0).size(1);
  std::vector<HeadRange> own;
  for (const at::Tensor& x_tMH : inputs) {
    own.push_back(range_of(group_.rank(), group_.size(), N, x_tMH.size(1)));
  }
  return to_tokens(function(to_heads(inputs), own), N);
}

}  // namespace longspan
