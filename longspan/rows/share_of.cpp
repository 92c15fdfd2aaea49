#include "longspan/rows/share_of.h"

#include <numeric>

#include "longspan/rows/padding.h"

namespace longspan {

TokenOrder share_of(TokenOrder order, int rank, int num_ranks) {
  const int64_t share = static_cast<int64_t>(order.index.size()) / num_ranks;
  const auto begin = order.index.begin() + rank * share;
  order.index = std::vector<int64_t>(begin, begin + share);
  return order;
}

TokenOrder consecutive_order(const Packing& packing, int64_t multiple, int rank, int num_ranks) {
  TokenOrder order;
  order.packing = pad_tail(packing, multiple * num_ranks);
  order.index.assign(order.packing.num_tokens(), -1);
  std::iota(order.index.begin(), order.index.begin() + packing.num_tokens(), int64_t{0});
  return share_of(std::move(order), rank, num_ranks);
}

}  // namespace longspan
