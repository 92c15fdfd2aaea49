#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>

#include "longspan/data/stage_encoders.h"

namespace longspan {

namespace {

/// n tokens from `first` on. All but the first are trained.
Sample sample(int32_t first, int32_t n) {
  Sample made;
  for (int32_t i = 0; i < n; ++i) {
    made.input_ids.push_back(first + i);
    made.labels.push_back(i == 0 ? -100 : first + i);
  }
  return made;
}

std::vector<int64_t> positions(const Batch& row) {
  const int64_t* data = row.positions_T.const_data_ptr<int64_t>();
  return {data, data + row.positions_T.numel()};
}

}  // namespace

TEST_CASE("best fit: the longest that fits, of equals the last") {
  CHECK(best_fit({3, 5, 3, 2, 8, 3}, 8) ==
        std::vector<std::vector<int64_t>>{{4}, {1, 5}, {2, 0, 3}});
  CHECK(best_fit({}, 8).empty());
}

TEST_CASE("best fit: every sample once, no row too long, none could take a sample of a later row") {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<int64_t> lengths(1 + random() % 60);
    for (int64_t& length : lengths) length = 1 + random() % 40;
    const auto rows = best_fit(lengths, 40);
    std::vector<int64_t> seen;
    for (size_t i = 0; i < rows.size(); ++i) {
      int64_t room = 40;
      for (const int64_t sample : rows[i]) room -= lengths[sample];
      CHECK(room >= 0);
      CHECK(!rows[i].empty());
      for (size_t later = i + 1; later < rows.size(); ++later) {
        for (const int64_t sample : rows[later]) CHECK(lengths[sample] > room);
      }
      seen.insert(seen.end(), rows[i].begin(), rows[i].end());
    }
    std::ranges::sort(seen);
    for (size_t i = 0; i < lengths.size(); ++i) REQUIRE(seen[i] == static_cast<int64_t>(i));
    CHECK(seen.size() == lengths.size());
  }
}

TEST_CASE("neat packing: documents of one row; otherwise one document whose positions restart") {
  const std::vector<Sample> samples = {sample(10, 3), sample(20, 5), sample(30, 4)};
  EncodedExamples neat = pack_samples(samples, 8, true);
  REQUIRE(neat.examples.size() == 2);
  REQUIRE(neat.examples[0].documents.size() == 2);
  CHECK(neat.examples[0].documents[0].input_ids == samples[1].input_ids);
  CHECK(neat.examples[0].documents[1].labels == samples[0].labels);
  CHECK(neat.examples[0].position_restarts.empty());

  EncodedExamples joined = pack_samples(samples, 12, false);
  REQUIRE(joined.examples.size() == 1);
  const Example& example = joined.examples[0];
  REQUIRE(example.documents.size() == 1);
  CHECK(example.documents[0].input_ids ==
        std::vector<int32_t>{20, 21, 22, 23, 24, 30, 31, 32, 33, 10, 11, 12});
  CHECK(example.documents[0].labels ==
        std::vector<int32_t>{-100, 21, 22, 23, 24, -100, 31, 32, 33, -100, 11, 12});
  CHECK(example.position_restarts == std::vector<int64_t>{5, 9});

  // Restarts count from the begin of their own example.
  const Batch row = collate_examples({&neat.examples[0], &example, &neat.examples[1]});
  CHECK(row.packing == Packing::from_lengths({5, 3, 12, 4}));
  CHECK(positions(row) == std::vector<int64_t>{0, 1, 2, 3, 4, 0, 1, 2,              //
                                               0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 1, 2,  //
                                               0, 1, 2, 3});
}

TEST_CASE("packing: keys of tokens differ where positions restart, and in every share of the row") {
  const EncodedExamples joined =
      pack_samples({sample(10, 3), sample(20, 5), sample(30, 4)}, 12, false);
  const EncodedExamples neat = pack_samples({sample(10, 3), sample(20, 5)}, 8, true);
  const Batch row = collate_examples({&joined.examples[0], &neat.examples[0]});
  const auto keys_of = [](const Batch& batch) {
    const at::Tensor keys_T = token_keys(batch);
    const int64_t* data = keys_T.const_data_ptr<int64_t>();
    return std::vector<int64_t>(data, data + keys_T.numel());
  };
  const std::vector<int64_t> keys = keys_of(row);
  REQUIRE(keys.size() == 20);
  CHECK(std::set<int64_t>(keys.begin(), keys.end()).size() == keys.size());
  // Every third token, as one rank might hold them.
  const Batch share = shard(row, {row.packing, {0, 3, 6, 9, 12, 15, 18}});
  const std::vector<int64_t> held = keys_of(share);
  for (size_t i = 0; i < held.size(); ++i) CHECK(held[i] == keys[3 * i]);
  // Without restarts, positions are places.
  const Batch plain = collate_examples({&neat.examples[0]});
  CHECK(!plain.places_T.defined());
  CHECK(keys_of(plain) == keys_of(collate({&neat.examples[0].documents[0],  //
                                           &neat.examples[0].documents[1]})));
}

TEST_CASE("packing: columns and positions of several axes go with their samples") {
  std::vector<Sample> samples = {sample(10, 3), sample(20, 5)};
  for (Sample& each : samples) {
    each.columns["score"] = {at::tensor(std::vector<int64_t>(each.input_ids.begin(),  //
                                                             each.input_ids.end())),
                             0};
  }
  samples[0].positions_AT = at::arange(6, at::kLong).view({2, 3}).add(50);
  for (const bool neat : {false, true}) {
    EncodedExamples packed = pack_samples(samples, 8, neat);
    REQUIRE(packed.examples.size() == 1);
    // A second row of text only, whose positions restart on every axis.
    EncodedExamples plain = pack_samples({sample(30, 2), sample(40, 1)}, 3, neat);
    for (Example& example : plain.examples) {
      for (Sample& document : example.documents) {
        document.columns["score"] = {at::zeros({std::ssize(document.input_ids)}, at::kLong), 0};
      }
    }
    const Batch row = collate_examples({&packed.examples[0], &plain.examples[0]});
    CHECK(row.columns.at("score").values.narrow(0, 0, 8).equal(row.tokens_T.narrow(0, 0, 8)));
    REQUIRE(row.positions_T.sizes() == at::IntArrayRef{2, 11});
    const auto axis = [&](int64_t number) {
      const at::Tensor x = row.positions_T.select(0, number).contiguous();
      return std::vector<int64_t>(x.const_data_ptr<int64_t>(), x.const_data_ptr<int64_t>() + 11);
    };
    CHECK(axis(0) == std::vector<int64_t>{0, 1, 2, 3, 4, 50, 51, 52, 0, 1, 0});
    CHECK(axis(1) == std::vector<int64_t>{0, 1, 2, 3, 4, 53, 54, 55, 0, 1, 0});
  }
}

TEST_CASE("packing reports what padding would have cost") {
  const EncodedExamples packed = pack_samples({sample(0, 2), sample(0, 6), sample(0, 8)}, 8, true);
  REQUIRE(packed.packing);
  CHECK(packed.packing->rows_before == 3);
  CHECK(packed.packing->rows_after == 2);
  CHECK(packed.packing->empty_before() == doctest::Approx(1.0 - 16.0 / 24));
  CHECK(packed.packing->empty_after() == 0);
  CHECK(packed.packing->text() ==
        "Packing: 2 rows of up to 8 tokens out of 3; 0.0 % empty, without packing 33.3 %");
}

}  // namespace longspan
