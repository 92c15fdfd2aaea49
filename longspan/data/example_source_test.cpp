#include "longspan/data/example_source.h"

#include <doctest/doctest.h>

#include "longspan/base/user_error.h"
#include "longspan/data/dealt_epochs.h"

namespace longspan {
namespace {

TEST_CASE("example source: epochs of a set give each example once an epoch, in a new order") {
  std::vector<Example> examples(10);
  for (Example& example : examples) example.documents = {{{3, 2}, {-100, 2}}};
  const ExamplesInMemory set(std::move(examples));
  const auto source_of = [&](int group) {
    return Epochs(set, Loader(set.size(), /*rows_per_batch=*/2, group, /*data_size=*/2,
                              /*shuffle=*/true, /*seed=*/5));
  };
  const auto numbers_of = [&](int64_t epoch, int64_t first_batch) {
    std::vector<int64_t> numbers;
    std::vector<Epochs> groups{source_of(0), source_of(1)};
    for (int64_t batch = first_batch; batch < *groups[0].num_batches(); ++batch) {
      for (Epochs& group : groups) {
        const DrawnExamples drawn = group.next(epoch, batch);
        CHECK(drawn.pattern != nullptr);
        for (const ExamplePointer& example : drawn.examples) numbers.push_back(example->number);
      }
    }
    return numbers;
  };
  std::vector<int64_t> first = numbers_of(0, 0), second = numbers_of(1, 0);
  CHECK(first != second);
  // A resumed run asks for the rest.
  CHECK(numbers_of(1, 2) == std::vector<int64_t>(second.begin() + 8, second.end()));
  for (std::vector<int64_t>* numbers : {&first, &second}) {
    std::ranges::sort(*numbers);
    CHECK(*numbers == std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  }
  Epochs source = source_of(0);
  source.resume(source.state());
  CHECK_THROWS_WITH_AS(source.resume("line 70 of a stream"),
                       doctest::Contains("stream of examples"), UserError);
}

TEST_CASE("example source: the summary of dealt rows has the steps that have begun") {
  std::vector<Example> examples(4);
  for (Example& example : examples) example.documents = {{{3, 2}, {-100, 2}}};
  const ExamplesInMemory set(std::move(examples));
  DealtEpochs source(
      set,
      Loader(set.size(), /*rows_per_batch=*/2, /*data_rank=*/0, /*data_size=*/1, /*shuffle=*/false,
             /*seed=*/5),
      {.rules = {.ranks = {.num_ranks = 1},
                 .degrees = {1},
                 .examples_per_row = 1,
                 .seconds = [](int64_t length, int) { return static_cast<double>(length); }}});
  const auto draw = [&](int64_t step) {
    source.rows({.epoch = 0, .begin_batch = step, .end_batch = step + 1, .epochs_done = 0});
  };
  draw(0);
  CHECK(source.summary().empty());
  source.check(2);
  draw(1);  // ahead, in a run that ends after its first step
  CHECK(source.summary().starts_with("Dealt rows: 2 on 1 process."));
  CHECK_THROWS_WITH_AS(source.check(1), doctest::Contains("1 of 2 examples"), UserError);
  source.check(2);
  CHECK(source.summary().starts_with("Dealt rows: 4 on 1 process."));
}

}  // namespace
}  // namespace longspan
