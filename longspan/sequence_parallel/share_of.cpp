#include "longspan/sequence_parallel/share_of.h"

#include <numeric>

#include "longspan/sequence_parallel/padding.h"

namespace longspan {

TokenOrder share_of(TokenOrder order, const Group& group) {
  const int64_t share = static_cast<int64_t>(order.index.size()) / group.size();
  const auto begin = order.index.begin() + group.rank() * share;
  order.index = std::vector<int64_t>(begin, begin + share);
  return order;
}

TokenOrder consecutive_order(const Packing& packing, int64_t multiple, const Group& group) {
  TokenOrder order;
  order.packing = pad_tail(packing, multiple * group.size());
  order.index.assign(order.packing.num_tokens(), -1);
  std::iota(order.index.begin(), order.index.begin() + packing.num_tokens(), int64_t{0});
  return share_of(std::move(order), group);
}

}  // namespace longspan
