// Checkpoints that are written at once, in rounds, and in the background have the same files.
#include "longspan/saving/checkpoint_write.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/input/input_file.h"
#include "longspan/optim/adamw.h"
#include "longspan/parameters/parameter_source.h"
#include "longspan/saving/background_saving.h"
#include "longspan/saving/checkpoints.h"
#include "longspan/saving/sharded_saving.h"
#include "longspan/testing/ranks.h"
#include "longspan/testing/small_model.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

constexpr int kRanks = 3;

ModelConfig small_qwen2() {
  testing::SmallModel model;
  model.model_type = "qwen2";
  model.vocab_size = 61;
  model.hidden_size = 24;
  model.intermediate_size = 36;
  model.num_layers = 2;
  model.num_heads = 4;
  model.num_kv_heads = 2;
  model.head_dim = 6;
  model.qkv_bias = true;
  ModelConfig config = model.config();
  config.json = R"({"model_type": "qwen2"})";
  return config;
}

SavedModel saved_model_of(const ModelConfig& config) {
  return {.config = config,
          .dtype = at::kBFloat16,
          .source_folder = "",
          .lora = std::nullopt,
          .chat = std::nullopt,
          .specs = ParameterTable(parameters_of(config.spec)),
          .all = {}};
}

/// A model of which each rank holds a part, and its optimizer.
struct Trained {
  explicit Trained(const Mesh& mesh)
      : config(small_qwen2()),
        saver(saved_model_of(config)),
        parameters(sources_of(config),
                   {.stage = 3, .shard = mesh.shard, .replicas = mesh.replicas}),
        optimizer(parameters.shards(), {.weight_decay = 0.1}) {}

  static std::vector<ParameterSource> sources_of(const ModelConfig& config) {
    std::vector<ParameterSource> sources;
    for (const ParameterSpec& spec : parameters_of(config.spec)) {
      sources.push_back(
          {spec, at::kFloat, /*trained=*/true, [spec] {
             const int64_t n = spec.num_elements();
             return (at::arange(n, at::kFloat) / 7 + static_cast<double>(n)).sin().view(spec.shape);
           }});
    }
    return sources;
  }

  CheckpointContent content() {
    TrainingState state;
    state.totals.progress.step = 4;
    std::vector<StateSource> states = optimizer.state();
    const std::vector<ParameterShard> shards = parameters.shards();
    for (size_t i = 0; i < states.size(); ++i) {
      states[i] = with_master(std::move(states[i]), shards[i].values);
    }
    return {.parameters = parameters.parameters(),
            .states = std::move(states),
            .sharded = &parameters,
            .state = state,
            .texts = {{"trainer_log.jsonl", "{}\n"}}};
  }

  void change() {
    for (const ParameterShard& shard : parameters.shards()) shard.values.fill_(0.5);
    for (const StateSource& state : optimizer.state()) {
      for (auto& [what, values] : state.make().tensors) values.fill_(7);
    }
  }

  ModelConfig config;
  ModelSaver saver;
  ShardedParameters parameters;
  AdamW optimizer;
};

/// The contents of all files but those with the time of saving.
std::map<std::string, std::string> contents_of(const std::string& folder) {
  std::map<std::string, std::string> contents;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = fs::relative(entry.path(), folder);
    if (!entry.is_regular_file() || name == kTrainingStateFile || name == "checksums.json")
      continue;
    contents[name] = InputFile(entry.path(), "file").read_all(1 << 24);
  }
  return contents;
}

}  // namespace

TEST_CASE("sharded model: the same files in rounds of any size, and from copies") {
  const testing::TemporaryFolder place;
  const std::vector<std::string> folders{place / "at-once", place / "rounds", place / "copies"};
  for (const std::string& folder : folders) fs::create_directory(folder);
  testing::run_ranks(kRanks, [&](const Mesh& mesh) {
    Trained trained(mesh);
    Notices notices({});
    const SavedModel& model = trained.saver.model();
    write_sharded_model(folders[0], model, trained.parameters, mesh.world, notices);
    for (const int64_t bytes : {1, 3000}) {
      const GatheredModel written =
          write_weights(folders[1], model, trained.parameters, mesh.world, notices, bytes);
      write_gathered(folders[1], model, written, mesh.world.rank());
    }
    HostCopies copies(at::kCPU);
    for (int i = 0; i < 2; ++i) {
      copies.restart();
      write_gathered(folders[2], model, gather_model(model, trained.parameters, mesh.world, copies),
                     mesh.world.rank());
    }
  });
  const auto expected = contents_of(folders[0]);
  CHECK(expected.size() == kRanks + 2);  // config.json, index
  CHECK(contents_of(folders[1]) == expected);
  CHECK(contents_of(folders[2]) == expected);
}

TEST_CASE("checkpoint: in the background, with the values of its step") {
  const testing::TemporaryFolder place;
  OutputSettings config;
  config.output_dir = place.path;
  config.save_total_limit = 1;
  testing::run_ranks(kRanks, [&](const Mesh& mesh) {
    Trained trained(mesh);
    Notices notices({});
    Checkpoints checkpoints(config, mesh.world, notices, trained.saver, "");
    checkpoints.save(place / "waits", 4, trained.content());
    HostCopies copies(at::kCPU);
    BackgroundSaving background(mesh.world, notices);
    background.start(checkpoints.begin(place / "goes-on", 4, trained.content(), copies));
    trained.change();
    while (!background.advance()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    // The same memory again.
    copies.restart();
    background.start(checkpoints.begin(place / "goes-on", 5, trained.content(), copies));
    background.finish();
  });
  const auto expected = contents_of(place / "waits/checkpoint-4");
  CHECK(expected.size() == kRanks + 2 + kRanks + 1);  // weights, states, log
  // save_total_limit has removed checkpoint-4.
  CHECK(find_checkpoints(place / "goes-on").size() == 1);
  const auto changed = contents_of(place / "goes-on/checkpoint-5");
  CHECK(changed.size() == expected.size());
  CHECK(changed != expected);
}

TEST_CASE("checkpoint: the files of a save in the background are those of one that waits") {
  const testing::TemporaryFolder place;
  OutputSettings config;
  config.output_dir = place.path;
  testing::run_ranks(kRanks, [&](const Mesh& mesh) {
    Trained trained(mesh);
    Notices notices({});
    Checkpoints checkpoints(config, mesh.world, notices, trained.saver, "");
    checkpoints.save(place / "waits", 4, trained.content());
    HostCopies copies(at::kCPU);
    BackgroundSaving background(mesh.world, notices);
    background.start(checkpoints.begin(place / "goes-on", 4, trained.content(), copies));
    trained.change();
    const auto written = background.finish();
    if (mesh.world.rank() == 0 && written->num_bytes() == 0) throw UserError("no bytes");
  });
  CHECK(contents_of(place / "goes-on/checkpoint-4") == contents_of(place / "waits/checkpoint-4"));
}

TEST_CASE("checkpoint: a failure in the background is one of all ranks, and leaves nothing") {
  const testing::TemporaryFolder place;
  OutputSettings config;
  config.output_dir = place.path;
  std::vector<std::string> errors(kRanks);
  testing::run_ranks(kRanks, [&](const Mesh& mesh) {
    Trained trained(mesh);
    Notices notices({});
    Checkpoints checkpoints(config, mesh.world, notices, trained.saver, "");
    HostCopies copies(at::kCPU);
    BackgroundSaving background(mesh.world, notices);
    CheckpointContent content = trained.content();
    content.texts["no-such-folder/file"] = "x";
    background.start(checkpoints.begin(place.path, 4, content, copies));
    try {
      background.finish();
    } catch (const std::exception& error) {
      errors[static_cast<size_t>(mesh.world.rank())] = error.what();
    }
    if (background.is_busy()) throw UserError("busy");
    // The next one succeeds, and one that is given up leaves nothing.
    copies.restart();
    background.start(checkpoints.begin(place.path, 5, trained.content(), copies));
    background.finish();
    checkpoints.begin(place.path, 6, trained.content(), copies).reset();
  });
  for (const std::string& error : errors)
    CHECK_MESSAGE(error.find("no-such-folder") != std::string::npos, error);
  CHECK(fs::exists(place / "checkpoint-5"));
  CHECK(place.num_files() == 1);
}

}  // namespace longspan
