#include "longspan/session/evaluation.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "longspan/memory/counting_allocator.h"
#include "longspan/settings/preference_settings.h"
#include "longspan/testing/parameter_specs.h"
#include "longspan/testing/ranks.h"
#include "longspan/testing/small_model.h"

namespace longspan {
namespace {

/// A loss of 1 for each row; measures memory meanwhile.
class CountingObjective : public Objective {
 public:
  CountingObjective(const AllocationCounter& memory, bool two_passes)
      : memory_(memory), precomputes_(two_passes) {}

  double weight(const Row& row) const override { return static_cast<double>(row.examples.size()); }
  bool replicated() const override { return true; }
  bool precomputes() const override { return precomputes_; }
  void precompute(const Row& row) override {
    ++num_ahead;
    most_bytes = std::max(most_bytes, memory_.live_bytes());
  }
  at::Tensor loss(const Row& row, size_t row_number, double, Averages&) override {
    CHECK(row_number == static_cast<size_t>(num_losses));
    ++num_losses;
    most_bytes = std::max(most_bytes, memory_.live_bytes());
    return at::full({}, static_cast<double>(row.examples.size()), at::kDouble);
  }

  int num_ahead = 0, num_losses = 0;
  int64_t most_bytes = 0;

 private:
  const AllocationCounter& memory_;
  bool precomputes_;
};

/// The sum of a row's column `weight`; padding counts as 0.
class WeightObjective : public Objective {
 public:
  double weight(const Row& row) const override { return static_cast<double>(row.examples.size()); }
  bool replicated() const override { return true; }
  at::Tensor loss(const Row& row, size_t, double, Averages&) override {
    return row.local.columns.at("weight").values.sum();
  }
};

/// 50 rows of 1000 tokens, and a model that is not used.
struct Case {
  PreferenceSettings preferences;
  Mesh mesh;
  std::unique_ptr<SequenceParallel> attention = make_local(cpu_block_kernel());
  std::unique_ptr<Decoder> model;
  ParameterTable specs;
  std::unique_ptr<ExampleSet> examples;

  Case() {
    testing::SmallModel shape;
    shape.vocab_size = shape.hidden_size = 4;
    shape.num_layers = 0;
    shape.tied_head = true;
    specs = ParameterTable(parameters_of(shape.spec()));
    std::vector<NamedTensor> parameters;
    for (const auto& [name, sizes] : testing::parameter_shapes(shape.spec())) {
      parameters.push_back({name, at::zeros(sizes)});
    }
    model = std::make_unique<Decoder>(shape.spec(), parameters, *attention, DecoderOptions{});
    Sample sample;
    sample.input_ids.assign(1000, 3);
    sample.labels.assign(1000, 3);
    std::vector<Example> all(50);
    for (Example& example : all) example.documents = {sample};
    examples = std::make_unique<ExamplesInMemory>(std::move(all));
  }

  ObjectiveContext context() const {
    return {preferences, mesh, *attention, *model, specs, at::kCPU};
  }
  EvaluatedRows rows() const { return {*attention, mesh.data.rank(), mesh.data.size()}; }
};

// Four numbers per token, for the whole row and for this rank's share.
constexpr int64_t kBytesOfRow = 1000 * 8 * 4 * 2;

}  // namespace

TEST_CASE("evaluation: one row at a time is in memory") {
  Case test;
  for (const bool two_passes : {false, true}) {
    const AllocationCounter memory(AllocationCounter::Of::kThisThread);
    CountingObjective objective(memory, two_passes);
    const auto result =
        evaluate(objective, test.context(), test.rows(), *test.examples, 1, [] { return false; });
    REQUIRE(result);
    CHECK(result->loss == 1.0);
    CHECK(result->num_samples == 50);
    CHECK(objective.num_losses == 50);
    CHECK(objective.num_ahead == (two_passes ? 50 : 0));
    CHECK(objective.most_bytes < 2 * kBytesOfRow);
  }
}

TEST_CASE("evaluation: an idle row has the columns of the others") {
  std::vector<double> losses(2);
  testing::run_ranks(2, [&](const Mesh& mesh) {
    Case test;
    test.mesh = mesh;
    Example example;
    example.documents = {Sample{{1, 2, 3}, {-100, 2, 3}}};
    example.documents.front().columns["weight"] = {at::arange(3, at::kDouble)};
    const ExamplesInMemory examples({example});
    ObjectiveContext context = test.context();
    context.idle_rows = true;
    WeightObjective objective;
    const auto result =
        evaluate(objective, context, test.rows(), examples, 1, [] { return false; });
    losses[mesh.world.rank()] = result ? result->loss : -1.0;
  });
  CHECK(losses == std::vector<double>{3.0, 3.0});
}

TEST_CASE("evaluation: whoever is told to stop makes no more rows") {
  Case test;
  for (const bool two_passes : {false, true}) {
    const AllocationCounter memory(AllocationCounter::Of::kThisThread);
    CountingObjective objective(memory, two_passes);
    CHECK(
        !evaluate(objective, test.context(), test.rows(), *test.examples, 1, [] { return true; }));
    CHECK(objective.num_ahead + objective.num_losses == 1);  // it is asked after the first row
    CHECK(memory.peak_bytes() < 2 * kBytesOfRow);
  }
}

}  // namespace longspan
