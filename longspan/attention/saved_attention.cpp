#include "longspan/attention/saved_attention.h"

#include <utility>

namespace longspan {
namespace {

thread_local SavedAttention* current_saving = nullptr;
thread_local SavedAttention* current_replaying = nullptr;

}  // namespace

SavedAttention* SavedAttention::saving() { return current_saving; }
SavedAttention* SavedAttention::replaying() { return current_replaying; }

SaveScope::SaveScope(SavedAttention& saved) : previous_(std::exchange(current_saving, &saved)) {}
SaveScope::~SaveScope() { current_saving = previous_; }

ReplayScope::ReplayScope(SavedAttention& saved)
    : previous_(std::exchange(current_replaying, &saved)) {}
ReplayScope::~ReplayScope() { current_replaying = previous_; }

}  // namespace longspan
