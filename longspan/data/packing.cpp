#include "longspan/data/packing.h"

namespace longspan {

Packing Packing::single(int64_t num_tokens) { return from_lengths({num_tokens}); }

Packing Packing::from_lengths(const std::vector<int64_t>& lengths) {
  Packing packing;
  packing.boundaries_.reserve(lengths.size() + 1);
  for (int64_t length : lengths) packing.boundaries_.push_back(packing.boundaries_.back() + length);
  return packing;
}

}  // namespace longspan
