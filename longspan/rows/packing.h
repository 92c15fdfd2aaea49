// Document boundaries of a row. No torch.
#pragma once

#include <cstdint>
#include <vector>

namespace longspan {

/// A part of a document with branches. A token of a segment sees earlier tokens of the segment, and
/// all tokens of the segment's parent, of the parent's parent and so on up to the root.
struct Segment {
  int64_t begin;   // from the document's first token; ends at the next segment's begin
  int64_t parent;  // index of the continued segment; kNoParent: the root
  bool operator==(const Segment&) const = default;
};
inline constexpr int64_t kNoParent = -1;

/// The tree of two branches: a document `prompt | branch A | branch B`, by the tokens at which the
/// branches begin (`first`: A, `second`: B). B does not see A. 0 < first < second < length.
struct Fork {
  int64_t first, second;
  bool operator==(const Fork&) const = default;
  operator std::vector<Segment>() const { return {{0, kNoParent}, {first, 0}, {second, 0}}; }
};

/// A segment with the numbers that follow from its document's tree. Counted from the document's
/// first token.
struct TreeSegment {
  int64_t begin, end;   // the segment's own tokens
  int64_t subtree_end;  // end of the segment's last descendant
  int64_t parent;       // kNoParent: the root
  int64_t depth;        // 0: the root
  /// Index of a token minus its position. Positions continue the parent's positions.
  int64_t shift;
  bool operator==(const TreeSegment&) const = default;
};

/// Consecutive tokens that all see each other, including later tokens: the tokens of a picture in
/// some models (Gemma 3, arXiv 2503.19786).
struct TwoWaySpan {
  int64_t begin, end;
  bool operator==(const TwoWaySpan&) const = default;
};

struct Document {
  int64_t length;
  /// The tree of the document's branches, in depth-first order. A segment follows its parent, or
  /// the last segment of its parent's previous branch. A segment with children has two children or
  /// more. Empty: the document has no branches.
  std::vector<Segment> segments = {};
  /// Counted from the document's first token; ascending, each within one segment.
  std::vector<TwoWaySpan> two_way = {};
  bool operator==(const Document&) const = default;
};

/// The document boundaries of a packed row. A token attends to earlier tokens of its own document;
/// in a document with branches, only to the tokens that its segment sees; in a two-way span, also
/// to the span's later tokens. A batch of several samples is one row with a document for each
/// sample, so samples are never padded to the longest sample.
class Packing {
 public:
  /// Returns one document of `num_tokens` tokens.
  static Packing single(int64_t num_tokens);
  /// Returns documents of these positive lengths, in order, without branches.
  static Packing from_lengths(const std::vector<int64_t>& lengths);
  /// Throws std::logic_error if a document's segments do not form a tree (Document) within its
  /// length, or if two-way spans are not as Document describes them.
  static Packing from_documents(const std::vector<Document>& documents);

  int64_t num_documents() const { return static_cast<int64_t>(boundaries_.size()) - 1; }
  int64_t num_tokens() const { return boundaries_.back(); }
  int64_t begin(int64_t document) const { return boundaries_[document]; }
  int64_t end(int64_t document) const { return boundaries_[document + 1]; }
  int64_t length(int64_t document) const { return end(document) - begin(document); }
  /// Returns the tree of a document; empty: the document has no branches.
  const std::vector<Segment>& segments(int64_t document) const { return segments_[document]; }
  /// The same, with derived numbers.
  const std::vector<TreeSegment>& tree(int64_t document) const { return trees_[document]; }
  /// True if any document has branches.
  bool has_forks() const { return has_forks_; }
  /// Two-way spans of all documents, counted from the row's first token; ascending.
  const std::vector<TwoWaySpan>& two_way() const { return two_way_; }
  /// Returns documents from which from_documents() makes an equal packing.
  std::vector<Document> documents() const;
  /// cu_seqlens: 0, end of the first document, ..., number of tokens.
  const std::vector<int64_t>& boundaries() const { return boundaries_; }
  bool operator==(const Packing&) const = default;

 private:
  std::vector<int64_t> boundaries_{0};
  std::vector<std::vector<Segment>> segments_;  // of each document
  std::vector<std::vector<TreeSegment>> trees_;
  std::vector<TwoWaySpan> two_way_;
  bool has_forks_ = false;
};

}  // namespace longspan
