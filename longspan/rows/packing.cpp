#include "longspan/rows/packing.h"

#include <fmt/format.h>

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
  for (const auto& [length, segments] : documents) {
    if (!segments.empty() && !is_tree(segments, length)) {
      throw std::logic_error("the segments of a document are no tree inside of it");
    }
    packing.boundaries_.push_back(packing.boundaries_.back() + length);
    packing.segments_.push_back(segments);
    packing.has_forks_ = packing.has_forks_ || !segments.empty();
  }
  return packing;
}

std::optional<Fork> Packing::fork(int64_t document) const {
  const std::vector<Segment>& tree = segments_[document];
  if (tree.empty()) return std::nullopt;
  constexpr size_t kSegmentsOfPair = 3;
  if (tree.size() != kSegmentsOfPair) {
    throw std::logic_error(fmt::format(
        "document {} of a row is a tree of {} segments; only pairs, which have a prompt and two "
        "branches, can be computed",
        document, tree.size()));
  }
  return Fork{tree[1].begin, tree[2].begin};
}

std::vector<Document> Packing::documents() const {
  std::vector<Document> documents;
  documents.reserve(num_documents());
  for (int64_t d = 0; d < num_documents(); ++d) documents.push_back({length(d), segments(d)});
  return documents;
}

}  // namespace longspan
