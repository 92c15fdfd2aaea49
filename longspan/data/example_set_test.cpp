#include "longspan/data/example_set.h"

#include <doctest/doctest.h>

#include <optional>
#include <stdexcept>

namespace longspan {
namespace {

std::vector<Example> examples_of(std::vector<int32_t> tokens) {
  std::vector<Example> examples;
  for (const int32_t token : tokens) {
    examples.emplace_back().documents = {{{token, 2}, {-100, 2}}};
  }
  return examples;
}

int32_t token_of(const ExamplePointer& example) { return example->documents[0].input_ids[0]; }

TEST_CASE("example set: what was drawn outlives its set") {
  std::optional<ExamplesInMemory> source(examples_of({5, 6, 7}));
  CHECK(source->size() == 3);
  const ExamplePointer drawn = source->example(1);
  CHECK(source->example(1) == drawn);
  CHECK_THROWS_AS(source->example(3), std::out_of_range);
  source.reset();
  CHECK(token_of(drawn) == 6);
}

TEST_CASE("example set: the numbers of two sets one behind the other are places in both") {
  const ExamplesInMemory train(examples_of({5, 6, 7})), eval(examples_of({8, 9}), train.size());
  const JoinedExamples all(train, eval);
  REQUIRE(all.size() == 5);
  for (int64_t i = 0; i < all.size(); ++i) {
    CHECK(all.example(i)->number == i);
    CHECK(token_of(all.example(i)) == 5 + i);
  }
  const ExamplesInMemory none({});
  CHECK(none.empty());
  CHECK(JoinedExamples(none, eval).example(1) == eval.example(1));
}

}  // namespace
}  // namespace longspan
