#include "longspan/attention/kept_attention.h"

#include <utility>

namespace longspan {
namespace {

thread_local KeptAttention* current_keeping = nullptr;
thread_local KeptAttention* current_replaying = nullptr;

}  // namespace

KeptAttention* KeptAttention::keeping() { return current_keeping; }
KeptAttention* KeptAttention::replaying() { return current_replaying; }

KeepScope::KeepScope(KeptAttention& kept) : previous_(std::exchange(current_keeping, &kept)) {}
KeepScope::~KeepScope() { current_keeping = previous_; }

ReplayScope::ReplayScope(KeptAttention& kept)
    : previous_(std::exchange(current_replaying, &kept)) {}
ReplayScope::~ReplayScope() { current_replaying = previous_; }

}  // namespace longspan
