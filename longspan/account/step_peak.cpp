#include "longspan/account/step_peak.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "longspan/account/logit_chunk.h"
#include "longspan/account/step_phases.h"
#include "longspan/account/tower_memory.h"
#include "longspan/spec/device_sizes.h"

namespace longspan {
namespace {

using Unit = MemoryFacts::Unit;

int64_t share_of(int64_t bytes, int64_t ranks) { return (bytes + ranks - 1) / ranks; }

/// Returns the layers that keep their feed-forward's tensors: the last ones of each kind.
std::vector<bool> layers_that_keep(const MemoryFacts& facts, int64_t num_layers) {
  std::vector<int64_t> left;
  for (const MemoryFacts::Layers& layers : facts.layers) left.push_back(layers.kept);
  std::vector<bool> keeps(num_layers);
  for (int64_t i = num_layers - 1; i >= 0; --i) {
    int64_t& of_kind = left[i % std::ssize(left)];
    keeps[i] = of_kind > 0;
    if (of_kind > 0) --of_kind;
  }
  return keeps;
}

/// The phases of a step, in order. Activation bytes count all tokens of a rank.
class Step {
 public:
  Step(const MemoryFacts& facts, const GradientSums& sums)
      : facts_(facts),
        sums_(sums),
        units_(facts.units),
        num_layers_(std::ssize(facts.units.layers)),
        tokens_(static_cast<double>(
            share_of(facts.num_tokens, std::max<int64_t>(1, facts.sequence_size)))),
        first_(first_trained()),
        tower_(tower_memory(facts)),
        keeps_(layers_that_keep(facts, num_layers_)) {
    for (int64_t i = 0; i < num_layers_; ++i) {
      const size_t kind = static_cast<size_t>(i) % facts.layers.size();
      const bool last = is_last(i), saves = i >= first_;
      const double saved = facts.offload_activations ? 0.0 : saved_by_layer(facts, kind, last);
      saved_.push_back(saves ? tokens_ * (saved + chosen_by_layer(facts, kind, last)) : 0.0);
      kept_.push_back(saves && keeps_[i] ? tokens_ * kept_by_layer(facts, kind, last) : 0.0);
    }
  }

  double peak() {
    reference_pass();
    forward();
    head();
    for (int64_t i = num_layers_ - 1; i >= first_; --i) backward(i);
    if (trains_embedding()) embedding();
    update();
    return peak_;
  }

  /// Returns the peak of a pass that saves nothing. `with_head`: the pass has its own logits.
  double peak_of_pass(bool with_head) {
    raise_peak(gathered(embedding_unit(), layer(0)) + tower_.forward);
    for (int64_t i = 0; i < num_layers_; ++i) {
      const size_t kind = static_cast<size_t>(i) % facts_.layers.size();
      const double input = static_cast<double>(facts_.residual_bytes * facts_.hidden_size),
                   mixed = saved_by_layer(facts_, kind, is_last(i));
      for (const StepPhase& phase : phases(i, /*in_forward=*/true)) {
        raise_peak(gathered(layer(i), layer(i + 1)) + tower_.features +
                   tokens_ * (phase.has_mixed ? mixed : input) + worked_with(phase));
      }
    }
    if (with_head) raise_peak(gathered(units_.head, {}) + worked_with(head_phase(facts_)));
    return peak_;
  }

 private:
  void raise_peak(double bytes) { peak_ = std::max(peak_, bytes); }

  double worked_with(const StepPhase& phase) const {
    return phase.per_token * tokens_ + phase.fixed;
  }

  bool trains_embedding() const { return embedding_unit().gradients > 0; }
  /// Returns the layer at which the backward ends: no lower layer is trained.
  int64_t first_trained() const {
    if (trains_embedding()) return 0;
    const auto trained =
        std::ranges::find_if(units_.layers, [](const Unit& unit) { return unit.gradients > 0; });
    return trained - units_.layers.begin();
  }

  bool is_last(int64_t i) const { return i + 1 == num_layers_; }
  const Unit& embedding_unit() const {
    return units_.head_is_embedding ? units_.head : units_.embedding;
  }

  const Unit& layer(int64_t i) const {
    static const Unit kNone;
    if (i == num_layers_) return units_.head;
    return i < 0 || i > num_layers_ ? kNone : units_.layers[static_cast<size_t>(i)];
  }

  double product_of(int64_t i) const { return static_cast<double>(layer(i).product); }

  /// A unit in use, and the next one in transit, which Gloo receives in a buffer of its own.
  double gathered(const Unit& unit, const Unit& next) const {
    const bool is_copied = !facts_.cuda && facts_.shard_size > 1;
    return static_cast<double>(unit.gathered + unit.unpacked + (is_copied ? 2 : 1) * next.gathered +
                               next.sent);
  }

  /// Returns the bytes of gradient sums when the last row has not made `not_made` bytes of
  /// gradients, and makes `unit` bytes.
  double sums_without(int64_t not_made, int64_t unit = 0) const {
    const bool are_whole = sums_.whole_bytes > 0;
    const int64_t missing = facts_.accumulates && !are_whole
                                ? 0
                                : (not_made + unit) / std::max<int64_t>(1, sums_.ranks),
                  of_rows_before = facts_.accumulates && are_whole ? not_made : 0;
    return static_cast<double>(std::max<int64_t>(0, sums_.device_bytes - missing) + of_rows_before);
  }

  double under_way(int64_t unit, int64_t before, int64_t before_that) const {
    if (!sums_.at_once) {
      return static_cast<double>(sums_.bucket_bytes + (sums_.widens ? 2 * before : 0));
    }
    return static_cast<double>(gradients_under_way(sums_, facts_.cuda, unit, before, before_that));
  }

  std::vector<StepPhase> phases(int64_t i, bool in_forward) const {
    std::vector<StepPhase> some = layer_phases(
        facts_, static_cast<size_t>(i) % facts_.layers.size(), {keeps_[i], is_last(i)});
    std::erase_if(some, [&](const StepPhase& phase) { return phase.in_forward != in_forward; });
    return some;
  }

  /// Returns the bytes of the embedding's gradients of the previous row, whose reduction ends with
  /// the first backward of this row.
  int64_t of_row_before(int64_t otherwise) const {
    if (!facts_.accumulates || !sums_.at_once || sums_.whole_bytes > 0) return otherwise;
    return embedding_unit().gradients;
  }

  /// In a step of several rows, all gradients of the previous row exist.
  double sums_of_rows_before() const {
    return facts_.accumulates ? static_cast<double>(std::max(sums_.whole_bytes, sums_.device_bytes))
                              : 0.0;
  }

  /// A teacher's pass is within a row. Other references compute all rows before the first loss.
  void reference_pass() {
    raise_peak((facts_.divergence.is_computed ? sums_of_rows_before() : 0.0) +
               static_cast<double>(reference_pass_bytes(facts_)));
    activations_ = teacher_bytes();
  }

  void forward() {
    const double sums = sums_of_rows_before();
    raise_peak(sums + gathered(embedding_unit(), layer(0)) + under_way(0, of_row_before(0), 0) +
               activations_ + tower_.saved + tower_.forward);
    activations_ += tower_.saved + tower_.features;
    for (int64_t i = 0; i < num_layers_; ++i) {
      activations_ += saved_[i] + kept_[i];
      const double others = sums + gathered(layer(i), layer(i + 1)) +
                            under_way(0, of_row_before(0), 0) + activations_;
      raise_peak(others + product_of(i));
      for (const StepPhase& phase : phases(i, /*in_forward=*/true)) {
        raise_peak(others + worked_with(phase));
      }
    }
  }

  void head() {
    not_made_ = units_.embedding.gradients;
    for (const Unit& unit : units_.layers) not_made_ += unit.gradients;
    const StepPhase phase = head_phase(facts_);
    // A sharded sum of a unit is allocated at the end of its backward; a gradient that accumulates
    // separately is allocated after the last logits are freed.
    const int64_t gradient = units_.head.gradients;
    const int64_t own =
        sums_.at_once ? gradient : std::min(gradient, static_cast<int64_t>(phase.before_gradient));
    raise_peak(sums_without(not_made_, own) + under_way(gradient, of_row_before(0), 0) +
               gathered(units_.head, layer(num_layers_ - 1)) + heads_of_teacher() + activations_ +
               worked_with(phase));
    activations_ -= teacher_bytes();
  }

  double teacher_bytes() const {
    return static_cast<double>(share_of(facts_.num_labels, facts_.sequence_size)) *
           teacher_states(facts_);
  }

  double heads_of_teacher() const {
    return facts_.divergence.is_computed ? gathered(facts_.reference->units.head, {}) : 0.0;
  }

  void backward(int64_t i) {
    not_made_ -= layer(i).gradients;
    const double others =
        sums_without(not_made_) + gathered(layer(i), layer(i - 1)) +
        under_way(layer(i).gradients, layer(i + 1).gradients, layer(i + 2).gradients);
    raise_peak(others + activations_ + product_of(i));  // of what the backward recomputes
    for (const StepPhase& phase : phases(i, /*in_forward=*/false)) {
      raise_peak(others + activations_ - (phase.has_kept ? 0.0 : kept_[i]) + worked_with(phase));
    }
    activations_ -= saved_[i] + kept_[i];
  }

  void embedding() {
    const int64_t own = embedding_unit().gradients;
    raise_peak(sums_without(0) + under_way(own, layer(0).gradients, layer(1).gradients) +
               tower_.saved +
               std::max(tower_.features + worked_with(embedding_phase(facts_)), tower_.backward));
  }

  void update() { raise_peak(sums_without(0) + static_cast<double>(facts_.update_bytes)); }

  const MemoryFacts& facts_;
  const GradientSums& sums_;
  const MemoryFacts::Units& units_;
  int64_t num_layers_;
  double tokens_;
  int64_t first_;  // the layer at which the backward ends
  TowerMemory tower_;
  std::vector<bool> keeps_;
  std::vector<double> saved_, kept_;  // per layer
  double activations_ = 0, peak_ = 0;
  int64_t not_made_ = 0;
};

}  // namespace

int64_t gradients_under_way(const GradientSums& sums, bool cuda, int64_t unit, int64_t before,
                            int64_t before_that) {
  if (!cuda) {
    if (sums.ranks == 1) return unit + before;
    // Large gradients are reduced in chunks; for small ones the received parts exist too. If the
    // sums are on the host, two units and a share pass through the device. If the sums are on the
    // device, sums_without() counts the sums, except the shares of these two units, which are not
    // allocated yet.
    const int64_t share = share_of(unit, sums.ranks);
    const int64_t at_once = unit + 2 * before + (sums.on_host ? share : -2 * share);
    return std::min(std::max(unit, at_once),
                    std::max(unit, before) + 4 * reduction_chunk_bytes(sums.ranks));
  }
  // A GPU reduces a unit's gradients during the next unit's backward. The gradients exist until the
  // end of their reduction, and the buffer of a copy to the host exists until the end of the copy.
  const auto landing = [&](int64_t bytes) {
    return sums.on_host && sums.ranks > 1 ? share_of(bytes, sums.ranks) : 0;
  };
  if (sums.ranks == 1) return unit + before + (sums.on_host ? before_that : 0);
  // NCCL's sum of a whole unit, which is added to the sum of earlier rows.
  const bool is_apart =
      sums.reduction == GradientReduction::kScatter && sums.added && !sums.on_host;
  return unit + before + bytes_under_reduction(sums.reduction, sums.ranks, before) +
         (is_apart ? share_of(before, sums.ranks) : 0) + landing(before) + landing(before_that);
}

int64_t bytes_under_reduction(GradientReduction reduction, int64_t ranks, int64_t bytes) {
  const int64_t chunk = reduction_chunk_bytes(ranks);
  switch (reduction) {
    case GradientReduction::kExchange:
      // As many bytes arrive as are sent. Large gradients are sent in copies of their chunks.
      return bytes <= chunk ? bytes : 2 * std::min(bytes, 2 * chunk);
    case GradientReduction::kScatter:
      return 0;
    case GradientReduction::kWidenedScatter:
      // A copy in fp32, of large gradients a chunk at a time.
      return bytes <= chunk ? 2 * bytes : 3 * std::min(bytes, 2 * chunk);
  }
  __builtin_unreachable();
}

int64_t reference_pass_bytes(const MemoryFacts& facts) {
  if (!facts.reference) return 0;
  const GradientSums none;
  return std::llround(
      Step(*facts.reference, none).peak_of_pass(/*with_head=*/!facts.divergence.is_computed));
}

int64_t step_peak_bytes(const MemoryFacts& facts, const GradientSums& sums) {
  if (facts.units.layers.empty() || facts.layers.empty()) return 0;
  return std::llround(Step(facts, sums).peak()) + device_sizes(facts.cuda).workspace_bytes;
}

}  // namespace longspan
