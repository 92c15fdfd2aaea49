#include "longspan/liveness/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <thread>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/config/memory_remedies.h"
#include "longspan/files/atomic_file.h"
#include "longspan/memory/out_of_memory.h"

namespace longspan {

bool is_disk_full(const std::exception& error) {
  const auto* agreed = dynamic_cast<const AgreedError*>(&error);
  const auto* elsewhere = dynamic_cast<const FailedElsewhere*>(&error);
  return dynamic_cast<const DiskFullError*>(&error) != nullptr ||
         (agreed != nullptr && agreed->disk_full) || (elsewhere != nullptr && elsewhere->disk_full);
}

bool is_agreed(const Group& world, const std::exception& error) {
  if (world.size() == 1) return dynamic_cast<const UserError*>(&error) != nullptr;
  return dynamic_cast<const AgreedError*>(&error) != nullptr ||
         dynamic_cast<const FailedElsewhere*>(&error) != nullptr;
}

std::string describe_failure(const std::exception& error) {
  std::string what = error.what();
  if (!is_out_of_memory(error)) return what.empty() ? "an error without a message" : what;
  what.resize(std::min(what.size(), what.find('\n')));
  return fmt::format(
      "out of memory ({}). What takes less: {}.{}", what, kMemoryRemedies,
      dynamic_cast<const std::system_error*>(&error) == nullptr
          ? ""
          : " Or a thread could not be started: raise the limit of threads (ulimit -u, the "
            "container's).");
}

namespace {

constexpr char kFull = 'f', kOther = 'o';  // first character: a full disk, or another cause

/// Returns the error of `phase`, or an empty string if it succeeded.
std::string failure_of(const std::function<void()>& phase) {
  try {
    phase();
    return "";
  } catch (const std::exception& error) {
    return (is_disk_full(error) ? kFull : kOther) + describe_failure(error);
  }
}

void agree(const Group& world, const std::string& failure) {
  std::vector<std::string> failures = world.gather_text(failure);
  bool everywhere = true, disk_full = true;
  int first = -1;
  for (int rank = world.size() - 1; rank >= 0; --rank) {
    if (failures[rank].empty()) {
      everywhere = false;
    } else {
      first = rank;
      disk_full = disk_full && failures[rank][0] == kFull;
      failures[rank].erase(0, 1);
    }
  }
  if (first < 0) return;
  const std::string message = everywhere || first == 0
                                  ? failures[first]
                                  : fmt::format("rank {}: {}", first, failures[first]);
  if (world.rank() == 0) throw AgreedError(message, disk_full);
  throw FailedElsewhere(message, disk_full);
}

}  // namespace

void all_or_none(const Group& world, const std::function<void()>& phase) {
  if (world.size() == 1) return phase();
  agree(world, failure_of(phase));
}

void all_or_none_patiently(const Group& world, Notices& notices,
                           const std::function<void()>& phase) {
  if (world.size() == 1) return phase();
  const std::string failure = failure_of(phase);
  notices.wait_for_all();
  agree(world, failure);
}

std::vector<bool> gather_answers(const Group& world, bool mine) {
  std::vector<bool> answers;
  for (const std::string& text : world.gather_text(mine ? "1" : "0")) {
    answers.push_back(text == "1");
  }
  return answers;
}

void rank_0_first(int rank, const std::function<void()>& phase) {
  try {
    phase();
  } catch (const UserError& error) {
    if (rank == 0) throw;
    std::this_thread::sleep_for(std::chrono::seconds(2));
    throw UserError(fmt::format("rank {}: {}", rank, error.what()));
  }
}

}  // namespace longspan
