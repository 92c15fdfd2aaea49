#include "longspan/train/run_data.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <set>

#include "longspan/base/user_error.h"
#include "longspan/saving/training_state.h"
#include "longspan/testing/dataset_folder.h"
#include "longspan/testing/ranks.h"
#include "longspan/train/early_source.h"

namespace longspan {
namespace {

Example of_one_document() {
  Example example;
  example.documents = {Sample{{1, 2, 3}, {-100, 2, 3}}};
  return example;
}

/// Returns an example with a number for each token.
Example with_advantages(float first) {
  Example example = of_one_document();
  example.documents.front().columns["advantage"] = {at::arange(3, at::kFloat).add(first)};
  return example;
}

std::string fingerprint(std::vector<Example> examples) {
  return fingerprint_of(ExamplesInMemory(std::move(examples)));
}

}  // namespace

TEST_CASE("fingerprint: a column or positions alone make other rows") {
  std::set<std::string> all{fingerprint({of_one_document()})};
  CHECK_FALSE(all.insert(fingerprint({of_one_document()})).second);
  CHECK(all.insert(fingerprint({with_advantages(1)})).second);
  CHECK(all.insert(fingerprint({with_advantages(2)})).second);
  CHECK_FALSE(all.insert(fingerprint({with_advantages(2)})).second);
  Example on_axes = of_one_document();
  on_axes.documents.front().positions_AT = at::zeros({3, 3}, at::kLong);
  CHECK(all.insert(fingerprint({on_axes})).second);
}

TEST_CASE("fingerprint: a run does not go on with other numbers in a column") {
  RunIdentity then;
  then.num_rows = 1;
  then.rows = fingerprint({with_advantages(1)});
  RunIdentity now = then;
  CHECK_NOTHROW(require_same_run("checkpoint-1", then, now, 1));
  now.rows = fingerprint({with_advantages(2)});
  CHECK_THROWS_WITH_AS(require_same_run("checkpoint-1", then, now, 1),
                       doctest::Contains("the fingerprint of the training rows was"), UserError);
}

TEST_CASE("data: ranks whose rows differ in a column alone are found") {
  // Rank 0 throws UserError, the other FailedElsewhere; either may come first.
  CHECK_THROWS_WITH(
      testing::run_ranks(2,
                         [](const Mesh& mesh) {
                           RunData data;
                           data.train = std::make_unique<ExamplesInMemory>(std::vector<Example>{
                               with_advantages(static_cast<float>(mesh.world.rank()))});
                           data.fingerprint = fingerprint_of(*data.train);
                           require_same_data(mesh.world, data);
                         }),
      doctest::Contains("Rank 1 reads other training rows than rank 0"));
}

TEST_CASE(
    "data: of a machine that has encoded rows and one that has their texts, sizes are equal") {
  CHECK_THROWS_WITH(
      testing::run_ranks(2,
                         [](const Mesh& mesh) {
                           RunData data;
                           const int rank = mesh.world.rank();
                           data.train = std::make_unique<ExamplesInMemory>(
                               std::vector<Example>(rank == 0 ? 3 : 2));
                           data.fingerprint = rank == 0 ? "1" : std::string(kTextsOfRows) + "2";
                           require_same_data(mesh.world, data);
                         }),
      doctest::Contains("Rank 1 reads 2 training rows and 0 of evaluation, and rank 0 3"));
}

TEST_CASE("early start: the disk has room for texts and rows") {
  CHECK(why_no_room("/", 1).empty());
  CHECK_SAYS(why_no_room("/", int64_t{1} << 55), "texts and rows may take");
}

TEST_CASE("data: ranks whose files say that heads are of other kinds are found") {
  CHECK_THROWS_WITH(testing::run_ranks(2,
                                       [&](const Mesh& mesh) {
                                         ModelConfig model;
                                         model.json = mesh.world.rank() == 0
                                                          ? R"({"tie_word_embeddings": true})"
                                                          : R"({"tie_word_embeddings": false})";
                                         require_same_model(mesh.world, model);
                                       }),
                    doctest::Contains("Rank 1 reads another model than rank 0"));
}

}  // namespace longspan
