#include "longspan/rows/packing.h"

#include <stdexcept>

namespace longspan {

Packing Packing::single(int64_t num_tokens) { return from_lengths({num_tokens}); }

Packing Packing::from_lengths(const std::vector<int64_t>& lengths) {
  std::vector<Document> documents;
  documents.reserve(lengths.size());
  for (int64_t length : lengths) documents.push_back({length});
  return from_documents(documents);
}

Packing Packing::from_documents(const std::vector<Document>& documents) {
  Packing packing;
  packing.boundaries_.reserve(documents.size() + 1);
  packing.forks_.reserve(documents.size());
  for (const auto& [length, fork] : documents) {
    if (fork && !(0 < fork->first && fork->first < fork->second && fork->second < length)) {
      throw std::logic_error("a fork outside of its document");
    }
    packing.boundaries_.push_back(packing.boundaries_.back() + length);
    packing.forks_.push_back(fork);
    packing.has_forks_ = packing.has_forks_ || fork.has_value();
  }
  return packing;
}

std::vector<Document> Packing::documents() const {
  std::vector<Document> documents;
  documents.reserve(num_documents());
  for (int64_t d = 0; d < num_documents(); ++d) documents.push_back({length(d), fork(d)});
  return documents;
}

}  // namespace longspan
