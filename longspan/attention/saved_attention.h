// Saved attention results, with which gradient checkpointing computes attention only once.
#pragma once

#include <deque>
#include <functional>

#include "longspan/attention/block_kernel.h"

namespace longspan {

/// Attention results of one checkpointed block. In the block's forward, which builds no autograd
/// graph, each leaf attention (the kernel, without the exchanges around the kernel) appends its
/// (out, lse). In the recomputation of the backward, each leaf attention takes the first remaining
/// result instead of computing the result again. The recomputation is exact, and the quadratic work
/// runs once. (MEMO, arXiv 2407.12117: out is 6% of a layer's activations, and attention is most of
/// the layer's time.)
struct SavedAttention {
  std::deque<AttentionResult> results;
  /// True if the backward already has the attention's output and needs only gradients. Exchanges
  /// then do not send the output again, and return a tensor of the output's shape without values.
  bool output_is_known = false;
  /// True if other work lies between the recomputation and attention's backward. Attention may then
  /// keep what a recomputation starts for the backward: exchanges of its keys and values.
  bool prefetches = false;
  using Prefetch = std::function<void(const at::Tensor& k_SMH, const at::Tensor& v_SMH)>;
  std::deque<Prefetch> started_by_replay;
};

/// Tells a call of attention to save the results of its leaf attentions, to replay saved results,
/// or to do neither. Refers to a SavedAttention, which must outlive the call.
class AttentionCheckpoint {
 public:
  /// The call neither saves nor replays.
  AttentionCheckpoint() = default;
  static AttentionCheckpoint saving(SavedAttention& results) { return {results, Mode::kSave}; }
  static AttentionCheckpoint replaying(SavedAttention& results) { return {results, Mode::kReplay}; }

  bool saves() const { return mode_ == Mode::kSave; }
  bool replays() const { return mode_ == Mode::kReplay; }
  /// True if the call replays and the caller already has the output
  /// (SavedAttention::output_is_known).
  bool output_is_known() const { return replays() && saved_->output_is_known; }

  /// Appends a result, detached from the autograd graph. A result with its autograd node would own
  /// itself (a reference cycle). May be called only if saves().
  void save(const AttentionResult& result) const;
  /// Removes and returns the next saved result. May be called only if replays(). Throws
  /// std::logic_error if no result is left.
  AttentionResult next() const;

  /// In a call that saves: keeps `start` if SavedAttention::prefetches. In a call that replays:
  /// calls the function that the saving call has kept, with this call's keys and values.
  void prefetch(const at::Tensor& k_SMH, const at::Tensor& v_SMH,
                const SavedAttention::Prefetch& start) const;

 private:
  enum class Mode { kNone, kSave, kReplay };
  AttentionCheckpoint(SavedAttention& saved, Mode mode) : saved_(&saved), mode_(mode) {}

  SavedAttention* saved_ = nullptr;
  Mode mode_ = Mode::kNone;
};

}  // namespace longspan
