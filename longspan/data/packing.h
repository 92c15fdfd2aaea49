// Document boundaries of a row. No torch.
#pragma once

#include <cstdint>
#include <vector>

namespace longspan {

/// Where the documents of a packed row begin and end. A token attends to earlier tokens of its own
/// document only. A batch of several samples is one row with a document for each sample, so nothing
/// is ever padded to the longest.
class Packing {
 public:
  /// One document of `num_tokens` tokens.
  static Packing single(int64_t num_tokens);
  /// Documents of these lengths, in order. Lengths are positive.
  static Packing from_lengths(const std::vector<int64_t>& lengths);

  int64_t num_documents() const { return static_cast<int64_t>(boundaries_.size()) - 1; }
  int64_t num_tokens() const { return boundaries_.back(); }
  int64_t begin(int64_t document) const { return boundaries_[document]; }
  int64_t end(int64_t document) const { return boundaries_[document + 1]; }
  int64_t length(int64_t document) const { return end(document) - begin(document); }
  /// cu_seqlens: 0, end of the first document, ..., number of tokens.
  const std::vector<int64_t>& boundaries() const { return boundaries_; }
  bool operator==(const Packing&) const = default;

 private:
  std::vector<int64_t> boundaries_{0};
};

}  // namespace longspan
