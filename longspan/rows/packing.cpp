#include "longspan/rows/packing.h"

#include <algorithm>
#include <stdexcept>

namespace longspan {
namespace {

/// True if the segments are a tree as Document describes it. `segments`: not empty.
bool is_tree(const std::vector<Segment>& segments, int64_t length) {
  if (!(segments[0] == Segment{0, kNoParent}) || segments.back().begin >= length) return false;
  std::vector<int> branches(segments.size());
  for (int64_t i = 1; i < std::ssize(segments); ++i) {
    if (segments[i].begin <= segments[i - 1].begin) return false;
    int64_t earlier = i - 1;  // then its ancestors
    while (earlier != segments[i].parent && earlier != kNoParent) {
      earlier = segments[earlier].parent;
    }
    if (earlier == kNoParent) return false;
    ++branches[earlier];
  }
  return branches[0] > 1 && std::ranges::count(branches, 1) == 0;
}

/// True if the document's two-way spans are ascending, and each is within one segment.
bool are_in_order(const Document& document) {
  int64_t end = 0;
  for (const TwoWaySpan& span : document.two_way) {
    if (span.begin < end || span.begin >= span.end || span.end > document.length) return false;
    end = span.end;
    const auto cuts = [&](const Segment& segment) {
      return segment.begin > span.begin && segment.begin < span.end;
    };
    if (std::ranges::any_of(document.segments, cuts)) return false;
  }
  return true;
}

std::vector<TreeSegment> tree_of(const std::vector<Segment>& segments, int64_t length) {
  std::vector<TreeSegment> tree;
  tree.reserve(segments.size());
  for (size_t i = 0; i < segments.size(); ++i) {
    const auto& [begin, parent] = segments[i];
    const int64_t end = i + 1 < segments.size() ? segments[i + 1].begin : length;
    const bool is_root = parent == kNoParent;
    tree.push_back({.begin = begin,
                    .end = end,
                    .subtree_end = end,
                    .parent = parent,
                    .depth = is_root ? 0 : tree[parent].depth + 1,
                    .shift = is_root ? 0 : begin - tree[parent].end + tree[parent].shift});
  }
  for (size_t i = tree.size(); i-- > 1;) {
    TreeSegment& parent = tree[tree[i].parent];
    parent.subtree_end = std::max(parent.subtree_end, tree[i].subtree_end);
  }
  return tree;
}

}  // namespace

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
  packing.segments_.reserve(documents.size());
  packing.trees_.reserve(documents.size());
  for (const Document& document : documents) {
    const auto& [length, segments, two_way] = document;
    if (!segments.empty() && !is_tree(segments, length)) {
      throw std::logic_error("the segments of a document must form a tree within its length");
    }
    if (!are_in_order(document)) {
      throw std::logic_error("two-way spans must be ascending, each within one segment");
    }
    for (const auto& [begin, end] : two_way) {
      packing.two_way_.push_back({packing.num_tokens() + begin, packing.num_tokens() + end});
    }
    packing.boundaries_.push_back(packing.boundaries_.back() + length);
    packing.segments_.push_back(segments);
    packing.trees_.push_back(tree_of(segments, length));
    packing.has_forks_ = packing.has_forks_ || !segments.empty();
  }
  return packing;
}

std::vector<Document> Packing::documents() const {
  std::vector<Document> documents;
  documents.reserve(num_documents());
  auto span = two_way_.begin();
  for (int64_t d = 0; d < num_documents(); ++d) {
    Document& document = documents.emplace_back(Document{length(d), segments(d)});
    for (; span != two_way_.end() && span->end <= end(d); ++span) {
      document.two_way.push_back({span->begin - begin(d), span->end - begin(d)});
    }
  }
  return documents;
}

}  // namespace longspan
