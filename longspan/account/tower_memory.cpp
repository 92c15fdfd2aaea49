// D: model dim of the tower, I: width of its MLP, X: numbers of a patch, E: numbers of a feature.
#include "longspan/account/tower_memory.h"

#include <algorithm>

#include "longspan/spec/device_sizes.h"

namespace longspan {
namespace {

constexpr double kFloat = 4;

/// Bytes per patch of the tensors of a tower.
struct PatchSizes {
  explicit PatchSizes(const MemoryFacts& facts)
      : tower(facts.tower),
        residual(static_cast<double>(tower.spec.hidden_size * tower.residual_bytes)),
        compute(static_cast<double>(tower.spec.hidden_size * facts.compute_bytes)),
        exact(static_cast<double>(tower.spec.hidden_size) * kFloat),
        pixels(static_cast<double>(tower.spec.patch_dim()) * kFloat),
        log_sum_exp(static_cast<double>(tower.spec.num_heads) * kFloat),
        inner(static_cast<double>((std::ssize(tower.spec.mlp.names) - 1) *
                                  tower.spec.mlp.intermediate_size * facts.compute_bytes)) {}

  const MemoryFacts::Tower& tower;
  double residual, compute, exact;  // a hidden state, in the residual's dtype, in compute, in fp32
  double pixels, log_sum_exp;
  double inner;  // inner activations of the MLP
};

/// Returns the rows of a chunk of the MLP (vision/vision_block).
double chunk_rows(const MemoryFacts& facts) {
  const VisionSpec& vision = facts.tower.spec;
  const int64_t width = std::ssize(vision.mlp.names) * vision.mlp.intermediate_size;
  const int64_t rows =
      std::max<int64_t>(256, device_sizes(facts.cuda).feed_forward_bytes /
                                 std::max<int64_t>(1, width * facts.tower.residual_bytes));
  return static_cast<double>(std::min(rows, facts.tower.num_patches));
}

/// True if the patch embedding saves the pixels for its backward.
bool saves_pixels(const MemoryFacts& facts, const PatchSizes& of) {
  return facts.tower.first_saving_block == 0 &&
         static_cast<double>(facts.tower.num_patches) * of.pixels <=
             static_cast<double>(kPixelPartBytes);
}

/// Returns the temporary bytes of the patch embedding, which reads the pixels in parts.
double embedding_bytes(const MemoryFacts& facts, const PatchSizes& of) {
  const MemoryFacts::Tower& tower = facts.tower;
  const double part =
      std::clamp(static_cast<double>(kPixelPartBytes) / of.pixels,
                 static_cast<double>(tower.largest_frame), static_cast<double>(tower.num_patches));
  const double positions = tower.spec.position_side > 0 ? 3 * of.exact : 0.0;
  // The part, unless it is a saved tensor; with windows the part in another order; and a frame.
  const double pixels =
      ((saves_pixels(facts, of) ? 0 : 1) + (tower.spec.windows ? 1 : 0)) * of.pixels;
  return part * (pixels + of.compute + of.residual + positions) +
         static_cast<double>(tower.largest_frame) * of.pixels +
         static_cast<double>(tower.num_patches) * of.residual;
}

}  // namespace

TowerMemory tower_memory(const MemoryFacts& facts) {
  const MemoryFacts::Tower& tower = facts.tower;
  if (tower.num_patches == 0) return {};
  const PatchSizes of(facts);
  const VisionSpec& vision = tower.spec;
  const auto patches = static_cast<double>(tower.num_patches);
  const double num_features = patches / static_cast<double>(vision.merged_patches());
  const double saving_blocks =
      static_cast<double>(std::max<int64_t>(0, vision.depth - tower.first_saving_block));
  const bool saves = tower.first_saving_block <= vision.depth;

  TowerMemory memory;
  const double of_block = of.residual + of.compute + of.log_sum_exp;
  const double kept_inner = facts.checkpointing ? 0.0 : 3 * of.compute + of.residual + of.inner;
  // A merger saves its input. That of a merger of deepstack is the saved input of a block too,
  // unless the block saves nothing or offloads it.
  const bool offloads = facts.offload_activations && facts.checkpointing;
  const bool own_inputs = offloads || saving_blocks == 0;
  const double merger_inputs =
      saves ? of.residual * static_cast<double>(1 + (own_inputs ? std::ssize(vision.deepstack) : 0))
            : 0.0;
  memory.saved =
      patches * (merger_inputs + (offloads ? 0.0 : saving_blocks * (of_block + kept_inner)));
  memory.saved_on_host = offloads && !facts.in_file ? patches * saving_blocks * of_block : 0.0;
  if (saves_pixels(facts, of)) memory.saved += patches * of.pixels;
  const double feature = static_cast<double>(vision.feature_dim() * facts.compute_bytes);
  // Computed, sent, received, and received in the order of the tokens. At most, one rank's tokens
  // have all features.
  const double tokens = static_cast<double>(facts.num_tokens) /
                        static_cast<double>(std::max<int64_t>(1, facts.sequence_size));
  const double received = std::min(static_cast<double>(tower.most_features), tokens);
  memory.features = feature * (num_features + std::max(num_features + received, 2 * received));

  const double mlp_chunk = chunk_rows(facts) * (3 * of.inner + of.exact + of.compute);
  const double attention = of.residual + 4 * of.compute + of.log_sum_exp,
               mlp = 3 * of.residual + of.compute;
  const double merger =
      patches * (of.residual + 3 * of.compute + of.exact) + num_features * feature;
  memory.forward = std::max(
      {embedding_bytes(facts, of), patches * attention, patches * mlp + mlp_chunk, merger});
  if (saves) {
    const double block = offloads ? of.residual + of.compute : 0.0;  // of the block at work
    const double gradients = 3 * (facts.widens_attention ? of.exact : of.compute);
    const double cast = of.residual == of.compute ? 0.0 : of.compute;
    memory.backward = std::max(patches * (3 * of.residual) + mlp_chunk,
                               patches * (2 * of.residual + cast + 5 * of.compute + gradients));
    memory.backward += patches * block;
    memory.backward = std::max(memory.backward, merger + patches * 3 * of.compute);
  }
  memory.pixels = std::min(static_cast<double>(kPixelsAheadBytes),
                           static_cast<double>(tower.rows_ahead) * patches * of.pixels) +
                  static_cast<double>(tower.largest_frame) * of.pixels;
  return memory;
}

}  // namespace longspan
