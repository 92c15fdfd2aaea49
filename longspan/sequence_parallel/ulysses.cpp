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
    // The inner attention pairs query head i with kv head i / (n / m). Where a cut between ranks
    // went through a group, that can be wrong; then kv is expanded here, behind the exchange.
    const std::vector<int64_t> places = split.kv_place(group_.rank());
    if (!uniform(places, split.kv[group_.rank()].count)) {
      const at::Tensor index = at::tensor(places, at::kLong).to(q_tNH.device());
      qkv[1] = qkv[1].index_select(1, index);
      qkv[2] = qkv[2].index_select(1, index);
    }
    return heads_to_tokens(inner_->attend(qkv[0], qkv[1], qkv[2], packing), split.query, group_);
  }

  TokenOrder token_order(const Packing& packing, int64_t multiple) const override {
    TokenOrder order = inner_->token_order(packing, multiple * group_.size());
    const int64_t share = static_cast<int64_t>(order.index.size()) / group_.size();
    const auto begin = order.index.begin() + group_.rank() * share;
    order.index = std::vector<int64_t>(begin, begin + share);
    return order;
  }

 private:
  static bool uniform(const std::vector<int64_t>& places, int64_t num_kv_heads) {
    const int64_t n = static_cast<int64_t>(places.size());
    if (n % num_kv_heads != 0) return false;
    for (int64_t i = 0; i < n; ++i) {
      if (places[i] != i / (n / num_kv_heads)) return false;
    }
    return true;
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
