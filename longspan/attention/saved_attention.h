// Gradient checkpointing that never computes attention twice.
#pragma once

#include <deque>

#include "longspan/attention/block_kernel.h"

namespace longspan {

/// What the attention calls of one checkpointed block produced in the forward pass. The forward
/// runs inside a SaveScope (no autograd graph) and each leaf attention (the one that computes, not
/// the exchanges around it) appends its (out, lse). The recomputation in the backward pass runs
/// inside a ReplayScope and each leaf takes its result from the front instead of computing it:
/// exact, and the quadratic work is done once. (MEMO, arXiv 2407.12117: out is 6 % of a layer's
/// activations, attention most of its time.)
class SavedAttention {
 public:
  std::deque<AttentionResult> results;
  /// The backward that replays has the attention's output already and needs its gradients alone:
  /// exchanges do not send the output again, and return a tensor of its shape without values.
  bool output_is_known = false;

  /// The records that the current thread is filling, or replaying; null outside of a scope.
  static SavedAttention* saving();
  static SavedAttention* replaying();
};

class SaveScope {
 public:
  explicit SaveScope(SavedAttention& saved);
  ~SaveScope();
  SaveScope(const SaveScope&) = delete;
  SaveScope& operator=(const SaveScope&) = delete;

 private:
  SavedAttention* previous_;
};

class ReplayScope {
 public:
  explicit ReplayScope(SavedAttention& saved);
  ~ReplayScope();
  ReplayScope(const ReplayScope&) = delete;
  ReplayScope& operator=(const ReplayScope&) = delete;

 private:
  SavedAttention* previous_;
};

}  // namespace longspan
