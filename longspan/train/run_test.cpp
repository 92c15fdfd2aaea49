#include "longspan/train/run.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/checkpoint/model_folder.h"
#include "longspan/config/config.h"
#include "longspan/session/session.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

constexpr int64_t kSteps = 4;

/// A model in a folder without a tokenizer, and a configuration without `dataset`.
struct Place {
  testing::TemporaryFolder folder;
  Config config;

  Place() {
    folder.write("model/config.json", nlohmann::json{{"model_type", "qwen2"},
                                                     {"architectures", {"Qwen2ForCausalLM"}},
                                                     {"vocab_size", 40},
                                                     {"hidden_size", 24},
                                                     {"intermediate_size", 40},
                                                     {"num_hidden_layers", 2},
                                                     {"num_attention_heads", 4},
                                                     {"num_key_value_heads", 2},
                                                     {"max_position_embeddings", 64},
                                                     {"hidden_act", "silu"},
                                                     {"rms_norm_eps", 1e-6},
                                                     {"rope_theta", 10000.0},
                                                     {"tie_word_embeddings", false}}
                                          .dump());
    const ModelConfig model = load_model_config(folder / "model");
    save_model_folder(folder / "model", model, random_parameters(model, 1, at::kFloat), at::kFloat,
                      folder / "model");
    config.model.model_name_or_path = folder / "model";
    config.model.device = "cpu";
    config.data.cutoff_len = 32;
    config.method.do_train = true;
    config.optimization.per_device_train_batch_size = 1;
    config.optimization.max_steps = kSteps;
    config.optimization.learning_rate = 1e-2;
    config.optimization.lr_scheduler_type = "constant";
    config.output.logging_steps = 1;
    config.output.save_steps = 2;
  }
  Config with_output(const std::string& name) const {
    Config own = config;
    own.output.output_dir = folder / name;
    return own;
  }
};

Sample sample_of(int64_t number) {
  Sample sample;
  for (int64_t i = 0; i < 11 + number % 3; ++i) {
    sample.input_ids.push_back(static_cast<int32_t>((7 * i + 11 * number) % 40));
  }
  sample.labels = sample.input_ids;
  return sample;
}

/// Rows without an end.
class Stream final : public ExampleSource {
 public:
  std::optional<int64_t> num_batches() const override { return std::nullopt; }
  DrawnExamples next(int64_t /*epoch*/, int64_t /*batch*/) override {
    auto example = std::make_shared<Example>();
    example->documents.push_back(sample_of(num_drawn_++));
    return {.examples = {example}, .pattern = example};
  }
  std::string state() const override { return std::to_string(num_drawn_); }
  void resume(const std::string& state) override { num_drawn_ = std::stoll(state); }

 private:
  int64_t num_drawn_ = 0;
};

std::unique_ptr<ExampleSource> make_stream(const ExampleSet& train, const Mesh& /*mesh*/) {
  CHECK(train.empty());
  return std::make_unique<Stream>();
}

RunResult run(const Config& config, const RunParts& parts) {
  PlainHost host;
  return run_training(config, plan_run(config, {}), host, parts);
}

/// Trains without a run. Returns the sum of the losses, and saves the model.
double losses_of_session(const Config& config, const std::string& folder) {
  Session session(config);
  double sum = 0.0;
  for (int64_t step = 0; step < kSteps; ++step) {
    const std::vector<Row> rows{session.row({sample_of(step)})};
    sum += session.sum_up(session.forward_backward(rows, session.count(rows).weight)).loss();
    session.clip(session.reduce(), config.optimization.max_grad_norm);
    session.update(config.optimization.learning_rate);
  }
  session.save(folder);
  return sum;
}

bool same_models(const std::string& folder, const std::string& other) {
  const ModelConfig model = load_model_config(folder);
  const std::vector<NamedTensor> all = load_parameters(folder, model, at::kFloat),
                                 others = load_parameters(other, model, at::kFloat);
  bool same = all.size() == others.size();
  for (size_t i = 0; same && i < all.size(); ++i) same = at::equal(all[i].tensor, others[i].tensor);
  return same;
}

TEST_CASE("run: a source of rows needs no data set and no tokenizer") {
  const Place place;
  const RunParts parts{.meter = nullptr, .events = nullptr, .make_source = make_stream};
  const RunResult whole = run(place.with_output("whole"), parts);
  CHECK(whole.progress.step == kSteps);
  const double sum = losses_of_session(place.config, place.folder / "session");
  CHECK(whole.loss == sum / static_cast<double>(kSteps));
  CHECK(same_models(whole.saved_in, place.folder / "session"));
  CHECK_FALSE(same_models(whole.saved_in, place.folder / "model"));

  Config config = place.with_output("resumed");
  config.output.resume_from_checkpoint = place.folder / "whole/checkpoint-2";
  const RunResult resumed = run(config, parts);
  CHECK(resumed.progress.step == kSteps);
  CHECK(resumed.loss == whole.loss);
  CHECK(same_models(resumed.saved_in, whole.saved_in));
}

TEST_CASE("run: without a source of rows, the data set is demanded") {
  const Place place;
  const RunParts none{.meter = nullptr, .events = nullptr, .make_source = {}};
  CHECK_THROWS_WITH_AS(run(place.with_output("a"), none), doctest::Contains("dataset is missing"),
                       UserError);
  Config config = place.with_output("b");
  config.preferences.precompute_ref_log_probs = true;
  CHECK_THROWS_WITH_AS(
      run(config, {.meter = nullptr, .events = nullptr, .make_source = make_stream}),
      doctest::Contains("precompute_ref_log_probs"), UserError);
}

}  // namespace
}  // namespace longspan
