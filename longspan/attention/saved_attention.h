// Gradient checkpointing that computes attention once.
#pragma once

#include <deque>

#include "longspan/attention/block_kernel.h"

namespace longspan {

/// Attention results of one checkpointed block. Its forward saves, without an autograd graph: each
/// leaf attention (the kernel, not the exchanges around it) appends its (out, lse). The
/// recomputation in the backward replays: each leaf takes its result from the front. This is exact,
/// and the quadratic work runs once. (MEMO, arXiv 2407.12117: out is 6% of a layer's activations,
/// attention most of its time.)
struct SavedAttention {
  std::deque<AttentionResult> results;
  /// The replaying backward already has the attention's output and needs only gradients. Exchanges
  /// then do not send the output again, and return a tensor of its shape without values.
  bool output_is_known = false;
};

/// The use of leaf results by a call of attention: save, replay, or neither. A
/// reference to a SavedAttention, which must outlive the call.
class AttentionCheckpoint {
 public:
  /// Neither.
  AttentionCheckpoint() = default;
  static AttentionCheckpoint saving(SavedAttention& results) { return {results, Mode::kSave}; }
  static AttentionCheckpoint replaying(SavedAttention& results) { return {results, Mode::kReplay}; }

  bool saves() const { return mode_ == Mode::kSave; }
  bool replays() const { return mode_ == Mode::kReplay; }
  /// Whether the call replays and the caller has its output (SavedAttention::output_is_known).
  bool output_is_known() const { return replays() && saved_->output_is_known; }

  /// Appends a result, without the autograd node that an output has where gradients are enabled:
  /// the node would hold the result. Only where it saves.
  void save(const AttentionResult& result) const;
  /// Takes the next saved result. Only where it replays. Throws std::logic_error where none is
  /// left.
  AttentionResult next() const;

 private:
  enum class Mode { kNone, kSave, kReplay };
  AttentionCheckpoint(SavedAttention& saved, Mode mode) : saved_(&saved), mode_(mode) {}

  SavedAttention* saved_ = nullptr;
  Mode mode_ = Mode::kNone;
};

}  // namespace longspan
