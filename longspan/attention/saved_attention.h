// Gradient checkpointing that computes attention once.
#pragma once

#include <deque>

#include "longspan/attention/block_kernel.h"

namespace longspan {

/// Attention results of one checkpointed block. In the block's forward, which builds no autograd
/// graph, each leaf attention (the kernel, without the exchanges around it) appends its (out, lse).
/// In the recomputation of the backward, each leaf takes the first remaining result instead of
/// computing it. This is exact, and the quadratic work runs once. (MEMO, arXiv 2407.12117: out is
/// 6% of a layer's activations, attention most of its time.)
struct SavedAttention {
  std::deque<AttentionResult> results;
  /// The replaying backward already has the attention's output and needs only gradients. Exchanges
  /// then do not send the output again, and return a tensor of its shape without values.
  bool output_is_known = false;
};

/// Says whether a call of attention saves the results of its leaves, replays them, or does neither.
/// Refers to a SavedAttention, which must outlive the call.
class AttentionCheckpoint {
 public:
  /// The call neither saves nor replays.
  AttentionCheckpoint() = default;
  static AttentionCheckpoint saving(SavedAttention& results) { return {results, Mode::kSave}; }
  static AttentionCheckpoint replaying(SavedAttention& results) { return {results, Mode::kReplay}; }

  bool saves() const { return mode_ == Mode::kSave; }
  bool replays() const { return mode_ == Mode::kReplay; }
  /// Whether the call replays and the caller has its output (SavedAttention::output_is_known).
  bool output_is_known() const { return replays() && saved_->output_is_known; }

  /// Appends a result, detached from the autograd graph: with its node, the result would own
  /// itself. Call only if saves().
  void save(const AttentionResult& result) const;
  /// Removes and returns the next saved result. Call only if replays(). Throws std::logic_error if
  /// none is left.
  AttentionResult next() const;

 private:
  enum class Mode { kNone, kSave, kReplay };
  AttentionCheckpoint(SavedAttention& saved, Mode mode) : saved_(&saved), mode_(mode) {}

  SavedAttention* saved_ = nullptr;
  Mode mode_ = Mode::kNone;
};

}  // namespace longspan
