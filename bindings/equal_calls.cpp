#include "bindings/equal_calls.h"

#include <fmt/format.h>
#include <torch/library.h>

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "bindings/attention_context.h"
#include "bindings/registration.h"
#include "longspan/base/user_error.h"
#include "longspan/comm/process_group.h"
#include "longspan/rendezvous/communication_error.h"

namespace longspan {
namespace {

constexpr size_t kMostTexts = 1024;
constexpr char kRefused = '!', kAccepted = '=';

thread_local bool calls_compared = false;

/// Texts that were the same on all ranks, by process group. Every rank adds and drops the same
/// ones.
struct ComparedCalls {
  std::mutex mutex;
  std::map<std::string, std::set<std::string>> texts;
};

ComparedCalls& compared_calls() {
  static auto* calls = new ComparedCalls;
  return *calls;
}

bool was_compared(const std::string& process_group, const std::string& text) {
  ComparedCalls& all = compared_calls();
  const std::lock_guard lock(all.mutex);
  return all.texts[process_group].contains(text);
}

void keep_call(const std::string& process_group, const std::string& text) {
  ComparedCalls& all = compared_calls();
  const std::lock_guard lock(all.mutex);
  std::set<std::string>& texts = all.texts[process_group];
  if (texts.size() >= kMostTexts) texts.clear();
  texts.insert(text);
}

/// CPUs have connections of their own for comparisons: exchanges that are in flight do not delay
/// these. Another communicator of NCCL would take memory.
const Group& group_of_comparisons(const std::string& process_group, bool cuda,
                                  int64_t timeout_seconds) {
  if (cuda) return group_of(process_group, cuda, timeout_seconds);
  // group_of() has heads (1, 1, 1): other heads make another context.
  const AttentionSpec heads_of_comparisons = plain_attention(2, 1, 1);
  return context_of({process_group, "allgather", {}}, heads_of_comparisons, cuda, timeout_seconds)
      .mesh.sequence;
}

/// `failure`: of checks in Python; empty: none.
void compare_calls(const std::string& call, const std::string& failure,
                   const std::string& process_group, bool cuda, int64_t timeout_seconds) {
  for_python([&] {
    const auto check = [&] {
      if (!failure.empty()) throw UserError(failure);
    };
    require_equal_calls(process_group, cuda, timeout_seconds, check, [&] { return call; });
  });
}

}  // namespace

void require_equal_calls(const std::string& process_group, bool cuda, int64_t timeout_seconds,
                         const std::function<void()>& check,
                         const std::function<std::string()>& describe) {
  const bool is_alone = process_group.empty() || place_in(process_group).size == 1;
  if (is_alone || calls_compared) {
    check();
    return;
  }
  std::string own;
  std::optional<UserError> failure;
  try {
    check();
    own = kAccepted + describe();
  } catch (const UserError& error) {
    failure = error;
    own = std::string(1, kRefused) + error.what();
  }
  // The others may know their text, and be in the call's exchange.
  if (cuda && failure) throw UserError(*failure);
  if (cuda && was_compared(process_group, own)) return;
  std::vector<std::string> texts;
  try {
    texts = group_of_comparisons(process_group, cuda, timeout_seconds).gather_text(own);
  } catch (const CommunicationError&) {
    if (failure) throw UserError(*failure);  // the reason why the ranks do not meet
    throw;
  }
  if (failure) throw UserError(*failure);
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].starts_with(kRefused)) {
      throw UserError(fmt::format("rank {} of the group: {}", rank, texts[rank].substr(1)));
    }
  }
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    throw UserError(
        fmt::format("the ranks of the group make different calls: rank 0 {}, and rank {} {}. All "
                    "ranks must pass tensors of the same shapes and dtype, and the same other "
                    "arguments",
                    texts[0].substr(1), rank, texts[rank].substr(1)));
  }
  if (cuda) keep_call(process_group, own);
}

void forget_calls(const std::string& process_group) {
  ComparedCalls& all = compared_calls();
  const std::lock_guard lock(all.mutex);
  all.texts.erase(process_group);
}

bool set_calls_compared(bool compared) { return std::exchange(calls_compared, compared); }

TORCH_LIBRARY_FRAGMENT(longspan, library) {
  library.def("compare_calls(str call, str failure, str group, bool cuda, int timeout) -> ()",
              compare_calls);
  library.def("set_calls_compared(bool compared) -> bool", set_calls_compared);
}

}  // namespace longspan
