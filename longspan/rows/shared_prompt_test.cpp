#include "longspan/rows/shared_prompt.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <stdexcept>
#include <utility>

namespace longspan {
namespace {

std::vector<int64_t> list_of(const at::Tensor& x_T) {
  const int64_t* data = x_T.const_data_ptr<int64_t>();
  return {data, data + x_T.numel()};
}

using Values = std::vector<int64_t>;

Batch collate_pairs(const std::vector<const Example*>& pairs) {
  return collate_shared(pairs, SharedTokens::kWithoutLabels);
}

Example pair_of(Sample chosen, Sample rejected) {
  Example pair;
  pair.documents = {std::move(chosen), std::move(rejected)};
  return pair;
}

}  // namespace

TEST_CASE("collate_shared: branches begin with the prompt's last token, at its position") {
  const Example pair =
      pair_of({{5, 6, 7, 8, 9}, {-100, -100, -100, 8, 9}}, {{5, 6, 7, 4}, {-100, -100, -100, 4}});
  const Batch row = collate_pairs({&pair});
  CHECK((row.packing == Packing::from_documents({{7, Fork{2, 5}}})));
  CHECK(list_of(row.tokens_T) == Values{5, 6, 7, 8, 9, 7, 4});
  CHECK(list_of(row.labels_T) == Values{-100, -100, 8, 9, -100, 4, -100});
  CHECK(list_of(row.positions_T) == Values{0, 1, 2, 3, 4, 2, 3});
  CHECK(list_of(row.documents_T) == Values{0, 0, 0, 0, 0, 1, 1});
}

TEST_CASE("collate_shared: a picture whose tokens see each other is shared whole, or twice") {
  const auto sample = [](std::vector<int32_t> tokens, std::vector<int64_t> features) {
    Sample made{.input_ids = std::move(tokens), .labels = {}};
    made.labels.assign(made.input_ids.size(), -100);
    made.labels.back() = made.input_ids.back();
    made.columns[kFeatureColumn] = {at::tensor(features), -1};
    for (const int64_t feature : features) {
      if (feature == 0)
        made.pictures.push_back({.files = {"a"}, .num_features = 3, .is_two_way = true});
      if (feature == 3)
        made.pictures.push_back({.files = {"b"}, .num_features = 2, .is_two_way = true});
    }
    return made;
  };
  // Token 5 is shared, and the last of the prompt.
  const Example prompt = pair_of(sample({1, 9, 9, 9, 4, 5, 6}, {-1, 0, 1, 2, -1, -1, -1}),
                                 sample({1, 9, 9, 9, 4, 5, 7, 7}, {-1, 0, 1, 2, -1, -1, -1, -1}));
  CHECK(
      (collate_pairs({&prompt}).packing == Packing::from_documents({{10, Fork{5, 7}, {{1, 4}}}})));
  // The prompt would end within the picture; one answer has a picture too.
  const Example cut = pair_of(sample({1, 9, 9, 9, 6}, {-1, 0, 1, 2, -1}),
                              sample({1, 9, 9, 9, 7, 9, 9, 7}, {-1, 0, 1, 2, -1, 3, 4, -1}));
  const Batch row = collate_pairs({&cut});
  CHECK((row.packing == Packing::from_documents({{12, Fork{1, 5}, {{1, 4}, {5, 8}, {9, 11}}}})));
  CHECK(list_of(row.tokens_T) == Values{1, 9, 9, 9, 6, 9, 9, 9, 7, 9, 9, 7});
  // Nothing is left to share.
  const Example whole =
      pair_of(sample({9, 9, 9, 6}, {0, 1, 2, -1}), sample({9, 9, 9, 7}, {0, 1, 2, -1}));
  CHECK((collate_pairs({&whole}).packing ==
         Packing::from_documents({{4, {}, {{0, 3}}}, {4, {}, {{0, 3}}}})));
}

TEST_CASE("collate_shared: answers that begin alike are not shared, their labels count twice") {
  const Example pair =
      pair_of({{5, 6, 8, 9}, {-100, -100, 8, 9}}, {{5, 6, 8, 4}, {-100, -100, 8, 4}});
  const Batch row = collate_pairs({&pair});
  CHECK((row.packing == Packing::from_documents({{7, Fork{1, 4}}})));
  CHECK(list_of(row.tokens_T) == Values{5, 6, 8, 9, 6, 8, 4});
  CHECK(list_of(row.labels_T) == Values{-100, 8, 9, -100, 8, 4, -100});
}

TEST_CASE("collate_shared: pairs that share nothing stay apart; documents are numbered on") {
  const Example one_token = pair_of({{5, 6}, {-100, 6}}, {{5, 7}, {-100, 7}});
  const Example different = pair_of({{5, 6}, {-100, 6}}, {{4, 6}, {-100, 6}});
  // Equal tokens that are trained in one of the two.
  const Example labels = pair_of({{5, 6, 7}, {-100, 6, 7}}, {{5, 6, 7}, {-100, -100, 7}});
  const Example shares = pair_of({{5, 6, 7}, {5, -100, 7}}, {{5, 6, 8}, {5, -100, 8}});
  const Batch row = collate_pairs({&one_token, &different, &labels, &shares});
  CHECK((row.packing == Packing::from_documents({{2}, {2}, {2}, {2}, {3}, {3}, {5, Fork{1, 3}}})));
  CHECK(list_of(row.documents_T) ==
        Values{0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6, 6, 7, 7});
}

TEST_CASE("collate_shared: equal documents keep a branch each; no pairs give an empty row") {
  const Example equal = pair_of({{5, 6, 7}, {-100, -100, -100}}, {{5, 6, 7}, {-100, -100, -100}});
  const Batch row = collate_pairs({&equal});
  CHECK((row.packing == Packing::from_documents({{4, Fork{2, 3}}})));
  CHECK(list_of(row.documents_T) == Values{0, 0, 0, 1});
  CHECK(list_of(row.positions_T) == Values{0, 1, 2, 2});
  CHECK(collate_pairs({}).packing.num_documents() == 0);
}

TEST_CASE("collate_shared: columns fork with the tokens, which are shared where these are equal") {
  const auto with = [](Sample sample, std::vector<float> column) {
    sample.columns["score"] = {at::tensor(column), 0};
    return sample;
  };
  const Sample chosen{{5, 6, 7, 8}, {-100, -100, -100, 8}};
  const Sample rejected{{5, 6, 7, 4}, {-100, -100, -100, 4}};
  const Example alike = pair_of(with(chosen, {1, 2, 3, 4}), with(rejected, {1, 2, 3, 5}));
  const Batch row = collate_pairs({&alike});
  CHECK((row.packing == Packing::from_documents({{6, Fork{2, 4}}})));
  CHECK(row.columns.at("score").values.equal(at::tensor({1.f, 2.f, 3.f, 4.f, 3.f, 5.f})));
  // The last common token starts the branches, so one token less is shared.
  const Example other = pair_of(with(chosen, {1, 2, 3, 4}), with(rejected, {1, 2, 9, 5}));
  CHECK((collate_pairs({&other}).packing == Packing::from_documents({{7, Fork{1, 4}}})));
  const Example none = pair_of(with(chosen, {1, 2, 3, 4}), with(rejected, {0, 2, 3, 5}));
  CHECK((collate_pairs({&none}).packing == Packing::from_lengths({4, 4})));
  const Example missing = pair_of(with(chosen, {1, 2, 3, 4}), rejected);
  CHECK_THROWS_AS(collate_pairs({&missing}), std::logic_error);
}

TEST_CASE("collate_shared: positions of several axes fork with the tokens") {
  Example pair =
      pair_of({{5, 6, 7, 8}, {-100, -100, -100, 8}}, {{5, 6, 7, 4}, {-100, -100, -100, 4}});
  for (Sample& sample : pair.documents) {
    sample.positions_AT = at::arange(8, at::kLong).view({2, 4});
  }
  const Batch row = collate_pairs({&pair});
  CHECK((row.packing == Packing::from_documents({{6, Fork{2, 4}}})));
  CHECK(list_of(row.positions_T.contiguous()) == Values{0, 1, 2, 3, 2, 3, 4, 5, 6, 7, 6, 7});
  pair.documents[1].positions_AT = at::Tensor();
  CHECK((collate_pairs({&pair}).packing == Packing::from_lengths({4, 4})));
}

TEST_CASE("collate_shared: tokens of different pictures are not shared") {
  const auto sample = [](uint64_t checksum) {
    Sample made{{5, 6, 6, 7, 8}, {-100, -100, -100, -100, 8}};
    made.columns[kFeatureColumn] = {at::tensor(std::vector<int64_t>{-1, 0, 1, -1, -1}, at::kLong),
                                    -1};
    made.pictures = {{.files = {"a"}, .num_features = 2, .checksum = checksum}};
    return made;
  };
  const Example same = pair_of(sample(1), sample(1)), other = pair_of(sample(1), sample(2));
  CHECK((collate_pairs({&same}).packing == Packing::from_documents({{7, Fork{3, 5}}})));
  CHECK((collate_pairs({&other}).packing == Packing::from_documents({{5}, {5}})));
}

TEST_CASE("collate_shared: answers to one prompt, and rollouts that continue others, are trees") {
  const auto answer = [](std::vector<int32_t> ids, size_t begin, size_t end) {
    Sample made{.input_ids = std::move(ids), .labels = {}};
    made.labels.assign(made.input_ids.size(), -100);
    for (size_t i = begin; i < end; ++i) made.labels[i] = made.input_ids[i];
    made.columns["advantage"] = {at::zeros({std::ssize(made.input_ids)}, at::kDouble), 0};
    for (size_t i = begin; i < end; ++i) made.columns["advantage"].values[i - 1].fill_(1.0 + end);
    return made;
  };
  Example star;
  star.documents = {answer({1, 2, 3, 4}, 3, 4), answer({1, 2, 3, 4, 5}, 3, 5),
                    answer({1, 2, 3, 6}, 3, 4)};
  const Batch row = collate_shared({&star}, SharedTokens::kWithOneLabel);
  CHECK((row.packing == Packing::from_documents({{9, {{0, kNoParent}, {2, 0}, {4, 0}, {7, 0}}}})));
  CHECK(list_of(row.tokens_T) == Values{1, 2, 3, 4, 3, 4, 5, 3, 6});
  CHECK(list_of(row.documents_T) == Values{0, 0, 0, 0, 1, 1, 1, 2, 2});
  CHECK(list_of(row.positions_T) == Values{0, 1, 2, 3, 2, 3, 4, 2, 3});
  // The first rollout answers with 3 4; two others continue it with a tool's 9 and an answer.
  Example turns;
  turns.documents = {answer({1, 2, 3, 4}, 2, 4), answer({1, 2, 3, 4, 9, 5}, 5, 6),
                     answer({1, 2, 3, 4, 9, 6, 6}, 5, 7)};
  const Batch tree = collate_shared({&turns}, SharedTokens::kWithOneLabel);
  CHECK((tree.packing ==
         Packing::from_documents({{10, {{0, kNoParent}, {3, 0}, {4, 0}, {5, 2}, {7, 2}}}})));
  CHECK(list_of(tree.tokens_T) == Values{1, 2, 3, 4, 4, 9, 5, 9, 6, 6});
}

TEST_CASE("collate_shared: random documents keep their tokens, labels and columns") {
  std::mt19937 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    const SharedTokens shared =
        trial % 2 == 0 ? SharedTokens::kWithOneLabel : SharedTokens::kWithoutLabels;
    // Documents that continue a part of an earlier one, with labels in their own part.
    Example example;
    for (int i = 0; i < 8; ++i) {
      Sample made;
      if (i > 0) {
        const Sample& earlier = example.documents[random() % i];
        const size_t kept = random() % (earlier.input_ids.size() + 1);
        made.input_ids.assign(earlier.input_ids.begin(), earlier.input_ids.begin() + kept);
      }
      made.labels.assign(made.input_ids.size(), -100);
      for (size_t more = 1 + random() % 6; more > 0; --more) {
        made.input_ids.push_back(static_cast<int32_t>(random() % 3));
        made.labels.push_back(random() % 3 == 0 ? -100 : made.input_ids.back());
      }
      const int64_t length = std::ssize(made.input_ids);
      const at::Tensor values = at::zeros({length}, at::kDouble);
      for (int64_t t = 0; t + 1 < length; ++t) {
        if (made.labels[t + 1] != -100) values[t].fill_(1 + 10 * i + t);
      }
      made.columns["value"] = {values, 0};
      example.documents.push_back(std::move(made));
    }
    const Batch row = collate_shared({&example}, shared);
    REQUIRE(row.packing.num_tokens() == row.tokens_T.numel());
    const Values tokens = list_of(row.tokens_T), labels = list_of(row.labels_T),
                 owners = list_of(row.documents_T), positions = list_of(row.positions_T);
    const double* values = row.columns.at("value").values.const_data_ptr<double>();
    std::vector<size_t> num_labels(example.documents.size());
    for (int64_t d = 0; d < row.packing.num_documents(); ++d) {
      std::vector<TreeSegment> tree = row.packing.tree(d);
      if (tree.empty()) tree.push_back({0, row.packing.length(d), 0, kNoParent, 0, 0});
      for (const TreeSegment& segment : tree) {
        for (int64_t t = segment.begin; t < segment.end; ++t) {
          const int64_t place = row.packing.begin(d) + t;
          const Sample& document = example.documents[owners[place]];
          // The token and all that it sees are the beginning of its document.
          std::vector<int64_t> seen;
          for (const TreeSegment* part = &segment;; part = &tree[part->parent]) {
            for (int64_t i = std::min(part->end, t + 1); i-- > part->begin;) {
              seen.push_back(tokens[row.packing.begin(d) + i]);
            }
            if (part->parent == kNoParent) break;
          }
          std::ranges::reverse(seen);
          REQUIRE(std::ssize(seen) == positions[place] + 1);
          REQUIRE(std::equal(seen.begin(), seen.end(), document.input_ids.begin()));
          const int64_t next = positions[place] + 1;
          const int64_t label = next < std::ssize(document.labels) ? document.labels[next] : -100;
          REQUIRE(labels[place] == label);
          REQUIRE(values[place] ==
                  document.columns.at("value").values[positions[place]].item<double>());
          num_labels[owners[place]] += label != -100;
        }
      }
    }
    for (size_t i = 0; i < example.documents.size(); ++i) {
      const auto& own = example.documents[i].labels;
      REQUIRE(num_labels[i] == own.size() - 1 - std::count(own.begin() + 1, own.end(), -100));
    }
  }
}

}  // namespace longspan
