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

at::Tensor WholeSequence::over_heads(const std::vector<at::Tensor>& inputs,
                                     const Function& function) const {
  const int P = group_.size();
  const int64_t N = inputs.at(0).size(1), t = num_tokens_ / P;
  for (const at::Tensor& x_tMH : inputs) {
    TORCH_CHECK(x_tMH.size(0) == t, "whole sequence: ", x_tMH.size(0), " tokens on each of ", P,
                " ranks, but the row has ", num_tokens_);
    TORCH_CHECK(x_tMH.size(1) > 0 && N % x_tMH.size(1) == 0, "whole sequence: inputs of ", N,
                " and of ", x_tMH.size(1), " heads");
  }
  const auto range = [&](const at::Tensor& x_tMH, int rank) {
    return heads_that_go_with(heads_of_rank(rank, P, N), N, x_tMH.size(1));
  };
  std::vector<HeadRange> own;
  for (const at::Tensor& x_tMH : inputs) own.push_back(range(x_tMH, group_.rank()));
  const auto checked = [&](const std::vector<at::Tensor>& of_heads) {
    at::Tensor y_TnG = function(of_heads, own);
    TORCH_CHECK(y_TnG.dim() == 3 && y_TnG.size(0) == num_tokens_ && y_TnG.size(1) == own[0].count,
                "whole sequence: a function makes ", y_TnG.sizes(), " of ", of_heads[0].sizes());
    return y_TnG;
  };
  if (P == 1) return checked(inputs);

  std::vector<BlocksByRank> blocks(inputs.size());
  std::vector<StartedExchange> started;
  for (size_t i = 0; i < inputs.size(); ++i) {
    for (int rank = 0; rank < P; ++rank) {
      const HeadRange heads = range(inputs[i], rank);
      blocks[i].push_back({HeadBlock{heads.begin, heads.count, 0, num_tokens_}});
    }
    started.push_back(start_tokens_to_heads(inputs[i], blocks[i], group_));
  }
  at::Tensor y_TnG;
  {
    std::vector<at::Tensor> of_heads;
    for (const StartedExchange& exchange : started) {
      of_heads.push_back(in_order(finish_tokens_to_heads(exchange).at(0), gathered_places_T_));
    }
    y_TnG = in_order(checked(of_heads), row_places_T_);
  }
  return finish_heads_to_tokens(
      start_heads_to_tokens({y_TnG}, blocks[0], group_, t, /*output_is_known=*/false));
}

}  // namespace longspan
