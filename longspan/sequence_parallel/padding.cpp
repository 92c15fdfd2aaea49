#include "longspan/sequence_parallel/padding.h"

#include <vector>

namespace longspan {
namespace {

std::vector<int64_t> lengths_of(const Packing& packing) {
  std::vector<int64_t> lengths;
  for (int64_t d = 0; d < packing.num_documents(); ++d) lengths.push_back(packing.length(d));
  return lengths;
}

}  // namespace

Packing pad_tail(const Packing& packing, int64_t multiple) {
  const int64_t padding = round_up(packing.num_tokens(), multiple) - packing.num_tokens();
  if (padding == 0) return packing;
  std::vector<int64_t> lengths = lengths_of(packing);
  lengths.push_back(padding);
  return Packing::from_lengths(lengths);
}

Packing pad_documents(const Packing& packing, int64_t multiple) {
  std::vector<int64_t> lengths = lengths_of(packing);
  for (int64_t& length : lengths) length = round_up(length, multiple);
  return Packing::from_lengths(lengths);
}

}  // namespace longspan
