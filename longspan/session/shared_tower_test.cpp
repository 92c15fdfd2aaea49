// Rows with pictures: the same losses on one rank and on several, whatever is shared out.
#include "longspan/session/shared_tower.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "longspan/checkpoint/model_folder.h"
#include "longspan/config/config.h"
#include "longspan/models/composite.h"
#include "longspan/models/parse_model_config.h"
#include "longspan/session/session.h"
#include "longspan/testing/session_ranks.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {
namespace with_pictures_in_rows {

using Json = nlohmann::json;

constexpr int kSteps = 4;
constexpr int32_t kVocabulary = 40, kImage = 36;
constexpr int64_t kMerge = 2, kPatchDim = 3 * 2 * 4 * 4;

/// `kind`: qwen2_5_vl has windows, qwen3_vl features for its first layers.
ModelParts model_of(const std::string& kind) {
  const bool old = kind == "qwen2_5_vl";
  Json rope = {{"rope_type", "default"}, {"rope_theta", 1e4}};
  rope["mrope_section"] = old ? Json{2, 1, 1} : Json{2, 1, 1};
  Json vision = {{"depth", 2},           {"hidden_size", 16}, {"intermediate_size", 24},
                 {"num_heads", 2},       {"patch_size", 4},   {"spatial_merge_size", kMerge},
                 {"out_hidden_size", 32}};
  if (old) {
    vision["window_size"] = 16;
    vision["fullatt_block_indexes"] = {1};
  } else {
    vision["num_position_embeddings"] = 16;
    vision["deepstack_visual_indexes"] = {0};
  }
  const Json json = {{"model_type", kind},
                     {"image_token_id", kImage},
                     {"video_token_id", kImage + 1},
                     {"vision_start_token_id", kImage + 2},
                     {"vision_end_token_id", kImage + 3},
                     {"text_config",
                      {{"model_type", kind + "_text"},
                       {"vocab_size", kVocabulary},
                       {"hidden_size", 32},
                       {"intermediate_size", 40},
                       {"num_hidden_layers", 2},
                       {"num_attention_heads", 4},
                       {"num_key_value_heads", 2},
                       {"head_dim", 8},
                       {"max_position_embeddings", 256},
                       {"rope_parameters", rope}}},
                     {"vision_config", vision}};
  const ModelConfig config = with_pictures(parse_model_config(json.dump(), "config.json"));
  return {config, random_parameters(config, 3, at::kFloat), [](const Picture& picture, int64_t t) {
            const int64_t num = picture.grid.h * picture.grid.w * kPatchDim;
            const auto seed = static_cast<double>(picture.files.front().front());
            return at::sin(at::arange(num, at::kFloat) * (0.01 * seed) + static_cast<double>(t))
                .view({-1, kPatchDim});
          }};
}

/// Text, and after the first tokens each picture: its temporal patches, rows and columns as
/// positions.
Sample sample_of(int64_t num_text, const std::vector<Picture>& pictures, int64_t seed) {
  Sample sample;
  std::vector<int64_t> features;
  std::vector<std::vector<int64_t>> axes(3);
  int64_t position = 0, feature = 0;
  const auto add = [&](int32_t token, int64_t own, int64_t t, int64_t h, int64_t w) {
    sample.input_ids.push_back(token);
    sample.labels.push_back(own < 0 ? token : kIgnoreLabel);
    features.push_back(own);
    axes[0].push_back(t);
    axes[1].push_back(h);
    axes[2].push_back(w);
  };
  const auto add_text = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i, ++position) {
      add(static_cast<int32_t>((5 * i + 3 * seed) % kImage), -1, position, position, position);
    }
  };
  add_text(3);
  for (const Picture& picture : pictures) {
    for (int64_t t = 0; t < picture.grid.t; ++t) {
      for (int64_t h = 0; h < picture.grid.h / kMerge; ++h) {
        for (int64_t w = 0; w < picture.grid.w / kMerge; ++w) {
          add(kImage, feature++, position + t, position + h, position + w);
        }
      }
    }
    position += std::max({picture.grid.t, picture.grid.h, picture.grid.w});
    add_text(2);
  }
  add_text(num_text);
  sample.columns[kFeatureColumn] = {at::tensor(features), -1};
  if (!pictures.empty()) {
    std::vector<at::Tensor> rows;
    for (const auto& axis : axes) rows.push_back(at::tensor(axis));
    sample.positions_AT = at::stack(rows);
    sample.pictures = pictures;
  }
  return sample;
}

Picture picture_of(const std::string& name, PictureGrid grid) {
  return {.files = {name},
          .is_video = grid.t > 1,
          .grid = grid,
          .num_features = grid.num_patches() / (kMerge * kMerge)};
}

/// Rows with many pictures and a video, with one, and with none.
std::vector<Sample> samples_of(int64_t step) {
  const Picture wide = picture_of("a", {1, 4, 10}), small = picture_of("b", {1, 2, 2}),
                video = picture_of("c", {3, 4, 4});
  switch (step % 3) {
    case 0:
      return {sample_of(9, {wide, small, video}, step), sample_of(4, {small}, step + 1)};
    case 1:
      return {sample_of(7, {}, step), sample_of(11, {wide}, step + 1)};
    default:
      return {sample_of(23, {}, step), sample_of(6, {}, step + 1)};
  }
}

Config config_for(int sequence_parallel_size) {
  Config config;
  config.model.device = "cpu";
  config.data.cutoff_len = 256;
  config.data.rows_have_pictures = true;
  config.parallel.sequence_parallel_size = sequence_parallel_size;
  config.method.freeze_vision_tower = config.method.freeze_multi_modal_projector = false;
  return config;
}

std::vector<double> losses_of(int num_ranks, const Config& config, const ModelParts& model) {
  std::vector<double> losses;
  testing::on_session_ranks(num_ranks, config, model, [&](Session& session) {
    const int64_t group = session.mesh().data.rank(), groups = session.mesh().data.size();
    for (int64_t step = 0; step < kSteps; ++step) {
      // Two rows a step, one of each sample, shared out over the data-parallel groups.
      std::vector<Row> rows;
      const std::vector<Sample> samples = samples_of(step);
      for (int64_t i = group; i < std::ssize(samples); i += groups) {
        rows.push_back(session.row(std::vector<Sample>{samples[i]}));
      }
      const RowLosses sums = session.forward_backward(rows, session.count(rows).weight);
      const double loss = session.sum_up(sums).loss();
      session.clip(session.reduce(), 1.0);
      session.update(1e-2);
      if (session.mesh().world.rank() == 0) losses.push_back(loss);
    }
  });
  return losses;
}

TEST_CASE("pictures: losses of trained towers are the same on one rank and on several") {
  for (const char* kind : {"qwen2_5_vl", "qwen3_vl"}) {
    const ModelParts model = model_of(kind);
    CAPTURE(kind);
    const std::vector<double> alone = losses_of(1, config_for(1), model);
    CHECK(alone.front() != alone.back());
    struct Setting {
      int num_ranks, sequence_size;
      const char* method;
      int64_t zero_stage;
      bool checkpointing;
    };
    for (const auto& [num_ranks, sequence_size, method, zero_stage, checkpointing] :
         {Setting{2, 2, "ulysses", 0, true}, Setting{3, 3, "zigzag-ring", 0, false},
          Setting{4, 4, "ulysses", 3, true}, Setting{2, 1, "", 3, true},
          Setting{4, 2, "llama3", 2, true}}) {
      Config config = config_for(sequence_size);
      if (*method != '\0') config.parallel.sequence_parallel_mode = method;
      config.memory.zero_stage = zero_stage;
      config.model.disable_gradient_checkpointing = !checkpointing;
      CAPTURE(
          fmt::format("{} ranks, {} {}, zero {}", num_ranks, sequence_size, method, zero_stage));
      testing::check_close(losses_of(num_ranks, config, model), alone);
    }
  }
}

TEST_CASE("pictures: frozen parts stay, and losses still agree") {
  const ModelParts model = model_of("qwen3_vl");
  Config config = config_for(1);
  config.method.freeze_vision_tower = true;
  const std::vector<double> projector = losses_of(1, config, model);
  config.method.freeze_multi_modal_projector = true;
  const std::vector<double> language = losses_of(1, config, model);
  CHECK(projector.back() != language.back());
  config.parallel.sequence_parallel_size = 2;
  testing::check_close(losses_of(2, config, model), language);
  config.memory.zero_stage = 3;
  testing::check_close(losses_of(2, config, model), language);
  config.method.freeze_multi_modal_projector = false;
  testing::check_close(losses_of(2, config, model), projector);
}

TEST_CASE("pictures: a teacher and its student read each frame once") {
  const testing::TemporaryFolder folder;
  ModelParts model = model_of("qwen3_vl");
  save_model_folder(folder.path, model.config, random_parameters(model.config, 8, at::kFloat),
                    at::kFloat, "");
  std::atomic<int64_t> frames = 0;
  model.patches = [&frames, patches = model.patches](const Picture& picture, int64_t t) {
    ++frames;
    return patches(picture, t);
  };
  const auto frames_of = [&](const char* stage, int num_ranks) {
    Config config = config_for(num_ranks);
    config.method.stage = stage;
    if (config.method.stage == "distill_sft") config.preferences.ref_model = folder.path;
    frames = 0;
    const std::vector<double> losses = losses_of(num_ranks, config, model);
    CHECK(losses.front() > 0.0);
    return frames.load();
  };
  // Steps 0 and 3 have seven frames, step 1 has one.
  CHECK(frames_of("sft", 1) == 13);
  CHECK(frames_of("distill_sft", 1) == 13);
  CHECK(frames_of("distill_sft", 2) == 13);
}

}  // namespace with_pictures_in_rows
}  // namespace
}  // namespace longspan
