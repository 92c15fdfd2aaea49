#include "longspan/train/run.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/checkpoint/model_folder.h"
#include "longspan/config/config.h"
#include "longspan/files/checksum_file.h"
#include "longspan/session/session.h"
#include "longspan/testing/silent_server.h"
#include "longspan/testing/temporary_folder.h"
#include "longspan/testing/thread_groups.h"

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

/// Rows without an end. `delay`: of each row.
class Stream final : public ExampleSource {
 public:
  explicit Stream(std::chrono::milliseconds delay = {}) : delay_(delay) {}
  std::optional<int64_t> num_batches() const override { return std::nullopt; }
  DrawnExamples next(int64_t /*epoch*/, int64_t /*batch*/) override {
    std::this_thread::sleep_for(delay_);
    auto example = std::make_shared<Example>();
    example->documents.push_back(sample_of(num_drawn_++));
    return {.examples = {example}, .pattern = example};
  }
  std::string state() const override { return std::to_string(num_drawn_); }
  void resume(const std::string& state) override { num_drawn_ = std::stoll(state); }

 private:
  std::chrono::milliseconds delay_;
  int64_t num_drawn_ = 0;
};

std::unique_ptr<ExampleSource> make_stream(const ExampleSet& train, const Mesh& /*mesh*/) {
  CHECK(train.empty());
  return std::make_unique<Stream>();
}

RunResult run(const Config& config, const RunParts& parts) {
  PlainRunControl control;
  return run_training(config, plan_run(config, {}), control, parts);
}

/// Runs on two ranks, which are threads and share each row. Returns rank 0's result.
RunResult run_on_two(Config config, const RunParts& parts, RunControl* given = nullptr) {
  config.parallel.sequence_parallel_size = 2;
  const int port = testing::free_port();
  std::vector<RunResult> results(2);
  std::vector<std::exception_ptr> errors(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        PlainRunControl plain;
        RunControl& control = given != nullptr ? *given : plain;
        const Rendezvous where{.rank = rank,
                               .world_size = 2,
                               .local_rank = rank,
                               .local_world_size = 2,
                               .master_port = port,
                               .interfaces = {},
                               .store_prefix = {},
                               .link = &testing::thread_link()};
        results[rank] = run_training(config, plan_run(config, {}, where), control, parts);
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return results[0];
}

class Recorder final : public EventSink {
 public:
  void take(const Event& event) override { events.push_back(event); }
  template <typename Kind>
  std::vector<Kind> all() const {
    std::vector<Kind> found;
    for (const Event& event : events) {
      if (const Kind* one = std::get_if<Kind>(&event)) found.push_back(*one);
    }
    return found;
  }
  /// The place of the first event of this kind.
  template <typename Kind>
  int64_t first() const {
    return std::ranges::find_if(
               events, [](const Event& event) { return std::holds_alternative<Kind>(event); }) -
           events.begin();
  }

  std::vector<Event> events;
};

/// Stops a run once it has said these words.
class UntilSaid final : public EventSink, public RunControl {
 public:
  explicit UntilSaid(std::string words) : words_(std::move(words)) {}
  void take(const Event& event) override {
    const Said* said = std::get_if<Said>(&event);
    if (said == nullptr || said->text.find(words_) == std::string::npos) return;
    text = said->text;
    has_said_ = true;
  }
  bool told_to_stop() const override { return has_said_; }

  std::string text;

 private:
  std::string words_;
  std::atomic<bool> has_said_ = false;
};

/// Trains without a run. Returns the sum of the losses, and saves the model.
double losses_of_session(const Config& config, const std::string& folder) {
  Recorder told;
  Session session(config, {.events = &told});
  double sum = 0.0;
  for (int64_t step = 0; step < kSteps; ++step) {
    const std::vector<Row> rows{session.row({sample_of(step)})};
    sum += session.sum_up(session.forward_backward(rows, session.count(rows).weight)).loss();
    session.clip(session.reduce(), config.optimization.max_grad_norm);
    session.update(config.optimization.learning_rate);
  }
  const std::string checkpoint = session.save_checkpoint(folder + "-state");
  session.save(folder);
  REQUIRE(told.all<CheckpointSaved>().size() == 1);
  CHECK(told.all<CheckpointSaved>()[0].folder == checkpoint);
  REQUIRE(told.all<ModelSaved>().size() == 1);
  CHECK(told.all<ModelSaved>()[0].model_folder == folder);
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

/// Rows by their numbers, which a run may draw ahead. Adds "r" to `order` for each row.
class Numbered final : public ExampleSource {
 public:
  explicit Numbered(std::string& order) : order_(order) {}
  std::optional<int64_t> num_batches() const override { return std::nullopt; }
  DrawnExamples next(int64_t /*epoch*/, int64_t batch) override {
    order_ += 'r';
    auto example = std::make_shared<Example>();
    example->documents.push_back(sample_of(batch));
    return {.examples = {example}, .pattern = example};
  }
  std::string state() const override { return ""; }
  void resume(const std::string& /*state*/) override {}

 private:
  std::string& order_;
};

/// Adds "S" to `order` for each report of progress.
class StepsInOrder final : public EventSink {
 public:
  explicit StepsInOrder(std::string& order) : order_(order) {}
  void take(const Event& event) override {
    if (std::holds_alternative<Stepped>(event)) order_ += 'S';
  }

 private:
  std::string& order_;
};

TEST_CASE("run: rows of the next step are there, and counted, before a step ends") {
  const Place place;
  std::string order, expected = "Sr";
  StepsInOrder events(order);
  run(place.with_output("run"),
      {.meter = nullptr, .events = &events, .make_source = [&](const ExampleSet&, const Mesh&) {
         return std::make_unique<Numbered>(order);
       }});
  for (int64_t step = 0; step < kSteps; ++step) expected += step + 1 < kSteps ? "rS" : "S";
  CHECK(order == expected);
}

TEST_CASE("run: a rank that keeps the other one waiting is named") {
  const Place place;
  Config config = place.with_output("run");
  config.optimization.max_steps = 1000;  // stopped before
  config.output.save_steps = 1000;
  config.parallel.ddp_timeout = 10;  // a heartbeat every half second
  UntilSaid told(" keeps the others waiting: ");
  run_on_two(
      config,
      {.meter = nullptr,
       .events = &told,
       .make_source =
           [](const ExampleSet& /*train*/, const Mesh& mesh) {
             return std::make_unique<Stream>(std::chrono::milliseconds(50 * mesh.world.rank()));
           },
       .rank_times = RankTimes(/*least_seconds=*/0.0)},
      &told);
  CHECK_MESSAGE(told.text.starts_with("warning: rank 1 (host "), told.text);
}

TEST_CASE("run: a pod with slow steps is told of the grace that it needs, after one checkpoint") {
  const Place place;
  const RunParts parts{.meter = nullptr, .events = nullptr, .make_source = make_stream};
  run(place.with_output("quick"), parts);
  const std::string checkpoint = place.folder / "quick/checkpoint-2",
                    path = checkpoint + "/training_state.json";
  std::ifstream file(path);
  nlohmann::json state = nlohmann::json::parse(file);
  state.at("totals").at("progress").at("elapsed_seconds") = 400.0;
  std::ofstream(path) << state.dump();
  write_checksum_file(checkpoint, checksums_of(checkpoint, {}));
  for (const bool is_pod : {false, true}) {
    CAPTURE(is_pod);
    Config config = place.with_output(is_pod ? "pod" : "no_pod");
    config.output.resume_from_checkpoint = checkpoint;
    config.output.surroundings.is_pod = is_pod;
    config.output.save_steps = 1;
    Recorder told;
    run(config, {.meter = nullptr, .events = &told, .make_source = make_stream});
    CHECK(told.all<CheckpointSaved>().size() == 2);
    const std::vector<Said> said = told.all<Said>();
    CHECK(std::ranges::count_if(said, [](const Said& line) {
            return line.text.find("terminationGracePeriodSeconds of at least 150") !=
                   std::string::npos;
          }) == (is_pod ? 1 : 0));
  }
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

  // Hidden states are in fp32, whose roundings differ with the blocks; AdamW grows them.
  config.output.output_dir = place.folder / "two";
  const RunResult two = run_on_two(config, parts);
  CHECK(two.progress.step == kSteps);
  CHECK(two.loss == doctest::Approx(whole.loss).epsilon(1e-5));
}

TEST_CASE("run: a sink gets every kind of event, and the files are those that it tells of") {
  const Place place;
  Config config = place.with_output("run");
  config.output.plot_loss = true;
  Recorder told;
  PeakMeter meter(at::kCPU);
  run(config, {.meter = &meter, .events = &told, .make_source = make_stream});
  CHECK(!told.all<Said>().empty());
  CHECK(told.all<Stepped>().size() == kSteps + 1);  // with the start
  CHECK(told.all<StepsEnded>().size() == 1);
  CHECK(told.all<Logged>().size() == kSteps + 1);  // with the whole training
  const std::vector<CheckpointSaved> checkpoints = told.all<CheckpointSaved>();
  REQUIRE(checkpoints.size() == 2);
  CHECK(checkpoints[0].folder == place.folder / "run/checkpoint-2");
  const std::vector<MemoryMeasured> memory = told.all<MemoryMeasured>();
  REQUIRE(memory.size() == 1);
  REQUIRE(memory[0].peaks.size() == 1);
  CHECK(memory[0].peaks[0].device > 0);
  const std::vector<ModelSaved> saved = told.all<ModelSaved>();
  REQUIRE(saved.size() == 1);
  CHECK(saved[0].model_folder == place.folder / "run");
  CHECK(saved[0].record_folder == place.folder / "run");
  CHECK(told.first<StepsEnded>() < told.first<MemoryMeasured>());
  CHECK(told.first<MemoryMeasured>() < told.first<ModelSaved>());
  // Rows that are not known yet have as many tokens as they may.
  std::ifstream account(place.folder / "run/memory.json");
  CHECK(nlohmann::json::parse(account).at("facts").at("num_tokens") == config.data.cutoff_len);
  for (const char* file : {"run/model.safetensors", "run/trainer_log.jsonl",
                           "run/training_loss.png", "run/checkpoint-4/model.safetensors"}) {
    CHECK_MESSAGE(std::filesystem::exists(place.folder / file), std::string(file));
  }
}

TEST_CASE("run: the inner ring is that of fast_domain_size, or of a machine") {
  const Place place;
  Config config = place.with_output("run");
  config.parallel.sequence_parallel_size = 8;
  config.parallel.sequence_parallel_mode = "loongtrain";
  config.parallel.sequence_parallel_ring_degree = 8;
  Rendezvous where;
  where.world_size = 8;
  where.local_world_size = 4;
  CHECK(plan_run(config, {}, where).parallel.window_size == 4);
  config.parallel.fast_domain_size = 2;
  CHECK(plan_run(config, {}, where).parallel.window_size == 2);
  config.parallel.fast_domain_size = 72;
  CHECK(plan_run(config, {}, where).parallel.window_size == 8);
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
