#include "longspan/rows/batch.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <set>
#include <stdexcept>

#include "longspan/rows/example.h"

namespace longspan {

namespace {

std::vector<int64_t> values(const at::Tensor& x_T) {
  const int64_t* data = x_T.const_data_ptr<int64_t>();
  return {data, data + x_T.numel()};
}

const Sample kFirst{{5, 6, 7, 8}, {-100, -100, 7, 8}};
const Sample kSecond{{9, 10}, {9, 10}};  // no token predicts the label at position 0
const Sample kThird{{11}, {11}};

}  // namespace

TEST_CASE("collate: labels are shifted inside each document, positions restart") {
  const Batch row = collate({&kFirst, &kSecond, &kThird});
  CHECK(values(row.tokens_T) == std::vector<int64_t>{5, 6, 7, 8, 9, 10, 11});
  CHECK(values(row.labels_T) == std::vector<int64_t>{-100, 7, 8, -100, 10, -100, -100});
  CHECK(values(row.positions_T) == std::vector<int64_t>{0, 1, 2, 3, 0, 1, 0});
  CHECK(values(row.documents_T) == std::vector<int64_t>{0, 0, 0, 0, 1, 1, 2});
  CHECK(row.packing == Packing::from_lengths({4, 2, 1}));
  CHECK(count_labels(row) == 3);
  CHECK(row.example_lengths == std::vector<int64_t>{4, 2, 1});
}

TEST_CASE("collate: documents of an example have its length") {
  const Example packed{.documents = {kFirst, kSecond}, .position_restarts = {}},
      single{.documents = {kThird}, .position_restarts = {}};
  const Batch row = collate_examples({&packed, &single});
  CHECK(row.example_lengths == std::vector<int64_t>{6, 6, 1});
  CHECK(take(row, {0, 6}, row.packing).example_lengths == row.example_lengths);
}

TEST_CASE("collate: no samples give an empty row") {
  const Batch row = collate({});
  CHECK(row.tokens_T.numel() == 0);
  CHECK(row.packing.num_documents() == 0);
  CHECK(count_labels(row) == 0);
}

TEST_CASE("shard: shares of a row hold each label once, padding holds none") {
  const Batch row = collate({&kFirst, &kSecond});
  const Packing padded = Packing::from_lengths({4, 2, 2});
  const Batch one = shard(row, {padded, {0, 3, 4, -1}});
  const Batch two = shard(row, {padded, {1, 2, 5, -1}});
  CHECK(values(one.tokens_T) == std::vector<int64_t>{5, 8, 9, 0});
  CHECK(values(one.labels_T) == std::vector<int64_t>{-100, -100, 10, -100});
  CHECK(values(one.positions_T) == std::vector<int64_t>{0, 3, 0, 0});
  CHECK(values(one.documents_T) == std::vector<int64_t>{0, 0, 1, -1});
  CHECK(values(two.labels_T) == std::vector<int64_t>{7, 8, -100, -100});
  CHECK(one.packing == padded);
  CHECK(count_labels(one) + count_labels(two) == count_labels(row));
}

namespace {

Sample with_columns(Sample sample, double advantage) {
  const auto T = std::ssize(sample.input_ids);
  sample.columns["advantage"] = {at::arange(T, at::kFloat).add(advantage), 0.5};
  sample.columns["image place"] = {at::arange(2 * T, at::kLong).view({T, 2}), -1};
  return sample;
}

at::Tensor three_axes(int64_t num_tokens) {
  return at::arange(3 * num_tokens, at::kLong).view({3, num_tokens});
}

}  // namespace

TEST_CASE("collate: columns follow the tokens and are not shifted") {
  const Sample first = with_columns(kFirst, 10), second = with_columns(kSecond, 20);
  const Batch row = collate({&first, &second});
  CHECK(row.columns.size() == 2);
  const at::Tensor advantages = at::tensor({10.f, 11.f, 12.f, 13.f, 20.f, 21.f});
  CHECK(row.columns.at("advantage").values.equal(advantages));
  const at::Tensor places = row.columns.at("image place").values;
  CHECK(places.equal(at::cat({first.columns.at("image place").values,  //
                              second.columns.at("image place").values})));
  const Batch local = shard(row, {Packing::from_lengths({4, 2, 2}), {5, -1, 0}});
  CHECK(local.columns.at("advantage").values.equal(at::tensor({21.f, 0.5f, 10.f})));
  CHECK(values(local.columns.at("image place").values) == std::vector<int64_t>{2, 3, -1, -1, 0, 1});
  CHECK(local.columns.at("image place").padding == -1);
}

TEST_CASE("collate: samples of a row have the same columns") {
  const Sample named = with_columns(kFirst, 10);
  CHECK_THROWS_AS(collate({&named, &kSecond}), std::logic_error);
  CHECK_THROWS_AS(collate({&kSecond, &named}), std::logic_error);
  const auto changed = [](auto change) {
    Sample other = with_columns(kSecond, 0);
    change(other.columns.at("advantage"));
    return other;
  };
  const Sample shorter = changed([](Column& x) { x.values = x.values.narrow(0, 0, 1); });
  const Sample wider = changed([](Column& x) { x.values = x.values.unsqueeze(1); });
  const Sample of_doubles = changed([](Column& x) { x.values = x.values.to(at::kDouble); });
  const Sample padded = changed([](Column& x) { x.padding = 1; });
  for (const Sample* other : {&shorter, &wider, &of_doubles, &padded}) {
    CHECK_THROWS_AS(collate({&named, other}), std::logic_error);
  }
}

TEST_CASE("idle row: one token of padding, with the columns and axes of the other ranks' rows") {
  Sample pattern = with_columns(kFirst, 10);
  const Batch counted = idle_row(pattern);
  CHECK(values(counted.labels_T) == std::vector<int64_t>{kIgnoreLabel});
  CHECK(values(counted.documents_T) == std::vector<int64_t>{-1});
  CHECK(counted.positions_T.sizes() == at::IntArrayRef{1});
  CHECK_FALSE(counted.places_T.defined());
  REQUIRE(counted.columns.size() == 2);
  CHECK(counted.columns.at("advantage").values.equal(at::tensor({0.5f})));
  CHECK(counted.columns.at("advantage").padding == 0.5);
  CHECK(counted.columns.at("image place").values.equal(at::full({1, 2}, -1, at::kLong)));
  pattern.positions_AT = three_axes(4);
  const Batch on_axes = idle_row(pattern);
  CHECK(on_axes.positions_T.sizes() == at::IntArrayRef{3, 1});
  CHECK(values(on_axes.places_T) == std::vector<int64_t>{0});
  CHECK(idle_row(kFirst).columns.empty());
  CHECK(idle_row(kFirst).pictures == nullptr);
  pattern.columns[kFeatureColumn] = {at::tensor(std::vector<int64_t>{-1, 0, 1, -1}), -1};
  pattern.pictures = {{.files = {"a"}, .num_features = 2}};
  const Batch of_pictures = idle_row(pattern);
  CHECK(values(of_pictures.columns.at(kFeatureColumn).values) == std::vector<int64_t>{-1});
  REQUIRE(of_pictures.pictures != nullptr);
  CHECK(of_pictures.pictures->pictures.empty());
}

TEST_CASE("attached bytes: every part of a column and of positions is in them") {
  CHECK(attached_bytes(kFirst).empty());
  const Sample sample = with_columns(kFirst, 10);
  std::set<std::string> all{attached_bytes(sample)};
  const auto differs = [&](auto change) {
    Sample other = with_columns(kFirst, 10);
    change(other);
    return all.insert(attached_bytes(other)).second;
  };
  CHECK_FALSE(differs([](Sample&) {}));
  const auto column = [&](auto change) {
    return differs([&](Sample& other) { change(other.columns.at("advantage")); });
  };
  CHECK(column([](Column& x) { x.values[3] = -1.0; }));
  CHECK(column([](Column& x) { x.values = x.values.to(at::kDouble); }));
  CHECK(column([](Column& x) { x.values = x.values.unsqueeze(1); }));
  CHECK(column([](Column& x) { x.padding = 0; }));
  CHECK(differs([](Sample& other) { other.columns.erase("advantage"); }));
  CHECK(differs([](Sample& other) {
    other.columns["reward"] = other.columns.extract("advantage").mapped();
  }));
  CHECK(differs([](Sample& other) { other.positions_AT = three_axes(4); }));
  CHECK(differs([](Sample& other) { other.positions_AT = three_axes(4).add(1); }));
}

TEST_CASE("collate: positions of several axes; text among them counts on each") {
  Sample image = kFirst;
  image.positions_AT = three_axes(4);
  const Batch row = collate({&image, &kSecond});
  CHECK(row.positions_T.sizes() == at::IntArrayRef{3, 6});
  CHECK(values(row.positions_T.select(0, 1).contiguous()) ==
        std::vector<int64_t>{4, 5, 6, 7, 0, 1});
  CHECK(values(row.places_T) == std::vector<int64_t>{0, 1, 2, 3, 0, 1});
  const Batch local = shard(row, {Packing::from_lengths({4, 2}), {5, -1, 1}});
  CHECK(values(local.positions_T) == std::vector<int64_t>{1, 0, 1, 1, 0, 5, 1, 0, 9});
  CHECK(values(token_keys(local)) == std::vector<int64_t>{(int64_t{1} << 32) + 1,  //
                                                          -(int64_t{1} << 32), 1});
  // Tokens of a picture, whose positions on an axis are equal, differ in their keys.
  image.positions_AT = at::zeros({3, 4}, at::kLong);
  CHECK(values(token_keys(collate({&image}))) == std::vector<int64_t>{0, 1, 2, 3});
  Sample other = kSecond;
  other.positions_AT = at::zeros({2, 2}, at::kLong);
  CHECK_THROWS_AS(collate({&image, &other}), std::logic_error);
}

TEST_CASE("joined: pictures and their features follow those of the samples before") {
  const auto sample = [](std::vector<int64_t> features, int64_t num_features) {
    Sample made{.input_ids = {1, 2, 3}, .labels = {1, 2, 3}};
    made.columns[kFeatureColumn] = {at::tensor(features, at::kLong), -1};
    if (num_features > 0) made.pictures = {{.files = {"a"}, .num_features = num_features}};
    return made;
  };
  const Sample a = sample({-1, 0, 1}, 2), text = sample({-1, -1, -1}, 0),
               b = sample({0, -1, -1}, 1);
  const Sample all = joined({&a, &text, &b});
  CHECK(all.pictures.size() == 2);
  CHECK(at::equal(all.columns.at(kFeatureColumn).values,
                  at::tensor(std::vector<int64_t>{-1, 0, 1, -1, -1, -1, 2, -1, -1}, at::kLong)));
}

TEST_CASE("collate: a row's pictures are listed once, and each document has its own features") {
  const auto sample = [](const char* file, std::vector<int64_t> features, int64_t num_features) {
    Sample made{.input_ids = {1, 2, 3, 4}, .labels = {1, 2, 3, 4}};
    made.columns[kFeatureColumn] = {at::tensor(features, at::kLong), -1};
    made.pictures = {{.files = {file}, .num_features = num_features, .is_two_way = true}};
    return made;
  };
  const Sample a = sample("a", {-1, 0, 1, -1}, 2), b = sample("b", {-1, 0, 1, 2}, 3);
  const Batch row = collate({&a, &b, &a});
  CHECK(row.columns.at(kFeatureColumn)
            .values.equal(at::tensor(std::vector<int64_t>{-1, 0, 1, -1, -1, 2, 3, 4, -1, 0, 1, -1},
                                     at::kLong)));
  CHECK(row.pictures->pictures.size() == 2);
  const std::vector<TwoWaySpan> expected = {{1, 3}, {5, 8}, {9, 11}};
  CHECK((row.packing.two_way() == expected));
}

TEST_CASE("attached bytes: contents and grids of pictures are in them, paths are not") {
  Sample sample{.input_ids = {1}, .labels = {1}};
  sample.pictures = {{.files = {"a.png"}, .grid = {1, 2, 4}, .num_features = 2, .checksum = 5}};
  const std::string bytes = attached_bytes(sample);
  Sample other = sample;
  other.pictures[0].files = {"moved/a.png"};
  CHECK(attached_bytes(other) == bytes);
  other.pictures[0].checksum = 6;
  CHECK(attached_bytes(other) != bytes);
  other = sample;
  other.pictures[0].grid = {1, 4, 2};
  CHECK(attached_bytes(other) != bytes);
  other = sample;
  other.pictures[0].is_video = true;
  CHECK(attached_bytes(other) != bytes);
}

}  // namespace longspan
