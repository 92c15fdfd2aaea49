// Document boundaries of a row. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace longspan {

/// The places where the two branches of a forked document begin, counted from its first token. The
/// document is `prompt | branch A | branch B`, and B does not see A. 0 < first < second < length.
struct Fork {
  int64_t first, second;
  bool operator==(const Fork&) const = default;
};

struct Document {
  int64_t length;
  std::optional<Fork> fork = std::nullopt;
  bool operator==(const Document&) const = default;
};

/// The document boundaries of a packed row. A token attends to earlier tokens of its own document.
/// In a forked document the second branch does not attend to the first. A batch of several samples
/// is one row with a document for each sample, so samples are never padded to the longest.
class Packing {
 public:
  /// One document of `num_tokens` tokens.
  static Packing single(int64_t num_tokens);
  /// Documents of these positive lengths, in order, without forks.
  static Packing from_lengths(const std::vector<int64_t>& lengths);
  /// Throws std::logic_error where a fork is not inside its document.
  static Packing from_documents(const std::vector<Document>& documents);

  int64_t num_documents() const { return static_cast<int64_t>(boundaries_.size()) - 1; }
  int64_t num_tokens() const { return boundaries_.back(); }
  int64_t begin(int64_t document) const { return boundaries_[document]; }
  int64_t end(int64_t document) const { return boundaries_[document + 1]; }
  int64_t length(int64_t document) const { return end(document) - begin(document); }
  const std::optional<Fork>& fork(int64_t document) const { return forks_[document]; }
  bool has_forks() const { return has_forks_; }
  /// Returns documents from which from_documents() makes an equal packing.
  std::vector<Document> documents() const;
  /// cu_seqlens: 0, end of the first document, ..., number of tokens.
  const std::vector<int64_t>& boundaries() const { return boundaries_; }
  bool operator==(const Packing&) const = default;

 private:
  std::vector<int64_t> boundaries_{0};
  std::vector<std::optional<Fork>> forks_;  // one for each document
  bool has_forks_ = false;
};

}  // namespace longspan
