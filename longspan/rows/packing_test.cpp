#include "longspan/rows/packing.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

namespace longspan {

TEST_CASE("packing: boundaries of documents") {
  const Packing packing = Packing::from_lengths({3, 1, 5});
  CHECK(packing.num_documents() == 3);
  CHECK(packing.num_tokens() == 9);
  CHECK(packing.boundaries() == std::vector<int64_t>{0, 3, 4, 9});
  for (int64_t document = 0; document < 3; ++document) {
    CHECK(packing.begin(document) + packing.length(document) == packing.end(document));
  }
  CHECK(packing.length(2) == 5);
}

TEST_CASE("packing: one document, no document, equality") {
  CHECK(Packing::single(7) == Packing::from_lengths({7}));
  CHECK_FALSE(Packing::single(7) == Packing::from_lengths({3, 4}));
  CHECK(Packing::from_lengths({}).num_documents() == 0);
  CHECK(Packing::from_lengths({}).num_tokens() == 0);
}

TEST_CASE("packing: pairs belong to a document and lie inside of it") {
  const Packing packing = Packing::from_documents({{3}, {7, Fork{2, 5}}, {1}});
  CHECK(packing.boundaries() == std::vector<int64_t>{0, 3, 10, 11});
  CHECK(packing.has_forks());
  CHECK(packing.segments(0).empty());
  CHECK(packing.tree(0).empty());
  CHECK(packing.tree(1) ==
        std::vector<TreeSegment>{
            {.begin = 0, .end = 2, .subtree_end = 7, .parent = kNoParent, .depth = 0, .shift = 0},
            {.begin = 2, .end = 5, .subtree_end = 5, .parent = 0, .depth = 1, .shift = 0},
            {.begin = 5, .end = 7, .subtree_end = 7, .parent = 0, .depth = 1, .shift = 3}});
  CHECK(Packing::from_documents(packing.documents()) == packing);
  CHECK_FALSE(packing == Packing::from_lengths({3, 7, 1}));
  CHECK_FALSE(packing == Packing::from_documents({{3}, {7, Fork{2, 4}}, {1}}));
  CHECK(Packing::from_documents({{3}, {4}}) == Packing::from_lengths({3, 4}));
  CHECK_FALSE(Packing::single(7).has_forks());
  for (const Fork wrong : {Fork{0, 2}, {2, 2}, {3, 2}, {2, 7}}) {
    CHECK_THROWS_AS(Packing::from_documents({{7, wrong}}), std::logic_error);
  }
}

using Tree = std::vector<Segment>;

TEST_CASE("packing: a pair is one of the trees") {
  const Packing pair = Packing::from_documents({{7, Fork{2, 5}}});
  const Tree tree{{0, kNoParent}, {2, 0}, {5, 0}};
  CHECK(pair.segments(0) == tree);
  CHECK(pair == Packing::from_documents({{7, tree}}));
  CHECK(Document{7, Fork{2, 5}} == Document{7, tree});
}

TEST_CASE("packing: any number of branches, and branches of branches") {
  const Tree trees[] = {
      {{0, kNoParent}, {2, 0}, {3, 0}, {5, 0}, {6, 0}},
      {{0, kNoParent}, {1, 0}, {2, 1}, {3, 1}, {4, 0}, {5, 4}, {6, 4}},  // both have two of their
                                                                         // own
      {{0, kNoParent}, {1, 0}, {2, 0}, {3, 2}, {4, 2}, {5, 2}},          // the second one has three
  };
  for (const Tree& tree : trees) {
    const Packing packing = Packing::from_documents({{2}, {9, tree}, {7, Fork{2, 5}}});
    CHECK(packing.has_forks());
    CHECK(packing.segments(1) == tree);
    CHECK(packing.length(1) == 9);
    CHECK(Packing::from_documents(packing.documents()) == packing);
    for (const Tree& other : trees) {
      CHECK((Packing::from_documents({{9, tree}}) == Packing::from_documents({{9, other}})) ==
            (&tree == &other));
    }
    // The last segment ends with the document, so padding lengthens it.
    CHECK(Packing::from_documents({{12, tree}}).segments(0) == tree);
  }
}

TEST_CASE("packing: segments that are no tree are refused") {
  const Tree wrong[] = {
      {{0, kNoParent}},                          // no branches
      {{1, kNoParent}, {2, 0}, {3, 0}},          // tokens before the root
      {{0, 0}, {2, 0}, {3, 0}},                  // the root has a parent
      {{0, kNoParent}, {2, 0}},                  // one branch
      {{0, kNoParent}, {2, 0}, {3, 0}, {4, 2}},  // one branch of a branch
      {{0, kNoParent}, {2, 0}, {3, kNoParent}},  // two roots
      {{0, kNoParent}, {2, 0}, {3, 2}},          // its own parent
      {{0, kNoParent}, {2, 2}, {3, 0}},          // the parent comes later
      {{0, kNoParent}, {2, 0}, {3, 5}},          // no such parent
      {{0, kNoParent}, {2, 0}, {3, -2}},         // no such parent
      {{0, kNoParent}, {3, 0}, {3, 0}},          // an empty segment
      {{0, kNoParent}, {3, 0}, {2, 0}},          // not in order
      {{0, kNoParent}, {2, 0}, {9, 0}},          // behind the document
      {{0, kNoParent},
       {2, 0},
       {3, 0},
       {4, 1},
       {5, 1}},  // the first branch goes on behind the second
  };
  for (const Tree& segments : wrong) {
    CAPTURE(&segments - wrong);
    CHECK_THROWS_WITH_AS(Packing::from_documents({{9, segments}}),
                         "the segments of a document must form a tree within its length",
                         std::logic_error);
  }
}

TEST_CASE(
    "packing: two-way spans are counted from the row's first token, and documents give them") {
  const std::vector<Document> documents = {
      {5}, {7, {}, {{0, 2}, {4, 7}}}, {9, Fork{3, 6}, {{1, 3}, {4, 6}, {6, 8}}}};
  const Packing packing = Packing::from_documents(documents);
  const std::vector<TwoWaySpan> expected = {{5, 7}, {9, 12}, {13, 15}, {16, 18}, {18, 20}};
  CHECK(packing.two_way() == expected);
  CHECK((packing.documents() == documents));
  CHECK(packing != Packing::from_documents({{5}, {7}, {9, Fork{3, 6}}}));
}

TEST_CASE("packing: two-way spans out of order, outside, empty, or across branches are refused") {
  const std::vector<TwoWaySpan> wrong[] = {{{2, 2}},         {{-1, 2}}, {{8, 10}}, {{4, 6}, {1, 2}},
                                           {{1, 3}, {2, 4}}, {{2, 4}},  {{4, 7}}};
  for (const std::vector<TwoWaySpan>& spans : wrong) {
    CAPTURE(&spans - wrong);
    CHECK_THROWS_WITH_AS(Packing::from_documents({{9, Fork{3, 6}, spans}}),
                         "two-way spans must be ascending, each within one segment",
                         std::logic_error);
  }
}

}  // namespace longspan
