#include "longspan/attention/saved_attention.h"

#include <ATen/core/Tensor.h>

#include <stdexcept>
#include <utility>

namespace longspan {

void AttentionCheckpoint::save(const AttentionResult& result) const {
  saved_->results.push_back({result.out_TNH.detach(), result.lse_NT});
}

AttentionResult AttentionCheckpoint::next() const {
  if (saved_->results.empty()) {
    throw std::logic_error("a replayed forward calls attention more often than the saved one did");
  }
  AttentionResult result = std::move(saved_->results.front());
  saved_->results.pop_front();
  return result;
}

void AttentionCheckpoint::prefetch(const at::Tensor& k_SMH, const at::Tensor& v_SMH,
                                   const SavedAttention::Prefetch& start) const {
  if (mode_ == Mode::kNone || !saved_->prefetches) return;
  if (saves()) return saved_->started_by_replay.push_back(start);
  if (saved_->started_by_replay.empty()) {
    throw std::logic_error("a replayed forward calls attention more often than the saved one did");
  }
  saved_->started_by_replay.front()(k_SMH, v_SMH);
  saved_->started_by_replay.pop_front();
}

}  // namespace longspan
