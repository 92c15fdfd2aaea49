// DeepSpeed-Ulysses (arXiv 2309.14509) over any inner method.
// t: this rank's tokens, T = P t: tokens of the group, N: query heads, M: kv heads, H: head dim.
#include <ATen/ATen.h>

#include "longspan/sequence_parallel/head_exchange.h"
#include "longspan/sequence_parallel/sequence_parallel.h"

namespace longspan {
namespace {

class Ulysses : public SequenceParallel {
 public:
  Ulysses(Group group, std::unique_ptr<SequenceParallel> inner)
      : group_(std::move(group)), inner_(std::move(inner)) {}

  at::Tensor attend(const at::Tensor& q_tNH, const at::Tensor& k_tMH, const at::Tensor& v_tMH,
                    const Packing& packing) override {
    const HeadSplit split(group_.size(), q_tNH.size(1), k_tMH.size(1));
    std::vector<at::Tensor> qkv =
        tokens_to_heads({q_tNH, k_tMH, v_tMH}, {split.query, split.kv, split.kv}, group_);
    std::vector<at::Tensor> outs;
    for (const Segment& part : uniform_segments(split.kv_place(group_.rank()))) {
      const auto heads = [](const at::Tensor& x, int64_t begin, int64_t count) {
        return count == x.size(1) ? x : x.narrow(1, begin, count);
      };
      outs.push_back(inner_->attend(heads(qkv[0], part.query_begin, part.num_queries),
                                    heads(qkv[1], part.kv_begin, part.num_kv),
                                    heads(qkv[2], part.kv_begin, part.num_kv), packing));
    }
    const at::Tensor out = outs.size() == 1 ? outs[0] : at::cat(outs, 1);
    return heads_to_tokens(out, split.query, group_);
  }

  TokenOrder token_order(const Packing& packing, int64_t multiple) const override {
    TokenOrder order = inner_->token_order(packing, multiple * group_.size());
    const int64_t share = static_cast<int64_t>(order.index.size()) / group_.size();
    const auto begin = order.index.begin() + group_.rank() * share;
    order.index = std::vector<int64_t>(begin, begin + share);
    return order;
  }

 private:
  /// Query heads that share their kv heads evenly, query head i using kv head i / (num_queries /
  /// num_kv) of the segment, as the inner attention pairs them. Where a cut between ranks went
  /// through a group of query heads, there are several segments, each attended by itself: no key is
  /// repeated.
  struct Segment {
    int64_t query_begin, num_queries, kv_begin, num_kv;
  };

  static std::vector<Segment> uniform_segments(const std::vector<int64_t>& kv_of_query) {
    std::vector<Segment> segments;
    const int64_t n = static_cast<int64_t>(kv_of_query.size());
    for (int64_t begin = 0, end = 0; begin < n; begin = end) {
      while (end < n && kv_of_query[end] == kv_of_query[begin]) ++end;
      const int64_t count = end - begin;
      if (!segments.empty() && segments.back().num_queries == segments.back().num_kv * count) {
        segments.back().num_queries += count;
        segments.back().num_kv += 1;
      } else {
        segments.push_back({begin, count, kv_of_query[begin], 1});
      }
    }
    return segments;
  }

  Group group_;
  std::unique_ptr<SequenceParallel> inner_;
};

}  // namespace

std::unique_ptr<SequenceParallel> make_ulysses(Group group,
                                               std::unique_ptr<SequenceParallel> inner) {
  return std::make_unique<Ulysses>(std::move(group), std::move(inner));
}

}  // namespace longspan
