#include "longspan/session/rows_ahead.h"

#include <algorithm>

namespace longspan {

void RowsAhead::read(std::span<const Row> rows, const SharedTower& tower, const Uses& uses) {
  std::erase_if(announced_, [](const auto& row) { return row.expired(); });
  std::vector<const Batch*> added;
  for (const Row& row : rows) {
    const auto& pictures = row.local.pictures;
    if (pictures == nullptr) continue;
    const bool is_known = std::ranges::any_of(
        announced_, [&](const auto& other) { return other.lock() == pictures; });
    if (!is_known) added.push_back(&row.local);
  }
  for (int pass = 0; pass < uses.num_passes; ++pass) {
    for (const Batch* row : added) {
      reader_.announce(row->pictures, tower.own_frames(*row), uses.of_pass);
    }
  }
  for (const Batch* row : added) announced_.push_back(row->pictures);
}

}  // namespace longspan
