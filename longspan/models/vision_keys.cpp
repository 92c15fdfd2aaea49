#include "longspan/models/vision_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/models/layer_keys.h"
#include "longspan/spec/gemma3_vision.h"

namespace longspan {
namespace {

constexpr int64_t kMostBlocks = 4096, kMostOfPatch = 1024;

/// Keys without effect on training: names, dtypes, generation, initial values of new models.
constexpr std::string_view kHarmless[] = {
    "model_type", "dtype", "torch_dtype", "initializer_range", "architectures", "_name_or_path",
    "attn_implementation", "_attn_implementation", "transformers_version", "return_dict",
    "output_hidden_states", "output_attentions", "id2label", "label2id", "problem_type",
    "chunk_size_feed_forward", "is_encoder_decoder", "use_cache",
    // Qwen2.5-VL: for positions of videos, which the data sets' code makes.
    "tokens_per_second",
    // Qwen2-VL writes the patch size twice.
    "spatial_patch_size"};

/// Records the keys that were read, and refuses others at its end.
class VisionReader {
 public:
  explicit VisionReader(const JsonObject& keys) : keys_(keys) { keys_.record(asked_); }

  int64_t size(const char* name, int64_t fallback, int64_t most = kMostIndexed) {
    return positive(keys_, name, most, fallback);
  }
  /// The keys; reads are recorded.
  const JsonObject& keys() const { return keys_; }
  double norm_eps(const char* name, double fallback) {
    const auto eps = keys_.get<double>(name, fallback);
    if (!(eps > 0)) keys_.fail(fmt::format("{} is {}, it must be positive", name, eps));
    return eps;
  }

  /// Keys of Qwen's towers.
  VisionSpec common(std::string_view activation, int64_t patch_size) {
    VisionSpec vision;
    vision.names = VisionSpec::names_of_qwen();
    // Published files of Qwen2-VL name the channels in_chans, which transformers does not read.
    vision.num_channels = size("in_channels", 3, 16);
    if (keys_.get<int64_t>("in_chans", vision.num_channels) != vision.num_channels) {
      keys_.fail(fmt::format("in_chans is {}, and in_channels {}", keys_.get<int64_t>("in_chans"),
                             vision.num_channels));
    }
    vision.patch_size = size("patch_size", patch_size, kMostOfPatch);
    vision.temporal_patch_size = size("temporal_patch_size", 2, 16);
    vision.merge_size = size("spatial_merge_size", 2, 16);
    vision.depth = size("depth", 32, kMostBlocks);
    vision.num_heads = size("num_heads", 16);
    require_activation(activation);
    vision.initializer_range = keys_.get<double>("initializer_range", 0.02);
    rotary(vision);
    return vision;
  }

  void require_activation(std::string_view activation) {
    if (const auto name = keys_.get<std::string>("hidden_act", std::string(activation));
        name != activation) {
      keys_.fail(fmt::format("hidden_act {} is not supported in the vision tower; {} is", name,
                             activation));
    }
  }

  void heads(const VisionSpec& vision) const {
    if (vision.hidden_size % (4 * vision.num_heads) == 0) return;
    keys_.fail(fmt::format(
        "a hidden size of {} and num_heads {}: heads of the vision tower need a multiple of 4 "
        "numbers, which rotate by rows and by columns in pairs",
        vision.hidden_size, vision.num_heads));
  }

  /// Returns blocks in [0, depth), ascending.
  std::vector<int64_t> blocks(const char* name, std::vector<int64_t> fallback, int64_t depth) {
    std::vector<int64_t> blocks = keys_.get<std::vector<int64_t>>(name, std::move(fallback));
    const bool valid =
        std::ranges::adjacent_find(blocks, std::ranges::greater_equal{}) == blocks.end();
    if (!valid || std::ranges::any_of(blocks, [&](int64_t b) { return b < 0 || b >= depth; })) {
      keys_.fail(fmt::format("{} [{}] must be ascending blocks from 0 to {}", name,
                             fmt::join(blocks, ", "), depth - 1));
    }
    return blocks;
  }

  void require_known() const {
    for (const auto& [name, value] : keys_.json().items()) {
      if (asked_.contains(name) || std::ranges::find(kHarmless, name) != std::end(kHarmless)) {
        continue;
      }
      keys_.fail(fmt::format(
          "{} is not known in this family's vision_config, and may change the results. Remove the "
          "key if the model does not need it",
          name));
    }
  }

 private:
  void rotary(VisionSpec& vision) {
    vision.rotary_theta = 10000.0;
    if (!keys_.has("rope_parameters")) return;
    const JsonObject rope = keys_.object("rope_parameters");
    // transformers takes default for axial here.
    const auto type = rope.get<std::string>("rope_type", "axial");
    if (type != "axial" && type != "default") {
      rope.fail(fmt::format("rope_type {} is not supported in the vision tower; axial is", type));
    }
    for (const auto& [name, value] : rope.json().items()) {
      if (name == "rope_type" || name == "rope_theta" || value.is_null()) continue;
      rope.fail(fmt::format(
          "{} is not known in the vision tower's rotation, and may change the results. Remove the "
          "key if the model does not need it",
          name));
    }
    vision.rotary_theta = rope.get<double>("rope_theta", *vision.rotary_theta);
    if (!(*vision.rotary_theta > 1)) rope.fail("rope_theta must be larger than 1");
  }

  JsonObject keys_;
  std::set<std::string> asked_;
};

constexpr VisionSpec::MlpMerger kNamedByPlace{"ln_q", "mlp.0", "mlp.2"},
    kNamedByUse{"norm", "linear_fc1", "linear_fc2"};

VisionSpec read_qwen3(const JsonObject& keys, bool has_deepstack) {
  VisionReader reader(keys);
  VisionSpec vision = reader.common("gelu_pytorch_tanh", 16);
  if (!keys.has("depth")) vision.depth = 27;
  vision.hidden_size = reader.size("hidden_size", 1152);
  vision.output_size = reader.size("out_hidden_size", 3584);
  vision.has_patch_bias = true;
  vision.mlp = {.intermediate_size = reader.size("intermediate_size", 4304),
                .activation = VisionSpec::Activation::kGeluTanh,
                .has_gate = false,
                .names = {"linear_fc1", "linear_fc2"}};
  vision.merger = kNamedByUse;
  const int64_t positions = reader.size("num_position_embeddings", 2304);
  vision.position_side = std::llround(std::sqrt(static_cast<double>(positions)));
  if (vision.position_side * vision.position_side != positions) {
    keys.fail(fmt::format("num_position_embeddings is {}, it must be a square", positions));
  }
  if (has_deepstack) {
    vision.deepstack = reader.blocks("deepstack_visual_indexes", {8, 16, 24}, vision.depth);
  } else if (keys.has("deepstack_visual_indexes") &&
             !reader.blocks("deepstack_visual_indexes", {}, vision.depth).empty()) {
    keys.fail("deepstack_visual_indexes must be empty in this family");
  }
  reader.heads(vision);
  reader.require_known();
  return vision;
}

}  // namespace

VisionSpec read_qwen2_vl_vision(const VisionKeys& given) {
  const JsonObject& keys = given.tower;
  VisionReader reader(keys);
  VisionSpec vision = reader.common("quick_gelu", 14);
  vision.hidden_size = reader.size("embed_dim", 1280);
  vision.output_size = reader.size("hidden_size", 3584);
  vision.mlp = {.intermediate_size = vision.hidden_size * reader.size("mlp_ratio", 4, 64),
                .activation = VisionSpec::Activation::kQuickGelu,
                .has_gate = false,
                .names = {"fc1", "fc2"}};
  vision.merger = kNamedByPlace;
  reader.heads(vision);
  reader.require_known();
  return vision;
}

VisionSpec read_qwen2_5_vl_vision(const VisionKeys& given) {
  const JsonObject& keys = given.tower;
  VisionReader reader(keys);
  VisionSpec vision = reader.common("silu", 14);
  vision.hidden_size = reader.size("hidden_size", 3584);
  vision.output_size = reader.size("out_hidden_size", 3584);
  vision.norm = VisionSpec::Norm::kRmsNorm;
  vision.mlp = {.intermediate_size = reader.size("intermediate_size", 3420),
                .activation = VisionSpec::Activation::kSilu,
                .has_gate = true,
                .names = VisionSpec::Mlp::gated_names()};
  vision.merger = kNamedByPlace;
  const int64_t window = reader.size("window_size", 112);
  vision.windows = VisionSpec::Windows{
      .side = window / vision.merge_size / vision.patch_size,
      .full_blocks = reader.blocks("fullatt_block_indexes", {7, 15, 23, 31}, vision.depth)};
  if (vision.windows->side == 0) {
    keys.fail(fmt::format("window_size is {}, less than {} patches of {}", window,
                          vision.merge_size, vision.patch_size));
  }
  reader.heads(vision);
  reader.require_known();
  return vision;
}

VisionSpec read_qwen3_vl_vision(const VisionKeys& keys) { return read_qwen3(keys.tower, true); }
VisionSpec read_qwen3_5_vision(const VisionKeys& keys) { return read_qwen3(keys.tower, false); }

VisionSpec read_gemma3_vision(const VisionKeys& given) {
  VisionReader reader(given.tower);
  const JsonObject& keys = reader.keys();
  VisionSpec vision;
  vision.num_channels = reader.size("num_channels", 3, 16);
  vision.patch_size = reader.size("patch_size", 16, kMostOfPatch);
  vision.depth = reader.size("num_hidden_layers", 12, kMostBlocks);
  vision.hidden_size = reader.size("hidden_size", 768);
  vision.num_heads = reader.size("num_attention_heads", 12);
  vision.output_size = given.hidden_size;
  vision.has_patch_bias = true;
  vision.norm_eps = reader.norm_eps("layer_norm_eps", 1e-6);
  vision.initializer_range = given.whole.get<double>("initializer_range", 0.02);
  reader.require_activation("gelu_pytorch_tanh");
  vision.mlp = {.intermediate_size = reader.size("intermediate_size", 3072),
                .activation = VisionSpec::Activation::kGeluTanh,
                .has_gate = false,
                .names = {"fc1", "fc2"}};
  vision.merger = VisionSpec::MeanMerger{"mm_soft_emb_norm", "mm_input_projection_weight"};
  vision.names = names_of_gemma3_vision();
  vision.two_way_pictures = true;
  if (vision.hidden_size % vision.num_heads != 0) {
    keys.fail(fmt::format("hidden_size {} is not divisible by num_attention_heads {}",
                          vision.hidden_size, vision.num_heads));
  }
  if (keys.get<bool>("vision_use_head", true)) {
    keys.fail(
        "vision_use_head must be false: the tower of this family has no head, and one would not "
        "be trained");
  }
  if (const auto dropout = keys.get<double>("attention_dropout", 0.0); dropout != 0) {
    keys.fail(fmt::format("attention_dropout is {}, it must be 0 in the vision tower", dropout));
  }
  const int64_t side = reader.size("image_size", 224, int64_t{1} << 14),
                tokens = positive(given.whole, "mm_tokens_per_image", kMostIndexed, 256);
  vision.position_side = side / vision.patch_size;
  const int64_t of_side = std::llround(std::sqrt(static_cast<double>(tokens)));
  if (of_side * of_side != tokens || vision.position_side % of_side != 0 ||
      vision.position_side * vision.patch_size != side) {
    given.whole.fail(fmt::format(
        "mm_tokens_per_image is {}, image_size {} and patch_size {}: the tokens of a picture must "
        "be squares of whole patches",
        tokens, side, vision.patch_size));
  }
  vision.merge_size = vision.position_side / of_side;
  reader.require_known();
  return vision;
}

}  // namespace longspan
