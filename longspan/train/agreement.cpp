#include "longspan/train/agreement.h"

#include <fmt/format.h>

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

}  // namespace longspan
