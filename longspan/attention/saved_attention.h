// Gradient checkpointing that computes attention once.
#pragma once

#include <deque>

#include "longspan/attention/block_kernel.h"

namespace longspan {

/// Attention results of one checkpointed block. Its forward runs inside a SaveScope, without an
/// autograd graph, and each leaf attention (the kernel, not the exchanges around it) appends its
/// (out, lse). The recomputation in the backward runs inside a ReplayScope, and each leaf takes its
/// result from the front. This is exact, and the quadratic work runs once. (MEMO, arXiv 2407.12117:
/// out is 6% of a layer's activations, attention most of its time.)
class SavedAttention {
 public:
  std::deque<AttentionResult> results;
  /// The replaying backward already has the attention's output and needs only gradients. Exchanges
  /// then do not send the output again, and return a tensor of its shape without values.
  bool output_is_known = false;

  /// The results that the current thread saves, or replays; null outside of a scope.
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
