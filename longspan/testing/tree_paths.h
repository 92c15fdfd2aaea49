// Trees of branches as documents without branches, for comparisons.
#pragma once

#include <cstdint>
#include <vector>

#include "longspan/rows/packing.h"

namespace longspan::testing {

/// A row in which each path from the root of a tree to a leaf is a document of its own.
struct TreePaths {
  std::vector<int64_t> lengths;  // of the documents
  std::vector<int64_t> places;   // of their tokens in the row with trees
  /// For each token of the row with trees, the index of its first copy.
  std::vector<int64_t> first_copies;
};

inline TreePaths paths_of(const Packing& row) {
  TreePaths paths;
  paths.first_copies.assign(row.num_tokens(), -1);
  const auto add = [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      if (paths.first_copies[t] < 0) paths.first_copies[t] = std::ssize(paths.places);
      paths.places.push_back(t);
    }
  };
  for (int64_t d = 0; d < row.num_documents(); ++d) {
    const int64_t begin = row.begin(d);
    const std::vector<TreeSegment>& tree = row.tree(d);
    if (tree.empty()) {
      add(begin, row.end(d));
      paths.lengths.push_back(row.length(d));
    }
    for (const TreeSegment& leaf : tree) {
      if (leaf.subtree_end != leaf.end) continue;
      std::vector<const TreeSegment*> path{&leaf};
      while (path.back()->parent != kNoParent) path.push_back(&tree[path.back()->parent]);
      int64_t length = 0;
      for (auto segment = path.rbegin(); segment != path.rend(); ++segment) {
        add(begin + (*segment)->begin, begin + (*segment)->end);
        length += (*segment)->end - (*segment)->begin;
      }
      paths.lengths.push_back(length);
    }
  }
  return paths;
}

}  // namespace longspan::testing
