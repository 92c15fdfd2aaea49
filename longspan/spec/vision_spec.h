// A vision tower as data: from a picture's patches to features for the language model. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "longspan/spec/parameter_spec.h"

namespace longspan {

/// Patch embedding, positions, blocks, merger (Qwen2-VL, arXiv 2409.12191; SigLIP, arXiv
/// 2303.15343). A block is h + attention(norm(h)), then h + mlp(norm(h)).
struct VisionSpec {
  enum class Norm {
    kLayerNorm,  ///< with weight and bias
    kRmsNorm,    ///< with weight
  };
  enum class Activation { kQuickGelu, kGeluTanh, kSilu };
  /// act(x W1) W2, or with a gate (act(x G) * x U) D. All linear layers have biases.
  struct Mlp {
    int64_t intermediate_size = 0;
    Activation activation = Activation::kQuickGelu;
    bool has_gate = false;
    /// Names of the linear layers: two, or gate, up, down.
    std::vector<std::string_view> names = {};
    /// Returns the names of the linear layers in a language model's gated MLP.
    static std::vector<std::string_view> gated_names();

    bool operator==(const Mlp&) const = default;
  };
  /// Attention within square windows (Qwen2.5-VL, arXiv 2502.13923).
  struct Windows {
    int64_t side = 0;                       ///< side of a window, in merged patches
    std::vector<int64_t> full_blocks = {};  ///< blocks that attend to whole frames

    bool operator==(const Windows&) const = default;
  };
  /// Names of a projector's parts: a norm, then two linear layers, with GELU in between, over
  /// merge_size^2 patches.
  struct MlpMerger {
    std::string_view norm, first, second;  // names

    bool operator==(const MlpMerger&) const = default;
  };
  /// A projector: the mean of merge_size^2 patches, an RMSNorm that multiplies by 1 + weight, and a
  /// matrix [hidden_size, output_size] (Gemma 3, arXiv 2503.19786).
  struct MeanMerger {
    std::string_view norm, matrix;  // names

    bool operator==(const MeanMerger&) const = default;
  };
  /// Names of parameters without kVisionPrefix. Names of a block's parameters are without
  /// <blocks>.<number> too.
  struct Names {
    std::string_view patches, positions, blocks, attention_norm, mlp_norm;
    std::vector<std::string_view> qkv;  ///< one linear layer, or three: query, key, value
    std::string_view output, mlp;       ///< mlp: prefix of each of Mlp::names
    std::string_view last_norm;         ///< the norm after the blocks; empty: no such norm
    std::string_view merger, deepstack;

    bool operator==(const Names&) const = default;
  };
  /// Names in Qwen's models, without a norm after the blocks.
  static Names names_of_qwen();

  int64_t num_channels = 3, patch_size = 0;
  int64_t temporal_patch_size = 0;  ///< frames of a patch; 0: one frame, no dim in the weights
  int64_t merge_size = 0;
  int64_t depth = 0, hidden_size = 0, num_heads = 0;
  int64_t output_size = 0;  ///< hidden size of the language model
  bool has_patch_bias = false;
  /// Number of rows, and of columns, of the table of position embeddings; 0: no table. The table is
  /// interpolated to the size of each picture.
  int64_t position_side = 0;
  Norm norm = Norm::kLayerNorm;
  double norm_eps = 1e-6;
  /// Queries and keys are rotated by row and column; none: not rotated.
  std::optional<double> rotary_theta = {};
  Mlp mlp = {};
  std::optional<Windows> windows = {};  ///< none: all blocks attend to whole frames
  std::variant<MlpMerger, MeanMerger> merger = {};
  Names names = {};
  /// Blocks whose outputs are added to the first layers of the language model, each output after a
  /// separate merger (deepstack, Qwen3-VL, arXiv 2511.21631).
  std::vector<int64_t> deepstack = {};
  /// Tokens of a picture see each other in the language model (TwoWaySpan).
  bool two_way_pictures = false;

  double initializer_range = 0.02;

  /// Elements of a patch.
  int64_t patch_dim() const { return num_channels * frames_of_patch() * patch_size * patch_size; }
  int64_t frames_of_patch() const { return temporal_patch_size > 0 ? temporal_patch_size : 1; }
  int64_t merged_patches() const { return merge_size * merge_size; }
  /// Elements of a feature: output_size for the embedding and for each layer of deepstack.
  int64_t feature_dim() const { return output_size * (1 + std::ssize(deepstack)); }
  /// True if the block attends to whole frames.
  bool is_full(int64_t block) const;
  /// Units of parameters (ParameterSpec::unit), relative to the tower's first unit. Unit 0 has the
  /// patch embedding and the positions; the blocks, the merger with the norm before it, and
  /// deepstack's mergers follow.
  int block_unit(int64_t block) const { return static_cast<int>(1 + block); }
  int merger_unit() const { return static_cast<int>(1 + depth); }
  int deepstack_unit(int64_t i) const { return static_cast<int>(2 + depth + i); }

  bool operator==(const VisionSpec&) const = default;
};

/// Prefix of the names of a tower's parameters.
inline constexpr std::string_view kVisionPrefix = "visual.";

/// Returns the parameters of the tower and its projectors.
std::vector<ParameterSpec> parameters_of(const VisionSpec& vision, int first_unit);

/// Returns the FLOP of the forward pass of a frame of `num_patches` patches, for comparisons
/// between frames.
double frame_flops(const VisionSpec& vision, int64_t num_patches);

}  // namespace longspan
