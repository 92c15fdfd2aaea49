#include "longspan/text/kept_warnings.h"

#include <mutex>
#include <utility>

namespace longspan {
namespace {

constexpr size_t kMostKept = 100;

struct Kept {
  std::mutex mutex;
  std::vector<std::string> warnings;
};

/// Never destroyed, since static objects may still warn at exit.
Kept& kept() {
  static Kept& kept = *new Kept;
  return kept;
}

}  // namespace

void keep_warning(std::string text) {
  const std::lock_guard lock(kept().mutex);
  if (kept().warnings.size() < kMostKept) kept().warnings.push_back(std::move(text));
}

std::vector<std::string> take_kept_warnings() {
  const std::lock_guard lock(kept().mutex);
  return std::exchange(kept().warnings, {});
}

}  // namespace longspan
