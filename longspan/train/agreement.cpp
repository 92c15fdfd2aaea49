#include "longspan/train/agreement.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>
#include <vector>

#include "longspan/config/user_error.h"

namespace longspan {

void all_or_none(const Group& world, const std::function<void()>& phase) {
  if (world.size() == 1) return phase();
  std::string failure;
  try {
    phase();
  } catch (const std::exception& error) {
    failure = error.what();
    if (failure.empty()) failure = "an error without a message";
  }
  const std::vector<std::string> failures = world.gather_text(failure);
  bool everywhere = true;
  int first = -1;
  for (int rank = world.size() - 1; rank >= 0; --rank) {
    if (failures[rank].empty()) {
      everywhere = false;
    } else {
      first = rank;
    }
  }
  if (first < 0) return;
  const std::string message = everywhere || first == 0
                                  ? failures[first]
                                  : fmt::format("rank {}: {}", first, failures[first]);
  if (world.rank() == 0) throw UserError(message);
  throw FailedElsewhere(message);
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
