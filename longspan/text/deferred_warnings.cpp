#include "longspan/text/deferred_warnings.h"

#include <mutex>
#include <utility>

namespace longspan {
namespace {

constexpr size_t kMostDeferred = 100;

struct Deferred {
  std::mutex mutex;
  std::vector<std::string> warnings;
};

/// Never destroyed, since static objects may still warn at exit.
Deferred& deferred() {
  static Deferred& deferred = *new Deferred;
  return deferred;
}

}  // namespace

void defer_warning(std::string text) {
  const std::lock_guard lock(deferred().mutex);
  if (deferred().warnings.size() < kMostDeferred) deferred().warnings.push_back(std::move(text));
}

std::vector<std::string> take_deferred_warnings() {
  const std::lock_guard lock(deferred().mutex);
  return std::exchange(deferred().warnings, {});
}

}  // namespace longspan
